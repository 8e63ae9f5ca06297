"""What can come between `halffull calibrate` and its measurements."""

import json
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path

import pytest

from halffull_lab import cli, measured_engine
from tests.lab.calibrate.emulated import emulated

SEQUENCES = 8
pytestmark = pytest.mark.timeout(400)


def test_ctrl_c_leaves_the_engine_idle(tmp_path: Path) -> None:
    out = tmp_path / "profile.toml"
    with emulated("--profile=8b-a100") as engine:
        command = [sys.executable, "-m", "halffull_lab", *engine.argv(out, "--load-url", engine.load_url)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            engine.until(busy=True)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=100)
        assert (process.returncode, said) == (130, "halffull: interrupted\n")
        assert engine.load()["running"] == 0
        assert not out.exists()


def test_an_engine_with_work_is_refused_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = {"model": "emulated", "prompt": "x", "max_tokens": 60_000, "ignore_eos": True}
    out = tmp_path / "profile.toml"
    with emulated("--max-num-seqs=5", "--max-model-len=65536") as engine:
        other = HTTPConnection(engine.url.removeprefix("http://"))
        other.request("POST", "/v1/completions", json.dumps(body))
        engine.until(busy=True)
        assert cli.main(engine.argv(out, "--load-url", engine.load_url)) == 2
        assert "has 1 requests of others" in capsys.readouterr().err
        # Whoever insists is told that the engine did not do, or not only, what it was asked for.
        more = ("--anyway", "--rounds=1", "--minutes=0.2")
        assert cli.main(engine.argv(out, "--load-url", engine.load_url, *more)) == 2
        assert "other traffic" in capsys.readouterr().err
        assert engine.load()["running"] == 1
        other.close()
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "give --max-tokens-per-batch"),
        (("--model=another", "--max-tokens-per-batch=512"), "no model 'another', but ['emulated']"),
        (("--load-url=http://127.0.0.1:9",), "http://127.0.0.1:9/load does not answer"),
    ],
)
def test_what_the_engine_does_not_tell(
    options: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with emulated() as engine:
        assert cli.main(engine.argv(tmp_path / "profile.toml", *options)) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert len(error.splitlines()) == 1


def test_an_engine_of_one_sequence_needs_a_load_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured_engine, "_STUCK_SECONDS", 0.1)
    with emulated("--profile=8b-a100", "--max-num-seqs=1") as engine:
        assert cli.main(engine.argv(tmp_path / "profile.toml", "--max-tokens-per-batch=512")) == 2
    error = capsys.readouterr().err
    assert "its max_num_seqs is 1: without a load report" in error
    assert len(error.splitlines()) == 1


def test_nobody_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["calibrate", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "profile.toml")]) == 2
    assert "http://127.0.0.1:9/v1/models does not answer" in capsys.readouterr().err
