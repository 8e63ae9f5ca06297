"""Percentiles that keep failures, bands, and paired ratios."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_lab.figures import (
    BANDS,
    Outcomes,
    band_name,
    finite_or_none,
    in_band,
    paired_ratios,
    percentile,
    percentiles,
    quantiles,
    unequal_failures,
)

FINITE = st.floats(-1e6, 1e6)
Q = st.floats(0, 100)


def outcomes(ttft: list[float], tgt: list[float], *, prompt: int = 100, output: int = 11) -> Outcomes:
    size = len(ttft)
    return Outcomes(
        prompt_tokens=np.full(size, prompt), output_tokens=np.full(size, output), ttft=np.array(ttft), tgt=np.array(tgt)
    )


@given(values=st.lists(FINITE, min_size=1, max_size=40), q=Q)
def test_percentile_is_numpys_where_all_is_finite(values: list[float], q: float) -> None:
    assert percentile(np.array(values), q) == pytest.approx(float(np.percentile(values, q)), rel=1e-9, abs=1e-6)


@given(values=st.lists(FINITE, min_size=1, max_size=30), failures=st.integers(1, 30), q=Q)
def test_a_failure_is_the_worst_and_never_lowers_a_percentile(values: list[float], failures: int, q: float) -> None:
    with_failures = np.array(values + [math.inf] * failures)
    found = percentile(with_failures, q)
    assert not math.isnan(found)
    place = (len(with_failures) - 1) * q / 100
    assert math.isinf(found) == (math.ceil(place) >= len(values))
    without = percentile(np.array(values), q)
    assert found >= without - 1e-9 * abs(without)


@given(
    values=st.lists(st.one_of(FINITE, st.just(math.inf)), min_size=1, max_size=30),
    qs=st.lists(Q, min_size=1, max_size=5),
)
def test_several_percentiles_are_the_single_ones(values: list[float], qs: list[float]) -> None:
    assert quantiles(np.array(values), qs) == [percentile(np.array(values), q) for q in qs]


def test_percentiles_of_nothing_are_nan_and_null() -> None:
    assert math.isnan(percentile(np.array([]), 50))
    assert finite_or_none(math.nan) is None
    assert finite_or_none(math.inf) is None
    assert finite_or_none(0.0) == 0.0


def test_names_of_percentiles() -> None:
    assert percentiles(np.array([1.0, 3.0])) == {"p50": 2.0, "p95": 2.9, "p99": 2.98, "max": 3.0}


def test_derived_figures_follow_their_definitions() -> None:
    run = outcomes([1.0, 2.0, math.inf], [2.0, 4.0, math.inf])
    assert run.normalized_ttft.tolist() == [0.01, 0.02, math.inf]
    assert run.tpot.tolist() == [0.1, 0.2, math.inf]
    assert run.errors == 1
    assert run.head(2).errors == 0


def test_a_single_token_has_no_time_between_tokens() -> None:
    assert outcomes([1.0], [1.0], output=1).tpot.tolist() == []


def test_bands_cover_every_prompt_once() -> None:
    prompts = np.array([1, 255, 256, 1023, 1024, 4095, 4096, 10**6])
    members = np.array([in_band(prompts, band) for band in BANDS])
    assert members.sum(axis=0).tolist() == [1] * len(prompts)
    assert members.sum(axis=1).tolist() == [2, 2, 2, 2]
    assert [band_name(band) for band in BANDS] == ["1–255", "256–1023", "1024–4095", "≥ 4096"]


def test_the_interval_holds_the_true_ratio_and_is_narrower_for_being_paired() -> None:
    rng = np.random.default_rng(7)
    base = rng.lognormal(0, 1, 2000)
    slower = base * 1.3 * rng.lognormal(0, 0.05, 2000)
    (paired,) = paired_ratios(slower, base, (50,), seed=1, resamples=200)
    assert paired.low < 1.3 < paired.high
    (unpaired,) = paired_ratios(rng.permutation(slower), base, (50,), seed=1, resamples=200)
    assert paired.high - paired.low < 0.5 * (unpaired.high - unpaired.low)


def test_neighbours_that_hang_together_widen_the_interval() -> None:
    rng = np.random.default_rng(3)
    waves = np.repeat(rng.lognormal(0, 1, 40), 50)  # 40 waits, each shared by 50 neighbours
    other = rng.lognormal(0, 1, 2000)
    (together,) = paired_ratios(waves, other, (50,), seed=1, resamples=200)
    (alone,) = paired_ratios(rng.permutation(waves), other, (50,), seed=1, resamples=200)
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_the_seed_decides_the_interval() -> None:
    rng = np.random.default_rng(0)
    above, below = rng.random(100), rng.random(100)
    first = paired_ratios(above, below, (50, 95), seed=5, resamples=50)
    assert first == paired_ratios(above, below, (50, 95), seed=5, resamples=50)
    assert first != paired_ratios(above, below, (50, 95), seed=6, resamples=50)


@pytest.mark.parametrize(
    ("above", "below"), [([1.0, math.inf], [1.0, 1.0]), ([1.0, 1.0], [1.0, math.inf]), ([1.0], [0.0]), ([], [])]
)
def test_a_ratio_that_leans_on_a_failure_is_none(above: list[float], below: list[float]) -> None:
    (ratio,) = paired_ratios(np.array(above), np.array(below), (100,), seed=1, resamples=20)
    assert all(finite_or_none(value) is None for value in (ratio.value, ratio.low, ratio.high))


def test_runs_of_different_length_are_no_pair() -> None:
    with pytest.raises(ValueError, match="not paired"):
        paired_ratios(np.ones(2), np.ones(3), (50,), seed=1)


def test_unequal_failures_are_flagged() -> None:
    assert unequal_failures({"SAL": 0, "LeastRequest": 0}) == ""
    assert unequal_failures({"SAL": 2, "LeastRequest": 2}) == ""
    assert "SAL 0, LeastRequest 5" in unequal_failures({"SAL": 0, "LeastRequest": 5})
