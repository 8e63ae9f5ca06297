"""The pool with load reports: charges, picks, membership."""

import random
from collections import Counter
from typing import Any

import pytest

from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.policies import Policy
from halffull_extproc.pool import Pick, Pool, PoolConfig, Source
from tests.extproc.core.builders import address, endpoint, make_pool, make_report, make_sample


def reported_pool(count: int, *, now: float = 1.0, **config: Any) -> Pool:
    pool = make_pool(count, **config)
    for number in range(count):
        pool.report(address(number), make_report(), sent=now, now=now)
    return pool


def must_pick(pool: Pool, *, now: float, body_bytes: int | None = 4000) -> Pick:
    pick = pool.pick(body_bytes=body_bytes, now=now)
    assert pick is not None
    return pick


def test_an_empty_pool_picks_nothing() -> None:
    pool = make_pool()
    assert pool.pick(body_bytes=1, now=0.0) is None
    assert pool.status(now=0.0).unpicked == 1


def test_a_single_endpoint_is_the_only_choice() -> None:
    assert must_pick(reported_pool(1), now=1.0).addresses == (address(0),)


def test_two_choices_are_distinct_and_ordered() -> None:
    pool = reported_pool(3)
    for number, queued in enumerate([900, 300, 600]):
        pool.report(address(number), make_report(queued_tokens=queued), sent=1.1, now=1.1)
    assert must_pick(pool, now=1.1).addresses == (address(1), address(2))


def test_a_pick_is_charged_at_once() -> None:
    pool = reported_pool(1)
    pick = must_pick(pool, now=1.0)
    assert pick.tokens == 1000.0
    seen = endpoint(pool, 0, now=1.0)
    assert (seen.queued, seen.free, seen.kv, seen.requests) == (1000.0, 99_000.0, 1000.0, 1.0)
    assert (seen.charged_requests, seen.charged_tokens, seen.open_picks) == (1.0, 1000.0, 1.0)


def test_a_burst_between_two_reports_spreads() -> None:
    pool = reported_pool(4)
    counts = Counter(must_pick(pool, now=1.01).addresses[0] for _ in range(100))
    assert sorted(counts.values()) == [25, 25, 25, 25]


def test_a_new_empty_engine_draws_no_herd() -> None:
    pool = reported_pool(3)
    for number in range(3):
        pool.report(address(number), make_report(queued_tokens=3000), sent=1.1, now=1.1)
    pool.update_endpoints([Endpoint(address(number)) for number in range(4)], now=1.2)
    counts = Counter(must_pick(pool, now=1.2).addresses[0] for _ in range(100))
    assert counts[address(3)] == 25


def test_a_report_drops_only_what_it_can_contain() -> None:
    """Picked before (sent − age − two mean steps), and no later."""
    pool = reported_pool(1)
    for at in (1.0, 1.4, 1.5):
        must_pick(pool, now=at)
    # mean step .05 s: contained is what was picked before 1.7 − .2 − .1 = 1.4
    pool.report(address(0), make_report(steps=2, busy_seconds=0.1, age=0.2), sent=1.7, now=1.71)
    assert endpoint(pool, 0, now=1.71).charged_requests == 2.0


def test_an_overtaken_answer_is_ignored() -> None:
    pool = reported_pool(1)
    pool.report(address(0), make_report(queued_tokens=7), sent=2.0, now=2.0)
    pool.report(address(0), make_report(queued_tokens=9), sent=1.9, now=2.1)
    assert endpoint(pool, 0, now=2.1).queued == 7.0


def test_close_is_idempotent() -> None:
    pool = reported_pool(1)
    pick = must_pick(pool, now=1.0)
    other = must_pick(pool, now=1.0)
    pool.close(pick, now=1.1)
    pool.close(pick, now=1.2)
    seen = endpoint(pool, 0, now=1.2)
    assert (seen.charged_tokens, seen.open_picks, seen.queued) == (1000.0, 1.0, 1000.0)
    pool.close(other, now=1.3)
    assert endpoint(pool, 0, now=1.3).charged_tokens == 0.0


def test_charges_do_not_drift() -> None:
    """Odd estimates in any order leave exactly nothing, so that idle endpoints tie."""
    pool = reported_pool(2)
    rng = random.Random(1)
    for _ in range(50):
        picks = [must_pick(pool, now=1.0, body_bytes=rng.randrange(1, 30_000)) for _ in range(20)]
        rng.shuffle(picks)
        for pick in picks:
            pool.close(pick, now=1.0)
    for number in range(2):
        seen = endpoint(pool, number, now=1.0)
        assert (seen.charged_tokens, seen.queued, seen.free) == (0.0, 0.0, 100_000.0)


@pytest.mark.parametrize("name", ["", "other-pod"])
def test_an_endpoint_gone_and_back_owes_nothing(name: str) -> None:
    pool = make_pool()
    pool.update_endpoints([Endpoint(address(0), name="pod")], now=0.0)
    old = must_pick(pool, now=0.5)
    if not name:
        pool.update_endpoints([], now=0.6)
        assert pool.pick(body_bytes=1, now=0.6) is None
    pool.update_endpoints([Endpoint(address(0), name=name or "pod")], now=0.7)
    must_pick(pool, now=0.7)
    pool.close(old, now=0.8)
    seen = endpoint(pool, 0, now=0.8)
    assert (seen.open_picks, seen.charged_tokens, seen.picks) == (1.0, 1000.0, 1.0)


def test_a_change_of_health_or_port_keeps_the_charges() -> None:
    pool = reported_pool(1)
    must_pick(pool, now=1.0)
    pool.update_endpoints([Endpoint(address(0), load_port=1, health=Health.DRAINING)], now=1.1)
    assert endpoint(pool, 0, now=1.1).open_picks == 1.0
    assert pool.pick(body_bytes=1, now=1.1) is None
    pool.update_endpoints([Endpoint(address(0))], now=1.2)
    assert must_pick(pool, now=1.2).addresses == (address(0),)


def test_draining_and_unhealthy_are_never_picked() -> None:
    pool = make_pool()
    pool.update_endpoints(
        [
            Endpoint(address(0), health=Health.DRAINING),
            Endpoint(address(1)),
            Endpoint(address(2), health=Health.UNHEALTHY),
        ],
        now=0.0,
    )
    for _ in range(50):
        assert must_pick(pool, now=0.1).addresses == (address(1),)
    everyone = [address(number) for number in range(3)]
    pick = pool.pick(body_bytes=1, now=0.1, subset=everyone)
    assert pick is not None
    assert pick.addresses == (address(1),)


def test_the_other_rows_move_up_when_one_leaves() -> None:
    pool = reported_pool(4)
    for number in range(4):
        pool.report(address(number), make_report(queued_tokens=1000 * (number + 1)), sent=1.1, now=1.1)
    pool.update_endpoints([Endpoint(address(3)), Endpoint(address(1))], now=1.2)
    assert endpoint(pool, 1, now=1.2).queued == 2000.0
    assert endpoint(pool, 3, now=1.2).queued == 4000.0
    assert must_pick(pool, now=1.2).addresses == (address(1), address(3))


def test_a_subset_limits_the_choice() -> None:
    pool = reported_pool(4)
    for _ in range(30):
        pick = pool.pick(body_bytes=10, now=1.0, subset=[address(1), address(3), "9.9.9.9:1"])
        assert pick is not None
        assert sorted(pick.addresses) == [address(1), address(3)]
    assert pool.pick(body_bytes=10, now=1.0, subset=["9.9.9.9:1"]) is None
    assert pool.pick(body_bytes=10, now=1.0, subset=[]) is None


def test_a_prompt_goes_where_it_fits() -> None:
    pool = make_pool(3)
    pool.report(address(0), make_report(max_model_len=2000), sent=1.0, now=1.0)
    pool.report(address(1), make_report(max_model_len=20_000, total_tokens=3000, free_tokens=3000), sent=1.0, now=1.0)
    pool.report(address(2), make_report(max_model_len=20_000, queued_tokens=50_000), sent=1.0, now=1.0)
    first = must_pick(pool, now=1.0, body_bytes=4 * 5000)
    assert first.addresses[0] == address(2)
    assert first.tokens == 5000.0
    assert must_pick(pool, now=1.0, body_bytes=4 * 2500).addresses == (address(1), address(2))


def test_a_prompt_that_fits_nowhere_goes_somewhere() -> None:
    pool = make_pool(2)
    for number in range(2):
        pool.report(address(number), make_report(total_tokens=100, free_tokens=100), sent=1.0, now=1.0)
    assert len(must_pick(pool, now=1.0).addresses) == 2


def test_a_prompt_lives_on_one_rank() -> None:
    """Two ranks of 3,000 tokens do not hold one of 4,000."""
    pool = make_pool(2)
    half = make_report(boot_id="a,b", total_tokens=6000, free_tokens=6000)
    pool.report(address(0), half, sent=1.0, now=1.0)
    pool.report(address(1), make_report(queued_tokens=90_000), sent=1.0, now=1.0)
    assert must_pick(pool, now=1.0, body_bytes=16_000).addresses[0] == address(1)


def test_an_image_is_charged_no_more_than_the_longest_prompt() -> None:
    pool = reported_pool(2)
    assert must_pick(pool, now=1.0, body_bytes=2_000_000).tokens == 10_000.0
    fresh = make_pool(1)
    assert must_pick(fresh, now=0.0, body_bytes=20_000_000).tokens == 150_000.0


def test_a_chunked_request_counts_as_the_mean() -> None:
    assert must_pick(reported_pool(1), now=1.0, body_bytes=None).tokens == 1000.0


def test_new_endpoints_count_as_the_median() -> None:
    pool = make_pool(3)
    for number, queued in enumerate([100, 300, 900]):
        report = make_report(queued_tokens=queued, free_tokens=90_000 + queued, running=number)
        pool.report(address(number), report, sent=1.0, now=1.0)
    pool.update_endpoints([Endpoint(address(number)) for number in range(4)], now=1.1)
    seen = endpoint(pool, 3, now=1.1)
    assert (seen.queued, seen.free, seen.total, seen.requests) == (300.0, 90_300.0, 100_000.0, 1.0)
    assert seen.state == "new"
    assert seen.report_age is None


def test_an_all_new_pool_starts_from_priors() -> None:
    seen = endpoint(make_pool(2), 0, now=0.0)
    assert (seen.queued, seen.free, seen.total, seen.requests) == (0.0, 150_000.0, 150_000.0, 0.0)


def test_counters_start_from_the_first_report_seen() -> None:
    pool = make_pool(1)
    pool.report(address(0), make_report(requests=10**6, prompt_tokens=10**6, ttft_seconds=1e6), sent=1.0, now=1.0)
    status = pool.status(now=1.0)
    assert (status.mean_prompt_tokens, status.mean_ttft, status.bytes_per_token) == (1000.0, 0.5, 4.0)


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"])
def test_a_restarted_engine_teaches_nothing_wrong(boot_id: str) -> None:
    """With another boot_id or without: counters that start anew are no negative amounts."""
    pool = make_pool(1)
    before = {"requests": 50, "prompt_tokens": 5000, "generation_tokens": 900, "steps": 99, "busy_seconds": 9.0}
    pool.report(address(0), make_report(**before), sent=1.0, now=1.0)
    pick = must_pick(pool, now=1.05)
    after = {"requests": 2, "prompt_tokens": 9000, "generation_tokens": 950, "steps": 100, "busy_seconds": 10.0}
    pool.report(address(0), make_report(boot_id=boot_id, **after), sent=2.0, now=2.0)
    status = pool.status(now=2.0)
    assert status.mean_prompt_tokens == 1000.0
    assert status.mean_generated_tokens == 200.0
    assert status.endpoints[0].charged_requests == 0.0
    pool.close(pick, now=2.1)
    later = after | {"requests": 12, "prompt_tokens": 19_000}
    pool.report(address(0), make_report(boot_id=boot_id, **later), sent=3.0, now=3.0)
    # 10 requests of 1,000 tokens since the restart, like the prior's
    assert pool.status(now=3.0).mean_prompt_tokens == pytest.approx(1000.0)


def test_a_new_start_that_soon_counts_more_is_still_a_new_start() -> None:
    pool = make_pool(1)
    pool.report(address(0), make_report(requests=1, prompt_tokens=10), sent=1.0, now=1.0)
    after = make_report(boot_id="boot-2", requests=100, prompt_tokens=500_000, first_tokens=100, ttft_seconds=900.0)
    pool.report(address(0), after, sent=9.0, now=9.0)
    status = pool.status(now=9.0)
    assert (status.mean_prompt_tokens, status.mean_ttft) == (1000.0, 0.5)


def test_lengths_are_learned_from_reports() -> None:
    pool = make_pool(1)
    for step in range(200):
        report = make_report(
            requests=100 * step,
            prompt_tokens=100 * step * 2000,
            generation_tokens=100 * step * 500,
            first_tokens=100 * step,
            ttft_seconds=100 * step * 0.25,
        )
        pool.report(address(0), report, sent=step / 10, now=step / 10)
    status = pool.status(now=20.0)
    assert status.mean_prompt_tokens == pytest.approx(2000.0, rel=1e-3)
    assert status.mean_generated_tokens == pytest.approx(500.0, rel=1e-3)
    assert status.mean_ttft == pytest.approx(0.25, rel=1e-3)
    assert status.beta == pytest.approx(5.0, rel=1e-3)
    assert status.beta_auto


def test_bytes_per_token_and_its_error_are_learned_from_ended_requests() -> None:
    pool = make_pool(1)
    pool.report(address(0), make_report(), sent=0.0, now=0.0)
    for step in range(1, 30):
        pick = must_pick(pool, now=step, body_bytes=3000 if step % 2 else None)
        pool.close(pick, now=step + 0.1, body_bytes=3000)
        pool.close(pick, now=step + 0.2, body_bytes=3000)
        report = make_report(requests=step, prompt_tokens=1500 * step)
        pool.report(address(0), report, sent=step + 0.3, now=step + 0.3)
    status = pool.status(now=30.0)
    assert status.bytes_per_token == 2.0
    assert status.estimate_error == pytest.approx(0.0, abs=0.35)


def test_kappa_reaches_the_policy_and_can_be_switched_off() -> None:
    config = PoolConfig(policy=Policy.SALPlus, source=Source.REPORT)
    pool = Pool(config, rng=random.Random(1))
    pool.update_endpoints([Endpoint(address(number)) for number in range(2)], now=0.0)
    for poll in range(600):
        for number in range(2):
            step = 0.03 * (1 + number)
            report = make_report(steps=3 * poll, busy_seconds=3 * poll * step, computed_tokens=30 * poll, running=10)
            pool.report(address(number), report, sent=poll / 10, now=poll / 10)
    assert [each.speed for each in pool.status(now=60.0).endpoints] == pytest.approx([1.0, 2.0], rel=0.05)
    counts = Counter(must_pick(pool, now=60.0).addresses[0] for _ in range(90))
    assert counts[address(0)] == pytest.approx(60, abs=6)
    pool.config = PoolConfig(policy=Policy.SALPlus, source=Source.REPORT, learn_speed=False)
    assert pool.config.learn_speed is False
    assert pool._figures.columns.speed == [1.0, 1.0]


def test_the_policy_changes_live_but_not_the_source() -> None:
    pool = reported_pool(2)
    pool.config = PoolConfig(policy=Policy.RoundRobin, source=Source.REPORT)
    turns = [must_pick(pool, now=1.0).addresses[0] for _ in range(4)]
    assert turns == [address(0), address(1), address(0), address(1)]
    with pytest.raises(ValueError, match="source"):
        pool.config = PoolConfig(policy=Policy.SAL, source=Source.METRICS)


def test_round_robin_goes_on_when_an_endpoint_leaves() -> None:
    pool = reported_pool(4, policy=Policy.RoundRobin)
    assert [must_pick(pool, now=1.0).addresses[0] for _ in range(3)] == [address(number) for number in range(3)]
    pool.update_endpoints([Endpoint(address(number)) for number in (0, 2, 3)], now=1.0)
    assert [must_pick(pool, now=1.0).addresses for _ in range(2)] == [
        (address(3), address(0)),
        (address(0), address(2)),
    ]


def test_least_request_counts_own_open_picks_whatever_reports_say() -> None:
    pool = reported_pool(2, policy=Policy.LeastRequest)
    pool.report(address(0), make_report(running=500, queued_tokens=9**5), sent=1.1, now=1.1)
    picks = [must_pick(pool, now=1.2) for _ in range(400)]
    counts = Counter(pick.addresses[0] for pick in picks)
    assert abs(counts[address(0)] - 200) < 10


def test_ties_are_uniform_over_endpoints() -> None:
    pool = reported_pool(4)
    counts: Counter[str] = Counter()
    for _ in range(4000):
        pick = must_pick(pool, now=1.0)
        counts[pick.addresses[0]] += 1
        pool.close(pick, now=1.0)
    assert sum((counts[address(number)] - 1000) ** 2 / 1000 for number in range(4)) < 16.3  # 0.1%, 3 degrees


def test_beta_weighs_missing_memory() -> None:
    pool = make_pool(2, beta=2.0)
    pool.report(address(0), make_report(free_tokens=900), sent=1.0, now=1.0)
    pool.report(address(1), make_report(queued_tokens=198_999), sent=1.0, now=1.0)
    assert must_pick(pool, now=1.0).addresses[0] == address(1)  # 2·(1000 − 900) = 200 against 199.999
    assert pool.status(now=1.0).beta == 2.0
    assert not pool.status(now=1.0).beta_auto


def test_answers_of_unknown_endpoints_are_ignored() -> None:
    pool = make_pool(1)
    pool.report("9.9.9.9:1", make_report(), sent=1.0, now=1.0)
    pool.sample("9.9.9.9:1", make_sample(), sent=1.0, now=1.0)
    pool.silent("9.9.9.9:1", "reset", now=1.0)
    assert len(pool.status(now=1.0).endpoints) == 1


def test_status_tells_shares_and_counts() -> None:
    pool = reported_pool(4)
    for _ in range(8):
        must_pick(pool, now=1.0)
    status = pool.status(now=1.5)
    assert [each.share for each in status.endpoints] == [0.25] * 4
    assert status.picks == 8.0
    assert status.states == {
        "ok": 4.0,
        "new": 0.0,
        "stale": 0.0,
        "not-progressing": 0.0,
        "failing": 0.0,
        "draining": 0.0,
        "unhealthy": 0.0,
    }
    assert status.endpoints[0].report_age == pytest.approx(0.5)
    assert status.endpoints[0].scheduler == "LARRY"
