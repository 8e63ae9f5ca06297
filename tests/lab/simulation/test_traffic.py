"""Arrivals: at the asked rate, the same for everybody of a seed, and no row that the engine would refuse."""

from pathlib import Path

import numpy as np
import pytest

from halffull_lab.engine_requests import EngineLimits
from halffull_lab.latency import PROFILES
from halffull_lab.simulation.experiment import Case
from halffull_lab.simulation.traffic import BURST_CV, arrivals, fitting, lengths
from halffull_lab.traces import Trace, TraceError
from tests.lab.simulation.scenes import drawn, rows

LIMITS = EngineLimits.of(PROFILES["70b-2xh100"])
ROWS = drawn(500, rate=3.0)


def same(one: Trace, other: Trace) -> bool:
    return all(
        np.array_equal(getattr(one, field), getattr(other, field))
        for field in ("arrival", "prompt_tokens", "output_tokens")
    )


def own(tmp_path: Path, *of: tuple[float, int, int]) -> str:
    file = tmp_path / "own.csv"
    lines = [f"{arrival},{prompt},{output}" for arrival, prompt, output in of]
    file.write_text("\n".join(["arrival,prompt_tokens,output_tokens", *lines]))
    return str(file)


@pytest.mark.parametrize(("kind", "cv"), [("poisson", 1.0), ("bursts", BURST_CV)])
def test_drawn_arrivals_have_the_rate_the_spread_and_the_rows_of_the_trace(kind: str, cv: float) -> None:
    case = Case(arrivals=kind, minutes=30.0)
    trace = arrivals(ROWS, case, rate=20.0, seed=3)
    assert len(trace) == 36_000
    assert trace.arrival[0] == 0
    gaps = np.diff(trace.arrival)
    assert (gaps >= 0).all()
    assert trace.rate == pytest.approx(20.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)
    pairs = set(zip(ROWS.prompt_tokens.tolist(), ROWS.output_tokens.tolist(), strict=True))
    assert set(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)) == pairs


def test_recorded_arrivals_keep_their_order_and_proportions() -> None:
    trace = arrivals(ROWS, Case(arrivals="recorded", minutes=1.0), rate=6.0, seed=0)
    assert same(trace, ROWS.at(rate=6.0).head(seconds=60.0))
    assert np.allclose(trace.arrival * 6.0 / ROWS.rate, ROWS.arrival[: len(trace)])
    whole = arrivals(ROWS, Case(arrivals="recorded", minutes=1e6), rate=6.0, seed=0)
    assert whole.rate == pytest.approx(6.0)
    assert len(whole) == len(ROWS)


@pytest.mark.parametrize("kind", ["recorded", "poisson", "bursts"])
def test_a_seed_s_arrivals_are_the_same_for_every_policy_and_others_for_another_seed(kind: str) -> None:
    case = Case(arrivals=kind, minutes=1.0)
    other = case.changed(
        {"policy": "LARRY", "balancer": "Random", "pickers": 3, "poll_interval": 1.0, "source": "metrics"}
    )
    assert same(arrivals(ROWS, case, rate=5.0, seed=1), arrivals(ROWS, other, rate=5.0, seed=1))
    again = same(arrivals(ROWS, case, rate=5.0, seed=1), arrivals(ROWS, case, rate=5.0, seed=2))
    assert again == (kind == "recorded")


def test_rows_that_the_engine_refuses_are_left_out_and_that_is_said(tmp_path: Path) -> None:
    longest = LIMITS.max_model_len
    file = own(tmp_path, (0, longest, 1), (5, longest - 1, 1), (7, 10, longest), (8, 30, 40), (9, 0, 4))
    found = lengths(file, (0.0, 1.0), 1.0, LIMITS)
    assert found.prompt_tokens.tolist() == [longest - 1, 30]
    assert found.arrival.tolist() == [0.0, 3.0]  # counted anew
    first, second = found.notes
    assert "line 6: no output" in first or "line 6: no prompt" in first
    assert second == "2 of 4 requests left out: longer than the engine takes"
    with pytest.raises(TraceError, match=rf"{file}: no request fits into the engine \(max_model_len 16384\)"):
        lengths(own(tmp_path, (0, longest, 1)), (0.0, 1.0), 2.0, LIMITS)


def test_outputs_may_be_longer_by_a_factor_and_are_never_nothing(tmp_path: Path) -> None:
    file = own(tmp_path, (0, 10, 1), (1, 10, 30), (2, 10, 9_000))
    assert lengths(file, (0.0, 1.0), 2.0, LIMITS).output_tokens.tolist() == [2, 60]
    assert lengths(file, (0.0, 1.0), 0.1, LIMITS).output_tokens.tolist() == [1, 3, 900]


def test_a_part_of_the_rows() -> None:
    whole = lengths("azure-conv", (0.0, 1.0), 1.0, LIMITS)
    part = lengths("azure-conv", (0.25, 0.5), 1.0, LIMITS)
    assert len(part) == pytest.approx(len(whole) / 4, abs=1)
    assert part.prompt_tokens.tolist() == whole.prompt_tokens[len(whole) // 4 :][: len(part)].tolist()


def test_fitting_is_what_the_limits_say() -> None:
    trace = rows((0.0, 100, 10), (2.0, 16_000, 500), (3.0, 16_384, 1))
    found = fitting(trace, LIMITS)
    assert found.arrival.tolist() == [0.0]
    assert len(fitting(trace.share(0.4, 1.0), LIMITS)) == 0


def test_too_much_or_all_at_once_is_said() -> None:
    with pytest.raises(TraceError, match="more than 5,000,000 requests"):
        arrivals(ROWS, Case(minutes=1e5), rate=1e3, seed=0)
    with pytest.raises(TraceError, match="all requests arrive at once"):
        arrivals(rows((0.0, 1, 1), (0.0, 1, 1)), Case(arrivals="recorded"), rate=1.0, seed=0)
