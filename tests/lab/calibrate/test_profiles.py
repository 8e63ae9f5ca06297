"""Profile files: what calibrate writes is read back, and what makes no sense is refused by file and key."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from halffull_lab import cli
from halffull_lab.latency import PROFILES
from halffull_lab.profiles import ProfileError, load_profile, render_profile

PAGE = Path(__file__).parents[3] / "docs" / "lab.md"

PROFILE = PROFILES["70b-2xh100"]
RECORD = {"model": 'a "b"\\c', "seconds": 1.5, "notes": ["x"], "error": {"decode": {"median": 0.01, "p95": None}}}


def test_built_in_names() -> None:
    assert all(load_profile(name) is profile for name, profile in PROFILES.items())


def test_a_built_in_one_takes_another_step_budget() -> None:
    assert load_profile("70b-2xh100:8192") == replace(PROFILE, max_tokens_per_batch=8192)
    for wrong in ("70b-2xh100:", "70b-2xh100:x", "70b-2xh100:0", "70b-2xh100:100"):
        with pytest.raises(ProfileError, match=f"^{wrong}: after the colon stands the step budget"):
            load_profile(wrong)


@pytest.mark.parametrize("command", ["engine", "simulate", "plan"])
def test_help_and_docs_name_every_built_in_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    told, page = capsys.readouterr().out, PAGE.read_text(encoding="utf-8")
    for name in PROFILES:
        assert name in told
        assert f"`{name}`" in page


@pytest.mark.parametrize("suffix", [".json", ".toml"])
def test_what_is_written_is_read_back(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"mine{suffix}"
    path.write_text(render_profile(PROFILE, calibration=RECORD, suffix=suffix))
    assert load_profile(path) == PROFILE
    assert load_profile(str(path)) == PROFILE


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"latency.floor": None}, "latency: Object missing required field `floor`"),
        ({"latency.floor": "x"}, "latency.floor: Expected `float`, got `str`"),
        ({"latency.floor": -1.0}, "latency.floor: Expected `float` >= 0.0"),
        ({"latency.flor": 1.0}, "latency: Object contains unknown field `flor`"),
        ({"kv_tokens": 0}, "kv_tokens: Expected `int` >= 1"),
        ({"kv_tokens": 1.5}, "kv_tokens: Expected `int`, got `float`"),
        ({"max_num_seqs": None}, "Object missing required field `max_num_seqs`"),
        ({"max_num_seqs": 5_000}, "at most max_tokens_per_batch"),
        ({"kv_tokens": 3}, "kv_tokens: 3 is less than a block of 16"),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, change: dict[str, object], reason: str) -> None:
    content = json.loads(render_profile(PROFILE, calibration={}, suffix=".json"))
    for key, value in change.items():
        *above, last = key.split(".")
        table = content[above[0]] if above else content
        if value is None:
            del table[last]
        else:
            table[last] = value
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ProfileError) as caught:
        load_profile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)


def test_infinity_and_nan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    text = render_profile(PROFILE, calibration={}, suffix=".toml")
    for value in ("inf", "nan"):
        path.write_text(text.replace("floor = 14.0", f"floor = {value}"))
        with pytest.raises(ProfileError, match=r"latency\.floor: "):
            load_profile(path)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="neither a file nor one of 70b-2xh100, 8b-a100, high-floor"):
        load_profile("9b-nothing")
    for name, content in {"a.toml": "x = \n", "b.json": "{", "c.toml": "\xff"}.items():
        path = tmp_path / name
        path.write_bytes(content.encode("latin-1"))
        with pytest.raises(ProfileError, match=name):
            load_profile(path)


def test_the_engine_takes_a_file_and_names_a_bad_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("kv_tokens = 7\n")
    assert cli.main(["engine", "--profile", str(path)]) == 2
    assert f"{path}: Object missing required field `latency`" in capsys.readouterr().err
