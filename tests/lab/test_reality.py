"""hack/reality: real and simulated runs beside each other."""

import numpy as np
import pytest

from halffull_lab.figures import Outcomes
from tests import scripts
from tests.lab.simulation.scenes import Witness, members, play, rows

reality = scripts.load("reality/compare.py")


def _run(times: float, *, count: int = 400) -> Outcomes:
    ttft = times * np.linspace(0.1, 0.3, count)
    tokens = np.full(count, 10)
    return Outcomes(prompt_tokens=tokens, output_tokens=tokens, ttft=ttft, tgt=20 * ttft)


def test_the_ratio_is_simulated_over_real_and_certain_where_requests_are_equally_off() -> None:
    found = reality.compare([_run(1.0)] * 3, [_run(0.9)] * 3)

    real, simulated, off = found["TTFT p50"]
    assert (real.value, simulated.value) == pytest.approx((0.2, 0.18))
    assert (off.value, off.low, off.high) == pytest.approx((0.9, 0.9, 0.9))
    assert real.low < 0.2 < real.high
    assert found["TGT p50"][0].value == pytest.approx(4.0)


def test_runs_that_differ_widen_the_interval() -> None:
    _, _, off = reality.compare([_run(0.8), _run(1.0), _run(1.2)], [_run(1.0)] * 3)["TTFT p50"]
    assert off.low < 0.9
    assert off.high > 1.1


def test_runs_of_other_requests_cannot_be_compared() -> None:
    for real, simulated in (([], []), ([_run(1.0)], []), ([_run(1.0)], [_run(1.0, count=399)])):
        with pytest.raises(ValueError, match="cannot be compared"):
            reality.compare(real, simulated)


def test_a_row_for_each_setup() -> None:
    lines = reality.table({"SAL, FCFS engines": reality.compare([_run(1.0)], [_run(0.9)])}).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert lines[2].startswith("| SAL, FCFS engines | 0.200 / 0.180 | 0.90 [0.90–0.90] |")


def test_a_picker_sees_the_bodies_that_are_given() -> None:
    witness = Witness()
    sizes = np.array([4_321, 77])
    play(rows((0.0, 1_000, 3), (0.5, 1_000, 3)), members(1), [witness], body_bytes=sizes, size_error=0.4)
    assert [size for _, size, _ in witness.picked] == [4_321, 77]
