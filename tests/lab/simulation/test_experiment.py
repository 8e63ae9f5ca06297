"""Experiment files: those that come with the lab, and every way in which one's own can be wrong."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from halffull_lab import cli
from halffull_lab.latency import PROFILES
from halffull_lab.simulation.experiment import (
    Case,
    Experiment,
    ExperimentError,
    bundled,
    engine_policy,
    load_experiment,
)
from halffull_lab.traces import BUNDLED

ABOUT_THE_PAPER = {"alpha", "balancers", "capacity", "single_server"}


@pytest.mark.parametrize("name", bundled())
def test_what_comes_with_the_lab_loads_and_is_as_large_as_its_axes_say(name: str) -> None:
    experiment, data = load_experiment(name)
    assert data.startswith(b"title")
    cells = list(experiment.cells())
    sizes = {axis: len(values) for axis, values in tomllib.loads(data.decode())["axes"].items()}
    compared = sizes.pop(experiment.compare)
    assert (len(cells), {len(cell.cases) for cell in cells}) == (math.prod(sizes.values()), {compared})
    assert compared >= 2
    assert len({cell.name for cell in cells}) == len(cells)
    assert experiment.reference in cells[0].cases
    assert experiment.seeds >= 2
    for case in (case for cell in cells for case in cell.cases.values()):
        assert case.trace in BUNDLED
        assert case.gpu.partition(":")[0] in PROFILES


def test_those_about_the_paper_name_their_figure_and_what_it_claims() -> None:
    named = {name for name, title in bundled().items() if "paper" in title}
    assert named == ABOUT_THE_PAPER
    for name in named:
        experiment, _ = load_experiment(name)
        assert "Figure" in experiment.title
        assert experiment.claim.endswith(".")


def test_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["simulate", "--list"]) == 0
    listed = capsys.readouterr().out
    assert len(bundled()) >= 13
    for name, title in bundled().items():
        assert f"{name}  {title.split('(')[0].strip()}" in listed


GOOD = """
title = "Mine"
seeds = 2
[case]
minutes = 1
load = 0.5
[axes]
balancer = ["SAL", "Random"]
pickers = [1, 2]
"""


def changed(*replacements: tuple[str, str]) -> str:
    text = GOOD
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


BAD = {
    "unknown key": (changed(("seeds", "seed")), "seed"),
    "unknown field of the case": (changed(("minutes", "minuets")), "minuets"),
    "wrong type": (changed(("minutes = 1", 'minutes = "1"')), "case.minutes"),
    "wrong type in an axis": (changed(("[1, 2]", '["one", "two"]')), "pickers"),
    "a fraction of a picker": (changed(("[1, 2]", "[1, 1.5]")), "pickers"),
    "out of range": (changed(("minutes = 1", "minutes = 0")), "case.minutes"),
    "no number": (changed(("load = 0.5", "load = nan")), "case.load"),
    "infinite": (changed(("load = 0.5", "load = inf")), "case.load"),
    "an axis that is a truth": (changed(("[1, 2]", "[true]")), "axes"),
    "no seed": (changed(("seeds = 2", "seeds = 0")), "seeds"),
    "unknown policy": (changed(("minutes", 'policy = "FIFO"\nminutes')), "policy"),
    "α where there is none": (changed(("minutes", 'policy = "FCFS:2"\nminutes')), "policy"),
    "α of nothing": (changed(("minutes", 'policy = "LARRY:0"\nminutes')), "policy"),
    "α that is no number": (changed(("minutes", 'policy = "LARRY:x"\nminutes')), "policy"),
    "unknown balancer": (changed(('"Random"', '"P2C"')), "balancer"),
    "unknown source": (changed(("minutes", 'source = "guess"\nminutes')), "case.source"),
    "unknown arrivals": (changed(("minutes", 'arrivals = "steady"\nminutes')), "case.arrivals"),
    "rows the wrong way": (changed(("minutes", "rows = [0.5, 0.5]\nminutes")), "rows"),
    "rows beyond the end": (changed(("minutes", "rows = [0.5, 1.5]\nminutes")), "case.rows"),
    "load and rate": (changed(("load", "rate = 3\nload")), "load, rate and factor"),
    "the only engine is fresh": (changed(("minutes", "engines = 1\nfresh = 1\nminutes")), "fresh"),
    "unknown axis": (changed(("pickers", "pickels")), "axes: 'pickels'"),
    "unknown field in a labelled axis": (changed(("pickers = [1, 2]", "pickers.a = {pickels = 1}")), "pickels"),
    "empty axis": (changed(("[1, 2]", "[]")), "axes.pickers"),
    "values twice": (changed(("[1, 2]", "[1, 2, 1]")), "axes.pickers"),
    "compare is no axis": (changed(("seeds", 'compare = "policy"\nseeds')), "compare: 'policy'"),
    "no axis at all": ('title = "Mine"', "axes"),
    "baseline is no value": (changed(("seeds", 'baseline = "LeastRequest"\nseeds')), "baseline: 'LeastRequest'"),
    "a rival is no value": (changed(("seeds", 'rivals = ["LeastRequest"]\nseeds')), "rivals: 'LeastRequest'"),
    "x is no axis": (changed(("seeds", 'x = "load"\nseeds')), "x: 'load'"),
    "x is not of numbers": (
        changed(("seeds", 'x = "source"\nseeds'), ("pickers = [1, 2]", 'source = ["report"]')),
        "x:",
    ),
    "x is what is compared": (changed(("seeds", 'x = "balancer"\nseeds')), "x: 'balancer'"),
    "compare changes the arrivals": (
        changed(("seeds", 'compare = "minutes"\nseeds'), ("pickers = [1, 2]", "minutes = [1, 2]")),
        "compare: minutes",
    ),
    "too many combinations": (changed(("[1, 2]", str(list(range(1, 1_002))))), "axes: more than 2000"),
    "not TOML": (changed(("[axes]", "[axes")), "line 7"),
    "a key twice": (changed(("seeds = 2", "seeds = 2\nseeds = 2")), "line 4"),
    "not UTF-8": ("\udcff", "utf-8"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_bad_file_is_one_line_with_its_name_and_the_key(
    why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, key = BAD[why]
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert cli.main(["simulate", str(file), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert str(file) in line
    assert key in line
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == [file]


def test_no_such_file_names_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bothh", str(tmp_path / "mine.toml"), str(tmp_path), "", "no\0name"):
        assert cli.main(["simulate", name, "--out", str(tmp_path / "out")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert name.split("\0")[0] in line
    assert not (tmp_path / "out").exists()


def test_the_good_one_is_good(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(GOOD)
    experiment, data = load_experiment(str(file))
    assert data == GOOD.encode()
    assert [cell.point for cell in experiment.cells()] == [{"pickers": "1"}, {"pickers": "2"}]
    assert [cell.name for cell in experiment.cells()] == ["pickers 1", "pickers 2"]
    assert [list(cell.cases) for cell in experiment.cells()] == [["SAL", "Random"]] * 2
    assert next(experiment.cells()).cases["Random"] == Case(minutes=1.0, load=0.5, balancer="Random", pickers=1)


def make(**changes: Any) -> Experiment:
    return Experiment(
        **{"title": "Mine", "axes": {"balancer": ["SAL"], "load": [0.5, 0.8], "engines": [1, 2]}, **changes}
    )


def test_the_last_axis_is_the_fastest_and_the_compared_one_is_none_of_them() -> None:
    points = [tuple(cell.point.values()) for cell in make().cells()]
    assert points == [("0.5", "1"), ("0.5", "2"), ("0.8", "1"), ("0.8", "2")]


def test_of_the_rates_the_last_one_given_holds() -> None:
    assert Case(load=0.5).changed({"rate": 3.0}) == Case(rate=3.0)
    assert Case(rate=3.0).changed({"minutes": 1.0}) == Case(rate=3.0, minutes=1.0)
    assert Case(rate=3.0).changed({"factor": 2.0}, {"load": 0.7}) == Case(load=0.7)
    with pytest.raises(ValueError, match="give one of them"):
        Case().changed({"load": 0.5, "rate": 3.0})


def test_options_change_the_case_that_is_varied() -> None:
    experiment = make().changed(case={"minutes": 2.0, "trace": "azure-code"}, seeds=7)
    assert experiment.seeds == 7
    assert {(case.minutes, case.trace) for cell in experiment.cells() for case in cell.cases.values()} == {
        (2.0, "azure-code")
    }
    assert make().changed(case={}).seeds == make().seeds
    with pytest.raises(ValueError, match="minuets"):
        make().changed(case={"minuets": 1})


def test_cases_with_minutes_of_their_own_have_at_most_the_ones_given() -> None:
    experiment = make(axes={"balancer": ["SAL", "Random"], "scene": {"own": {"minutes": 9.0}, "short": {"minutes": 1}}})
    for minutes, expected in ((2.0, [2.0, 1.0]), (20.0, [9.0, 1.0])):
        cells = experiment.changed(case={"minutes": minutes}).cells()
        assert [cell.cases["SAL"].minutes for cell in cells] == expected


def test_an_axis_of_minutes_is_not_shortened(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('title = "Mine"\n[axes]\nbalancer = ["SAL", "Random"]\nminutes = [1, 2]\n')
    assert cli.main(["simulate", str(file), "--minutes", "1", "--out", str(tmp_path / "out")]) == 2
    assert "--minutes: the experiment varies it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [["--load", "0.7"], ["--rate", "7"], ["--factor", "2"]], ids=lambda option: option[0]
)
def test_a_rate_that_the_experiment_varies_is_refused_not_ignored(
    option: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert cli.main(["simulate", "capacity", *option, "--out", str(tmp_path / "out")]) == 2
    assert f"{option[0]}: the experiment varies it" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [
        ["both", "--policies", "FCFS"],
        ["both", "--balancers", "SAL"],
        ["both", "--engines", "10001"],
        ["both", "--seeds", "10001"],
        ["both", "--trace", "azure-code"],
        ["--trace", "azure-conv", "--policies", "FIFO"],
        ["--trace", "azure-conv", "--balancers", "P2C"],
        ["--trace", "azure-conv", "--policies", ","],
        ["--trace", "azure-conv", "--gpu", "no-such-gpu"],
        ["both", "--real-scheduler"],
        [],
    ],
    ids=" ".join,
)
def test_options_that_do_not_fit_are_one_line(
    options: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, here: None
) -> None:
    assert cli.main(["simulate", *options, "--out", str(tmp_path / "out")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_two_rates_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["simulate", "--trace", "azure-conv"], ["plan", "--trace", "azure-conv", "--slo", "ttft_p95=1s"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*command, "--rate", "3", "--factor", "2"])
        assert stopped.value.code == 2
        assert "not allowed with argument" in capsys.readouterr().err


def test_p2c_is_told_its_name() -> None:
    with pytest.raises(ValueError, match=r"balancer: 'P2C' is unknown; known are .*Llumnix \(P2C is LeastRequest\)$"):
        Case(balancer="P2C")


def test_a_policy_is_a_name_or_larry_with_its_alpha() -> None:
    assert engine_policy("FCFS") == ("FCFS", 1.0)
    assert engine_policy("LARRY") == ("LARRY", 1.0)
    assert engine_policy("LARRY:500") == ("LARRY", 500.0)
    for wrong in ("LARRY:", "LARRY:-1", "LARRY:nan", "LARRY:inf", "LARRYPlus:2", "larry", ""):
        with pytest.raises(ValueError, match="policy"):
            engine_policy(wrong)


def test_a_file_that_is_missing_says_so_as_an_error_of_its_own() -> None:
    with pytest.raises(ExperimentError, match="one of: alpha, "):
        load_experiment("nothing")
