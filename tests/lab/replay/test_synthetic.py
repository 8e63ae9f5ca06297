"""Described traffic: it has the lengths, the rate and the changes that its file says, and the same each time."""

import math
from pathlib import Path

import numpy as np
import pytest

from halffull_lab.traces import BUNDLED, Trace, TraceError, load_trace

ONE = "[[mixture]]\nprompt = {mean = 1000, sigma = 0.5}\noutput = {mean = 50, sigma = 0}\n"
OTHER = "[[mixture]]\nshare = 0\nat_last = 1\nprompt = {mean = 9000, sigma = 0}\noutput = {mean = 3, sigma = 0}\n"


def _own(tmp_path: Path, text: str) -> Trace:
    file = tmp_path / "own.toml"
    file.write_text(text, encoding="utf-8")
    return load_trace(file)


def test_lengths_have_the_mean_and_the_spread(tmp_path: Path) -> None:
    trace = _own(tmp_path, f"requests = 20000\n{ONE}")
    assert len(trace) == 20_000
    assert trace.prompt_tokens.mean() == pytest.approx(1000, rel=0.02)
    assert np.log(trace.prompt_tokens).std() == pytest.approx(0.5, rel=0.02)
    assert set(trace.output_tokens.tolist()) == {50}
    gaps = np.diff(trace.arrival)
    assert (gaps.mean(), gaps.std()) == pytest.approx((1.0, 1.0), rel=0.03)


def test_the_rate_swings_once(tmp_path: Path) -> None:
    arrival = _own(tmp_path, f"requests = 20000\nswing = 0.6\n{ONE}").arrival
    halves = [np.count_nonzero((arrival >= start) & (arrival < start + 10_000)) for start in (0, 10_000)]
    wave = 0.6 * 2 / math.pi  # the mean of half a sine wave
    assert halves == pytest.approx([10_000 * (1 + wave), 10_000 * (1 - wave)], rel=0.05)


def test_no_two_requests_arrive_at_once_however_many_there_are(tmp_path: Path) -> None:
    for count in range(2, 100):
        assert (np.diff(_own(tmp_path, f"requests = {count}\nswing = 0.9\n{ONE}").arrival) > 0).all(), count


def test_the_shares_change_from_the_first_to_the_last_request(tmp_path: Path) -> None:
    long = _own(tmp_path, f"requests = 20000\n{ONE}{OTHER}").prompt_tokens == 9000
    tenths = [float(part.mean()) for part in np.split(long, 10)]
    assert tenths == pytest.approx([along / (1 + along) for along in np.arange(0.05, 1, 0.1)], abs=0.03)


def test_equal_files_give_equal_requests(tmp_path: Path) -> None:
    one, other = (_own(tmp_path, f"requests = 300\n{ONE}{OTHER}") for _ in range(2))
    for name in ("arrival", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("name", [name for name, file in BUNDLED.items() if file.endswith(".toml")])
def test_what_comes_with_the_lab_is_readable_and_says_that_it_is_synthetic(name: str) -> None:
    assert len(load_trace(name)) >= 3000
    file = Path(__file__).parents[3] / "lab/src/halffull_lab/data" / BUNDLED[name]
    assert file.read_text(encoding="utf-8").startswith("# Synthetic. ")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("requests = 1\n" + ONE, "requests"),
        ("requests = 9\nswing = 1\n" + ONE, "swing"),
        ("requests = 9\n", "mixture"),
        ("requests = 9\nmixture = []\n", "mixture"),
        ("requests = 9\n" + ONE.replace("sigma = 0}", "sigma = -1}"), "output.sigma"),
        ("requests = 9\n" + ONE.replace("sigma", "stddev"), "stddev"),
        ("requests = 9\n" + OTHER, "shares must never all be 0"),
        ("requests 9", "line 1"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(TraceError, match=r"own\.toml: .*" + says):
        _own(tmp_path, text)
