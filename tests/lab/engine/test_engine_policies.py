"""Engine policies that only the lab has, No-Preempt and TRAIL+: against plain references, and what they promise."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_lab import engine_policies
from halffull_lab.engine import Engine
from halffull_lab.engine_policies import ENGINE_POLICIES
from halffull_lab.engine_requests import EngineLimits, Output, Prompt, PromptRefusedError, Request, StepPlan
from halffull_lab.latency import PROFILES
from halffull_larry.ordering import LARRY
from tests.lab.engine.lockstep import SCRIPT, Script, drawn_limits, play
from tests.lab.engine.virtual import Arrival, make_engine, run

LATENCY = PROFILES["70b-2xh100"].latency

ARRIVALS = st.lists(
    st.builds(Arrival, st.floats(0.0, 1.0), st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=30
).map(sorted)


@settings(max_examples=150, deadline=None)
@given(limits=drawn_limits(), script=SCRIPT)
def test_no_preempt_equals_the_reference_and_never_preempts(limits: EngineLimits, script: Script) -> None:
    both = play("NoPreempt", limits, script)
    assert not both.engine.totals.preemptions


@settings(max_examples=100, deadline=None)
@given(limits=drawn_limits(), script=SCRIPT)
def test_trail_plus_equals_the_reference(limits: EngineLimits, script: Script) -> None:
    play("TRAILPlus", limits, script)


class Watched:
    """An engine whose every step is looked at."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.requests = engine.requests
        self.add = engine.add
        self.log: list[Any] = []

    def blocks(self, requests: Sequence[Request], generated: dict[Request, int]) -> int:
        """At the end of the step, whole prefills included."""
        size = self.engine.limits.block_size
        return sum(-(-(one.prompt.tokens + generated[one]) // size) for one in requests)

    def step_begin(self, now: float) -> StepPlan | None:
        engine, limits = self.engine, self.engine.limits
        # Of running ones before the step; waiting ones do not change in it.
        generated = {one: engine.generated(one) for one in engine.requests.values()}
        before = set(engine._running)
        plan = engine.step_begin(now)
        self.log.append((plan, engine.snapshot))
        running = list(engine._running)
        waiting = [one for one in engine.requests.values() if one not in engine._running]
        assert 0 <= engine._free <= limits.total_blocks
        assert self.blocks(running, generated) <= limits.total_blocks
        assert plan is None or plan.preempted == len(before - set(running))

        def remaining(one: Request) -> int:
            return one.output_tokens - generated[one]

        # Whoever was preempted has no less to do than anybody that runs.
        longest = max(map(remaining, running), default=0)
        assert all(remaining(one) >= longest for one in before - set(running))
        if plan is None or not waiting or plan.prefill_tokens + plan.decodes == limits.max_tokens_per_batch:
            return plan
        # There was budget for the next one. It lacked room: beside those that have no more to do than itself it finds
        # none, so that to preempt everybody with more would not have helped. Of equals, who came to wait first is next.
        first = min((remaining(one), one.arrival) for one in waiting)
        equals = [one for one in waiting if (remaining(one), one.arrival) == first]
        kept = [one for one in running if remaining(one) <= first[0]]
        assert len(kept) == limits.max_num_seqs or any(
            self.blocks([*kept, head], generated) > limits.total_blocks for head in equals
        )
        return plan

    def step_end(self, now: float) -> list[Output]:
        outputs = self.engine.step_end(now)
        self.log.append([(one.request.request_id, one.generated, one.finished) for one in outputs])
        return outputs


@settings(max_examples=150, deadline=None)
@given(limits=drawn_limits(), arrivals=ARRIVALS)
def test_trail_plus_runs_the_shortest_that_fit_and_everything_to_its_end_in_the_same_way_each_time(
    limits: EngineLimits, arrivals: list[Arrival]
) -> None:
    longest = min(limits.max_model_len, limits.total_blocks * limits.block_size + 1)
    arrivals = [one for one in arrivals if one.prompt_tokens + one.output_tokens <= longest]
    logs = []
    for _ in range(2):
        watched = Watched(engine_policies.make_engine(latency=LATENCY, limits=limits, policy="TRAILPlus"))
        requests = run(watched, arrivals)
        assert [one.generated for one in requests] == [one.output_tokens for one in arrivals]
        assert watched.engine.totals.finished == len(arrivals)
        assert watched.engine.totals.generation_tokens == sum(one.output_tokens for one in arrivals)
        assert watched.engine.totals.prompt_tokens == sum(one.prompt_tokens for one in arrivals)
        logs.append(watched.log)
    assert logs[0] == logs[1]


@settings(max_examples=60, deadline=None)
@given(arrivals=ARRIVALS)
def test_where_memory_does_not_bind_no_preempt_is_fcfs(arrivals: list[Arrival]) -> None:
    times = []
    for policy in ("FCFS", "NoPreempt"):
        requests = run(make_engine(policy, max_num_seqs=12), arrivals)
        times.append([(one.first_token_at, one.finished_at) for one in requests])
    assert times[0] == times[1]


def step(engine: Engine, now: float) -> StepPlan:
    plan = engine.step_begin(now)
    assert plan is not None
    engine.step_end(now + 0.05)
    return plan


def running(engine: Engine) -> list[str]:
    return [one.request_id for one in engine._running]


def test_no_preempt_sets_max_tokens_aside_and_gives_them_back() -> None:
    engine = make_engine("NoPreempt", total_blocks=10)
    engine.add("first", prompt=Prompt(16), output_tokens=3, arrival=0.0, max_tokens=16 * 6 + 1)  # 7 blocks
    engine.add("second", prompt=Prompt(16), output_tokens=33, arrival=0.1)  # 3 blocks: 16 + 33 - 1 tokens
    engine.add("third", prompt=Prompt(1), output_tokens=1, arrival=0.2)
    step(engine, 0.3)
    assert running(engine) == ["first", "second"]
    step(engine, 0.4)
    step(engine, 0.5)  # the first ends
    step(engine, 0.6)
    assert engine.requests.keys() == {"second"}
    engine.add("fourth", prompt=Prompt(7 * 16), output_tokens=1, arrival=0.7)
    assert step(engine, 0.8).admitted == 1


def test_what_is_aborted_gives_back_what_was_set_aside() -> None:
    engine = make_engine("NoPreempt", total_blocks=10)
    engine.add("large", prompt=Prompt(16), output_tokens=140, arrival=0.0)
    engine.add("next", prompt=Prompt(16), output_tokens=140, arrival=0.0)
    step(engine, 0.0)
    engine.abort("large", 0.1)
    assert step(engine, 0.1).admitted == 1


@pytest.mark.parametrize("policy", ENGINE_POLICIES)
def test_max_tokens_that_could_never_be_held_are_refused(policy: str) -> None:
    engine = make_engine(policy, total_blocks=10)
    with pytest.raises(PromptRefusedError, match="KV cache"):
        engine.add("a", prompt=Prompt(16), output_tokens=1, arrival=0.0, max_tokens=146)
    with pytest.raises(ValueError, match="max_tokens is 4, but"):
        engine.add("a", prompt=Prompt(16), output_tokens=5, arrival=0.0, max_tokens=4)
    engine.add("a", prompt=Prompt(16), output_tokens=1, arrival=0.0, max_tokens=145)
    assert step(engine, 0.0).admitted == 1


def test_trail_plus_preempts_as_few_as_suffice_the_longest_first() -> None:
    engine = make_engine("TRAILPlus", total_blocks=10)
    for name, prompt, output in (("a", 47, 100), ("b", 47, 60), ("c", 47, 80)):  # 3 blocks each, one is left
        engine.add(name, prompt=Prompt(prompt), output_tokens=output, arrival=0.0)
    step(engine, 0.0)
    assert running(engine) == ["b", "c", "a"]
    engine.add("short", prompt=Prompt(60), output_tokens=10, arrival=0.1)  # 4 blocks
    plan = step(engine, 0.1)
    assert (plan.preempted, plan.admitted) == (1, 1)
    assert running(engine) == ["b", "c", "short"]
    preempted = engine.requests["a"]
    assert (preempted.generated, preempted.prefill_tokens) == (1, 48)


def test_trail_plus_preempts_nobody_in_vain_nor_for_an_equal() -> None:
    engine = make_engine("TRAILPlus", total_blocks=10)
    engine.add("shorter", prompt=Prompt(70), output_tokens=20, arrival=0.0)  # 5 blocks
    engine.add("longer", prompt=Prompt(55), output_tokens=80, arrival=0.0)  # 4 blocks
    step(engine, 0.0)
    engine.add("large", prompt=Prompt(90), output_tokens=40, arrival=0.1)  # 6 blocks: not without both
    engine.add("behind", prompt=Prompt(1), output_tokens=79, arrival=0.1)  # would fit, but is not the next
    assert step(engine, 0.1)[3:] == (0, 0)
    engine.abort("large", 0.2)
    assert step(engine, 0.2)[3:] == (1, 0)
    engine.add("equal", prompt=Prompt(60), output_tokens=engine.requests["longer"].output_tokens - 3, arrival=0.3)
    assert step(engine, 0.3)[3:] == (0, 0)


def test_trail_plus_preempts_for_a_place_too() -> None:
    engine = make_engine("TRAILPlus", max_num_seqs=2)
    engine.add("long", prompt=Prompt(10), output_tokens=90, arrival=0.0)
    engine.add("short", prompt=Prompt(10), output_tokens=10, arrival=0.0)
    step(engine, 0.0)
    engine.add("middle", prompt=Prompt(10), output_tokens=50, arrival=0.1)
    assert step(engine, 0.1)[3:] == (1, 1)
    assert running(engine) == ["short", "middle"]


def test_trail_plus_does_not_preempt_for_budget() -> None:
    engine = make_engine("TRAILPlus", total_blocks=200)
    engine.add("long", prompt=Prompt(3_000), output_tokens=90, arrival=0.0)
    step(engine, 0.0)
    engine.add("short", prompt=Prompt(1_000), output_tokens=10, arrival=0.1)
    assert step(engine, 0.1)[1:] == (1_024, 0, 0, 0)
    assert step(engine, 0.2)[1:] == (1_000, 0, 1, 1)  # budget is left now, and the blocks are not enough for both


def test_every_policy_is_made_and_no_other() -> None:
    limits = EngineLimits.of(PROFILES["70b-2xh100"])
    for policy in ENGINE_POLICIES:
        engine = engine_policies.make_engine(latency=LATENCY, limits=limits, policy=policy, alpha=500.0)
        assert policy in {engine.ordering.name, type(engine).__name__}
        if isinstance(engine.ordering, LARRY):
            assert engine.ordering.alpha == 500.0
    with pytest.raises(ValueError, match="NoPreempt, TRAILPlus, not 'SJF'"):
        engine_policies.make_engine(latency=LATENCY, limits=limits, policy="SJF")
