"""Real runs beside simulated ones of the same requests: figures, and their ratio with its uncertainty. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from halffull_lab.figures import Bootstrap, Outcomes, Ratio, interval, quantiles, ratio
from halffull_lab.table import ratio_text, seconds

FIGURES: Final = {"TTFT p50": ("ttft", 50.0), "TTFT p95": ("ttft", 95.0), "TGT p50": ("tgt", 50.0)}
RESAMPLES: Final = 500

Compared = Mapping[str, tuple[Ratio, Ratio, Ratio]]
"""By name of `FIGURES`: real and simulated, s, and simulated ÷ real; each with its 95% interval."""


def compare(real: Sequence[Outcomes], simulated: Sequence[Outcomes]) -> Compared:
    """Figures over all runs of either kind.

    The bootstrap draws runs, and blocks of requests that are the same for both kinds.

    Raises:
        ValueError: no runs, not as many of either kind, or not of as many requests.
    """
    counts = [len(run) for run in real]
    if not counts or counts != [len(run) for run in simulated] or len(set(counts)) > 1:
        raise ValueError(f"runs of {counts} and {[len(run) for run in simulated]} requests cannot be compared")
    bootstrap = Bootstrap(counts, seed=0, resamples=RESAMPLES, same_arrivals=True)
    found = {}
    for name, (measure, q) in FIGURES.items():
        pooled = [np.concatenate([getattr(run, measure) for run in runs]) for runs in (real, simulated)]
        values = [quantiles(each, (q,))[0] for each in pooled]
        draws = [bootstrap.percentiles(each, (q,))[:, 0] for each in pooled]
        ours, theirs = (Ratio(value, *interval(drawn)) for value, drawn in zip(values, draws, strict=True))
        found[name] = ours, theirs, ratio(values[1], draws[1], values[0], draws[0])
    return found


def table(rows: Mapping[str, Compared]) -> str:
    """In Markdown, a row for each setup."""
    lines = [["setup", *(f"{name}: real / simulated, s | simulated ÷ real" for name in FIGURES)]]
    lines += [["---"] * (1 + 2 * len(FIGURES))]
    for name, compared in rows.items():
        cells = [
            f"{seconds(real.value)} / {seconds(simulated.value)} | {ratio_text(off)}"
            for real, simulated, off in compared.values()
        ]
        lines.append([name, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
