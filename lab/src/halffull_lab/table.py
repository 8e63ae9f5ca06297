"""The comparison as text: rows of figures, and the table for the terminal."""

import math
from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from halffull_lab.figures import BANDS, Ratio, band_name, percentile, percentiles
from halffull_lab.results import BASELINE, Comparison, FaultResult, Result


@dataclass(frozen=True, slots=True)
class Row:
    """One run as text, figure by figure."""

    engine: str
    policy: str
    ttft: tuple[str, ...]  # p50, p95, p99, max
    bands: tuple[str, ...]  # p95 by band of prompt length
    normalized: tuple[str, ...]  # p50, p95, ms per token
    tgt: tuple[str, ...]  # p50, p95
    errors: str
    gain: tuple[str, ...]  # P2C ÷ this with its interval, as in GAINS
    valid: bool
    baseline: bool


GAINS = ("ttft_p50", "ttft_p95", "tgt_p50", "tgt_p95")
BAND_NAMES = tuple(band_name(band) for band in BANDS)


def rows(comparison: Comparison) -> list[Row]:
    """The table's rows, in the order in which the runs ran."""
    return [_row(result, comparison.ratios.get(place, {})) for place, result in enumerate(comparison.results)]


def table(comparison: Comparison) -> Group:
    """What the demo prints: the table in three parts of at most 100 columns, what killing the picker cost, warnings."""
    found = rows(comparison)
    figures = _grid(
        f"{comparison.title}\nseconds from the scheduled arrival; per token in ms",
        ("TTFT\np50", "\np95", "\np99", "\nmax", "per token\np50", "\np95", "TGT\np50", "\np95", "\nerrors"),
        found,
        [(*row.ttft, *row.normalized, *row.tgt, row.errors) for row in found],
    )
    bands = _grid("TTFT p95 by prompt tokens, s", BAND_NAMES, found, [row.bands for row in found])
    gains = _grid(
        f"{BASELINE} (Envoy's P2C) ÷ this run [95% interval]: above 1, this run was faster",
        ("TTFT p50", "TTFT p95", "TGT p50", "TGT p95"),
        found,
        [row.gain for row in found],
    )
    lines = [Text(line) for line in fault_lines(comparison)]
    lines += [Text(f"! {warning}", style="red") for warning in comparison.warnings]
    lines += [Text(note, style="dim") for note in comparison.notes]
    return Group(figures, bands, gains, *lines)


def _grid(title: str, headings: tuple[str, ...], found: list[Row], cells: list[tuple[str, ...]]) -> Table:
    grid = Table(
        title=title,
        title_style="bold",
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    grid.add_column("engines", no_wrap=True)
    grid.add_column("balancer", no_wrap=True)
    for heading in headings:
        grid.add_column(heading, justify="right", no_wrap=True)
    for place, (row, figures) in enumerate(zip(found, cells, strict=True)):
        if place and found[place - 1].engine != row.engine:
            grid.add_section()
        policy = row.policy if row.valid else f"{row.policy} (invalid)"
        grid.add_row(row.engine, policy, *figures, style="bold" if row.policy.startswith("SAL") else None)
    return grid


def fault_lines(comparison: Comparison) -> list[str]:
    """What killing the picker cost, in words."""
    fault = comparison.fault
    if fault is None:
        return []
    ratios = comparison.fault_ratios
    what = (
        f"Picker killed (SIGKILL) at {fault.killed_at:.0f} s and back at {fault.back_at:.0f} s of a short run "
        f"({fault.result.name}, {len(fault.result.outcomes)} requests): {fault.result.outcomes.errors} failed; "
        f"{fault.sent_meanwhile} requests went by P2C meanwhile, {fault.failed_meanwhile} of them failed."
    )
    return [
        what,
        "Its cost, against the same requests undisturbed: "
        + "; ".join(f"TTFT p{q} {_times(fault, q)} (×{ratio_text(ratios[f'ttft_p{q}'])})" for q in (50, 95))
        + ".",
    ]


def headline(comparison: Comparison) -> list[tuple[str, str]]:
    """What the page starts with: for each kind of engine, SAL's TTFT p95 against P2C's, or why that says nothing."""
    found = []
    for place, result in enumerate(comparison.results):
        ratio, baseline = comparison.ratios.get(place, {}).get("ttft_p95"), comparison.baseline(result)
        if result.policy != "SAL" or ratio is None or baseline is None:
            continue
        kind = f"{result.engine} engines" if result.engine else "own engines"
        if doubtful := [f"{run.policy} is {reason}" for run in (result, baseline) for reason in run.invalid]:
            found.append(("invalid", f"TTFT p95 of SAL against P2C, {kind}: {'; '.join(doubtful)}"))
        elif math.isfinite(ratio.value):
            figure, low, high = ratio.value, ratio.low, ratio.high
            if longer := figure < 1:
                figure, low, high = (1 / value if value else math.inf for value in (figure, high, low))
            text = f"{'longer' if longer else 'shorter'} TTFT p95 than P2C, {kind} (95%: {_bounds(low, high, ' to ')})"
            found.append((f"{figure:.2f}×", text))
    return found


def _row(result: Result, against: dict[str, Ratio]) -> Row:
    ttft = percentiles(result.outcomes.ttft)
    return Row(
        engine=result.engine or "own",
        policy=result.policy,
        ttft=tuple(seconds(ttft[name]) for name in ("p50", "p95", "p99", "max")),
        bands=tuple(seconds(value) for value in result.ttft_p95_by_band.values()),
        normalized=tuple(seconds(1000 * percentile(result.outcomes.normalized_ttft, q)) for q in (50, 95)),
        tgt=tuple(seconds(percentile(result.outcomes.tgt, q)) for q in (50, 95)),
        errors=str(result.outcomes.errors),
        gain=tuple(
            ratio_text(against[name]) if name in against else "1" if _is_baseline(result) else "–" for name in GAINS
        ),
        valid=not result.invalid,
        baseline=_is_baseline(result),
    )


def _is_baseline(result: Result) -> bool:
    return result.policy == BASELINE


def _times(fault: FaultResult, q: float) -> str:
    before, after = (percentile(result.outcomes.ttft, q) for result in (fault.without, fault.result))
    return f"{seconds(before)} → {seconds(after)} s"


def seconds(value: float) -> str:
    """Three significant digits; ∞ for a percentile that falls on a failure, – where there was no request."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def ratio_text(ratio: Ratio) -> str:
    """`1.42 [1.31–1.55]`; – where failures leave no ratio, ? for a bound that falls on one."""
    if math.isnan(ratio.value):
        return "–"
    return f"{ratio.value:.2f} [{_bounds(ratio.low, ratio.high, '–')}]"


def _bounds(low: float, high: float, between: str) -> str:
    return between.join(f"{bound:.2f}" if math.isfinite(bound) else "?" for bound in (low, high))
