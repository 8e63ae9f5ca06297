"""What people and programs read of an experiment: figures, ratios, tables, the page and its JSON."""

import io
import json
import math
from collections.abc import Sequence
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from halffull_lab.figures import Outcomes, Ratio, quantiles
from halffull_lab.simulate import plain_console
from halffull_lab.simulation import report
from halffull_lab.simulation.campaign import CellRuns, Schedule
from halffull_lab.simulation.cluster import Run
from halffull_lab.simulation.experiment import Case, Experiment
from halffull_lab.simulation.report import schedule_text, tables, warnings, write_html
from halffull_lab.simulation.summary import CellSummary, results_json, summarize
from halffull_lab.table import seconds

HOSTILE = (
    "<script>alert(1)</script>",
    "[/bold] [red",
    ":smile: {{ 7 * 7 }}",
    "$\\frac{$ x_$^$",
    "_hidden",
    "a label that is longer than any table of eighty columns has room for, & more",
)


def run(times: Sequence[float], *, factor: float = 1.0, lost: int = 0) -> Run:
    ttft = np.array(times) * factor
    ttft[len(ttft) - lost :] = math.inf
    count = len(ttft)
    return Run(
        outcomes=Outcomes(
            prompt_tokens=np.full(count, 100), output_tokens=np.full(count, 11), ttft=ttft, tgt=ttft + 1.0
        ),
        rows=np.where(np.isinf(ttft), -1, 0),
        preemptions=3,
        busy=(5.0, 7.0),
        arriving=9.0,
        seconds=10.0,
    )


def experiment(**changes: Any) -> Experiment:
    return Experiment(**{"title": "Mine", "seeds": 2, "axes": {"balancer": ["LeastRequest", "SAL"]}, **changes})


def summaries(of: Experiment, *, lost: int = 0, first: int = 0, rate: float = 11.0, seed: int = 0) -> list[CellSummary]:
    """Each further variant is 1.5 times as fast as the one before, and loses `lost` more requests than it."""
    rng = np.random.default_rng(seed)
    found = []
    for cell in of.cells():
        times = [rng.lognormal(-1, 0.5, 100) for _ in range(of.seeds)]
        runs = {
            variant: tuple(run(each, factor=1.5**-place, lost=first + lost * place) for each in times)
            for place, variant in enumerate(cell.cases)
        }
        schedule = Schedule(rate=rate, saturation=20.0, notes=("a note",))
        cell_runs = CellRuns(cell=cell, schedule=schedule, runs=runs)
        found.append(summarize(cell_runs, reference=of.reference, rivals=of.rivals))
    return found


def text(of: Experiment, found: Sequence[CellSummary]) -> str:
    console = plain_console()
    console.file, console.width = io.StringIO(), 80
    for cell in found:
        for table in tables(of, cell):
            console.print(table)
    return console.file.getvalue()


def page(of: Experiment, found: Sequence[CellSummary], folder: Path) -> str:
    file = folder / "report.html"
    write_html(of, found, file, setting={"experiment": of.title}, scheduler="a scheduler")
    return file.read_text(encoding="utf-8")


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without plots, which take longest."""
    monkeypatch.setattr(report, "distributions", lambda _: "")


def test_figures_are_of_all_seeds_and_ratios_reference_by_this() -> None:
    (found,) = summaries(experiment())
    slow, fast = found.variants["LeastRequest"], found.variants["SAL"]
    pooled = np.concatenate([each.outcomes.ttft for each in slow.runs])
    for name, q in (("ttft_p50", 50), ("ttft_p95", 95), ("ttft_p99", 99), ("ttft_max", 100)):
        figure = slow.figures[name]
        assert figure.value == quantiles(pooled, [q])[0]
        assert figure.low <= figure.value <= figure.high
        assert fast.gains[name].value == pytest.approx(1.5)
        assert (fast.gains[name].low, fast.gains[name].high) == pytest.approx((1.5, 1.5))  # paired
    assert slow.figures["normalized_ttft_p95"].value == pytest.approx(slow.figures["ttft_p95"].value / 100)
    assert slow.figures["tpot_p50"].value == pytest.approx(0.1)
    assert slow.gains == {}
    assert (slow.requests, slow.errors, slow.preemptions, slow.busy) == (200, 0, 6, 0.6)


def test_seeds_of_one_recording_do_not_narrow_an_interval_as_others_do() -> None:
    times = np.random.default_rng(0).lognormal(-1, 0.5, 100)

    def width(arrivals: str) -> float:
        of = experiment(seeds=5, case=Case(arrivals=arrivals))
        (cell,) = of.cells()
        runs = {variant: tuple(run(times) for _ in range(5)) for variant in cell.cases}
        schedule = Schedule(rate=11.0, saturation=20.0, notes=())
        figure = summarize(CellRuns(cell=cell, schedule=schedule, runs=runs), reference="SAL").variants["SAL"].figures
        return figure["ttft_p50"].high - figure["ttft_p50"].low

    assert width("recorded") > 1.4 * width("poisson")


def test_baseline_is_what_others_are_set_against() -> None:
    of = experiment(baseline="SAL")
    (found,) = summaries(of)
    assert found.variants["LeastRequest"].gains["ttft_p95"].value == pytest.approx(1 / 1.5)
    assert found.variants["SAL"].gains == {}
    assert "SAL ÷ this" in text(of, [found])


def test_the_next_best_is_the_best_rival_of_each_figure_in_each_draw() -> None:
    halves, steady = np.repeat([1.0, 4.0], 50), np.full(100, 2.0)
    of = experiment(axes={"balancer": ["Random", "RoundRobin", "SAL"]}, seeds=1, rivals=("Random", "RoundRobin"))
    (cell,) = of.cells()
    runs = {"Random": (run(halves),), "RoundRobin": (run(steady),), "SAL": (run(steady / 2),)}
    schedule = Schedule(rate=11.0, saturation=20.0, notes=())
    found = summarize(CellRuns(cell=cell, schedule=schedule, runs=runs), reference="Random", rivals=of.rivals).variants
    assert found["Random"].over_rivals == found["RoundRobin"].over_rivals == {}
    assert found["SAL"].over_rivals["ttft_p99"] == Ratio(2.0, 2.0, 2.0)
    median = found["SAL"].over_rivals["ttft_p50"]
    # Random's median is 2.5, or 1 to 4 by the draw, RoundRobin's 2: never worse than 2, and 1 in some draws.
    assert (median.value, median.low, median.high) == (2.0, 1.0, 2.0)


def test_unequal_failures_are_flagged_and_failures_are_the_tail() -> None:
    of = experiment()
    found = summaries(of, lost=2)
    assert found[0].warning == "failures are unequal (LeastRequest 0, SAL 4): compare with care"
    assert warnings(found) == [found[0].warning, "a note"]
    assert math.isinf(found[0].variants["SAL"].figures["ttft_max"].value)
    assert math.isnan(found[0].variants["SAL"].gains["ttft_max"].value)
    shown = text(of, found)
    assert "∞" in shown
    assert "nan" not in shown
    found = summaries(of, lost=0)
    assert found[0].warning == ""


def test_failures_are_null_in_json_and_never_nan_for_people(tmp_path: Path, plain: None) -> None:
    of = experiment()
    for lost in (0, 2, 50, 100):
        found = summaries(of, lost=lost)
        written = json.dumps(results_json(of, found, source="file", scheduler="mine"), allow_nan=False)
        sal = json.loads(written)["cells"][0]["variants"]["SAL"]
        assert sal["errors"] == 2 * lost
        assert (sal["figures"]["ttft_max"][0] is None) == bool(lost)
        assert (sal["gains"]["ttft_max"][0] is None) == bool(lost)
        assert (sal["figures"]["ttft_p50"][0] is None) == (lost >= 50)
        assert sal["figures"]["tpot_p50"][1:] == [None, None]
        assert "nan" not in page(of, found, tmp_path)


def test_json_says_what_was_run() -> None:
    of = experiment(axes={"balancer": ["LeastRequest", "SAL"], "load": [0.5, 0.9]})
    written = results_json(of, summaries(of), source="mine.toml, sha256 0", scheduler="mine")
    assert (written["source"], written["scheduler"], written["seeds"]) == ("mine.toml, sha256 0", "mine", [0, 1])
    assert written["reference"] == "LeastRequest"
    assert [cell["point"] for cell in written["cells"]] == [{"load": "0.5"}, {"load": "0.9"}]
    cell = written["cells"][1]
    assert (cell["rate"], cell["saturation"], cell["load"], cell["notes"]) == (11.0, 20.0, 0.55, ["a note"])
    assert cell["arrived"] == 2 * 99 / 18.0
    assert cell["variants"]["SAL"]["case"]["load"] == 0.9
    assert cell["variants"]["SAL"]["case"]["balancer"] == "SAL"
    assert written["version"]


def test_a_part_of_a_recording_that_is_busier_than_the_whole_says_so() -> None:
    (found,) = summaries(experiment())
    assert schedule_text(found) == "11 requests/s, 0.55 of saturation; 2 seeds of about 100 requests"
    (found,) = summaries(experiment(), rate=5.0)
    assert "5 requests/s, 0.25 of saturation; in the minutes that were run 11 requests/s;" in schedule_text(found)


@pytest.mark.parametrize("labels", [("LeastRequest", "SAL"), ("FCFS behind P2C", "LARRYPlus behind SALPlus"), HOSTILE])
def test_tables_fit_into_80_columns_and_lose_nothing(labels: tuple[str, ...]) -> None:
    setups = {label: {"balancer": "SAL"} for label in labels}
    of = experiment(title=HOSTILE[0], compare="setup", axes={"setup": setups})
    found = summaries(of)
    shown = text(of, found)
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "…" not in shown
    for label in labels:
        assert label in shown or len(label) > 24
        assert all(word in shown for word in label.split())
    for figure in ("ttft_p50", "ttft_p95", "ttft_p99", "ttft_max", "tgt_p50", "tgt_p95"):
        assert seconds(found[0].variants[labels[0]].figures[figure].value) in shown


class Loads(HTMLParser):
    """Everything that a browser would fetch, and every element."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.elements: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.fetched += [
            value or ""
            for name, value in attrs
            if name in {"src", "href", "xlink:href", "srcset", "data", "action"} and not (value or "").startswith("#")
        ]
        assert not any(name.startswith("on") for name, _ in attrs)


def check(html: str) -> None:
    seen = Loads()
    seen.feed(html)
    assert not [url for url in seen.fetched if not url.startswith("data:image/png;base64,")]
    assert not {"script", "link", "iframe", "object", "embed"} & seen.elements
    assert "url(http" not in html
    assert "@import" not in html


def test_the_page_loads_nothing_and_shows_names_as_they_are(tmp_path: Path) -> None:
    setups = {label: {"balancer": "SAL"} for label in HOSTILE}
    cells = {label: {"minutes": place + 1.0} for place, label in enumerate(HOSTILE[:1])}
    of = experiment(title=HOSTILE[0], claim=HOSTILE[0], compare="setup", axes={"setup": setups, "part": cells})
    html = page(of, summaries(of), tmp_path)
    check(html)
    assert html.count("<svg") == 1
    text = html[: html.index("<svg")]
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 4  # title, heading, claim, part, label
    for label in HOSTILE:
        assert escape(label) in text
        assert f"<!-- {escape(label, quote=False)} -->" in html  # its entry in the plot's legend


def test_curves_stand_instead_of_distributions_where_there_is_an_x_axis(tmp_path: Path) -> None:
    axes = {"balancer": ["LeastRequest", "SAL"], "load": [0.01, 0.9], "engines": [1, 2]}
    of = experiment(x="load", axes=axes)
    html = page(of, summaries(of), tmp_path)
    check(html)
    assert html.count("<svg") == 2  # one for each number of engines
    assert html.index("<h2>engines 1</h2>") < html.index("<h2>engines 2</h2>")
    assert "Shaded: bootstrap" in html


def test_plots_bear_failures(tmp_path: Path) -> None:
    for of in (experiment(x="load", axes={"balancer": ["LeastRequest", "SAL"], "load": [0.5, 0.9]}), experiment()):
        for first in (0, 100):
            check(page(of, summaries(of, lost=100, first=first), tmp_path))


def test_equal_findings_give_equal_pages(tmp_path: Path) -> None:
    of = experiment()
    assert page(of, summaries(of), tmp_path) == page(of, summaries(of), tmp_path)


def test_a_console_prints_names_as_they_are() -> None:
    console = plain_console()
    console.file = io.StringIO()
    for label in HOSTILE[:4]:
        console.print(label, soft_wrap=True)
    assert console.file.getvalue().splitlines() == list(HOSTILE[:4])
