"""The pool over stock metrics: what is learned from them, and what replaces a metric that is missing."""

import math
import random
from typing import Any

import pytest

from halffull_extproc.members import PRIOR_PREFILL_RATE
from halffull_extproc.pool import Policy, Pool, Source
from tests.extproc.core.builders import address, endpoint, make_pool, make_sample


def stock_pool(count: int, **config: Any) -> Pool:
    return make_pool(count, source=Source.METRICS, **config)


def test_a_sample_makes_the_figures() -> None:
    pool = stock_pool(1, max_tokens_per_batch=2048)
    pool.sample(address(0), make_sample(running=4.0, kv_usage=0.25), sent=1.0, now=1.0)
    seen = endpoint(pool, 0, now=1.0)
    assert (seen.state, seen.queued, seen.free, seen.total, seen.kv) == ("ok", 0.0, 75_000.0, 100_000.0, 25_000.0)
    assert (seen.running, seen.waiting, seen.requests) == (4.0, 0.0, 4.0)
    assert pool._figures.columns.budget == [2048.0]


def test_picks_and_closes_move_the_figures() -> None:
    pool = stock_pool(1)
    pool.sample(address(0), make_sample(), sent=1.0, now=1.0)
    pick = pool.pick(body_bytes=4000, now=1.05)
    assert pick is not None
    seen = endpoint(pool, 0, now=1.05)
    assert (seen.queued, seen.free, seen.requests) == (1000.0, 99_000.0, 1.0)
    pool.close(pick, now=1.1)
    seen = endpoint(pool, 0, now=1.1)
    assert (seen.queued, seen.free, seen.requests) == (0.0, 100_000.0, 0.0)


def test_the_residue_runs_down_between_polls() -> None:
    pool = stock_pool(1)
    pool.sample(address(0), make_sample(), sent=1.0, now=1.0)
    pool.pick(body_bytes=40_000, now=1.0)
    queued = []
    for tick in range(1, 12):
        now = 1.0 + tick / 10
        pool.sample(address(0), make_sample(running=1.0), sent=now, now=now)
        queued.append(endpoint(pool, 0, now=now).queued)
    assert queued[0] == pytest.approx(10_000 - PRIOR_PREFILL_RATE * (0.1 - 0.06))
    assert queued == sorted(queued, reverse=True)
    assert queued[-1] == 0.0


def test_the_prefill_rate_is_learned_only_while_requests_wait() -> None:
    pool = stock_pool(1)
    for tick in range(400):
        sample = make_sample(waiting=2.0 if tick >= 200 else 0.0, prompt_tokens=600.0 * tick)
        pool.sample(address(0), sample, sent=tick / 10, now=tick / 10)
        if tick == 200:
            assert pool._figures.rows[0].prefill_rate.value == PRIOR_PREFILL_RATE
    assert pool._figures.rows[0].prefill_rate.value == pytest.approx(6000, rel=0.1)


def test_lengths_and_step_come_from_the_histograms() -> None:
    pool = stock_pool(1)
    for tick in range(300):
        sample = make_sample(
            running=8.0,
            request_prompt_sum=3000.0 * 100 * tick,
            request_prompt_count=100.0 * tick,
            request_generation_sum=600.0 * 100 * tick,
            request_generation_count=100.0 * tick,
            ttft_sum=25.0 * tick,
            ttft_count=100.0 * tick,
            itl_sum=0.05 * 80 * tick,
            itl_count=80.0 * tick,
        )
        pool.sample(address(0), sample, sent=tick / 10, now=tick / 10)
    status = pool.status(now=30.0)
    assert status.mean_prompt_tokens == pytest.approx(3000, rel=1e-3)
    assert status.mean_generated_tokens == pytest.approx(600, rel=1e-3)
    assert status.mean_ttft == pytest.approx(0.25, rel=1e-3)
    assert pool._figures.rows[0].mean_step == pytest.approx(0.05)


def test_without_histograms_first_tokens_stand_for_requests() -> None:
    pool = stock_pool(1)
    for tick in range(300):
        sample = make_sample(
            prompt_tokens=3000.0 * 100 * tick,
            generation_tokens=600.0 * 100 * tick,
            ttft_count=100.0 * tick,
            ttft_sum=None,
            request_prompt_sum=None,
            request_prompt_count=None,
            request_generation_sum=None,
            request_generation_count=None,
        )
        pool.sample(address(0), sample, sent=tick / 10, now=tick / 10)
    status = pool.status(now=30.0)
    assert status.mean_prompt_tokens == pytest.approx(3000, rel=1e-3)
    assert status.mean_generated_tokens == pytest.approx(600, rel=1e-3)
    assert status.mean_ttft == 0.5


def test_a_counter_that_went_backwards_starts_anew() -> None:
    pool = stock_pool(1)
    pool.sample(address(0), make_sample(request_prompt_sum=9e6, request_prompt_count=9e3), sent=1.0, now=1.0)
    pool.sample(address(0), make_sample(request_prompt_sum=9e5, request_prompt_count=9e3 + 1), sent=2.0, now=2.0)
    assert pool.status(now=2.0).mean_prompt_tokens == 1000.0


def test_bytes_per_token_from_stock_metrics() -> None:
    pool = stock_pool(1)
    for tick in range(30):
        sample = make_sample(request_prompt_sum=1500.0 * tick, request_prompt_count=float(tick))
        pool.sample(address(0), sample, sent=tick, now=tick)
        pick = pool.pick(body_bytes=3000, now=tick + 0.1)
        assert pick is not None
        pool.close(pick, now=tick + 0.5)
    assert pool.status(now=30.0).bytes_per_token == 2.0


def test_nothing_known_still_spreads_and_says_what_is_missing() -> None:
    pool = stock_pool(4)
    nothing = dict.fromkeys(
        (*make_sample().__struct_fields__[:14],)  # every figure but `missing` and max_model_len
    )
    for number in range(4):
        sample = make_sample(**nothing, missing=("vllm:num_requests_waiting",))
        pool.sample(address(number), sample, sent=1.0, now=1.0)
    picks = [pool.pick(body_bytes=4000, now=1.0) for _ in range(40)]
    counts = [endpoint(pool, number, now=1.0).open_picks for number in range(4)]
    assert all(picks)
    assert counts == [10.0] * 4
    seen = endpoint(pool, 0, now=1.0)
    assert seen.missing == ["vllm:num_requests_waiting"]
    assert (seen.running, seen.waiting) == (None, None)
    assert seen.total == 150_000.0


def test_an_unknown_cache_size_is_the_pools_median() -> None:
    pool = stock_pool(2)
    pool.sample(address(0), make_sample(total_tokens=60_000.0), sent=1.0, now=1.0)
    pool.sample(address(1), make_sample(total_tokens=None, kv_usage=0.5), sent=1.0, now=1.0)
    assert endpoint(pool, 1, now=1.0).free == 30_000.0


def test_the_last_known_cache_size_holds_when_its_metric_vanishes() -> None:
    pool = stock_pool(1)
    pool.sample(address(0), make_sample(total_tokens=60_000.0), sent=1.0, now=1.0)
    pool.sample(address(0), make_sample(total_tokens=None), sent=1.1, now=1.1)
    assert endpoint(pool, 0, now=1.1).total == 60_000.0


def test_a_stale_stock_endpoint_is_ranked_by_own_picks() -> None:
    pool = stock_pool(1)
    pool.sample(address(0), make_sample(), sent=1.0, now=1.0)
    pool.pick(body_bytes=4000, now=1.0)
    pool.silent(address(0), "reset", now=3.0)
    seen = endpoint(pool, 0, now=3.0)
    assert (seen.state, seen.kv, seen.free, seen.requests) == ("stale", 1100.0, 98_900.0, 1.0)


def test_kappa_from_inter_token_latencies() -> None:
    """Two engines, one twice as slow, polled at 10 Hz for five minutes, at loads that overlap.

    Loads that never overlap can not tell a slow engine from a cost per request; no fit can.
    """
    rng = random.Random(2)
    pool = stock_pool(2, policy=Policy.SALPlus)
    sums = [dict.fromkeys(("itl_sum", "itl_count", "prompt_tokens", "generation_tokens"), 0.0) for _ in range(2)]
    for tick in range(3000):
        for number, counters in enumerate(sums):
            running = 25.0 + 10.0 * math.sin(tick / (70 + 30 * number)) + 5.0 * rng.random()
            step = (0.02 + 2e-4 * running) * (1 + number)
            counters["itl_sum"] += 3 * running * step
            counters["itl_count"] += 3 * running
            counters["generation_tokens"] += 3 * running
            counters["prompt_tokens"] += 600.0
            sample = make_sample(running=running, kv_usage=running / 100, **counters)
            pool.sample(address(number), sample, sent=tick / 10, now=tick / 10)
    speeds = [each.speed for each in pool.status(now=300.0).endpoints]
    assert speeds == pytest.approx([1.0, 2.0], rel=0.1)
