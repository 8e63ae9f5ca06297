"""The bootstrap: percentiles of a resample, its blocks, and intervals that hold the truth as often as they say."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_lab.figures import Bootstrap, interval, paired_ratios, quantiles, ratio

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=4)


@given(
    counts=COUNTS,
    seed=st.integers(0, 9),
    qs=st.lists(st.floats(0, 100), min_size=1, max_size=4),
    failing=st.sampled_from([0.0, 0.1, 0.9]),
)
def test_its_percentiles_are_those_of_the_resample_that_was_drawn(
    counts: list[int], seed: int, qs: list[float], failing: float
) -> None:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 30, size=sum(counts)).astype(float)  # with ties
    values[rng.random(len(values)) < failing] = math.inf
    bootstrap = Bootstrap(counts, seed=seed, resamples=5)
    found = bootstrap.percentiles(values, qs)
    assert found.shape == (5, len(qs))
    for draw, times in zip(found, bootstrap._times, strict=True):
        assert draw.tolist() == pytest.approx(quantiles(np.repeat(values, times), qs))


@given(counts=COUNTS, seed=st.integers(0, 9))
def test_as_many_are_drawn_as_the_drawn_runs_have(counts: list[int], seed: int) -> None:
    offsets = np.cumsum([0, *counts])
    for times in Bootstrap(counts, seed=seed, resamples=5)._times:
        drawn = [int(times[start:stop].sum()) for start, stop in itertools.pairwise(offsets)]
        runs = [total / count for total, count in zip(drawn, counts, strict=True)]
        assert all(run.is_integer() for run in runs)
        assert sum(runs) == len(counts)


def test_a_single_run_is_drawn_in_circular_blocks_of_its_root() -> None:
    starts: set[int] = set()
    for times in Bootstrap([100], seed=0, resamples=200)._times:
        # Ten blocks of ten: what is drawn k times begins and ends where blocks do.
        edges = np.diff(times.astype(int), append=int(times[0]))
        assert edges.sum() == 0
        assert np.abs(edges).sum() <= 20
        starts |= set(((np.flatnonzero(edges > 0) + 1) % 100).tolist())
    assert starts == set(range(100))  # they begin anywhere, the end included


def test_runs_of_the_same_arrivals_are_seen_on_the_same_blocks() -> None:
    counts, seconds = [60, 60, 60], np.tile(np.arange(60.0), 3)
    same = Bootstrap(counts, seed=1, same_arrivals=True)
    for times in same._times:
        blocks = times.reshape(3, 60)
        drawn = blocks[blocks.sum(axis=1) > 0]
        assert all((row * drawn[0].sum() == drawn[0] * row.sum()).all() for row in drawn)
    # Three runs of one recording say no more about another recording than one of them does.
    alone = interval(Bootstrap([60], seed=1).percentiles(seconds[:60], [50])[:, 0])
    thrice = interval(same.percentiles(seconds, [50])[:, 0])
    apart = interval(Bootstrap(counts, seed=1).percentiles(seconds, [50])[:, 0])
    width = alone[1] - alone[0]
    assert thrice[1] - thrice[0] == pytest.approx(width, rel=0.25)
    assert apart[1] - apart[0] < 0.75 * width


def test_runs_that_differ_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    alike = rng.normal(size=4 * 400)
    apart = alike + np.repeat([0.0, 2.0, 4.0, 6.0], 400)
    bootstrap = Bootstrap([400] * 4, seed=0)
    low, high = interval(bootstrap.percentiles(apart, [50])[:, 0])
    assert low < 1.5
    assert high > 4.5
    low, high = interval(bootstrap.percentiles(alike, [50])[:, 0])
    assert high - low < 0.5


@pytest.mark.parametrize("counts", [[300], [100] * 5])
def test_about_95_of_100_intervals_hold_the_truth(counts: list[int]) -> None:
    rng = np.random.default_rng(11)
    bootstrap = Bootstrap(counts, seed=0, resamples=100)
    held = np.zeros(2)
    for _ in range(120):
        draws = bootstrap.percentiles(rng.exponential(size=sum(counts)), [50, 80])
        for place, truth in enumerate((math.log(2), math.log(5))):
            low, high = interval(draws[:, place])
            held[place] += low <= truth <= high
    assert (held >= 0.85 * 120).all()
    assert (held <= 119).all()


def test_a_ratio_is_of_the_same_draws() -> None:
    rng = np.random.default_rng(2)
    base = rng.lognormal(0, 1, 900)
    bootstrap = Bootstrap([300] * 3, seed=0, resamples=100)
    above, below = (bootstrap.percentiles(values, [95])[:, 0] for values in (2 * base, base))
    found = ratio(2.0, above, 1.0, below)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 2.0, 2.0))


def test_failures_widen_an_interval_upwards_or_leave_none() -> None:
    values = np.concatenate([np.arange(95.0), [math.inf] * 5])
    draws = Bootstrap([100], seed=0, resamples=200).percentiles(values, [50, 93, 100])
    assert np.isfinite(draws[:, 0]).all()
    assert math.isfinite(interval(draws[:, 1])[0])
    assert interval(draws[:, 1])[1] == math.inf
    assert not np.isnan(draws).any()
    fine = np.full(200, 2.0)
    with_failures = ratio(3.0, fine, quantiles(values, [93])[0], draws[:, 1])
    assert math.isfinite(with_failures.low)
    assert math.isnan(with_failures.high)
    assert math.isnan(ratio(3.0, fine, math.inf, draws[:, 2]).value)


def test_one_run_is_what_paired_ratios_always_drew() -> None:
    rng = np.random.default_rng(0)
    above, below = rng.random(400), rng.random(400)
    (found,) = paired_ratios(above, below, [95], seed=3, resamples=60)
    drawn = np.random.default_rng(3)
    draws = []
    for _ in range(60):
        starts = drawn.integers(0, 400, size=20)
        chosen = ((starts[:, None] + np.arange(20)) % 400).ravel()
        draws.append(quantiles(above[chosen], [95])[0] / quantiles(below[chosen], [95])[0])
    draws.sort()
    assert found.value == quantiles(above, [95])[0] / quantiles(below, [95])[0]
    assert (found.low, found.high) == pytest.approx((draws[round(59 * 0.025)], draws[round(59 * 0.975)]))
