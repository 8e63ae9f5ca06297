"""results.json in the agreed form, the table and the page, and what they say when requests failed."""

import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from halffull_lab import cli
from halffull_lab.figures import Outcomes, Ratio
from halffull_lab.replay import ClientHealth
from halffull_lab.report import write_html
from halffull_lab.results import Comparison, FaultResult, LoadSample, Result
from halffull_lab.table import headline, rows, seconds, table

HEALTH = ClientHealth(
    lateness_p99=0.002,
    lateness_max=0.01,
    loop_lag_p99=0.001,
    loop_lag_max=0.01,
    client_cores=0.2,
    machine_busy=0.5,
    events=1000,
    us_per_event=40,
)
SIZE = 400


def result(policy: str, engine: str, *, slower: float = 1.0, failed: int = 0, invalid: tuple[str, ...] = ()) -> Result:
    rng = np.random.default_rng(1)  # the same arrivals and waits for all
    ttft = slower * rng.lognormal(-1, 0.7, SIZE)
    tgt = ttft + 4
    ttft[:failed] = tgt[:failed] = np.inf
    return Result(
        policy=policy,
        engine=engine,
        outcomes=Outcomes(
            prompt_tokens=rng.integers(1, 6000, SIZE), output_tokens=np.full(SIZE, 101), ttft=ttft, tgt=tgt
        ),
        client=HEALTH,
        failures={"status": failed} if failed else {},
        first_failures=("request 0: status: 504 late",) if failed else (),
        speed=4.0,
        wall=85.0,
        invalid=invalid,
        load=tuple(LoadSample(float(at), {"127.0.0.1:1": 10.0 * at, "127.0.0.1:2": 5.0}) for at in range(9)),
    )


def comparison(*results: Result, fault: FaultResult | None = None) -> Comparison:
    return Comparison(
        title="Halffull demo, 4 emulated GPUs (70B): a trace",
        emulated=True,
        seed=1,
        setting={"time": "4 virtual seconds per wall second"},
        results=results,
        fault=fault,
        notes=("sorted by time",),
    )


PAIR = (result("SAL", "FCFS"), result("LeastRequest", "FCFS", slower=1.5))
KILLED = FaultResult(
    result=result("SAL", "FCFS", slower=1.2),
    without=PAIR[0],
    killed_at=10,
    back_at=20,
    sent_meanwhile=100,
    failed_meanwhile=0,
)


def test_results_have_the_agreed_form() -> None:
    document = json.loads(json.dumps(comparison(*PAIR, fault=KILLED).json(), allow_nan=False))
    run = document["runs"][0]
    assert {key: run[key] for key in ("policy", "engine", "valid", "requests", "errors")} == {
        "policy": "SAL",
        "engine": "FCFS",
        "valid": True,
        "requests": SIZE,
        "errors": 0,
    }
    assert run["client_lateness_p99"] == pytest.approx(0.008)  # trace seconds, as all times
    for name in ("ttft", "normalized_ttft", "tgt"):
        assert set(run[name]) == {"p50", "p95", "p99", "max"}
    assert run["tpot"]["p50"] == pytest.approx(0.04)
    assert run["p2c_ratio"]["ttft_p95"]["value"] == pytest.approx(1.5)
    assert document["runs"][1]["p2c_ratio"] == {}
    assert len(document["runs"]) == 2  # the run with the fault is not one of them
    assert document["picker_killed"]["run"]["errors"] == 0
    assert document["picker_killed"]["ratios"]["ttft_p50"]["value"] == pytest.approx(1.2)
    assert document["emulated"] is True


def test_failures_are_null_in_json_infinite_in_the_table_and_flagged() -> None:
    failing = comparison(result("SAL", "FCFS", failed=SIZE // 10), PAIR[1])
    run = json.loads(json.dumps(failing.json(), allow_nan=False))["runs"][0]
    assert run["errors"] == SIZE // 10
    assert run["ttft"]["p50"] is not None
    assert [run["ttft"][name] for name in ("p95", "p99", "max")] == [None, None, None]
    assert run["p2c_ratio"]["ttft_p95"] == {"value": None, "low": None, "high": None}
    assert rows(failing)[0].ttft[1:] == ("∞", "∞", "∞")
    assert rows(failing)[0].gain[1] == "–"
    assert headline(failing) == []
    assert "SAL, FCFS engines: request 0: status: 504 late" in failing.warnings
    assert any("failures are unequal (SAL 40, LeastRequest 0)" in warning for warning in failing.warnings)
    assert failing.errors == SIZE // 10


def test_each_run_is_compared_with_p2c_before_the_same_engines() -> None:
    whole = comparison(*PAIR, result("SAL", "LARRY", slower=0.5), result("LeastRequest", "LARRY", slower=1.0))
    assert whole.ratios[0]["ttft_p50"].value == pytest.approx(1.5)
    assert whole.ratios[2]["ttft_p50"].value == pytest.approx(2.0)
    assert set(whole.ratios) == {0, 2}
    assert comparison(result("SAL", "FCFS")).ratios == {}  # nothing to compare with
    low = comparison(PAIR[1], result("Random", "FCFS", slower=3)).ratios[1]["ttft_p50"]
    assert low.value == pytest.approx(0.5)


def test_an_invalid_run_says_so_everywhere(tmp_path: Path) -> None:
    doubtful = comparison(result("SAL", "FCFS", invalid=("machine-bound: processors 99% busy",)), PAIR[1])
    assert doubtful.json()["runs"][0]["valid"] is False
    assert "SAL, FCFS engines: invalid, machine-bound: processors 99% busy" in doubtful.warnings
    assert "SAL (invalid)" in printed(doubtful)
    write_html(doubtful, tmp_path / "report.html")
    assert "processors 99% busy" in (tmp_path / "report.html").read_text()


BUSY = ("machine-bound: processors 99% busy",)


def test_invalid_runs_come_with_what_to_do() -> None:
    doubtful = comparison(result("SAL", "FCFS", invalid=BUSY), PAIR[1])
    told = "Runs are invalid as this machine was too busy: close other programs, or give --speed 2"
    assert doubtful.warnings == (f"SAL, FCFS engines: invalid, {BUSY[0]}", told)
    assert comparison(dataclasses.replace(doubtful.results[0], speed=2.0)).advice.endswith("or give --speed 1")
    assert dataclasses.replace(doubtful, emulated=False).advice.endswith("or give a lower --rate")
    assert (comparison(*PAIR).advice, comparison(*PAIR).failure) == ("", "")


def test_the_run_with_the_fault_has_a_name_of_its_own() -> None:
    killed = dataclasses.replace(KILLED, result=result("SAL", "FCFS", failed=1, invalid=BUSY))
    assert comparison(*PAIR, fault=killed).warnings[::2] == (
        f"SAL, FCFS engines, picker killed: invalid, {BUSY[0]}",
        "SAL, FCFS engines, picker killed: request 0: status: 504 late",
    )


@pytest.mark.parametrize("invalid", [(), BUSY])
def test_a_demo_that_fails_says_why_in_its_last_line(
    invalid: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    what = comparison(*PAIR, fault=dataclasses.replace(KILLED, result=result("SAL", "FCFS", failed=1, invalid=invalid)))

    async def ran(*_: object) -> Comparison:
        return what

    monkeypatch.setattr("halffull_lab.demo._demo", ran)
    monkeypatch.setattr("halffull_lab.report.write_html", lambda *_: None)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 1
    why = (
        "halffull demo: 1 of 400 requests failed in the run SAL, FCFS engines, picker killed; "
        "the first: request 0: status: 504 late"
    )
    assert capsys.readouterr().err == (f"{why}. {what.advice}\n" if invalid else f"{why}\n")
    what = comparison(*PAIR)
    assert cli.main(["demo", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err == ""


def test_the_headline_says_longer_where_it_was_longer() -> None:
    (shorter,) = headline(comparison(*PAIR))
    assert shorter == ("1.50×", "shorter TTFT p95 than P2C, FCFS engines (95%: 1.50 to 1.50)")
    ratio = Ratio(value=0.63, low=0.5, high=0.8)
    worse = comparison(*PAIR)
    worse.ratios[0]["ttft_p95"] = ratio
    assert headline(worse) == [("1.59×", "longer TTFT p95 than P2C, FCFS engines (95%: 1.25 to 2.00)")]
    worse.ratios[0]["ttft_p95"] = dataclasses.replace(ratio, low=0.0)  # a draw in which this run had failures
    assert headline(worse) == [("1.59×", "longer TTFT p95 than P2C, FCFS engines (95%: 1.25 to ?)")]


@pytest.mark.parametrize("doubtful", ["SAL", "LeastRequest"])
def test_the_headline_has_no_figure_of_an_invalid_run(doubtful: str) -> None:
    runs = [
        dataclasses.replace(run, invalid=("client-bound: 0.95 of a core",)) if run.policy == doubtful else run
        for run in PAIR
    ]
    text = f"TTFT p95 of SAL against P2C, FCFS engines: {doubtful} is client-bound: 0.95 of a core"
    assert headline(comparison(*runs)) == [("invalid", text)]


def printed(what: Comparison) -> str:
    out = io.StringIO()
    Console(file=out, width=110).print(table(what))
    return out.getvalue()


def test_the_table_says_that_gpus_are_emulated_and_shows_every_figure() -> None:
    text = printed(comparison(*PAIR, fault=KILLED))
    assert "emulated GPUs" in text
    assert "1.50 [1.50–1.50]" in text
    assert "…" not in text  # nothing cut off at 110 columns
    for heading in ("p50", "p95", "p99", "max", "1–255", "≥ 4096", "per token", "TGT", "errors"):
        assert heading in text
    assert "100 requests went by P2C meanwhile, 0 of them failed" in " ".join(text.split())
    assert "TTFT p50" in text


def test_the_page_is_self_contained_and_escapes(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    what = dataclasses.replace(comparison(*PAIR, fault=KILLED), title="4 emulated GPUs <script>alert(1)</script>")
    write_html(what, page)
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") == 3
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    for outside in ('src="http', 'href="http', "@import", "url(http"):
        assert outside not in text
    assert "emulated GPUs" in text


def test_a_page_without_load_samples_or_answers_still_renders(tmp_path: Path) -> None:
    bare = [dataclasses.replace(run, load=()) for run in (result("SAL", "", failed=SIZE), result("LeastRequest", ""))]
    write_html(comparison(*bare), tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize("engines", [("",), ("FCFS", "LARRY"), ("LARRY", "FCFS")])
def test_a_page_of_runs_in_which_every_request_failed_still_renders(engines: tuple[str, ...], tmp_path: Path) -> None:
    failed = [result(policy, engines[0], failed=SIZE) for policy in ("SAL", "LeastRequest")]
    others = [result("SAL", engine) for engine in engines[1:]]
    for runs in ([*failed, *others], [*others, *failed]):
        write_html(comparison(*runs), tmp_path / "report.html")
        assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<svg") == 3


def test_the_same_figures_give_the_same_page(tmp_path: Path) -> None:
    pages = []
    for name in ("a.html", "b.html"):
        write_html(comparison(*PAIR), tmp_path / name)
        pages.append((tmp_path / name).read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (np.inf, "∞"), (np.nan, "–"), (0.0, "0.000")],
)
def test_seconds_have_three_digits(value: float, text: str) -> None:
    assert seconds(value) == text
