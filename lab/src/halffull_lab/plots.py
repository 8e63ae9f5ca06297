"""The report's plots, as inline SVG."""

import io
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from halffull_lab.figures import percentile
from halffull_lab.results import Comparison, Result

# Okabe and Ito's palette, told apart by people with any colour vision.
COLOURS = {
    "SAL": "#0072B2",
    "SALPlus": "#009E73",
    "LeastRequest": "#D55E00",
    "RoundRobin": "#CC79A7",
    "Random": "#8C8C8C",
}
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#000000")
STYLE: Any = {  # typed by matplotlib as a literal of every name that it knows
    "font.family": "sans-serif",
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.7,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": "#333333",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.frameon": False,
    "svg.hashsalt": "halffull",  # the same figures give the same file
    "text.parse_math": False,  # a label with two dollars is no formula
}
_BINS = 18  # bins of prompt length
_IN_BIN = 15  # requests that a bin needs for a p95


def ttft_cdf(comparison: Comparison) -> str:
    """Share of requests whose first token came within a time; failures never arrive, so their curve stays below 1."""

    def draw(axes: Any, results: Sequence[Result]) -> None:
        for result in results:
            times = np.sort(result.outcomes.ttft)
            share = np.arange(1, len(times) + 1) / len(times)
            came = np.isfinite(times)
            axes.plot(times[came], share[came], color=_colour(result), label=result.policy, linewidth=1.7)
        axes.set_xscale("log")
        axes.set_ylim(0, 1.005)
        plain_numbers(axes.xaxis)
        axes.set_xlabel("TTFT (s)")
        axes.set_ylabel("share of requests")
        axes.legend(loc="lower right")

    return _panels(comparison, draw)


def ttft_by_prompt(comparison: Comparison) -> str:
    """Every request of SAL as a dot; median and 95th percentile by prompt length for each policy."""

    def draw(axes: Any, results: Sequence[Result]) -> None:
        for result in results:
            prompt, ttft = result.outcomes.prompt_tokens, result.outcomes.ttft
            if result.policy == "SAL":
                axes.scatter(prompt, ttft, s=2.5, alpha=0.12, color=_colour(result), linewidths=0, rasterized=True)
            edges = np.geomspace(prompt.min(), prompt.max() + 1, _BINS + 1)
            members = [ttft[(prompt >= low) & (prompt < high)] for low, high in itertools.pairwise(edges)]
            full = [place for place, values in enumerate(members) if len(values) >= _IN_BIN]
            middle = np.sqrt(edges[:-1] * edges[1:])[full]
            for q, style in ((95, "-"), (50, ":")):
                line = [percentile(members[place], q) for place in full]
                label = result.policy if q == 95 else None
                axes.plot(middle, line, style, color=_colour(result), label=label, linewidth=1.6)
        axes.set_xscale("log")
        if any(np.isfinite(result.outcomes.ttft).any() for result in results):  # matplotlib refuses an empty one
            axes.set_yscale("log")
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
        axes.set_xlabel("prompt tokens")
        axes.set_ylabel("TTFT (s): p95 solid, median dotted")
        axes.legend(loc="lower right")

    return _panels(comparison, draw)


def queued_tokens(comparison: Comparison) -> str:
    """Queued prompt tokens of each engine over time, as the picker saw them: a panel for each run, one scale."""
    runs = [(result.name, result) for result in comparison.results if result.load]
    kill = comparison.fault
    if kill is not None and kill.result.load:
        runs.append((f"picker killed and restarted ({kill.result.name})", kill.result))
    if not runs:
        return ""
    rows = (len(runs) + 1) // 2
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.4, 1.9 * rows + 0.5), layout="constrained")
        grid = figure.subplots(rows, 2, sharey=True, squeeze=False)
        for axes in grid.flat[len(runs) :]:
            axes.set_visible(False)
        for axes, (title, result) in zip(grid.flat, runs, strict=False):
            times = [sample.at for sample in result.load]
            for place, address in enumerate(result.load[0].queued):
                queued = [sample.queued.get(address, np.nan) / 1000 for sample in result.load]
                axes.plot(times, queued, color=PALETTE[place % len(PALETTE)], linewidth=0.9)
            if kill is not None and result is kill.result:
                axes.axvspan(kill.killed_at, kill.back_at, color="#f3d9d3", zorder=0, label="no picker")
                axes.legend(loc="upper right")
            axes.set_title(title)
            axes.set_ylim(bottom=0)
            axes.margins(x=0.01)
        for axes in grid[:, 0]:
            axes.set_ylabel("queued (1,000 tokens)")
        for axes in grid[-1]:
            axes.set_xlabel("time (s)")
        return svg(figure)


def _panels(comparison: Comparison, draw: Callable[[Any, Sequence[Result]], None]) -> str:
    """One panel for each kind of engine, side by side on one scale."""
    engines = list(dict.fromkeys(result.engine for result in comparison.results))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * max(len(engines), 1.4), 3.7), layout="constrained")
        grid = figure.subplots(1, len(engines), sharex=True, sharey=True, squeeze=False)
        for axes, engine in zip(grid.flat, engines, strict=True):
            draw(axes, [result for result in comparison.results if result.engine == engine])
            axes.set_title(f"{engine} engines" if engine else "own engines")
        return svg(figure)


def _colour(result: Result) -> str:
    return COLOURS.get(result.policy, "#000000")


def svg(figure: Figure) -> str:
    """Inline SVG; the same figure gives the same text."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", dpi=150, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]  # without the XML prologue, which HTML does not take


def plain_numbers(axis: Any) -> None:
    """No powers of ten; on a logarithmic axis 2, 3 and 5 have numbers too: it may span less than a decade."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:.6e}"[0:8] in _NUMBERED else ""))


_NUMBERED = frozenset(f"{digit:.6e}"[0:8] for digit in (2, 3, 5))
