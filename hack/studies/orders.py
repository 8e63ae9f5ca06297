"""Study B: LARRY, LARRYPlus and FCFS on traffic that LARRYPlus was not tuned on.

    .venv/bin/python hack/studies/orders.py [--each] [--variants] [--groups "chat, heavy" bursts]

TTFT: p50, p95 and the p95 of TTFT ÷ prompt tokens over those of LARRY (α = 1); p99 and max over those of FCFS.
Geometric mean (worst) per group of traffic. The rows and rates that LARRYPlus was chosen on (chat 25–75%, code 0–50%)
are not among them.
"""

import argparse
from collections.abc import Callable

import numpy as np
from runs import Run, limits_of, play, traffic

from halffull_lab.engine import Engine
from halffull_lab.figures import percentile
from halffull_lab.latency import PROFILES
from halffull_larry.lanes import LARRYPlus
from halffull_larry.ordering import FCFS, LARRY, Ordering

BIG, SMALL = "70b-2xh100", "8b-a100"
GROUPS = {
    "chat, moderate": [
        (BIG, "conv:0-25@5.5"),
        (BIG, "conv:75-100@5.5"),
        (BIG, "conv:0-25@6:poisson1"),
        (SMALL, "conv:75-100@5"),
    ],
    "chat, heavy": [
        (BIG, "conv:0-25@7"),
        (BIG, "conv:75-100@7.5"),
        (BIG, "conv:75-100@8:poisson2"),
        (SMALL, "conv:0-25@6.5"),
    ],
    "code, moderate": [(BIG, "code:50-100@1.5"), (BIG, "code:50-100@4:poisson3"), (SMALL, "code:50-100@1.5")],
    "code, heavy": [(BIG, "code:50-100@3"), (BIG, "code:50-100@5.5:poisson4"), (SMALL, "code:50-100@5.5:poisson5")],
    "bursts": [
        (BIG, "conv:0-25@5.5:burst6"),
        (BIG, "conv:75-100@6.5:burst7"),
        (BIG, "code:50-100@4:burst8"),
        (SMALL, "conv:75-100@5:burst9"),
    ],
    "documents": [(BIG, "conv:75-100@4:documents10"), (SMALL, "code:50-100@3:documents11")],
}


def changed(**constants: float) -> Callable[[], Ordering]:
    """LARRYPlus with other constants."""
    return type("Variant", (LARRYPlus,), constants)


POLICIES: dict[str, Callable[[], Ordering]] = {
    "FCFS": FCFS,
    "LARRY α=1": LARRY,
    "LARRY α=500": lambda: LARRY(500.0),
    "LARRYPlus": LARRYPlus,
}
VARIANTS: dict[str, Callable[[], Ordering]] = {
    "γ=0.7": changed(GAMMA=0.7),
    "γ=1.3": changed(GAMMA=1.3),
    "K=5": changed(K=5.0),
    "K=20": changed(K=20.0),
    "K=50": changed(K=50.0),
    "W=300": changed(WINDOW=300.0),
}


def figures(run: Run) -> list[float]:
    """TTFT p50, p95, p99, max, normalised p95."""
    ttft = run.outcomes.ttft
    return [*(percentile(ttft, q) for q in (50, 95, 99, 100)), percentile(run.outcomes.normalized_ttft, 95)]


def main() -> None:
    """Print a table per group, and one over all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", action="store_true", help="every slice by itself too")
    parser.add_argument("--variants", action="store_true", help="LARRYPlus with other constants too")
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    arguments = parser.parse_args()
    policies = POLICIES | (VARIANTS if arguments.variants else {})
    print("| traffic | policy | p50 ÷ LARRY | p95 ÷ LARRY | norm p95 ÷ LARRY | p99 ÷ FCFS | max ÷ FCFS |")
    print("|---|---|---|---|---|---|---|")
    everything: dict[str, list[list[float]]] = {name: [] for name in policies}
    for group in arguments.groups:
        cases = GROUPS[group]
        ratios: dict[str, list[list[float]]] = {name: [] for name in policies}
        for profile, case in cases:
            trace = traffic(case)
            found = {}
            for name, make in policies.items():
                engine = Engine(latency=PROFILES[profile].latency, limits=limits_of(profile), ordering=make())
                found[name] = figures(play(engine, trace))
            larry, fcfs = found["LARRY α=1"], found["FCFS"]
            for name, (p50, p95, p99, longest, norm) in found.items():
                row = [p50 / larry[0], p95 / larry[1], norm / larry[4], p99 / fcfs[2], longest / fcfs[3]]
                ratios[name].append(row)
                everything[name].append(row)
                if arguments.each:
                    seconds = "/".join(f"{value:.2f}" for value in (p50, p95, p99, longest))
                    print(f"| {profile} {case} {seconds} s | {name} |", " | ".join(f"{one:.2f}" for one in row), "|")
        table(group, ratios)
    table("all", everything)


def table(group: str, ratios: dict[str, list[list[float]]]) -> None:
    """Geometric mean and worst of each column."""
    for name, rows in ratios.items():
        columns = np.array(rows).T
        cells = (f"{np.exp(np.log(column).mean()):.2f} ({column.max():.2f})" for column in columns)
        print(f"| {group} | {name} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
