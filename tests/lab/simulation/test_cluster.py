"""The simulated cluster: nothing is lost, nothing comes before its cause, and one engine is that engine alone."""

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_extproc.pool import Source
from halffull_extproc.stock_metrics import parse_stock_metrics
from halffull_lab.engine_policies import ENGINE_POLICIES
from halffull_lab.simulation.balancers import BALANCERS, LAB_ONLY, Picker
from halffull_lab.simulation.cluster import HOP, Member, Run
from halffull_lab.traces import Trace
from tests.lab.engine import virtual
from tests.lab.simulation.scenes import SMALLEST_STEP, Witness, drawn, members, pickers, play, rows


def agree(run: Run, trace: Trace, engines: list[Member]) -> None:
    """Every request ended once, in the engine that took it; nothing is earlier than it can be."""
    served = run.rows >= 0
    outcomes = run.outcomes
    assert np.array_equal(outcomes.failed, ~served)
    assert np.array_equal(np.isinf(outcomes.ttft), ~served)
    for row, member in enumerate(engines):
        mine = run.rows == row
        totals, snapshot = member.engine.totals, member.engine.snapshot
        assert totals.finished == snapshot.requests == mine.sum()
        assert totals.generation_tokens == snapshot.generation_tokens == trace.output_tokens[mine].sum()
        assert snapshot.prompt_tokens == trace.prompt_tokens[mine].sum()
        assert (snapshot.running, snapshot.waiting, snapshot.queued_tokens) == (0, 0, 0)
        assert snapshot.free_tokens == snapshot.total_tokens
        assert run.busy[row] == snapshot.busy_seconds <= run.seconds
    ttft, tgt = outcomes.ttft[served], outcomes.tgt[served]
    tokens = trace.output_tokens[served]
    assert (ttft >= 2 * HOP + SMALLEST_STEP - 1e-9).all()
    assert (tgt - ttft >= (tokens - 1) * SMALLEST_STEP - 1e-6).all()
    assert np.array_equal(ttft == tgt, tokens == 1)
    ends = (trace.arrival + outcomes.tgt)[served]
    assert run.seconds == pytest.approx(
        max(ends.max(initial=0.0), trace.arrival[-1] + (2 * HOP if not served[-1] else 0))
    )
    assert run.arriving == trace.arrival[-1]


@pytest.mark.parametrize("balancer", BALANCERS)
@pytest.mark.parametrize("policy", ["FCFS", "LARRY"])
def test_every_request_ends_once_in_the_engine_that_took_it(policy: str, balancer: str) -> None:
    trace, engines = drawn(150, rate=25.0), members(3, policy)
    chosen = pickers(balancer, 2)
    run = play(trace, engines, chosen, size_error=0.4)
    agree(run, trace, engines)
    assert run.outcomes.errors == 0
    assert len(set(run.rows.tolist())) == 3
    for each in chosen:
        if isinstance(each, Picker):
            endpoints = each.pool.status(now=run.seconds).endpoints
            assert sum(endpoint.open_picks + endpoint.charged_tokens for endpoint in endpoints) == 0
        elif balancer in LAB_ONLY and balancer != "Llumnix":
            assert each._loads == [0.0] * 3  # type: ignore[attr-defined]


REQUESTS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.001, 0.02, 0.5]), st.integers(1, 400), st.integers(1, 40)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=60)
@given(
    requests=REQUESTS,
    policy=st.sampled_from(ENGINE_POLICIES),
    balancer=st.sampled_from(BALANCERS),
    source=st.sampled_from(Source),
    joins=st.lists(st.sampled_from([0.0, 0.1, 3.0]), max_size=2).map(sorted),
    count=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_so_it_is_whatever_arrives_and_whoever_is_there(
    requests: list[tuple[float, int, int]],
    policy: str,
    balancer: str,
    source: Source,
    joins: list[float],
    count: int,
    seed: int,
) -> None:
    times = itertools.accumulate(gap for gap, _, _ in requests)
    trace = rows(*((time, prompt, output) for time, (_, prompt, output) in zip(times, requests, strict=True)))
    trace = rows(
        *zip((trace.arrival - trace.arrival[0]).tolist(), trace.prompt_tokens, trace.output_tokens, strict=True)
    )
    small = {"total_blocks": 24, "max_model_len": 400, "max_num_seqs": 8, "max_tokens_per_batch": 64}
    engines = members(1 + len(joins), policy, joins=joins, **small)
    run = play(trace, engines, pickers(balancer, count, source=source, seed=seed), seed=seed, size_error=0.5)
    agree(run, trace, engines)
    fits = (trace.prompt_tokens + trace.output_tokens <= 384 + 1) & (trace.prompt_tokens + trace.output_tokens <= 400)
    assert np.array_equal(run.outcomes.failed, ~fits)


@pytest.mark.parametrize("policy", ENGINE_POLICIES)
@pytest.mark.parametrize("balancer", ["SAL", "LeastTokens"])
def test_one_engine_behind_any_balancer_is_that_engine_a_hop_later(policy: str, balancer: str) -> None:
    trace = drawn(120, rate=6.5)
    run = play(trace, members(1, policy), pickers(balancer, 2), size_error=0.4)
    alone = virtual.run(
        virtual.make_engine(policy),
        [
            virtual.Arrival(*row)
            for row in zip(
                (trace.arrival + HOP).tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True
            )
        ],
    )
    assert run.outcomes.ttft.tolist() == [
        request.first_token_at + HOP - arrival for request, arrival in zip(alone, trace.arrival.tolist(), strict=True)
    ]
    assert run.outcomes.tgt.tolist() == [
        request.finished_at + HOP - arrival for request, arrival in zip(alone, trace.arrival.tolist(), strict=True)
    ]


@pytest.mark.parametrize("interval", [0.1, 0.73])
def test_polls_leave_at_their_interval_arrive_two_hops_later_and_end_with_the_last_request(interval: float) -> None:
    trace, witnesses = drawn(60, rate=10.0), [Witness(), Witness()]
    run = play(trace, members(3), witnesses, poll_interval=interval)
    phases = set()
    for witness, row in itertools.product(witnesses, range(3)):
        sent = [left for polled, left, _, _ in witness.polls if polled == row]
        phases.add(sent[0])
        assert 0 <= sent[0] <= interval
        assert np.diff(sent) == pytest.approx(interval)
        assert run.seconds <= sent[-1] + 1e-9 < run.seconds + interval
    assert len(phases) == 6  # each at a moment of its own
    for witness in witnesses:
        assert all(now == pytest.approx(sent + 2 * HOP) for _, sent, now, _ in witness.polls)


def test_an_answer_is_the_engine_s_own_at_the_moment_it_was_asked() -> None:
    trace, witness = drawn(80, rate=15.0), Witness()
    run = play(trace, members(2), [witness], poll_interval=0.05)
    ends = trace.arrival + run.outcomes.tgt - HOP  # at the engine
    for row in range(2):
        finished = ends[run.rows == row]
        sent = [left for polled, left, _, _ in witness.polls if polled == row]
        for left, report in zip(sent, witness.reports(row), strict=True):
            assert report.boot_id == f"engine-{row}"
            assert report.requests == (finished <= left + HOP).sum()
            if not report.running + report.waiting and report.requests:  # idle since its last step
                assert report.age == pytest.approx(left + HOP - finished[finished <= left + HOP].max(), abs=2e-6)
        assert max(report.running for report in witness.reports(row)) > 1


def test_stock_metrics_are_told_where_they_are_polled() -> None:
    trace, witness = drawn(40, rate=10.0), Witness(source=Source.METRICS)
    engines = members(2)
    play(trace, engines, [witness])
    for row, member in enumerate(engines):
        last = [body for polled, _, _, body in witness.polls if polled == row][-1]
        sample = parse_stock_metrics(last, max_model_len=16_384)
        assert sample.generation_tokens == member.engine.totals.generation_tokens
        assert sample.total_tokens == member.engine.snapshot.total_tokens


def test_nobody_polls_for_who_does_not_ask() -> None:
    witness = Witness(source=None)
    play(drawn(20, rate=10.0), members(2), [witness])
    assert witness.polls == []


@pytest.mark.parametrize("balancer", BALANCERS)
def test_a_fresh_engine_gets_nothing_before_it_joins_and_its_share_after(balancer: str) -> None:
    trace = drawn(400, rate=20.0)
    run = play(trace, members(3, joins=[8.0]), pickers(balancer))
    before = trace.arrival < 8.0
    assert set(run.rows[before].tolist()) == {0, 1}
    assert 0.2 < (run.rows[~before] == 2).mean() < 0.6


def test_one_that_would_join_after_the_end_changes_nothing() -> None:
    trace = drawn(60, rate=10.0)
    with_it = play(trace, members(3, joins=[1_000.0]), pickers("SAL"))
    without = play(trace, members(2), pickers("SAL"))
    assert with_it.outcomes.ttft.tolist() == without.outcomes.ttft.tolist()
    assert (with_it.seconds, with_it.busy) == (without.seconds, (*without.busy, 0.0))


def test_a_slow_engine_is_so_many_times_slower() -> None:
    trace = rows((0.0, 700, 30), (20.0, 5_000, 1), (40.0, 1, 90))  # each alone
    plain, slowed = members(1), members(1)
    slowed[0].engine.slowdown = 2.5
    times = [play(trace, engines, pickers("SAL")).outcomes for engines in (plain, slowed)]
    assert times[1].ttft - 2 * HOP == pytest.approx(2.5 * (times[0].ttft - 2 * HOP))
    assert times[1].tgt - 2 * HOP == pytest.approx(2.5 * (times[0].tgt - 2 * HOP))


def test_a_refused_request_is_a_failure_and_nobody_is_charged_for_it() -> None:
    trace, witness = rows((0.0, 100, 5), (1.0, 16_384, 5), (2.0, 100, 5)), Witness()
    run = play(trace, members(1), [witness])
    assert np.isinf(run.outcomes.ttft).tolist() == np.isinf(run.outcomes.tgt).tolist() == [False, True, False]
    assert run.outcomes.errors == 1
    assert run.rows.tolist() == [0, -1, 0]
    refused = witness.picked[1][2]
    assert refused not in witness.first
    assert [when for when, ticket in witness.closed if ticket is refused] == [pytest.approx(1.0 + 2 * HOP)]
    tokens = pickers("LeastTokens")
    play(trace, members(1), tokens)
    assert tokens[0]._loads == [0.0]  # type: ignore[attr-defined]


def test_a_run_may_end_with_a_refusal() -> None:
    run = play(rows((0.0, 16_384, 5)), members(1), pickers("SAL"))
    assert run.outcomes.errors == 1
    assert run.seconds == pytest.approx(2 * HOP)


def test_pickers_see_their_own_requests_only_each_to_its_end() -> None:
    trace, witnesses = drawn(300, rate=25.0), [Witness() for _ in range(3)]
    run = play(trace, members(4), witnesses)
    for witness in witnesses:
        tickets = [ticket for _, _, ticket in witness.picked]
        assert Counter(ticket for _, ticket in witness.closed) == Counter(tickets)
        assert Counter(witness.first) == Counter(tickets)
        assert len(tickets) > 60  # of 100
    picked = sorted((when, ticket.row) for witness in witnesses for when, _, ticket in witness.picked)
    assert picked == list(zip(trace.arrival.tolist(), run.rows.tolist(), strict=True))


def test_a_body_has_four_bytes_a_token_on_average_and_the_error_that_is_asked_for() -> None:
    trace = drawn(4_000, rate=2_000.0, longest=3_000)
    trace = Trace("sizes", trace.arrival, np.maximum(300, trace.prompt_tokens), np.ones(4_000, dtype=np.int64))
    for sigma in (0.0, 0.4):
        witness = Witness(source=None)
        play(trace, members(8), [witness], size_error=sigma)
        ratio = np.array([size for _, size, _ in witness.picked]) / trace.prompt_tokens
        assert ratio.mean() == pytest.approx(4, rel=0.05 * bool(sigma) + 1e-9)
        assert np.log(ratio).std() == pytest.approx(sigma, rel=0.05, abs=1e-9)


@pytest.mark.parametrize("balancer", BALANCERS)
def test_equal_seeds_give_equal_runs_and_others_others(balancer: str) -> None:
    trace = drawn(100, rate=20.0)

    def times(seed: int) -> list[float]:
        return play(
            trace, members(3), pickers(balancer, 2, seed=seed), seed=seed, size_error=0.4
        ).outcomes.ttft.tolist()

    assert times(1) == times(1)
    assert times(1) != times(2)


def test_what_cannot_be_simulated_is_said() -> None:
    trace = rows((0.0, 10, 1))
    for engines, balancers in (([], pickers("SAL")), (members(1), []), (members(1, joins=[1.0]), pickers("SAL"))):
        with pytest.raises(ValueError, match="one engine from the start"):
            play(trace, engines, balancers)
    with pytest.raises(ValueError, match="in which they join"):
        play(trace, members(3, joins=[2.0, 1.0]), pickers("SAL"))


def test_a_lonely_request_takes_its_steps_and_two_hops() -> None:
    (member,) = members(1)
    run = play(rows((0.0, 500, 3)), [member], pickers("SAL"))
    latency = member.engine.latency
    first = latency.step_seconds(prefill_tokens=500, decodes=0, decode_context=0, prefill_pairs=500 * 250)
    assert run.outcomes.ttft[0] == pytest.approx(first + 2 * HOP)
    others = sum(latency.step_seconds(prefill_tokens=0, decodes=1, decode_context=context) for context in (501, 502))
    assert run.outcomes.tgt[0] == pytest.approx(first + others + 2 * HOP, rel=1e-3)
    assert math.isclose(run.seconds, run.outcomes.tgt[0])


def test_a_request_that_is_over_leaves_nothing_but_its_row() -> None:
    """The peak is a few numbers for each request of the trace; what an engine or a picker kept of one would add kB."""

    def peak(count: int) -> int:
        trace, engines, chosen = drawn(count, rate=10.0), members(2, "LARRY"), pickers("SAL")
        tracemalloc.start()
        try:
            play(trace, engines, chosen)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = 500, 2_500
    assert (peak(many) - peak(few)) / (many - few) < 400
