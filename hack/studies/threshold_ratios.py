"""Study A in one table: figures with a threshold for long prefills ÷ those without, over many kinds of traffic.

    .venv/bin/python hack/studies/threshold_ratios.py fresh --policies LARRY --settings 1/4 1/2 h0.75 1/4+h0.75

Geometric mean (worst, best) over the slices of the SET; `short` and `long` are the bands up to 512 and from 4,096
prompt tokens. A setting is a threshold in tokens or as a share of the step's budget, h and the share that short ones
may take under the proposal of headroom.py, or both.
"""

import argparse
from collections.abc import Callable

import numpy as np
from headroom import HeadroomEngine
from runs import Run, emulated, limits_of, play, traffic

from halffull_lab.engine import Engine
from halffull_lab.figures import in_band, percentile
from halffull_lab.latency import PROFILES

THRESHOLDS = ("128", "256", "512", "768", "1024", "2048", "4096")
SETS = {
    "chosen": [("70b-2xh100", name) for name in ("code:0-50@1.5", "code:0-50@1", "conv:25-50@5.5", "conv:25-50@6.25")],
    "fresh": [
        ("70b-2xh100", "code:50-100@1.5"),
        ("70b-2xh100", "code:50-100@2.5"),
        ("70b-2xh100", "code:0-100@4:poisson1"),
        ("70b-2xh100", "code:0-100@3:burst2"),
        ("70b-2xh100", "conv:0-25@5"),
        ("70b-2xh100", "conv:50-75@7"),
        ("70b-2xh100", "conv:75-100@6.5:poisson3"),
        ("70b-2xh100", "conv:75-100@6:burst4"),
        ("8b-a100", "code:50-100@2"),
        ("8b-a100", "conv:50-75@5.5"),
        ("8b-a100", "conv:75-100@6:poisson5"),
    ],
    "documents": [
        ("70b-2xh100", "conv:0-50@3:documents1"),
        ("70b-2xh100", "conv:50-100@5:documents2"),
        ("70b-2xh100", "code:0-100@3:documents3"),
        ("8b-a100", "conv:50-100@4:documents4"),
    ],
}
FIGURES: dict[str, Callable[[Run], float]] = {
    **{f"TTFT p{q}": lambda run, q=q: percentile(run.outcomes.ttft, q) for q in (50, 95, 99)},
    "max": lambda run: percentile(run.outcomes.ttft, 100),
    "norm p95": lambda run: percentile(run.outcomes.normalized_ttft, 95),
    **{f"short p{q}": lambda run, q=q: _band(run, (1, 513), q) for q in (50, 95, 99)},
    **{f"long p{q}": lambda run, q=q: _band(run, (4096, None), q) for q in (50, 95)},
    "TGT p50": lambda run: percentile(run.outcomes.tgt, 50),
    "TGT p95": lambda run: percentile(run.outcomes.tgt, 95),
    "TPOT p50": lambda run: percentile(run.outcomes.tpot, 50),
    "TPOT p99": lambda run: percentile(run.outcomes.tpot, 99),
    "busy": lambda run: run.busy,
}


def _band(run: Run, band: tuple[int, int | None], q: float) -> float:
    return percentile(run.outcomes.ttft[in_band(run.outcomes.prompt_tokens, band)], q)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--policies", nargs="+", default=["FCFS", "LARRY"])
    parser.add_argument("--budgets", nargs="+", type=int, default=[1024, 2048, 8192], help="max_num_batched_tokens")
    parser.add_argument("--settings", nargs="+", default=THRESHOLDS)
    parser.add_argument("--each", action="store_true", help="every slice by itself too")
    arguments = parser.parse_args()
    cases = [(profile, name, traffic(name)) for profile, name in SETS[arguments.set]]
    header = ["policy", "budget", "setting", *FIGURES, "preempted"]
    print("|", " | ".join(header), "|")
    print("|", " | ".join("---" for _ in header), "|")
    for policy in arguments.policies:
        for budget in arguments.budgets:
            base: list[list[float]] = []
            for setting in ("0", *arguments.settings):
                threshold, share = parse(setting, budget)
                if threshold >= budget:
                    continue
                rows, preempted = [], 0
                for profile, _, trace in cases:
                    run = play(engine(profile, policy, budget, threshold, share), trace)
                    rows.append([figure(run) for figure in FIGURES.values()])
                    preempted += run.preemptions
                base = base or rows
                ratios = np.array(rows) / np.array(base)
                if arguments.each and base is not rows:
                    for (profile, name, _), one in zip(cases, ratios, strict=True):
                        print(f"| {profile} {name} | | ", " | ".join(f"{ratio:.2f}" for ratio in one), "| |")
                cells = (
                    f"{np.exp(np.log(column).mean()):.2f} ({column.max():.2f}, {column.min():.2f})"
                    for column in ratios.T
                )
                print(f"| {policy} | {budget} | {setting} |", " | ".join(cells), f"| {preempted} |", flush=True)


def parse(setting: str, budget: int) -> tuple[int, float]:
    """Threshold in tokens, and share of the headroom."""
    threshold, share = 0, 0.0
    for part in setting.split("+"):
        if part.startswith("h"):
            share = float(part[1:])
        elif "/" in part:
            above, below = part.split("/")
            threshold = budget * int(above) // int(below)
        else:
            threshold = int(part)
    return threshold, share


def engine(profile: str, policy: str, budget: int, threshold: int, share: float) -> Engine:
    """A new one."""
    limits = limits_of(profile, max_tokens_per_batch=budget, long_prefill_token_threshold=threshold)
    if share:
        return HeadroomEngine(latency=PROFILES[profile].latency, limits=limits, policy=policy, share=share)
    return emulated(profile, limits, policy)


if __name__ == "__main__":
    main()
