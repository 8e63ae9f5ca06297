"""Stale, not progressing, failing: who is what, what it is for the policies, and how it heals."""

from collections import Counter

import pytest

from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.pool import Outcome, Pool, Source
from tests.extproc.core.builders import address, endpoint, make_pool, make_report, make_sample


def failed(*numbers: int) -> Outcome:
    return Outcome(picked=None, served=None, failed=tuple(address(number) for number in numbers), succeeded=None)


def succeeded(number: int) -> Outcome:
    return Outcome(picked=address(number), served=address(number), failed=(), succeeded=address(number))


def answer_all(pool: Pool, count: int, *, now: float) -> None:
    for number in range(count):
        pool.report(address(number), make_report(), sent=now, now=now)


def firsts(pool: Pool, picks: int, *, now: float) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _ in range(picks):
        pick = pool.pick(body_bytes=4000, now=now)
        assert pick is not None
        assert len(set(pick.addresses)) == len(pick.addresses)
        counts[pick.addresses[0]] += 1
    return counts


def test_stale_after_no_answer_and_ok_after_one() -> None:
    pool = make_pool(1)
    answer_all(pool, 1, now=1.0)
    pool.silent(address(0), "connection refused", now=1.9)
    assert endpoint(pool, 0, now=1.9).state == "ok"
    assert endpoint(pool, 0, now=1.9).last_error == "connection refused"
    pool.silent(address(0), "connection refused", now=2.1)
    seen = endpoint(pool, 0, now=2.2)
    assert (seen.state, seen.reason) == ("stale", "no answer for 1.2 s (limit 1 s): connection refused")
    assert seen.state_seconds == pytest.approx(0.1)
    answer_all(pool, 1, now=3.0)
    seen = endpoint(pool, 0, now=3.0)
    assert (seen.state, seen.reason, seen.last_error) == ("ok", "", "")


def test_the_age_of_a_report_is_the_silence_that_makes_it_stale() -> None:
    """Not the age of the last step: that of an idle engine grows without end."""
    pool = make_pool(1)
    pool.report(address(0), make_report(age=58.8), sent=1.0, now=1.0)
    idle, silent = endpoint(pool, 0, now=1.1), endpoint(pool, 0, now=2.1)
    assert (idle.state, idle.report_age) == ("ok", pytest.approx(0.1))
    assert (silent.state, silent.report_age) == ("stale", pytest.approx(1.1))
    assert "no answer for 1.1 s" in silent.reason


def test_never_heard_of_becomes_stale() -> None:
    pool = make_pool(1)
    pool.silent(address(0), "timed out", now=0.5)
    assert endpoint(pool, 0, now=0.5).reason == "no answer yet: timed out"
    pool.silent(address(0), "timed out", now=1.5)
    assert endpoint(pool, 0, now=1.5).reason == "no answer since it was discovered 1.5 s ago: timed out"


def test_a_stale_endpoint_is_ranked_by_own_picks() -> None:
    """Its last report said idle: without the own view every pick would go there."""
    pool = make_pool(3)
    answer_all(pool, 3, now=1.0)
    picks = firsts(pool, 30, now=1.0)
    assert set(picks.values()) == {10}
    for number in (1, 2):
        busy = make_report(queued_tokens=20_000, free_tokens=70_000, running=10)
        pool.report(address(number), busy, sent=3.0, now=3.0)
    pool.silent(address(0), "timed out", now=3.0)
    seen = endpoint(pool, 0, now=3.0)
    # 10 open · 40000/20; KV = 10·(1000 + 200/2)
    assert (seen.state, seen.queued, seen.kv, seen.free, seen.requests) == ("stale", 20_000, 11_000, 89_000, 10)
    picks = firsts(pool, 30, now=3.1)
    assert 7 <= picks[address(0)] <= 13


def test_a_stale_endpoint_of_unknown_size_has_the_median_total() -> None:
    pool = make_pool(2)
    pool.report(address(1), make_report(total_tokens=70_000), sent=1.0, now=1.0)
    pool.silent(address(0), "timed out", now=1.5)
    assert endpoint(pool, 0, now=1.5).total == 70_000.0


def test_a_pool_without_any_answer_spreads_by_charges() -> None:
    pool = make_pool(4)
    for number in range(4):
        pool.silent(address(number), "reset", now=5.0)
    assert set(firsts(pool, 100, now=5.0).values()) == {25}


def test_not_progressing_ranks_last_until_it_steps() -> None:
    pool = make_pool(2)
    answer_all(pool, 2, now=1.0)
    wedged = make_report(running=3, waiting=2, age=1.5)
    pool.report(address(0), wedged, sent=1.1, now=1.1)
    pool.report(address(1), make_report(queued_tokens=10**6, free_tokens=0, running=200), sent=1.1, now=1.1)
    seen = endpoint(pool, 0, now=1.1)
    assert seen.state == "not-progressing"
    assert seen.reason == "3 running and 2 waiting but no step for 1.5 s (mean step 30 ms)"
    pick = pool.pick(body_bytes=4000, now=1.1)
    assert pick is not None
    assert pick.addresses == (address(1), address(0))
    pool.report(address(0), make_report(running=3, age=0.1), sent=1.2, now=1.2)
    assert endpoint(pool, 0, now=1.2).state == "ok"
    assert firsts(pool, 5, now=1.2) == {address(0): 5}


@pytest.mark.parametrize(
    ("report", "state"),
    [
        ({"running": 0, "waiting": 0, "age": 500.0}, "ok"),  # idle with an old snapshot
        ({"running": 1, "age": 0.99}, "ok"),
        ({"running": 1, "age": 1.01}, "not-progressing"),
        ({"waiting": 1, "age": 1.01}, "not-progressing"),
        ({"running": 1, "age": 3.9, "steps": 10, "busy_seconds": 2.0}, "ok"),  # 20 steps of .2 s
        ({"running": 1, "age": 4.1, "steps": 10, "busy_seconds": 2.0}, "not-progressing"),
    ],
)
def test_not_progressing_is_work_without_steps(report: dict[str, float], state: str) -> None:
    pool = make_pool(1)
    pool.report(address(0), make_report(**report), sent=1.0, now=1.0)
    assert endpoint(pool, 0, now=1.0).state == state


def test_stock_metrics_without_any_move_are_no_progress() -> None:
    pool = make_pool(1, source=Source.METRICS)
    for second in range(20):
        sample = make_sample(running=2.0, generation_tokens=10.0 * min(second, 10))
        pool.sample(address(0), sample, sent=second, now=second)
        expected = "not-progressing" if second > 15 else "ok"
        assert endpoint(pool, 0, now=second).state == expected
    pool.sample(address(0), make_sample(running=2.0, generation_tokens=101.0), sent=20.0, now=20.0)
    assert endpoint(pool, 0, now=20.0).state == "ok"


def test_five_failures_in_a_row_rank_last() -> None:
    pool = make_pool(3)
    answer_all(pool, 3, now=1.0)
    for _ in range(4):
        pool.outcome(failed(0), now=1.0)
    assert endpoint(pool, 0, now=1.0).state == "ok"
    pool.outcome(failed(0), now=1.0)
    seen = endpoint(pool, 0, now=1.5)
    assert (seen.state, seen.failures, seen.state_seconds) == ("failing", 5.0, 0.5)
    assert seen.reason == "the last 5 requests failed; one is tried every 2 s"
    assert firsts(pool, 50, now=1.5)[address(0)] == 0


def test_failures_in_between_successes_do_not_add_up() -> None:
    pool = make_pool(1)
    for _ in range(10):
        pool.outcome(failed(0), now=1.0)
        pool.outcome(succeeded(0), now=1.0)
    assert endpoint(pool, 0, now=1.0).failures == 0.0


def test_one_request_is_one_failure_however_often_it_was_tried() -> None:
    pool = make_pool(1)
    pool.outcome(failed(0, 0, 0, 0, 0, 0), now=1.0)
    assert endpoint(pool, 0, now=1.0).failures == 1.0


def test_a_failing_endpoint_is_probed_every_two_seconds() -> None:
    pool = make_pool(3)
    answer_all(pool, 3, now=1.0)
    for _ in range(5):
        pool.outcome(failed(0), now=1.0)
    probed: list[float] = []
    for tick in range(100):
        now = 1.0 + tick / 10
        answer_all(pool, 3, now=now)
        pick = pool.pick(body_bytes=4000, now=now)
        assert pick is not None
        if pick.addresses[0] == address(0):
            assert pick.addresses[1] in {address(1), address(2)}
            probed.append(now)
        pool.close(pick, now=now)
    assert probed == pytest.approx([3.0, 5.0, 7.0, 9.0])
    assert pool.status(now=11.0).probes == 4.0


def test_the_second_choice_of_a_probe_is_the_best() -> None:
    pool = make_pool(3)
    answer_all(pool, 3, now=1.0)
    for _ in range(5):
        pool.outcome(failed(0), now=1.0)
    pool.report(address(1), make_report(queued_tokens=500), sent=3.5, now=3.5)
    pool.report(address(2), make_report(queued_tokens=400), sent=3.5, now=3.5)
    pick = pool.pick(body_bytes=4000, now=3.5)
    assert pick is not None
    assert pick.addresses == (address(0), address(2))


def test_any_success_heals() -> None:
    pool = make_pool(2)
    answer_all(pool, 2, now=1.0)
    for _ in range(9):
        pool.outcome(failed(0), now=1.0)
    pool.outcome(succeeded(0), now=1.1)
    assert endpoint(pool, 0, now=1.1).state == "ok"
    assert firsts(pool, 50, now=1.1)[address(0)] == 25


def test_a_retry_that_succeeds_elsewhere_counts_for_both() -> None:
    pool = make_pool(2)
    answer_all(pool, 2, now=1.0)
    outcome = Outcome(picked=address(0), served=address(1), failed=(address(0),), succeeded=address(1))
    for _ in range(5):
        pool.outcome(outcome, now=1.0)
    assert endpoint(pool, 0, now=1.0).state == "failing"
    assert endpoint(pool, 1, now=1.0).state == "ok"


def test_when_all_are_failing_they_are_still_picked() -> None:
    pool = make_pool(2)
    for _ in range(5):
        pool.outcome(failed(0, 1), now=0.0)
    assert set(firsts(pool, 20, now=0.1).values()) == {10}


def test_a_probe_respects_subset_fit_and_health() -> None:
    pool = make_pool(3)
    answer_all(pool, 3, now=1.0)
    pool.report(address(0), make_report(max_model_len=100), sent=1.0, now=1.0)
    for _ in range(5):
        pool.outcome(failed(0), now=1.0)
    pick = pool.pick(body_bytes=200, now=9.0, subset=[address(1)])
    assert pick is not None
    assert pick.addresses == (address(1),)
    pick = pool.pick(body_bytes=4000, now=9.0)
    assert pick is not None
    assert address(0) not in pick.addresses
    pool.update_endpoints(
        [Endpoint(address(0), health=Health.DRAINING), *(Endpoint(address(number)) for number in (1, 2))], now=9.0
    )
    pick = pool.pick(body_bytes=200, now=9.0)
    assert pick is not None
    assert address(0) not in pick.addresses
    assert endpoint(pool, 0, now=9.0).state == "draining"


def test_a_failing_endpoint_that_makes_no_step_is_not_probed() -> None:
    """Its requests would hang rather than fail; reports say when it steps again."""
    pool = make_pool(2)
    answer_all(pool, 2, now=1.0)
    for _ in range(5):
        pool.outcome(failed(0), now=1.0)
    pool.report(address(0), make_report(running=1, age=5.0), sent=4.0, now=4.0)
    assert firsts(pool, 1, now=4.0) == {address(1): 1}
    pool.report(address(0), make_report(running=1), sent=4.1, now=4.1)
    assert firsts(pool, 1, now=4.1) == {address(0): 1}


def test_a_request_that_failed_and_then_succeeded_at_the_same_endpoint_heals_it() -> None:
    pool = make_pool(1)
    for _ in range(4):
        pool.outcome(failed(0), now=1.0)
    both = Outcome(picked=address(0), served=address(0), failed=(address(0),), succeeded=address(0))
    pool.outcome(both, now=1.0)
    assert endpoint(pool, 0, now=1.0).state != "failing"
    assert endpoint(pool, 0, now=1.0).failures == 0.0


def test_an_endpoint_that_comes_back_is_not_failing() -> None:
    pool = make_pool(1)
    for _ in range(5):
        pool.outcome(failed(0), now=0.0)
    pool.update_endpoints([], now=0.1)
    pool.outcome(failed(0), now=0.1)
    pool.update_endpoints([Endpoint(address(0))], now=0.2)
    assert endpoint(pool, 0, now=0.2).state == "new"


def test_draining_and_unhealthy_say_so() -> None:
    pool = make_pool(1)
    pool.update_endpoints(
        [Endpoint(address(0), health=Health.DRAINING), Endpoint(address(1), health=Health.UNHEALTHY)], now=1.0
    )
    seen = endpoint(pool, 0, now=1.5)
    assert (seen.reason, seen.state_seconds) == ("it is shutting down; 0 requests are still open", 0.5)
    assert endpoint(pool, 1, now=1.0).reason == "discovery says that it is not ready"
    assert pool.status(now=1.0).states["draining"] == 1.0
