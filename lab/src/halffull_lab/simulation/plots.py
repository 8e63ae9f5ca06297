"""An experiment's plots, as inline SVG."""

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from halffull_lab.figures import Ratio, quantiles
from halffull_lab.plots import COLOURS, PALETTE, STYLE, plain_numbers, svg
from halffull_lab.simulation.experiment import Experiment
from halffull_lab.simulation.summary import CellSummary

_POINTS = np.linspace(0, 100, 401)  # of a distribution: what a curve of this size can show
_MEASURES = (
    ("ttft", "TTFT (s)", 1.0),
    ("normalized_ttft", "TTFT per prompt token (ms)", 1000.0),
    ("tgt", "TGT (s)", 1.0),
)
_LINES = (("ttft_p50", "TTFT p50 (s)", 1.0), ("ttft_p95", "TTFT p95 (s)", 1.0), ("tgt_p95", "TGT p95 (s)", 1.0))


def distributions(cell: CellSummary) -> str:
    """Share of requests with a value up to x, for each measure a panel and for each variant a curve."""
    colours = _colours(list(cell.variants))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12.6, 3.4), layout="constrained")
        for axes, (measure, label, unit) in zip(figure.subplots(1, 3, sharey=True), _MEASURES, strict=True):
            for name, variant in cell.variants.items():
                values = np.array(quantiles(variant.pooled(measure) * unit, _POINTS.tolist()))
                came = np.isfinite(values)
                axes.plot(values[came], _POINTS[came] / 100, color=colours[name], linewidth=1.5)
            axes.set_xscale("log")
            axes.set_ylim(0, 1.005)
            plain_numbers(axes.xaxis)
            axes.set_xlabel(label)
        figure.axes[0].set_ylabel("share of requests")
        # Labels given here and not with the lines, where one that begins with _ would be left out.
        figure.axes[0].legend(figure.axes[0].lines, list(cell.variants), loc="lower right", fontsize=8)
        return svg(figure)


def curves(experiment: Experiment, cells: Sequence[CellSummary]) -> str:
    """Figures along the x-axis of an experiment, with their intervals: cells that differ in nothing else."""
    names = list(cells[0].variants)
    colours = _colours(names)
    x = [float(cell.cell.point[experiment.x]) for cell in cells]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12.6, 3.4), layout="constrained")
        for axes, (measure, label, unit) in zip(figure.subplots(1, 3), _LINES, strict=True):
            for name in names:
                found = [cell.variants[name].figures[measure] for cell in cells]
                _line(axes, x, found, unit, colour=colours[name])
                if any(math.isfinite(each.value) for each in found):  # matplotlib refuses an empty one
                    axes.set_yscale("log")
            if min(x) > 0 and max(x) / min(x) >= 20:
                axes.set_xscale("log")
            plain_numbers(axes.xaxis)
            plain_numbers(axes.yaxis)
            axes.set_xlabel(experiment.x.replace("_", " "))
            axes.set_ylabel(label)
        figure.axes[0].legend(figure.axes[0].lines, names, fontsize=8)
        return svg(figure)


def _line(axes: Any, x: list[float], found: list[Ratio], unit: float, *, colour: str) -> None:
    def clean(values: list[float]) -> list[float]:
        return [value * unit if math.isfinite(value) else math.nan for value in values]

    axes.plot(x, clean([each.value for each in found]), marker="o", markersize=3, linewidth=1.5, color=colour)
    low, high = clean([each.low for each in found]), clean([each.high for each in found])
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)


def _colours(names: list[str]) -> dict[str, str]:
    """A balancer's own colour, or the next of the palette that is not taken."""
    free = iter([colour for colour in PALETTE * 4 if colour not in {COLOURS.get(name) for name in names}])
    return {name: COLOURS.get(name) or next(free) for name in names}
