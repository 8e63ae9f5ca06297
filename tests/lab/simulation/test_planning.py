"""The search for the smallest number of engines, and the objectives that it is for."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_lab.simulation.planning import MEASURES, Objective, ObjectiveError, meets, smallest


@st.composite
def searches(draw: st.DrawFn) -> tuple[int, int, int]:
    """Start, most, and the smallest that does, `most` + 1 for none."""
    most = draw(st.integers(1, 300))
    return draw(st.integers(1, most)), most, draw(st.integers(1, most + 1))


@given(search=searches())
def test_it_finds_the_smallest_and_tries_nothing_twice_and_little(search: tuple[int, int, int]) -> None:
    start, most, answer = search
    steps, tried = smallest(start=start, most=most), []
    met: bool | None = None
    while True:
        try:
            trial = next(steps) if met is None else steps.send(met)
        except StopIteration as end:
            found = end.value
            break
        assert 1 <= trial <= most
        tried.append(trial)
        met = trial >= answer
    assert found == (answer if answer <= most else None)
    assert tried[0] == start
    assert len(set(tried)) == len(tried)
    assert len(tried) <= 2 * math.ceil(math.log2(abs(answer - start) + 1)) + 2
    if 1 < answer <= most:
        assert {answer - 1, answer} <= set(tried)  # the report shows both


@pytest.mark.parametrize(
    ("text", "figure", "seconds"),
    [
        ("ttft_p95=1s", "ttft_p95", 1.0),
        ("tpot_p99=80ms", "tpot_p99", 0.08),
        (" tgt_p50 = 2.5s ", "tgt_p50", 2.5),
        ("normalized_ttft_p95=0.5ms", "normalized_ttft_p95", 0.0005),
    ],
)
def test_an_objective_is_a_percentile_and_a_time(text: str, figure: str, seconds: float) -> None:
    found = Objective.parse(text)
    assert (found.figure, found.seconds) == (figure, pytest.approx(seconds))
    assert Objective.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "ttft=1s", "ttft_p95", "ttft_p95=1", "ttft_p95=0s", "ttft_p95=-1s", "ttft_p95=1m", "ttft_p90=1s", "itl_p95=1s",
     "ttft_p95=1e3s", "ttft_p95=nans", "ttft_p95=1s,tpot_p99=1s", "TTFT_p95=1s", "ttft_p95<1s", "ttft_p95=1ss"],
)  # fmt: skip
def test_what_is_none_is_told_how_one_looks(text: str) -> None:
    with pytest.raises(ObjectiveError, match=r"is no objective; one looks like ttft_p95=1s .*ttft, normalized_ttft"):
        Objective.parse(text)


def test_all_objectives_must_be_met_and_a_failure_or_no_figure_meets_none() -> None:
    objectives = (Objective("ttft_p95", 1.0), Objective("tpot_p99", 0.1))
    assert meets({"ttft_p95": 1.0, "tpot_p99": 0.1}, objectives)
    assert not meets({"ttft_p95": 1.01, "tpot_p99": 0.1}, objectives)
    assert not meets({"ttft_p95": 1.0, "tpot_p99": 0.11}, objectives)
    assert not meets({"ttft_p95": math.inf, "tpot_p99": 0.1}, objectives)
    assert not meets({"ttft_p95": 1.0, "tpot_p99": math.nan}, objectives)
    assert meets({}, ())


def test_every_measure_may_be_asked_for() -> None:
    for measure in MEASURES:
        assert Objective.parse(f"{measure}_p50=1s").figure == f"{measure}_p50"
