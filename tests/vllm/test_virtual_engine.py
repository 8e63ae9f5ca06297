"""vLLM's real scheduler under a virtual clock: the emulated core equals it step for step, under every engine policy.

What is compared after every step: its duration, prefill tokens, decodes, admissions and preemptions; every token of
every request; and the whole load report, to the last token and bit of time.
"""

import random
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halffull_lab.engine import Engine
from halffull_lab.engine_policies import ENGINE_POLICIES, NO_PREEMPT, TRAIL_PLUS, make_engine
from halffull_lab.engine_requests import EngineLimits, Output, Prompt, PromptRefusedError, Request, StepPlan
from halffull_lab.latency import PROFILES
from halffull_lab.traces import Trace, load_trace
from halffull_larry.ordering import POLICIES

if not metadata.version("vllm").startswith("0.32."):
    # Not missing: the lab simulates the newest release, and the offline tests cover the plugin on every one.
    pytest.skip("halffull_lab.vllm_engine drives vLLM 0.32 and no other", allow_module_level=True)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what vLLM and torch warn of when they are imported is not ours to fix
    from halffull_lab.vllm_engine import VLLMEngine
    from halffull_lab.vllm_scheduler import STOCK

PROFILE = PROFILES["70b-2xh100"]
LIMITS = EngineLimits.of(PROFILE)
SMALL = EngineLimits(max_tokens_per_batch=40, max_num_seqs=6, max_model_len=200, block_size=16, total_blocks=16)
AMPLE, TIGHT = 230_000, 18_000  # tokens of KV cache


def real(limits: EngineLimits = LIMITS, policy: str = STOCK, **options: Any) -> VLLMEngine:
    return VLLMEngine(latency=PROFILE.latency, limits=limits, policy=policy, **options)


def emulated(limits: EngineLimits = LIMITS, policy: str = STOCK) -> Engine:
    return make_engine(latency=PROFILE.latency, limits=limits, policy="FCFS" if policy == STOCK else policy)


def traffic(name: str, *, rate: float, count: int) -> Trace:
    rows = load_trace(name)
    start = len(rows) // 4
    return rows.share(start / len(rows), (start + count + 0.5) / len(rows)).at(rate=rate)


def preempting(name: str) -> set[str]:
    """Under which policies somebody is preempted in a TIGHT cache."""
    return {STOCK, *ENGINE_POLICIES} - {NO_PREEMPT} if name == "azure-conv" else {TRAIL_PLUS}


class Lockstep:
    """Two engines that are told the same."""

    def __init__(self, *engines: Any) -> None:
        self.engines = engines
        self.now = 0.0
        self.steps = self.preempted = 0

    def add(self, request_id: str, prompt: int, output: int, arrival: float, max_tokens: int | None = None) -> None:
        for engine in self.engines:
            engine.add(
                request_id,
                prompt=Prompt(prompt),
                output_tokens=output,
                arrival=arrival,
                interval=1,
                max_tokens=max_tokens,
            )

    def abort(self, request_id: str) -> None:
        for engine in self.engines:
            engine.abort(request_id, self.now)
        self.agree()

    def step(self, abort_within: str | None = None) -> bool:
        plan = self.same(engine.step_begin(self.now) for engine in self.engines)
        self.agree()
        if plan is None:
            return False
        if abort_within is not None:
            self.abort(abort_within)
        self.now += plan.duration
        self.same(news(engine.step_end(self.now)) for engine in self.engines)
        self.agree()
        self.steps += 1
        self.preempted += plan.preempted
        return True

    def agree(self) -> None:
        self.same(engine.snapshot for engine in self.engines)
        self.same(list(engine.requests) for engine in self.engines)

    @staticmethod
    def same(values: Iterable[Any]) -> Any:
        first, *others = values
        assert all(other == first for other in others)
        return first


def news(outputs: Sequence[Output]) -> dict[str, tuple[int, bool]]:
    return {output.request.request_id: (output.generated, output.finished) for output in outputs}


def play(trace: Trace, *engines: Any) -> Lockstep:
    together = Lockstep(*engines)
    rows = list(zip(trace.arrival.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    added = 0
    while added < len(rows) or engines[0].requests:
        if not engines[0].requests:
            together.now = max(together.now, rows[added][0])
        while added < len(rows) and rows[added][0] <= together.now:
            arrival, prompt, output = rows[added]
            together.add(str(added), prompt, output, arrival)
            added += 1
        assert together.step()
    return together


@pytest.mark.parametrize("policy", [STOCK, *ENGINE_POLICIES])
@pytest.mark.parametrize("kv_tokens", [AMPLE, TIGHT])
@pytest.mark.parametrize(("name", "rate"), [("azure-code", 1.5), ("azure-conv", 4.0)])
def test_the_emulated_core_equals_vllm_step_for_step(policy: str, kv_tokens: int, name: str, rate: float) -> None:
    limits = replace(LIMITS, total_blocks=kv_tokens // LIMITS.block_size)
    together = play(traffic(name, rate=rate, count=200), emulated(limits, policy), real(limits, policy))
    assert together.steps > 1_000
    assert (together.preempted > 0) == (kv_tokens == TIGHT and policy in preempting(name))
    emulator, vllm = together.engines
    assert counted(vllm) == pytest.approx(counted(emulator))


def counted(engine: Any) -> dict[str, float]:
    return {name: getattr(engine.totals, name) for name in type(engine.totals).__slots__}


@pytest.mark.parametrize("policy", ENGINE_POLICIES)
@pytest.mark.parametrize("threshold", [128, 512, 700])
@pytest.mark.parametrize("kv_tokens", [AMPLE, TIGHT])
def test_so_it_does_with_several_prefills_in_progress(policy: str, threshold: int, kv_tokens: int) -> None:
    limits = replace(LIMITS, total_blocks=kv_tokens // LIMITS.block_size, long_prefill_token_threshold=threshold)
    for name, rate in (("azure-code", 1.5), ("azure-conv", 4.0)):
        play(traffic(name, rate=rate, count=100), emulated(limits, policy), real(limits, policy))


def test_stock_admits_prefills_that_do_not_fit_together_the_plugin_does_not() -> None:
    limits = replace(SMALL, total_blocks=10, max_tokens_per_batch=32, long_prefill_token_threshold=16)
    preemptions = {}
    for policy in (STOCK, "FCFS", "LARRY"):
        engine = real(limits, policy)
        for name in ("first", "second"):
            engine.add(name, prompt=Prompt(96), output_tokens=2, arrival=0.0)
        finish(engine)
        preemptions[policy] = engine.totals.preemptions
    assert preemptions == {STOCK: 1, "FCFS": 0, "LARRY": 0}


def finish(engine: Any, now: float = 0.0) -> float:
    while engine.requests:
        plan = engine.step_begin(now)
        assert plan is not None
        now += plan.duration
        engine.step_end(now)
    return now


SCRIPT = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 150), st.integers(1, 40)),
        st.tuples(st.just("add"), st.integers(1, 20), st.integers(1, 100)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("step"), st.just(0), st.just(0)),
        st.tuples(st.just("idle"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=st.sampled_from(ENGINE_POLICIES), threshold=st.sampled_from([0, 7, 24]), script=SCRIPT)
def test_so_it_does_whatever_is_added_and_aborted_at_whatever_moment(
    policy: str, threshold: int, script: list[tuple[str, int, int]]
) -> None:
    limits = replace(SMALL, long_prefill_token_threshold=threshold)
    together = Lockstep(emulated(limits, policy), real(limits, policy))
    count = 0
    for action, first, second in script:
        if action == "add":
            together.add(str(count), first, second, together.now, second + 5 * (count % 3))
            count += 1
        elif action == "abort" and second:
            together.step(abort_within=str(first))
        elif action == "abort":
            together.abort(str(first))
        elif action == "step":
            together.step()
        else:
            together.now += 1.0
    while together.step():
        pass
    assert not together.engines[1].requests
    assert together.engines[1].snapshot.free_tokens == together.engines[1].snapshot.total_tokens


@pytest.mark.parametrize("policy", ENGINE_POLICIES)
@pytest.mark.parametrize("threshold", [0, 7])
def test_so_it_does_in_a_crowd(policy: str, threshold: int) -> None:
    preempted = 0
    for seed in range(10):
        draw = random.Random(seed)
        limits = replace(SMALL, total_blocks=draw.randint(13, 18), long_prefill_token_threshold=threshold)
        together = Lockstep(emulated(limits, policy), real(limits, policy))
        for count in range(50):
            if draw.random() < 0.4:
                output = draw.randint(1, 60)
                allowed = output + draw.choice([0, 0, 40])
                together.add(str(count), draw.randint(1, 100), output, together.now, allowed)
            together.step()
        while together.step():
            pass
        preempted += together.preempted
    assert (preempted > 0) == (policy != NO_PREEMPT)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_plugin_s_own_load_report_says_the_same(policy: str) -> None:
    limits = replace(LIMITS, total_blocks=TIGHT // LIMITS.block_size, long_prefill_token_threshold=512)
    engine = real(limits, policy)

    class Both:
        """Compares at each snapshot."""

        requests = engine.requests
        add = engine.add

        @property
        def snapshot(self) -> None:
            assert engine.scheduler._snapshot == pytest.approx(engine.snapshot)

        def step_begin(self, now: float) -> StepPlan | None:
            return engine.step_begin(now)

        def step_end(self, now: float) -> list[Output]:
            return engine.step_end(now)

    play(traffic("azure-conv", rate=4.0, count=150), Both())
    assert engine.totals.preemptions


@pytest.mark.parametrize("policy", [STOCK, *ENGINE_POLICIES])
@pytest.mark.parametrize("kv_tokens", [AMPLE, TIGHT])
def test_asynchronous_every_request_gets_its_tokens_and_everything_is_freed(policy: str, kv_tokens: int) -> None:
    limits = replace(LIMITS, total_blocks=kv_tokens // LIMITS.block_size)
    trace = traffic("azure-conv", rate=4.0, count=200)
    engine = real(limits, policy, asynchronous=True)
    together = play(trace, engine)
    assert engine.totals.finished == len(trace)
    assert engine.totals.generation_tokens == trace.output_tokens.sum()
    assert engine.snapshot.generation_tokens == trace.output_tokens.sum()
    assert engine.snapshot.queued_tokens == 0
    assert engine.snapshot.free_tokens == engine.snapshot.total_tokens
    assert engine.snapshot.busy_seconds <= together.now
    assert (engine.totals.preemptions > 0) == (kv_tokens == TIGHT and policy in preempting("azure-conv"))


def test_asynchronous_a_step_is_scheduled_while_the_one_before_it_runs() -> None:
    engine = real(asynchronous=True)
    ends: dict[str, int] = {}
    engine.add("long", prompt=Prompt(100), output_tokens=9, arrival=0.0)
    now = 0.0
    for step in range(1, 12):
        plan = engine.step_begin(now)
        if plan is None:
            break
        if step == 2:
            engine.add("late", prompt=Prompt(10), output_tokens=2, arrival=now)
        now += plan.duration
        for output in engine.step_end(now):
            if output.generated == 1:
                ends[output.request.request_id] = step
    # It came while step 2 ran; step 3 was scheduled by then.
    assert ends == {"long": 1, "late": 4}
    assert not engine.requests


def test_asynchronous_a_batch_of_the_aborted_takes_no_time() -> None:
    engine = real(asynchronous=True)
    engine.add("gone", prompt=Prompt(100), output_tokens=9, arrival=0.0)
    engine.step_begin(0.0)
    engine.abort("gone", 0.01)
    assert engine.step_end(0.02) != []
    assert engine.snapshot.running == engine.snapshot.queued_tokens == 0
    engine.add("next", prompt=Prompt(50), output_tokens=1, arrival=0.02)
    plan = engine.step_begin(0.02)
    assert plan is not None
    assert (plan.prefill_tokens, plan.decodes) == (50, 0)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(policy=st.sampled_from([STOCK, *ENGINE_POLICIES]), threshold=st.sampled_from([0, 24]), script=SCRIPT)
def test_asynchronous_nothing_is_lost_whatever_is_aborted(
    policy: str, threshold: int, script: list[tuple[str, int, int]]
) -> None:
    engine = real(replace(SMALL, long_prefill_token_threshold=threshold), policy, asynchronous=True)
    made: list[Request] = []
    now = 0.0
    aborted: set[str] = set()

    def step() -> bool:
        nonlocal now
        plan = engine.step_begin(now)
        if plan is None:
            return False
        now += plan.duration
        engine.step_end(now)
        return True

    for action, first, second in script:
        if action == "add":
            request = engine.add(str(len(made)), prompt=Prompt(first), output_tokens=second, arrival=now)
            made.append(request)
        elif action == "abort":
            if str(first) in engine.requests:
                aborted.add(str(first))
            engine.abort(str(first), now)
        else:
            step()
    while step():
        pass
    assert not engine.requests
    for request in made:
        assert (request.generated == request.output_tokens) == (request.request_id not in aborted)
    assert engine.snapshot.queued_tokens == 0
    assert engine.snapshot.free_tokens == engine.snapshot.total_tokens


def test_alone_a_long_prefill_has_the_whole_budget_and_the_adaptive_threshold_is_a_fair_share() -> None:
    limits = replace(LIMITS, long_prefill_token_threshold=100)
    for adaptive, expected in ((False, [1024, 200]), (True, [1024, 1024])):
        engine = real(limits, adaptive_threshold=adaptive)
        engine.add("first", prompt=Prompt(5_000), output_tokens=1, arrival=0.0)
        tokens = []
        for now in (0.0, 1.0):
            plan = engine.step_begin(now)
            assert plan is not None
            tokens.append(plan.prefill_tokens)
            engine.step_end(now + 0.5)
            if now == 0.0:
                engine.add("second", prompt=Prompt(5_000), output_tokens=1, arrival=0.6)
        assert tokens == expected


def test_what_could_never_run_is_refused_and_steps_are_taken_in_turn() -> None:
    engine = real(SMALL)
    with pytest.raises(PromptRefusedError):
        engine.add("a", prompt=Prompt(199), output_tokens=2, arrival=0.0)
    with pytest.raises(PromptRefusedError):
        engine.add("a", prompt=Prompt(199), output_tokens=1, arrival=0.0, max_tokens=2)
    engine.add("a", prompt=Prompt(10), output_tokens=2, arrival=0.0)
    with pytest.raises(ValueError, match="already"):
        engine.add("a", prompt=Prompt(10), output_tokens=2, arrival=0.0)
    with pytest.raises(RuntimeError, match="no step"):
        engine.step_end(0.0)
    engine.step_begin(0.0)
    with pytest.raises(RuntimeError, match="in flight"):
        engine.step_begin(0.0)
