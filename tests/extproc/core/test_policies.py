import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.policies import (
    Policy,
    least_request,
    lowest,
    round_robin,
    sal,
    sal_line,
    sal_plus,
    sal_plus_line,
    scores,
    uniform,
)


def column(*values: float) -> list[float]:
    return list(map(float, values))


def test_policies_are_spelled_as_in_the_configuration() -> None:
    assert [str(policy) for policy in Policy] == ["SAL", "SALPlus", "LeastRequest", "RoundRobin", "Random"]


def test_sal_is_the_greater_of_missing_memory_and_queue() -> None:
    assert sal(500.0, queued=0, free=10_000, max_tokens_per_batch=1000, beta=6.0) == 0.5
    assert sal(500.0, queued=3500, free=10_000, max_tokens_per_batch=2000, beta=6.0) == 2.0
    assert sal(500.0, queued=0, free=400, max_tokens_per_batch=1000, beta=6.0) == 600.0  # 6·(500 − 400) against .5


def plus(tokens: float, **changes: float) -> float:
    figures: dict[str, float] = {
        "queued": 2000,
        "free": 90_000,
        "total": 100_000,
        "kv": 12_000,
        "speed": 1.0,
        "max_tokens_per_batch": 1000,
    }
    return sal_plus(tokens, **(figures | changes), kv_weight=0.03, knee=3.0)


def test_sal_plus_adds_the_decode_side() -> None:
    # (2000 + 500 + .03·12000)/1000, k = (10000 + 500)/100000 is below the knee
    assert plus(500.0) == pytest.approx(2.86)


def test_sal_plus_multiplies_by_how_slow_the_engine_is() -> None:
    assert plus(500.0, speed=2.0) == pytest.approx(5.72)


def test_sal_plus_knee() -> None:
    # k = (100000 − 20500 + 500)/100000 = .8 → 3·.1/.2
    assert plus(500.0, free=20_500, kv=0, queued=0) == pytest.approx(0.5 + 1.5)


def test_sal_plus_knee_ends_at_95_percent_and_missing_memory_is_work() -> None:
    # n − F = 400 tokens are missing; k would be 1.004, and counts as .95 → 3·.25/.05
    assert plus(500.0, free=100, kv=0, queued=0) == pytest.approx((500 + 400) / 1000 + 15.0)


def test_sal_plus_survives_more_charges_than_memory() -> None:
    assert math.isfinite(plus(500.0, free=-1e9))


FIGURES = st.fixed_dictionaries(
    {
        "queued": st.integers(0, 500_000),
        "free": st.integers(-50_000, 300_000),
        "total": st.integers(1, 300_000),
        "kv": st.integers(0, 400_000),
        "speed": st.floats(1, 5),
        "max_tokens_per_batch": st.integers(256, 20_000),
    }
)


@given(endpoints=st.lists(FIGURES, max_size=6), tokens=st.integers(1, 200_000))
def test_the_straight_lines_say_what_the_formulas_say(endpoints: list[dict[str, float]], tokens: int) -> None:
    def exact_sal(row: int) -> float:
        return sal(tokens, **picked(endpoints[row], "queued", "free", "max_tokens_per_batch"), beta=6.5)

    def exact_plus(row: int) -> float:
        return sal_plus(tokens, **endpoints[row], kv_weight=0.03, knee=3.0)

    for exact, lines in (
        (exact_sal, [sal_line(**picked(each, "queued", "free", "max_tokens_per_batch")) for each in endpoints]),
        (exact_plus, [sal_plus_line(**each, kv_weight=0.03) for each in endpoints]),
    ):
        work, pace, limit = ([line[place] for line in lines] for place in range(3))
        got = scores(tokens, work=work, pace=pace, limit=limit, exact=exact)
        assert got == pytest.approx([exact(row) for row in range(len(endpoints))], rel=1e-9, abs=1e-9)


def picked(figures: dict[str, float], *names: str) -> dict[str, float]:
    return {name: figures[name] for name in names}


def test_equal_endpoints_tie_exactly() -> None:
    line = sal_plus_line(queued=1234, free=9e4, total=1e5, kv=777, speed=1.3, max_tokens_per_batch=1000, kv_weight=0.03)
    work, pace, limit = ([figure] * 3 for figure in line)
    got = scores(321.0, work=work, pace=pace, limit=limit, exact=lambda _: -1.0)
    assert len(set(got)) == 1


def test_lowest_orders_by_score() -> None:
    rows = lowest(column(3, 1, 2), requests=column(0, 9, 9), rng=random.Random(1))
    assert rows == [1, 2]


def test_ties_go_to_fewest_requests() -> None:
    for seed in range(20):
        rows = lowest(column(1, 1, 1, 0.5), requests=column(3, 1, 2, 9), rng=random.Random(seed))
        assert rows == [3, 1]


def test_negative_scores_tie_like_others() -> None:
    rng = random.Random(5)
    firsts = Counter(lowest(column(-7, 4, -7), requests=column(0, 0, 0), rng=rng)[0] for _ in range(2000))
    assert set(firsts) == {0, 2}
    assert abs(firsts[0] - 1000) < 120


@pytest.mark.parametrize("place", [0, 1])
def test_remaining_ties_are_uniform(place: int) -> None:
    """Chi-square of 8 equal rows, 7 degrees of freedom: 24.3 is the 0.1% point."""
    rng = random.Random(11)
    counts = Counter(lowest([0.0] * 8, requests=[0.0] * 8, rng=rng)[place] for _ in range(8000))
    assert sum((counts[row] - 1000) ** 2 / 1000 for row in range(8)) < 24.3


def test_mask_excludes() -> None:
    mask = [False, True, False]
    assert lowest(column(1, 2, 3), requests=[0.0] * 3, rng=random.Random(1), mask=mask) == [1]
    assert lowest(column(1, 2, 3), requests=[0.0] * 3, rng=random.Random(1), mask=[False] * 3) == []


def test_nothing_to_choose_from() -> None:
    empty: list[float] = []
    rng = random.Random(1)
    assert lowest(empty, requests=empty, rng=rng) == []
    assert least_request(in_flight=empty, rng=rng) == []
    assert round_robin(after=-1, length=0) == []
    assert uniform(length=0, rng=rng) == []
    assert scores(1.0, work=empty, pace=empty, limit=empty, exact=lambda _: 0.0) == []


@given(
    figures=st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2), st.booleans()), max_size=9),
    seed=st.integers(0, 99),
)
def test_lowest_agrees_with_sorting(figures: list[tuple[int, int, bool]], seed: int) -> None:
    scores, requests = column(*(f[0] for f in figures)), column(*(f[1] for f in figures))
    mask = [f[2] for f in figures]
    rows = lowest(scores, requests=requests, rng=random.Random(seed), mask=mask)
    expected = sorted((f[0], f[1]) for f in figures if f[2])[:2]
    assert [(scores[row], requests[row]) for row in rows] == expected
    assert len(set(rows)) == len(rows)
    assert all(mask[row] for row in rows)


def test_least_request_prefers_fewer_in_flight_of_two_draws() -> None:
    """With replacement, as Envoy draws: the busiest of 4 is chosen only when both draws hit it, 1 time in 16."""
    rng = random.Random(3)
    counts = Counter(least_request(in_flight=column(0, 1, 2, 3), rng=rng)[0] for _ in range(16_000))
    for row, expected in enumerate([7000, 5000, 3000, 1000]):
        assert abs(counts[row] - expected) < 250


def test_least_request_gives_two_distinct_rows_within_the_mask() -> None:
    mask = [True, False, True]
    rng = random.Random(3)
    for _ in range(100):
        assert sorted(least_request(in_flight=[0.0] * 3, rng=rng, mask=mask)) == [0, 2]
    assert least_request(in_flight=[0.0] * 3, rng=rng, mask=[False, True, False]) == [1]


def test_round_robin_takes_turns_and_skips() -> None:
    assert round_robin(after=-1, length=3) == [0, 1]
    assert round_robin(after=2, length=3) == [0, 1]
    assert round_robin(after=1, length=3) == [2, 0]
    assert round_robin(after=0, length=3, mask=[True, False, True]) == [2, 0]


def test_random_is_uniform_and_distinct() -> None:
    rng = random.Random(2)
    pairs = [uniform(length=4, rng=rng) for _ in range(12_000)]
    counts = Counter(map(tuple, pairs))
    assert len(counts) == 12
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 31.3  # 11 degrees of freedom, 0.1%
    assert uniform(length=1, rng=rng) == [0]
