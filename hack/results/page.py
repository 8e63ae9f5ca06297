"""The tables of docs/results.md, from what `halffull simulate` wrote. Pure."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from verdict import SIMPLEST_FIRST, markdown
from verdict import tables as verdict

from halffull_lab.figures import Ratio
from halffull_lab.table import ratio_text, seconds

Results = Mapping[str, Any]
"""A results.json."""

_TTFT: Final = ("ttft_p50", "ttft_p95", "ttft_p99", "ttft_max")
_TGT: Final = ("tgt_p50", "tgt_p95")
_GAINS: Final = {
    "TTFT p50": "ttft_p50",
    "TTFT p95": "ttft_p95",
    "TTFT p99": "ttft_p99",
    "TTFT/token p95": "normalized_ttft_p95",
    "TGT p50": "tgt_p50",
    "TGT p95": "tgt_p95",
}
_SWEPT: Final = {"TTFT p95": "ttft_p95", "TTFT p99": "ttft_p99", "TGT p95": "tgt_p95"}
_MARKED: Final = re.compile(r"<!-- results: (?P<name>\S+) -->\n.*?<!-- end -->", re.DOTALL)


class PageError(ValueError):
    """A page whose marks cannot be filled."""


def digest(experiment: Mapping[str, Any]) -> str:
    """Ten hex digits of what decides an experiment's figures; not its words, nor a newer field at its default."""
    decides = {name: value for name, value in experiment.items() if name not in {"title", "claim"}}
    for added in ("first_seed", "rivals"):  # or what ran before these were there would have to run again
        if not decides.get(added):
            decides.pop(added, None)
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:10]


def marks(page: str) -> list[str]:
    """The experiments that a page has room for, in its order."""
    return [mark["name"] for mark in _MARKED.finditer(page)]


def renewed(page: str, tables: Mapping[str, str]) -> str:
    """The page with these experiments' tables; those of others stay as they are.

    Raises:
        PageError: a table has no mark in the page.
    """
    if missing := tables.keys() - set(marks(page)):
        raise PageError(f"the page has no mark <!-- results: {min(missing)} -->")

    def filled(mark: re.Match[str]) -> str:
        name = mark["name"]
        return f"<!-- results: {name} -->\n{tables[name]}<!-- end -->" if name in tables else mark[0]

    return _MARKED.sub(filled, page)


def section(results: Results, *, wall: float, workers: int) -> str:
    """An experiment's tables in Markdown, and below them how they came about.

    Args:
        results: of the experiment.
        wall: s that it took.
        workers: processes.
    """
    experiment, cells = results["experiment"], results["cells"]
    if set(SIMPLEST_FIRST) < set(cells[0]["variants"]):
        tables: Iterable[str] = verdict(results)
    else:
        tables = _swept(results) if experiment["x"] else [_table(results), *_next_best(results)]
    counts = [variant["requests"] // experiment["seeds"] for cell in cells for variant in cell["variants"].values()]
    came = (
        f"{experiment['seeds']} seeds of {_range(counts)} requests; {_engine_hours(results):.0f} simulated "
        f"engine-hours, {wall / 60:.0f} minutes with {workers} processes; content {digest(experiment)}, "
        f"version {results['version']}. {_failures(cells)}"
    )
    return "\n\n".join(["", *tables, came])[1:] + "\n"


def _table(results: Results) -> str:
    """Every variant of every cell in a row."""
    reference = results["reference"]
    head = [
        *(axis.replace("_", " ") for axis in results["cells"][0]["point"]),
        results["experiment"]["compare"].replace("_", " "),
        "TTFT p50 / p95 / p99 / max",
        "TTFT/token p95, ms",
        "TGT p50 / p95",
        "preempted",
        *(f"{reference} ÷ this: {name}" if place == 0 else name for place, name in enumerate(_GAINS)),
    ]
    rows = []
    for cell in results["cells"]:
        for place, (name, variant) in enumerate(cell["variants"].items()):
            labels = cell["point"].values() if place == 0 else ("",) * len(cell["point"])
            figures = variant["figures"]
            rows.append(
                [
                    *labels,
                    name,
                    _times(figures, _TTFT),
                    _seconds(figures["normalized_ttft_p95"][0], 1000),
                    _times(figures, _TGT),
                    f"{variant['preemptions'] / variant['requests']:.1%}",
                    *(_gain(variant["gains"].get(figure)) for figure in _GAINS.values()),
                ]
            )
    return markdown(head, rows)


def _next_best(results: Results) -> Iterator[str]:
    """The variants that are no rivals against the best rival in each figure."""
    rivals = results["experiment"]["rivals"]
    if not rivals:
        return
    yield f"The best of {', '.join(rivals)} in each figure ÷ this:"
    compared = results["experiment"]["compare"].replace("_", " ")
    names = {**_GAINS, "longest": "ttft_max"}
    yield markdown(
        [*(axis.replace("_", " ") for axis in results["cells"][0]["point"]), compared, *names],
        [
            [*cell["point"].values(), name, *(_gain(variant["over_rivals"][figure]) for figure in names.values())]
            for cell in results["cells"]
            for name, variant in cell["variants"].items()
            if name not in rivals
        ],
    )


def _swept(results: Results) -> Iterator[str]:
    """A column for every value of x; a table for the times to the first token, for those to the last, and for gains."""
    x, reference = results["experiment"]["x"], results["reference"]
    columns = list(dict.fromkeys(cell["point"][x] for cell in results["cells"]))
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for cell in results["cells"]:
        others = tuple(label for axis, label in cell["point"].items() if axis != x)
        for name, variant in cell["variants"].items():
            found.setdefault((*others, name), {})[cell["point"][x]] = variant
    axes = [axis.replace("_", " ") for axis in results["cells"][0]["point"] if axis != x]
    head = [*axes, results["experiment"]["compare"], *(f"{x.replace('_', ' ')} {value}" for value in columns)]

    def table(cell: Any, *, gains: bool) -> str:
        return markdown(
            head,
            [
                [*labels, *(cell(variants[value]) for value in columns)]
                for labels, variants in found.items()
                if not (gains and labels[-1] == reference)
            ],
        )

    yield "TTFT p50 / p95 / p99 / max, s:"
    yield table(lambda variant: _times(variant["figures"], _TTFT), gains=False)
    yield "TGT p50 / p95, s:"
    yield table(lambda variant: _times(variant["figures"], _TGT), gains=False)
    for name, figure in _SWEPT.items():
        yield f"{reference} ÷ this, {name}:"
        yield table(lambda variant, figure=figure: _gain(variant["gains"][figure]), gains=True)


def _times(figures: Mapping[str, Sequence[float | None]], names: Sequence[str]) -> str:
    return " / ".join(_seconds(figures[name][0]) for name in names)


def _seconds(value: float | None, unit: float = 1) -> str:
    return seconds(math.inf if value is None else value * unit)


def _gain(gain: Sequence[float | None] | None) -> str:
    """`1.39 [1.31–1.47]`; 1 for the reference itself."""
    return "1" if gain is None else ratio_text(Ratio(*(math.nan if number is None else number for number in gain)))


def _engine_hours(results: Results) -> float:
    """Hours of arrivals that engines lived through; a recording may end before the minutes do."""
    variants = ((cell["arrived"], variant) for cell in results["cells"] for variant in cell["variants"].values())
    return float(sum(variant["requests"] / rate * variant["case"]["engines"] for rate, variant in variants)) / 3600


def _failures(cells: Sequence[Mapping[str, Any]]) -> str:
    errors = sum(variant["errors"] for cell in cells for variant in cell["variants"].values())
    notes = dict.fromkeys(note for cell in cells for note in cell["notes"])
    unequal = [f"{', '.join(cell['point'].values())}: {cell['warning']}." for cell in cells if cell["warning"]]
    return " ".join(
        [f"Failed requests: {errors or 'none'}.", *unequal, *(f"{note[:1].upper()}{note[1:]}." for note in notes)]
    )


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
