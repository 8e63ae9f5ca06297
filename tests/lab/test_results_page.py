"""docs/results.md: complete, and its tables are what `make results` makes."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from halffull_lab.simulation.experiment import bundled, load_experiment
from tests import scripts

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/results.md").read_text(encoding="utf-8")


verdict = scripts.load("results/verdict.py")
page = scripts.load("results/page.py")


def _variant(ttft: list[float | None], *, gain: list[float | None] | None, engines: int = 4) -> dict[str, Any]:
    figures = {f"ttft_{q}": [value, 0.0, 1.0] for q, value in zip(("p50", "p95", "p99", "max"), ttft, strict=True)}
    figures |= {"normalized_ttft_p95": [0.0012, 0.001, 0.002], "tgt_p50": [6.5, 6.0, 7.0], "tgt_p95": [21.25, 20, 22]}
    return {
        "case": {"engines": engines, "minutes": 10.0},
        "requests": 2000,
        "errors": 0,
        "preemptions": 3,
        "figures": figures,
        "gains": {} if gain is None else dict.fromkeys(figures, gain),
        "over_rivals": {} if gain is None else {figure: [1.1, 1.0, 1.2] for figure in figures},
    }


def _results(**changed: Any) -> dict[str, Any]:
    experiment = {"title": "T", "compare": "balancer", "x": "", "seeds": 2, "rivals": []} | changed
    cell = {"rate": 20.0, "arrived": 2000 / 1200, "load": 0.8, "notes": [], "warning": ""}
    return {
        "version": "1.2.3",
        "experiment": experiment,
        "reference": "LeastRequest",
        "cells": [
            cell
            | {
                "point": {"workload": "chat", "load": load},
                "variants": {
                    "LeastRequest": _variant([0.25, 1.844, 2.66, 13.8], gain=None),
                    "SAL": _variant([0.2, 1.5, 2.5, 3.0], gain=[1.25, 1.2, 1.304]),
                },
            }
            for load in ("0.8", "0.9")
        ],
    }


def test_every_experiment_that_comes_with_the_lab_has_its_section_and_its_command() -> None:
    assert sorted(page.marks(PAGE)) == sorted(bundled())
    for name in bundled():
        section = PAGE.partition(f"\n## {name}: ")[2].partition("\n## ")[0]
        assert f"    .venv/bin/halffull simulate {name}\n" in section, name
        assert f"<!-- results: {name} -->\n" in section, name


def test_every_table_is_of_its_experiment_as_it_stands() -> None:
    for name in bundled():
        table = PAGE.partition(f"<!-- results: {name} -->")[2].partition("<!-- end -->")[0]
        experiment = msgspec.to_builtins(load_experiment(name)[0])
        assert f"content {page.digest(experiment)}," in table, f"make results ARGS={name}"


def test_the_pages_plots_are_there_and_small() -> None:
    shown = re.findall(r"!\[[^]]+\]\((results/[^)]+\.svg)\)", PAGE)
    assert len(shown) >= 2
    assert sorted(shown) == sorted(f"results/{file.name}" for file in (REPOSITORY / "docs/results").iterdir())
    for file in shown:
        assert (REPOSITORY / "docs" / file).stat().st_size < 100_000, file


def test_no_path_of_a_machine() -> None:
    texts = [PAGE, *(file.read_text() for file in (REPOSITORY / "docs/results").iterdir())]
    assert not [found for text in texts for found in re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users)/\S*", text)]


def test_a_row_for_each_variant_of_each_cell() -> None:
    lines = page.section(_results(), wall=150.0, workers=2).splitlines()

    assert lines[1].startswith(
        "| workload | load | balancer | TTFT p50 / p95 / p99 / max | TTFT/token p95, ms | TGT p50 / p95 | preempted "
        "| LeastRequest ÷ this: TTFT p50 | TTFT p95 |"
    )
    assert lines[3] == (
        "| chat | 0.8 | LeastRequest | 0.250 / 1.84 / 2.66 / 13.8 | 1.20 | 6.50 / 21.2 | 0.1% | 1 | 1 | 1 | 1 | 1 | 1 |"
    )
    gain = "1.25 [1.20–1.30]"
    assert lines[4] == (f"|  |  | SAL | 0.200 / 1.50 / 2.50 / 3.00 | 1.20 | 6.50 / 21.2 | 0.1% |{f' {gain} |' * 6}")
    assert len(lines) == 9
    assert lines[8] == (
        "2 seeds of 1,000 requests; 5 simulated engine-hours, 2 minutes with 2 processes; "
        f"content {page.digest(_results()['experiment'])}, version 1.2.3. Failed requests: none."
    )


def test_rivals_are_left_out_of_the_table_of_the_next_best() -> None:
    lines = page.section(_results(rivals=["LeastRequest"]), wall=120, workers=2).splitlines()
    below = lines[lines.index("The best of LeastRequest in each figure ÷ this:") + 2 :]
    assert below[0].endswith("| TGT p50 | TGT p95 | longest |")
    assert [row.split(" | ")[:4] for row in below[2:4]] == [
        ["| chat", load, "SAL", "1.10 [1.00–1.20]"] for load in ("0.8", "0.9")
    ]
    assert not below[4].startswith("|")


def test_a_column_for_each_value_of_x() -> None:
    text = page.section(_results(x="load"), wall=60.0, workers=2)

    assert "| workload | balancer | load 0.8 | load 0.9 |" in text
    assert "| chat | SAL | 0.200 / 1.50 / 2.50 / 3.00 | 0.200 / 1.50 / 2.50 / 3.00 |" in text
    assert "LeastRequest ÷ this, TTFT p95:" in text
    assert "| chat | SAL | 1.25 [1.20–1.30] | 1.25 [1.20–1.30] |" in text


def test_failures_are_said_and_leave_no_figure() -> None:
    results = _results()
    cell = results["cells"][0]
    cell["warning"], cell["notes"] = "failures are unequal (LeastRequest 0, SAL 7)", ["3 requests left out"]
    cell["variants"]["SAL"] |= _variant([0.2, 1.5, 2.5, None], gain=[None, None, None]) | {"errors": 7}
    text = page.section(results, wall=60.0, workers=2)

    assert "| SAL | 0.200 / 1.50 / 2.50 / ∞ |" in text
    assert f"|{' – |' * 6}\n" in text
    assert "Failed requests: 7. chat, 0.8: failures are unequal (LeastRequest 0, SAL 7). 3 requests left out." in text


def test_the_content_is_what_decides_the_figures() -> None:
    content = page.digest(_results()["experiment"])
    assert page.digest(_results(title="other words", claim="and more")["experiment"]) == content
    assert page.digest(_results(seeds=3)["experiment"]) != content
    assert page.digest(_results(first_seed=0)["experiment"]) == content
    assert page.digest(_results(first_seed=7)["experiment"]) != content


def test_only_the_tables_of_what_ran_are_written_anew() -> None:
    old = "a\n<!-- results: one -->\nold\n<!-- end -->\nb\n<!-- results: two -->\nold\n<!-- end -->\nc\n"

    assert page.renewed(old, {"two": "new\n"}) == old.replace("two -->\nold", "two -->\nnew")
    assert page.renewed(page.renewed(old, {"one": "x\n"}), {"one": "old\n"}) == old
    with pytest.raises(ValueError, match="no mark <!-- results: three -->"):
        page.renewed(old, {"three": "new\n"})
