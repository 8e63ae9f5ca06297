"""`halffull simulate` and `halffull plan`, from their options to the files that they write."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from halffull_lab import cli
from halffull_lab.simulation import report
from halffull_lab.simulation.traffic import arrivals
from halffull_lab.table import seconds
from tests.lab.waiting import until

ROWS = [(0.25 * index, 200 + 37 * index % 900, 1 + 7 * index % 40) for index in range(60)]  # 4 requests/s
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:00:{:09.6f},{},{}"
BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "{},GPT-4,{},{},0,API log"
OWN = "arrival,prompt_tokens,output_tokens", "{},{},{}"
SMALL = """
title = "Small"
compare = "balancer"
seeds = 2
[case]
engines = 2
minutes = 0.1
rate = 9.0
rows = [0.0, 0.02]
[axes]
balancer = ["LeastRequest", "SAL", "SALPlus", "Llumnix"]
policy = ["FCFS", "LARRY"]
"""


def csv(kind: tuple[str, str], rows: list[tuple[float, int, int]] = ROWS) -> bytes:
    header, line = kind
    return "\n".join([header, *(line.format(*row) for row in rows)]).encode()


def mooncake(rows: list[tuple[float, int, int]] = ROWS) -> bytes:
    lines = [
        json.dumps({"timestamp": 1000 * at, "input_length": prompt, "output_length": output, "hash_ids": [1]})
        for at, prompt, output in rows
    ]
    return "\n".join(lines).encode()


FORMATS = {
    "Azure": csv(AZURE),
    "BurstGPT": csv(BURST),
    "Mooncake": mooncake(),
    "one's own": csv(OWN),
    "gzip": gzip.compress(csv(OWN)),
    "BOM and CRLF": b"\xef\xbb\xbf" + csv(OWN).replace(b"\n", b"\r\n"),
    "unsorted": csv(OWN, ROWS[30:] + ROWS[:30]),
}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without plots, which take longest."""
    monkeypatch.setattr(report, "distributions", lambda _: "")


def simulate(tmp_path: Path, *options: str) -> dict[str, Any]:
    out = tmp_path / "out"
    assert cli.main(["simulate", *options, "--out", str(out)]) == 0
    assert sorted(file.name for file in out.iterdir()) == ["report.html", "results.json"]
    found: dict[str, Any] = json.loads((out / "results.json").read_bytes())
    return found


def own(tmp_path: Path, name: str = "mine.csv", data: bytes = FORMATS["one's own"]) -> str:
    file = tmp_path / name
    file.write_bytes(data)
    return str(file)


def figures(found: dict[str, Any]) -> dict[str, Any]:
    return {name: variant["figures"] for name, variant in found["cells"][0]["variants"].items()}


QUICK = ("--engines", "1", "--seeds", "1", "--policies", "LARRY", "--balancers", "SAL")


def test_every_public_format_gives_the_same_run(tmp_path: Path, here: None, plain: None) -> None:
    found = {
        name: simulate(tmp_path, "--trace", own(tmp_path, f"{name}.trace", data), *QUICK, "--factor", "1")
        for name, data in FORMATS.items()
    }
    for name, each in found.items():
        (cell,) = each["cells"]
        assert cell["rate"] == pytest.approx(4.0)
        assert cell["variants"]["LARRY, SAL"]["requests"] == len(ROWS)
        assert [figure for figure, _, _ in figures(each)["LARRY, SAL"].values()] == pytest.approx(
            [figure for figure, _, _ in figures(found["one's own"])["LARRY, SAL"].values()]
        )
        assert cell["notes"] == (
            ["sorted by time: 1 rows were earlier than the row before"] if name == "unsorted" else []
        )


def test_a_bad_row_is_named_with_its_line(tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]) -> None:
    trace = own(tmp_path, "bad.csv", csv(OWN) + b"\n15,ten,3\n")
    for command in (
        ["simulate", "--trace", trace, "--out", str(tmp_path / "out")],
        ["plan", "--trace", trace, "--slo", "ttft_p95=1s"],
    ):
        assert cli.main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{trace}: line 62: " in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        (("--rate", "6"), lambda _: 6.0),
        (("--factor", "2.5"), lambda _: 10.0),
        (("--load", "0.5"), lambda cell: cell["saturation"] / 2),
        ((), lambda cell: 0.8 * cell["saturation"]),
    ],
    ids=["rate", "factor", "load", "none"],
)
def test_the_rate_really_used_is_written(
    options: tuple[str, ...], rate: Callable[[Any], float], tmp_path: Path, here: None, plain: None
) -> None:
    (cell,) = simulate(tmp_path, "--trace", own(tmp_path), *QUICK, *options)["cells"]
    assert cell["rate"] == pytest.approx(rate(cell)) == pytest.approx(cell["arrived"])
    assert cell["load"] == pytest.approx(cell["rate"] / cell["saturation"])
    assert cell["variants"]["LARRY, SAL"]["case"]["arrivals"] == "recorded"


def test_what_came_in_the_minutes_that_were_run_is_written_too(
    tmp_path: Path, here: None, plain: None, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(0.1 * index, 100, 5) for index in range(61)] + [(60.0, 100, 5)]  # all but one in the first tenth
    (cell,) = simulate(
        tmp_path, "--trace", own(tmp_path, data=csv(OWN, rows)), *QUICK, "--factor", "1", "--minutes", "0.2"
    )["cells"]
    assert cell["rate"] == pytest.approx(61 / 60)
    assert cell["arrived"] == pytest.approx(10.0)
    assert "in the minutes that were run 10 requests/s" in capsys.readouterr().out


def test_rows_too_long_for_the_engine_are_said(
    tmp_path: Path, here: None, plain: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = own(tmp_path, data=csv(OWN, [*ROWS, (16.0, 20_000, 5)]))
    (cell,) = simulate(tmp_path, "--trace", trace, *QUICK)["cells"]
    assert cell["notes"] == ["1 of 61 requests left out: longer than the engine takes"]
    assert f"! {cell['notes'][0]}" in capsys.readouterr().out
    assert cell["notes"][0] in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize("name", ["<script>.csv", "[bold]x[", ":smile:.csv", "$x^$.csv"])
def test_a_trace_may_be_called_anything(
    name: str, tmp_path: Path, here: None, plain: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = own(tmp_path, name)
    simulate(tmp_path, "--trace", trace, *QUICK)
    html = (tmp_path / "out/report.html").read_text()
    assert "<script" not in html
    assert ("&lt;script&gt;" in html) == (name == "<script>.csv")
    assert name in "".join(capsys.readouterr().out.split())  # a long title is folded
    assert cli.main(["plan", "--trace", trace, "--slo", "ttft_p95=9s", "--seeds", "1", "--setups", "FCFS+SAL"]) == 0


def test_policies_and_balancers_are_crossed_the_first_is_the_reference(tmp_path: Path, here: None, plain: None) -> None:
    found = simulate(
        tmp_path, "--trace", own(tmp_path), "--engines", "2", "--seeds", "1", "--policies", "FCFS, LARRY:500",
        "--balancers", "Random,SAL", "--arrivals", "bursts", "--minutes", "0.1", "--gpu", "8b-a100",
    )  # fmt: skip
    (cell,) = found["cells"]
    assert list(cell["variants"]) == ["FCFS, Random", "FCFS, SAL", "LARRY:500, Random", "LARRY:500, SAL"]
    assert found["reference"] == "FCFS, Random"
    case = cell["variants"]["LARRY:500, SAL"]["case"]
    assert (case["policy"], case["balancer"], case["arrivals"]) == ("LARRY:500", "SAL", "bursts")
    assert (case["gpu"], case["engines"], case["minutes"]) == ("8b-a100", 2, 0.1)


def test_an_experiment_takes_options_and_its_file_is_told_by_its_hash(tmp_path: Path, here: None, plain: None) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    found = simulate(tmp_path, str(file), "--seeds", "1", "--rate", "5", "--minutes", "0.05", "--trace", own(tmp_path))
    assert re.fullmatch(rf"{file}, sha256 [0-9a-f]{{64}}", found["source"])
    assert found["seeds"] == [0]
    assert {cell["rate"] for cell in found["cells"]} == {5.0}
    assert {variant["case"]["minutes"] for cell in found["cells"] for variant in cell["variants"].values()} == {0.05}


# Processes


def started(*options: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "halffull_lab", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
        start_new_session=True,
    )


def test_the_same_seeds_give_the_same_bytes_whatever_the_process(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(SMALL)
    runs = [
        started("simulate", str(file), "--workers", workers, "--out", str(tmp_path / workers), PYTHONHASHSEED=workers)
        for workers in ("1", "2")
    ]
    for run in runs:
        _, error = run.communicate(timeout=110)
        assert (run.returncode, error) == (0, "")
    one, two = (tmp_path / workers for workers in ("1", "2"))
    assert (one / "results.json").read_bytes() == (two / "results.json").read_bytes()
    pages = [re.sub("<dd>.* processes</dd>", "", (out / "report.html").read_text()) for out in (one, two)]
    assert pages[0] == pages[1]


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:
    """A command that has minutes to run, and its processes; nothing of it is left in the end."""
    command = started("simulate", "both", "--workers", "2", "--out", str(tmp_path / "out"))
    processes = [psutil.Process(command.pid)]
    yield command, processes
    for process in processes:
        if lives(process):
            process.kill()
    command.communicate()


def busy(command: subprocess.Popen[str], processes: list[psutil.Process], *, seconds: float = 0.3) -> bool:
    """Both workers are at work: they have used some time of a core."""
    processes[1:] = psutil.Process(command.pid).children(recursive=True)
    return sum(process.cpu_times().user > seconds for process in processes[1:]) >= 2


@pytest.mark.parametrize("how", ["Ctrl-C", "killed"])
async def test_nothing_is_left_of_a_run_that_is_interrupted(
    how: str, running: tuple[subprocess.Popen[str], list[psutil.Process]], tmp_path: Path
) -> None:
    command, processes = running
    await until(lambda: busy(command, processes), within=100)
    if how == "Ctrl-C":  # the terminal sends it to every process, and it is the command's to handle
        for process in processes[1:]:
            process.send_signal(signal.SIGINT)
        await until(lambda: command.poll() is not None or busy(command, processes, seconds=1.0), within=100)
        assert command.poll() is None
        os.killpg(command.pid, signal.SIGINT)
    else:
        command.kill()
    _, error = command.communicate(timeout=60)
    assert command.returncode == (130 if how == "Ctrl-C" else -signal.SIGKILL)
    if how == "Ctrl-C":
        assert error == "halffull: interrupted\n"
    await until(lambda: not any(lives(process) for process in processes), within=30)
    assert not (tmp_path / "out").exists()


# plan


def plan(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any]]:
    out = tmp_path / "deep" / "plan.json"
    code = cli.main(["plan", *options, "--out", str(out)])
    return code, json.loads(out.read_bytes())


def test_more_engines_until_the_objective_is_met_halffull_needs_no_more_than_others(
    tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = plan(
        tmp_path, "--trace", "azure-conv", "--slo", "ttft_p95=400ms", "--slo", "tpot_p99=1s", "--factor", "4",
        "--minutes", "0.5", "--arrivals", "poisson", "--seeds", "1", "--setups", "FCFS+LeastRequest,LARRY+SAL",
    )  # fmt: skip
    assert code == 0
    others, ours = found["setups"].values()
    assert 1 < ours["engines"] <= others["engines"]
    assert found["objectives"] == ["ttft_p95=0.4s", "tpot_p99=1s"]
    for setup in found["setups"].values():
        for engines, tried in setup["tried"].items():
            assert (tried["ttft_p95"] <= 0.4 and tried["tpot_p99"] <= 1.0) == (int(engines) >= setup["engines"])
        assert {str(setup["engines"]), str(setup["engines"] - 1)} <= set(setup["tried"])
    printed = capsys.readouterr().out
    assert f"{others['engines'] - ours['engines']} of {others['engines']}" in printed


def test_an_objective_that_cannot_be_met_is_exit_code_1(
    tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = own(tmp_path)
    code, found = plan(
        tmp_path, "--trace", trace, "--slo", "ttft_p50=1ms", "--most", "2", "--seeds", "1", "--factor", "9"
    )
    assert code == 1
    assert {setup["engines"] for setup in found["setups"].values()} == {None}
    printed = capsys.readouterr().out
    assert printed.count("> 2") == 4
    lines = printed.splitlines()
    idle = "! ttft_p50=0.001s is below the TTFT of an idle engine, 0.019 s at least: no number of them meets it"
    assert lines[0] == idle
    assert lines[1].startswith("trying 2 × FCFS+LeastRequest, ")  # where there is no terminal, too
    tried = found["setups"]["LARRY+SAL"]["tried"]
    assert sum(line.startswith("LARRY+SAL: not met by ") for line in lines) == len(tried)
    assert lines[-1] == f"! LARRY+SAL: not met by 2 engines: ttft_p50 is {seconds(tried['2']['ttft_p50'])} s"


@pytest.mark.parametrize(("count", "why"), [(1, "it has one request only"), (3, "all requests arrive at once")])
@pytest.mark.parametrize("command", [["plan", "--slo", "ttft_p95=1s"], ["simulate", "--factor", "1"]], ids=" ".join)
def test_a_trace_without_a_rate_is_one_line(
    command: list[str], count: int, why: str, tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = own(tmp_path, data=csv(OWN, [(0.0, 100, 5)] * count))
    assert cli.main([*command, "--trace", trace, "--out", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{trace}: {why}, so it has no rate and none can be set" in line


def test_refused_requests_meet_no_objective(tmp_path: Path, here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_long(*given: Any, **options: Any) -> Any:
        trace = arrivals(*given, **options)
        trace.prompt_tokens[::5] = 20_000
        return trace

    monkeypatch.setattr("halffull_lab.simulation.campaign.arrivals", too_long)
    code, found = plan(
        tmp_path, "--trace", own(tmp_path), "--slo", "ttft_p95=60s", "--most", "2", "--seeds", "1", "--setups",
        "FCFS+SAL", "--arrivals", "poisson", "--minutes", "0.2",
    )  # fmt: skip
    assert code == 1
    assert found["setups"]["FCFS+SAL"]["tried"]["2"]["ttft_p95"] is None


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--setups", ","], "--setups"),
        (["--setups", "LARRY"], "LARRY"),
        (["--setups", "FIFO+SAL"], "FIFO"),
        (["--setups", "FCFS+P2C"], "P2C"),
        (["--gpu", "nothing"], "nothing"),
        (["--real-scheduler"], "vLLM"),
    ],
    ids=str,
)
def test_plan_s_wrong_options_are_one_line(
    options: list[str], word: str, tmp_path: Path, here: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "--trace", own(tmp_path), "--slo", "ttft_p95=1s", *options]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert word in line
    assert printed.out == ""


def test_a_trace_has_its_own_rate_unless_another_is_asked_for(tmp_path: Path, here: None) -> None:
    fixed = ("--slo", "ttft_p95=1s", "--seeds", "1", "--setups", "FCFS+SAL")
    rates = [
        plan(tmp_path, "--trace", own(tmp_path), *fixed, *options)[1]["rate"]
        for options in ((), ("--factor", "2"), ("--rate", "3"))
    ]
    assert rates == pytest.approx([4.0, 8.0, 3.0])
    assert np.isfinite(rates).all()
