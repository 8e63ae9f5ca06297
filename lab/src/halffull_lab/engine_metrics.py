"""The emulated engine's /metrics, in Prometheus' text format, under vLLM's names and labels. Pure.

Of vLLM's histograms it has sum, count and the one bucket that the format demands; of TTFT all. Times are the
seconds of whoever reads, except how late the emulation ran, which is in virtual ones.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from halffull_lab.engine_requests import EngineLimits, Totals
from halffull_larry.snapshot import Snapshot

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TTFT_SECONDS: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""Upper bounds of TTFT's buckets, s (vllm/v1/metrics/loggers.py)."""


def exposition(
    *,
    model: str,
    limits: EngineLimits,
    snapshot: Snapshot,
    totals: Totals,
    started: float,
    late: tuple[float, float],
    ttft: Sequence[int] = (),
) -> str:
    """The whole page.

    Args:
        model: the served name, a label.
        limits: the engine's.
        snapshot: the engine's.
        totals: the engine's.
        started: Unix time, for the `_created` samples that prometheus-client adds.
        late: the longest and the sum of the times by which ends of steps were handled late.
        ttft: first tokens in each bucket of `TTFT_SECONDS`; none where nobody draws them.
    """
    label = f'engine="0",model_name={json.dumps(model)}'
    lines: list[str] = []

    def family(kind: str, name: str, samples: Mapping[str, float]) -> None:
        bare = name.removesuffix("_total")
        lines.extend((f"# HELP {bare} As vLLM has it.", f"# TYPE {bare} {kind}"))
        lines.extend(f"{name}{labels} {float(value)}" for labels, value in samples.items())
        if kind == "counter":
            lines.append(f"# TYPE {bare}_created gauge")
            lines.extend(f"{bare}_created{labels} {started}" for labels in samples)

    def sample(kind: str, name: str, value: float) -> None:
        family(kind, name, {f"{{{label}}}" if name.startswith("vllm:") else "": value})

    def histogram(name: str, total: float, count: int, buckets: Mapping[float, int] = MappingProxyType({})) -> None:
        lines.extend(
            (
                f"# HELP {name} As vLLM has it.",
                f"# TYPE {name} histogram",
                *(f'{name}_bucket{{{label},le="{bound}"}} {float(below)}' for bound, below in buckets.items()),
                f'{name}_bucket{{{label},le="+Inf"}} {float(count)}',
                f"{name}_count{{{label}}} {float(count)}",
                f"{name}_sum{{{label}}} {float(total)}",
                f"# TYPE {name}_created gauge",
                f"{name}_created{{{label}}} {started}",
            )
        )

    used = snapshot.total_tokens - snapshot.free_tokens
    sample("gauge", "vllm:num_requests_running", snapshot.running)
    sample("gauge", "vllm:num_requests_waiting", snapshot.waiting)
    sample("gauge", "vllm:kv_cache_usage_perc", used / snapshot.total_tokens)
    sample("counter", "vllm:num_preemptions_total", totals.preemptions)
    sample("counter", "vllm:prompt_tokens_total", totals.prompt_tokens)
    sample("counter", "vllm:generation_tokens_total", totals.generation_tokens)
    endings = {"stop": 0, "length": totals.finished, "abort": totals.aborted}
    family(
        "counter",
        "vllm:request_success_total",
        {f'{{{label},finished_reason="{reason}"}}': value for reason, value in endings.items()},
    )
    buckets = dict(zip(TTFT_SECONDS, accumulate(ttft), strict=False))
    histogram("vllm:time_to_first_token_seconds", snapshot.ttft_seconds, snapshot.first_tokens, buckets)
    histogram("vllm:inter_token_latency_seconds", totals.itl_seconds, totals.itl_count)
    histogram("vllm:e2e_request_latency_seconds", totals.e2e_seconds, totals.finished)
    histogram("vllm:request_prompt_tokens", totals.finished_prompt_tokens, totals.finished)
    histogram("vllm:request_generation_tokens", snapshot.generation_tokens, totals.finished)
    config = f'block_size="{limits.block_size}",cache_dtype="auto",enable_prefix_caching="False",engine="0"'
    family("gauge", "vllm:cache_config_info", {f'{{{config},num_gpu_blocks="{limits.total_blocks}"}}': 1})
    sample("gauge", "halffull_engine_late_seconds_max", late[0])
    sample("counter", "halffull_engine_late_seconds_total", late[1])
    sample("counter", "halffull_engine_steps_total", snapshot.steps)
    return "\n".join((*lines, ""))
