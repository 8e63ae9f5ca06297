"""`halffull calibrate` against emulated engines, whose latency model is known. By the load report, whose times are the
engine's own: however busy the machine is, they are right."""

import json
from pathlib import Path

import pytest

from halffull_lab import cli
from halffull_lab.latency import PROFILES
from halffull_lab.profiles import load_profile
from tests.lab.calibrate.emulated import SPEED, emulated

SEQUENCES = 8
pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("name", ["70b-2xh100"])
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
