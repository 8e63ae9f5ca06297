"""`halffull calibrate` against emulated engines, whose latency model is known. By the load report, whose times are the
engine's own: however busy the machine is, they are right."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from halffull_lab import cli
from halffull_lab.latency import PROFILES
from halffull_lab.profiles import load_profile

SPEED = 4.0
SEQUENCES = 8
pytestmark = pytest.mark.timeout(400)


@dataclass
class Emulated:
    url: str
    load_url: str

    def load(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.load_url}/load", timeout=30) as answer:  # noqa: S310  http to loopback
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def until(self, *, busy: bool) -> None:
        deadline = time.monotonic() + 60
        while (self.load()["running"] > 0) != busy:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def argv(self, out: Path, *options: str) -> list[str]:
        return ["calibrate", "--url", self.url, "--out", str(out), "--minutes=2", *options]


@contextmanager
def emulated(*options: str) -> Iterator[Emulated]:
    command = [sys.executable, "-m", "halffull_lab", "engine", "--port=0", "--load-port=0", f"--speed={SPEED}"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield Emulated(f"http://127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['load_port']}")
        finally:
            process.terminate()


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_model_is_found_again(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = (f"--max-num-seqs={SEQUENCES}", "--max-model-len=4096", "--max-tokens-per-batch=512")
    out = tmp_path / "profile.json"
    with emulated("--profile", name, *limits) as engine:
        assert cli.main(engine.argv(out, "--load-url", engine.load_url, "--rounds=1")) == 0
        report = engine.load()
    assert (report["running"], report["waiting"]) == (0, 0)
    found, truth = load_profile(out), PROFILES[name]
    assert (found.kv_tokens, found.block_size) == (truth.kv_tokens // 16 * 16, 16)
    # 256 is what is taken without --max-num-seqs; the engine has shown its own.
    assert (found.max_tokens_per_batch, found.max_num_seqs, found.max_model_len) == (512, SEQUENCES, 4096)
    for prefill, decodes, context in [(0, 1, 500), (0, 8, 8_000), (100, 0, 0), (512, 0, 0), (400, 4, 9_000)]:
        load = {
            "prefill_tokens": prefill,
            "decodes": decodes,
            "decode_context": context,
            "prefill_pairs": prefill**2 / 2,
        }
        expected = truth.latency.step_seconds(**load) / SPEED
        assert found.latency.step_seconds(**load) == pytest.approx(expected, rel=0.03), load
    written = json.loads(out.read_text())["calibration"]
    assert all(error["settings"] >= 2 for error in written["error"].values())
    assert all(error["p95"] < 0.03 for error in written["error"].values())
    printed = capsys.readouterr().out
    assert "predicted against measured" in printed
    assert "!" not in printed


def test_without_a_load_report_step_times_are_read_off_streams(tmp_path: Path) -> None:
    """Judged by what it counts: its times are the machine's, too."""
    out = tmp_path / "profile.json"
    limits = ("--max-num-seqs=5", "--max-model-len=4096", "--max-tokens-per-batch=512")
    with emulated("--profile=8b-a100", *limits) as engine:
        assert cli.main(engine.argv(out, "--rounds=1", "--max-num-seqs=5", "--max-tokens-per-batch=512")) == 0
        assert engine.load()["running"] == 0
    written = json.loads(out.read_text())["calibration"]
    assert written["times_from"] == "streams"
    assert written["lost"] <= written["measurements"] / 10
    assert {point["region"] for point in written["points"] if point["held_out"]} == {"prefill", "decode", "mixed"}
    # A prompt of several steps took as many as it has.
    longest = max(point["steps"] for point in written["points"] if point["region"] == "prefill")
    assert longest >= 4_095 / 511
    assert load_profile(out).latency.floor > 0


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


def test_nobody_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["calibrate", "--url", "http://127.0.0.1:9", "--out", str(tmp_path / "profile.toml")]) == 2
    assert "http://127.0.0.1:9/v1/models does not answer" in capsys.readouterr().err
