"""An experiment's findings for people: tables on a terminal, and a self-contained HTML page with plots."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich import box
from rich.table import Table

from halffull_lab.report import template
from halffull_lab.simulation.experiment import Experiment
from halffull_lab.simulation.plots import curves, distributions
from halffull_lab.simulation.summary import CellSummary, Variant
from halffull_lab.table import ratio_text, seconds

# Figures in a row: group, heading, name in the summary, unit.
_FIGURES: Final = (
    ("TTFT (s)", "p50", "ttft_p50", 1.0),
    ("TTFT (s)", "p95", "ttft_p95", 1.0),
    ("TTFT (s)", "p99", "ttft_p99", 1.0),
    ("TTFT (s)", "max", "ttft_max", 1.0),
    ("TTFT/token (ms)", "p95", "normalized_ttft_p95", 1000.0),
    ("TGT (s)", "p50", "tgt_p50", 1.0),
    ("TGT (s)", "p95", "tgt_p95", 1.0),
    ("TPOT (ms)", "p95", "tpot_p95", 1000.0),
)
_GAINS: Final = (
    ("TTFT p50", "ttft_p50"),
    ("TTFT p95", "ttft_p95"),
    ("TTFT/token p95", "normalized_ttft_p95"),
    ("TGT p50", "tgt_p50"),
)
_COUNTS: Final = ("errors", "preempted", "busy")
_LABEL: Final = 24
"""Columns of a terminal; a longer label is folded."""
_UNLIKE: Final = 0.1
"""A mean rate of a run that is so much off the whole recording's is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    reference: bool
    figures: tuple[str, ...]
    gains: tuple[str, ...]
    counts: tuple[str, ...]


def tables(experiment: Experiment, cell: CellSummary) -> list[Table]:
    """What fits into 80 columns: figures of a cell, and below them the ratios. The page has all."""
    figures = _grid(cell.cell.name or experiment.title, experiment)
    gains = _grid(f"{experiment.reference} ÷ this: above 1, this is better", experiment)
    for heading in ("TTFT p50", "p95", "p99", "max", "TGT p50", "p95", "errors"):
        figures.add_column(heading, justify="right", no_wrap=True)
    for heading in ("TTFT p50", "TTFT p95", "TGT p50"):
        gains.add_column(heading, justify="right")
    for row in _rows(experiment, cell):
        style = "dim" if row.reference else None
        times, tgt = row.figures[:4], row.figures[5:7]
        figures.add_row(row.name, *times, *tgt, row.counts[0], style=style)
        gains.add_row(row.name, row.gains[0], row.gains[1], row.gains[3], style=style)
    return [figures, gains]


def write_html(
    experiment: Experiment, cells: Sequence[CellSummary], path: Path, *, setting: dict[str, str], scheduler: str
) -> None:
    """Write the page; one file, nothing loaded from anywhere.

    Args:
        experiment: what was run.
        cells: what was found.
        path: of the file.
        setting: how it was run, name → value.
        scheduler: what ran inside the engines, for people.
    """
    shown = [
        {
            "name": cell.cell.name or "Figures",
            "schedule": schedule_text(cell),
            "rows": [
                {"name": row.name, "reference": row.reference, "figures": row.figures + row.gains + row.counts}
                for row in _rows(experiment, cell)
            ],
            "plot": "" if experiment.x else distributions(cell),
        }
        for cell in cells
    ]
    groups = [(name, len(list(members))) for name, members in itertools.groupby(group for group, *_ in _FIGURES)]
    page = template("experiment.html.j2").render(
        experiment=experiment,
        scheduler=scheduler,
        warnings=warnings(cells),
        curves=_curves(experiment, cells),
        cells=shown,
        compare=experiment.compare,
        groups=[*groups, (f"{experiment.reference} ÷ this", len(_GAINS)), ("", len(_COUNTS))],
        headings=[*(heading for _, heading, _, _ in _FIGURES), *(heading for heading, _ in _GAINS), *_COUNTS],
        setting=setting,
    )
    path.write_text(page, encoding="utf-8")


def warnings(cells: Sequence[CellSummary]) -> list[str]:
    """What speaks against the figures, and what was done to traces."""
    found = [f"{cell.cell.name}: {cell.warning}".removeprefix(": ") for cell in cells if cell.warning]
    return [*found, *dict.fromkeys(note for cell in cells for note in cell.schedule.notes)]


def schedule_text(cell: CellSummary) -> str:
    """`25.1 requests/s, 0.80 of saturation; 5 runs of 22,590 requests`."""
    variant = next(iter(cell.variants.values()))
    schedule = cell.schedule
    came = ""
    if abs(cell.arrived / schedule.rate - 1) > _UNLIKE:
        came = f"; in the minutes that were run {cell.arrived:.3g} requests/s"
    return (
        f"{schedule.rate:.3g} requests/s, {schedule.load:.2f} of saturation{came}; "
        f"{len(variant.runs)} seeds of about {variant.requests // len(variant.runs):,} requests"
    )


def _curves(experiment: Experiment, cells: Sequence[CellSummary]) -> list[tuple[str, str]]:
    if not experiment.x:
        return []

    def others(cell: CellSummary) -> str:
        rest = (f"{axis} {label}" for axis, label in cell.cell.point.items() if axis != experiment.x)
        return ", ".join(rest) or experiment.title

    groups: dict[str, list[CellSummary]] = {}
    for cell in cells:
        groups.setdefault(others(cell), []).append(cell)
    return [(heading, curves(experiment, members)) for heading, members in groups.items()]


def _rows(experiment: Experiment, cell: CellSummary) -> list[_Row]:
    return [_row(name, variant, experiment.reference) for name, variant in cell.variants.items()]


def _row(name: str, variant: Variant, reference: str) -> _Row:
    return _Row(
        name=name,
        reference=name == reference,
        figures=tuple(seconds(variant.figures[figure].value * unit) for _, _, figure, unit in _FIGURES),
        gains=tuple(ratio_text(variant.gains[figure]) if variant.gains else "1" for _, figure in _GAINS),
        counts=(str(variant.errors), f"{variant.preemptions / variant.requests:.1%}", f"{variant.busy:.0%}"),
    )


def _grid(title: str, experiment: Experiment) -> Table:
    grid = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    longest = max(len(name) for name in (experiment.compare, *experiment.points(experiment.compare)))
    grid.add_column(experiment.compare, width=min(longest, _LABEL), overflow="fold")
    return grid
