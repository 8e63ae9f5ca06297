"""What an experiment found: figures with their uncertainty, and its JSON. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from halffull_lab.figures import (
    Bootstrap,
    Ratio,
    finite_or_none,
    interval,
    quantiles,
    ratio,
    unequal_failures,
)
from halffull_lab.simulation.campaign import CellRuns, Schedule
from halffull_lab.simulation.cluster import Run
from halffull_lab.simulation.experiment import Cell, Experiment

MEASURES: Final = ("ttft", "normalized_ttft", "tgt")
"""Of `figures.Outcomes`, s, one value per request."""
PERCENTILES: Final = (50.0, 95.0, 99.0, 100.0)
RESAMPLES: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of the compared, its seeds pooled."""

    runs: tuple[Run, ...]
    figures: Mapping[str, Ratio]
    """`ttft_p50` and so on, s, with their intervals."""
    gains: Mapping[str, Ratio]
    """Figure of the reference ÷ figure of this: above 1, this is better; none for the reference itself."""
    over_rivals: Mapping[str, Ratio]
    """The best of the rivals' figures ÷ figure of this, best in each draw of the interval; none for a rival."""

    def pooled(self, measure: str) -> NDArray[np.float64]:
        """The values of a measure of every request of every seed, s."""
        return np.concatenate([getattr(run.outcomes, measure) for run in self.runs])

    @property
    def requests(self) -> int:
        """Of all seeds."""
        return sum(len(run.outcomes) for run in self.runs)

    @property
    def errors(self) -> int:
        """Of all seeds: refused requests."""
        return sum(run.outcomes.errors for run in self.runs)

    @property
    def preemptions(self) -> int:
        """Of all seeds."""
        return sum(run.preemptions for run in self.runs)

    @property
    def busy(self) -> float:
        """Share of the time that engines were in steps, mean."""
        return float(np.mean([np.mean(run.busy) / run.seconds for run in self.runs]))


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummary:
    """A cell's variants beside each other."""

    cell: Cell
    schedule: Schedule
    variants: Mapping[str, Variant]
    warning: str
    """What speaks against comparing them, or nothing."""

    @property
    def arrived(self) -> float:
        """Requests/s that came in the minutes of the runs: of a part of a recording seldom the mean of the whole."""
        runs = next(iter(self.variants.values())).runs
        seconds = sum(run.arriving for run in runs)
        return sum(len(run.outcomes) - 1 for run in runs) / seconds if seconds else self.schedule.rate


_Drawn = dict[str, tuple[float, NDArray[np.float64]]]
"""Figure → its value, and its draws: float64[resamples]."""


def summarize(found: CellRuns, *, reference: str, rivals: Sequence[str] = ()) -> CellSummary:
    """Figures and ratios of one cell; the draws of their intervals are the same each time."""
    counts = [len(run.outcomes) for run in found.runs[reference]]
    recorded = all(case.arrivals == "recorded" for case in found.cell.cases.values())
    bootstrap = Bootstrap(counts, seed=0, resamples=RESAMPLES, same_arrivals=recorded)
    drawn = {variant: _drawn(runs, bootstrap) for variant, runs in found.runs.items()}
    best = _best([drawn[rival] for rival in rivals])
    variants = {
        variant: Variant(
            runs=runs,
            figures={name: Ratio(value, *interval(draws)) for name, (value, draws) in drawn[variant].items()}
            | _tpot(runs),
            gains={} if variant == reference else _ratios(drawn[reference], drawn[variant]),
            over_rivals={} if variant in rivals else _ratios(best, drawn[variant]),
        )
        for variant, runs in found.runs.items()
    }
    return CellSummary(
        cell=found.cell,
        schedule=found.schedule,
        variants=variants,
        warning=unequal_failures({name: variant.errors for name, variant in variants.items()}),
    )


def _best(rivals: Sequence[_Drawn]) -> _Drawn:
    """The smallest of each figure, in each draw: who that is may change from draw to draw."""
    if not rivals:
        return {}
    return {
        name: (
            min(rival[name][0] for rival in rivals),
            np.min([rival[name][1] for rival in rivals], axis=0),
        )
        for name in rivals[0]
    }


def _ratios(others: _Drawn, these: _Drawn) -> dict[str, Ratio]:
    return {name: ratio(value, draws, *these[name]) for name, (value, draws) in others.items()}


def _drawn(runs: Sequence[Run], bootstrap: Bootstrap) -> _Drawn:
    found = {}
    for measure in MEASURES:
        values = np.concatenate([getattr(run.outcomes, measure) for run in runs])
        draws = bootstrap.percentiles(values, PERCENTILES)
        for place, (q, value) in enumerate(zip(PERCENTILES, quantiles(values, PERCENTILES), strict=True)):
            found[figure_name(measure, q)] = value, draws[:, place]
    return found


def _tpot(runs: Sequence[Run]) -> dict[str, Ratio]:
    """Without intervals: outputs of one token have none, so it is not one value per request."""
    values = np.concatenate([run.outcomes.tpot for run in runs])
    found = zip(PERCENTILES, quantiles(values, PERCENTILES), strict=True)
    return {figure_name("tpot", q): Ratio(value, math.nan, math.nan) for q, value in found}


def figure_name(measure: str, q: float) -> str:
    """`ttft_p95`, `tgt_max`."""
    return f"{measure}_max" if q == 100 else f"{measure}_p{q:g}"


def results_json(
    experiment: Experiment, cells: Sequence[CellSummary], *, source: str, scheduler: str
) -> dict[str, Any]:
    """results.json; seconds, except ratios.

    Args:
        experiment: what was run.
        cells: what was found.
        source: which file it was, with a hash of its content, or "" for the command line's options.
        scheduler: what ran inside the engines.
    """
    return {
        "version": version("halffull-lab"),
        "scheduler": scheduler,
        "source": source,
        "experiment": msgspec.to_builtins(experiment),
        "seeds": list(experiment.all_seeds),
        "reference": experiment.reference,
        "cells": [_cell_json(cell) for cell in cells],
    }


def _cell_json(cell: CellSummary) -> dict[str, Any]:
    schedule = cell.schedule
    return {
        "point": cell.cell.point,
        "rate": schedule.rate,
        "saturation": schedule.saturation,
        "load": schedule.load,
        "arrived": cell.arrived,
        "notes": list(schedule.notes),
        "warning": cell.warning,
        "variants": {
            name: {
                "case": msgspec.to_builtins(cell.cell.cases[name]),
                "requests": variant.requests,
                "errors": variant.errors,
                "preemptions": variant.preemptions,
                "busy": variant.busy,
                "figures": {figure: _ratio_json(value) for figure, value in variant.figures.items()},
                "gains": {figure: _ratio_json(value) for figure, value in variant.gains.items()},
                "over_rivals": {figure: _ratio_json(value) for figure, value in variant.over_rivals.items()},
            }
            for name, variant in cell.variants.items()
        },
    }


def _ratio_json(value: Ratio) -> list[float | None]:
    return [finite_or_none(number) for number in (value.value, value.low, value.high)]
