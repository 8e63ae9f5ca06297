"""The scheduler's own figures as Prometheus text, served beside the load report. Pure."""

from halffull_larry.accounts import BANDS, WAITING_SECONDS, Accounts
from halffull_larry.report import Identity, Snapshot

__all__ = ["exposition"]


def exposition(identity: Identity, snapshot: Snapshot, accounts: Accounts, *, vllm_version: str) -> bytes:
    """Text in Prometheus' format 0.0.4. Written here, because the package declares no dependency."""
    stepped_aside = identity.scheduler.startswith("Stock")
    lines = [
        *_head("info", "gauge", "What orders the waiting queue, on which vLLM."),
        f'halffull_larry_info{{scheduler="{_escape(identity.scheduler)}",vllm="{_escape(vllm_version)}"}} 1',
        *_single("active", "gauge", "0 when the plugin stepped aside.", int(not stepped_aside)),
        *_single("waiting_requests", "gauge", "Requests that wait, in every queue.", snapshot.waiting),
        *_single("running_requests", "gauge", "Requests that run.", snapshot.running),
        *_single("queued_tokens", "gauge", "Prompt tokens not computed yet.", snapshot.queued_tokens),
        *_single(
            "reordered_requests_total", "counter", "Requests admitted before one that waits longer.", accounts.reordered
        ),
        *_single(
            "unservable_requests_total", "counter", "Prompts larger than the KV cache, ended here.", accounts.unservable
        ),
        *_head("waiting_seconds", "histogram", "Wait from arrival to admission, by prompt tokens (upper bound)."),
    ]
    for bound, counts, seconds in zip((*BANDS, "+Inf"), accounts.waited, accounts.waited_seconds, strict=True):
        total = 0
        for le, count in zip((*WAITING_SECONDS, "+Inf"), counts, strict=True):
            total += count
            lines.append(f'halffull_larry_waiting_seconds_bucket{{prompt_tokens="{bound}",le="{le}"}} {total}')
        lines.append(f'halffull_larry_waiting_seconds_sum{{prompt_tokens="{bound}"}} {seconds:.6f}')
        lines.append(f'halffull_larry_waiting_seconds_count{{prompt_tokens="{bound}"}} {total}')
    return ("\n".join(lines) + "\n").encode()


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP halffull_larry_{name} {text}", f"# TYPE halffull_larry_{name} {kind}"


def _single(name: str, kind: str, text: str, value: int) -> tuple[str, str, str]:
    return (*_head(name, kind, text), f"halffull_larry_{name} {value}")


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
