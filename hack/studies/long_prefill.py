"""Study A: what vLLM's long_prefill_token_threshold does for short prompts behind a long prefill in progress.

    .venv/bin/python hack/studies/long_prefill.py code:0-50@1.5 --budgets 1024 2048 8192
    .venv/bin/python hack/studies/long_prefill.py code:0-50@1.5 --bands
    PYTHONPATH=larry/src:lab/src VLLM_PYTHON hack/studies/long_prefill.py code:0-50@1.5 --real [--async] [--adaptive]

The emulated core equals vLLM's scheduler with the plugin step for step (tests/vllm/test_virtual_engine.py); --real runs
the latter, and `Stock` vLLM's own without the plugin.
"""

import argparse
import gc
from typing import Any

import numpy as np
from runs import Run, capacity, emulated, limits_of, play, traffic

from halffull_lab.figures import BANDS, band_name, in_band, percentile
from halffull_lab.latency import PROFILES

THRESHOLDS = (0, 128, 256, 384, 512, 768, 1024, 2048)


def main() -> None:
    """Print a table per slice."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slices", nargs="+", help="for example code:0-50@1.5 or conv:0-25@5:poisson1")
    parser.add_argument("--profile", default="70b-2xh100", choices=sorted(PROFILES))
    parser.add_argument("--policies", nargs="+", default=["FCFS", "LARRY"])
    parser.add_argument("--budgets", nargs="+", type=int, default=[1024], help="max_num_batched_tokens")
    parser.add_argument("--thresholds", nargs="+", type=int, default=THRESHOLDS)
    parser.add_argument("--kv-tokens", type=int, help="instead of the profile's")
    parser.add_argument("--bands", action="store_true", help="TTFT by prompt length too")
    parser.add_argument("--capacity", action="store_true", help="requests/s when never idle too")
    parser.add_argument("--real", action="store_true", help="vLLM's scheduler instead of the emulated core")
    parser.add_argument("--async", dest="asynchronous", action="store_true", help="with --real: AsyncScheduler")
    parser.add_argument("--adaptive", action="store_true", help="with --real: the adaptive threshold")
    arguments = parser.parse_args()
    for name in arguments.slices:
        study(name, arguments)


def study(name: str, arguments: argparse.Namespace) -> None:
    """One table."""
    trace = traffic(name)
    print(f"\n## {name}, {arguments.profile}, {len(trace)} requests")
    bands = [band for band in BANDS if in_band(trace.prompt_tokens, band).any()]
    header = ["policy", "budget", "threshold", "TTFT p50", "p95", "p99", "max", "norm p95 ms", "TGT p50", "p95"]
    header += ["TPOT p50 ms", "p99 ms", "busy s", "preempted"]
    header += [f"{band_name(band)} p50/p95/p99" for band in bands] if arguments.bands else []
    header += ["capacity/s"] if arguments.capacity else []
    print("|", " | ".join(header), "|")
    print("|", " | ".join("---" for _ in header), "|")
    for policy in arguments.policies:
        for budget in arguments.budgets:
            for threshold in arguments.thresholds:
                if threshold < budget:
                    run = play(engine(policy, budget, threshold, arguments), trace)
                    row = [policy, str(budget), str(threshold), *figures(run)]
                    row += [cells(run, band) for band in bands] if arguments.bands else []
                    if arguments.capacity:
                        row.append(f"{capacity(engine(policy, budget, threshold, arguments), trace):.2f}")
                    print("|", " | ".join(row), "|", flush=True)


def engine(policy: str, budget: int, threshold: int, arguments: argparse.Namespace) -> Any:
    """A new one."""
    changes = {"max_tokens_per_batch": budget, "long_prefill_token_threshold": threshold}
    limits = limits_of(arguments.profile, **changes)
    if arguments.kv_tokens:
        changes["total_blocks"] = arguments.kv_tokens // limits.block_size
        limits = limits_of(arguments.profile, **changes)
    if not arguments.real:
        return emulated(arguments.profile, limits, policy)
    from halffull_lab.vllm_engine import VLLMEngine  # noqa: PLC0415  only where vLLM is installed

    made = VLLMEngine(
        latency=PROFILES[arguments.profile].latency,
        limits=limits,
        policy=policy,
        asynchronous=arguments.asynchronous,
        adaptive_threshold=arguments.adaptive,
    )
    gc.collect()
    gc.freeze()  # a third of the time otherwise goes into walking vLLM's modules
    return made


def figures(run: Run) -> list[str]:
    """The columns that every table has."""
    ttft, tgt, tpot = run.outcomes.ttft, run.outcomes.tgt, run.outcomes.tpot * 1000
    return [
        *(f"{percentile(ttft, q):.2f}" for q in (50, 95, 99, 100)),
        f"{percentile(run.outcomes.normalized_ttft, 95) * 1000:.1f}",
        *(f"{percentile(tgt, q):.2f}" for q in (50, 95)),
        *(f"{percentile(tpot, q):.0f}" for q in (50, 99)),
        f"{run.busy:.0f}",
        str(run.preemptions),
    ]


def cells(run: Run, band: tuple[int, int | None]) -> str:
    """TTFT of one band of prompt lengths, s."""
    times: Any = run.outcomes.ttft[in_band(run.outcomes.prompt_tokens, band)]
    return "/".join(f"{percentile(np.asarray(times), q):.2f}" for q in (50, 95, 99))


if __name__ == "__main__":
    main()
