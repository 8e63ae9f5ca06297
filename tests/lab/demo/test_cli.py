"""The `halffull` command: instant help, one-line errors, exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest

from halffull_lab import cli, demo
from halffull_lab.conduct import Leg, Score
from halffull_lab.replay import Target
from halffull_lab.traces import parse_trace


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "halffull_lab", *argv], capture_output=True, text=True, check=False, timeout=60
    )


ROOT = Path(__file__).parents[3]


def test_all_places_say_the_same_about_how_long_the_demo_takes() -> None:
    trace = parse_trace(b"arrival,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n", name="t")

    def minutes(legs: tuple[Leg, ...], times: demo.Lengths) -> str:
        run, fault = (trace.at(factor=1 / (seconds * demo.SPEED)) for seconds in (times.run, times.fault))
        score = Score(
            legs=legs,
            trace=run,
            target=Target(url=""),
            speed=demo.SPEED,
            timeout=1,
            fault=legs[0],
            fault_trace=fault,
            drain=times.drain,
        )
        return demo._minutes(score.wall)

    full, quick = minutes(demo._FULL, demo._FULL_LENGTHS), minutes(demo._QUICK, demo._QUICK_LENGTHS)
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/lab.md"))
    assert f"about {full} after the set-up (ARGS=--quick: about {quick})" in readme
    assert f"about {full}\n" in page
    assert f"about {quick}, wide" in page
    assert f"about {quick} in all" in " ".join(run("demo", "--help").stdout.split())


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from halffull_lab import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'aiohttp', 'matplotlib', 'rich', 'uvicorn', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    for command in cli.COMMANDS:
        assert command in done.stdout


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_every_command_has_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0, done.stderr
    assert "--" in done.stdout


@pytest.mark.parametrize(
    "argv",
    [
        ["replay", "--url", "http://127.0.0.1:9", "--trace", "/nonexistent.csv"],
        ["replay", "--url", "http://127.0.0.1:9", "--trace", "azure-conv", "--slice", "50"],
        ["replay", "--url", "http://127.0.0.1:9", "--trace", "azure-conv", "--slice", "50-40"],
        ["demo", "--trace", "/nonexistent.csv"],
        ["demo", "--speed", "0"],
        ["demo", "--rate", "0.001"],
        ["demo", "--load", "report"],
        ["demo", "--load-port", "9400"],
        ["demo", "--engines", ","],
        ["demo", "--engines", "https://127.0.0.1:9", "--model", "m", "--rate", "9"],
        ["demo", "--engines", "http://127.0.0.1:9", "--model", "m"],
        ["demo", "--engines", "http://127.0.0.1:9", "--rate", "9"],
        ["demo", "--engines", "http://127.0.0.1:9", "--model", "m", "--rate", "9", "--speed", "4"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert error.startswith(f"halffull {argv[0]}: ")


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["replay", "--url", "http://h", "--trace", "azure-conv", "--rate", "0"], "'0' does not fit"),
        (["replay", "--url", "http://h", "--trace", "azure-conv", "--speed", "0"], "'0' does not fit"),
        (["replay", "--url", "http://h", "--trace", "azure-conv", "--timeout", "-1"], "'-1' does not fit"),
        (["replay", "--url", "foo", "--trace", "azure-conv"], "'foo' is no URL"),
        (["probe", "ftp://h"], "'ftp://h' is no URL"),
        (["demo", "--rate", "inf"], "'inf' does not fit"),
        (["demo", "--seconds", "0"], "'0' does not fit"),
        (["demo", "--load-port", "99999"], "'99999' is no port"),
        (["engine", "--port", "70000"], "'70000' is no port"),
        (["engine", "--load-port", "-1"], "--load-port"),
        (["engine", "--kv-tokens", "-5"], "argument --kv-tokens: '-5' does not fit, allowed: a whole number from 1"),
        (["engine", "--max-model-len", "0"], "argument --max-model-len: '0' does not fit"),
        (["engine", "--max-num-seqs", "x"], "argument --max-num-seqs: 'x' does not fit"),
        (["engine", "--max-tokens-per-batch", "1.5"], "argument --max-tokens-per-batch: '1.5' does not fit"),
        (["engine", "--stream-interval", "0"], "argument --stream-interval: '0' does not fit"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(
    argv: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(argv)
    assert caught.value.code == 2
    assert reason in capsys.readouterr().err.splitlines()[-1]


def test_rate_and_factor_together_are_refused() -> None:
    done = run("replay", "--url", "http://h", "--trace", "t", "--rate", "1", "--factor", "1")
    assert done.returncode == 2
    assert "not allowed with" in done.stderr


def test_no_command_is_wrong_usage() -> None:
    assert run().returncode == 2
    assert run("dance").returncode == 2


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(_args: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("halffull_lab.demo.main", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["demo", "--out", str(tmp_path)])


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("halffull_lab.demo.main", interrupted)
    assert cli.main(["demo"]) == 130
    assert "interrupted" in capsys.readouterr().err
