"""What is admitted fits to its end: LARRY preempts nobody, not even by accident."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VLLMScheduler
from vllm.v1.request import RequestStatus

import halffull_larry
from halffull_larry.ordering import POLICIES

from .engine import Engine, Setup
from .ledger import Watched

OURS = {False: halffull_larry.SyncScheduler, True: halffull_larry.Scheduler}
STOCK = {False: VLLMScheduler, True: AsyncScheduler}
MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def larry(policy: str = "LARRY") -> dict[str, Any]:
    return {"policy": policy, "load_port": None}


def two_that_do_not_fit_together(scheduler_class: type, *, asynchronous: bool) -> Engine:
    setup = Setup(asynchronous=asynchronous, blocks=40, budget=256, long_prefill_token_threshold=32)
    engine = Engine(scheduler_class, setup)
    engine.add("first", 400)
    engine.add("second", 401)
    engine.run()
    return engine


@MODES
def test_two_prompts_that_do_not_fit_together_go_one_after_the_other(*, asynchronous: bool) -> None:
    engine = two_that_do_not_fit_together(OURS[asynchronous], asynchronous=asynchronous)
    assert engine.preemptions == 0
    assert engine.admissions == ["first", "second"]


@MODES
def test_the_stock_scheduler_admits_both_and_preempts_one(*, asynchronous: bool) -> None:
    """What the test above would show without our stop rule."""
    engine = two_that_do_not_fit_together(STOCK[asynchronous], asynchronous=asynchronous)
    assert engine.preemptions > 0


prompts = st.lists(
    st.tuples(st.integers(1, 320), st.sampled_from([0, 16, 48]), st.integers(-1, 1), st.integers(0, 4)),
    min_size=2,
    max_size=30,
)


@MODES
@given(
    prompts=prompts,
    policy=st.sampled_from(POLICIES),
    priorities=st.booleans(),
    prefix_caching=st.booleans(),
    blocks=st.sampled_from([20, 33]),
    budget=st.sampled_from([64, 512]),
    threshold=st.sampled_from([0, 24, 100]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_prefills_alone_never_preempt_each_other(
    *,
    asynchronous: bool,
    prompts: list[tuple[int, ...]],
    policy: str,
    priorities: bool,
    prefix_caching: bool,
    blocks: int,
    budget: int,
    threshold: int,
) -> None:
    setup = Setup(
        asynchronous=asynchronous,
        blocks=blocks,
        budget=budget,
        policy="priority" if priorities else "fcfs",
        prefix_caching=prefix_caching,
        long_prefill_token_threshold=threshold,
        larry=larry(policy),
    )
    engine = Watched(OURS[asynchronous], setup)
    for number, (prompt, at_most_shared, priority, steps) in enumerate(prompts):
        for _ in range(steps):
            engine.step()
        shared = min(at_most_shared, prompt - 1)
        tokens = [*range(50, 50 + shared), *[200 + number] * (prompt - shared)]
        engine.add(f"r{number}", tokens, priority=priority)
    engine.run(steps=3_000)
    assert engine.preemptions == 0
    assert all(outcome == ("length", 1) for outcome in engine.outcomes().values())


class Grammar:
    """Stands for a structured output and its grammar, still compiling or compiled; it lets every token pass."""

    def __init__(self) -> None:
        self.grammar: Grammar | None = None
        self.reasoning_ended = True

    def compiled(self) -> None:
        self.grammar = self

    def accept_tokens(self, *_: object) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


def with_grammar(engine: Engine, request_id: str, prompt: int) -> Grammar:
    """A request that waits for its grammar."""
    blocked = next(
        status
        for name in ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", "WAITING_FOR_FSM")
        if (status := getattr(RequestStatus, name, None)) is not None
    )
    grammar = Grammar()
    request = engine.add(request_id, prompt)
    request.structured_output_request = grammar
    request.status = blocked
    return grammar


def test_who_waits_for_a_grammar_keeps_the_place_and_holds_nobody_up() -> None:
    engine = Engine(OURS[False], Setup(max_num_seqs=1, larry={"alpha": 0, "load_port": None}))
    grammar = with_grammar(engine, "structured", 20)
    for name in ("a", "b"):
        engine.add(name, 100)
    engine.step()
    assert engine.admissions == ["a"]
    assert engine.report()["waiting"] == 2
    assert engine.report()["queued_tokens"] == 120
    grammar.compiled()
    engine.step()
    assert engine.admissions == ["a", "structured"]


def test_who_is_skipped_step_after_step_keeps_the_rank_among_equals() -> None:
    engine = Engine(OURS[False], Setup(max_num_seqs=1, larry=larry()))
    names = ("first", "second", "third")
    grammars = [with_grammar(engine, name, 20) for name in names]
    for _ in range(3):
        engine.step()
    assert engine.admissions == []
    for grammar in grammars:
        grammar.compiled()
    engine.run()
    assert engine.admissions == list(names)


@MODES
def test_a_grammar_that_is_ready_opens_no_way_round_the_stop_rule(*, asynchronous: bool) -> None:
    setup = Setup(asynchronous=asynchronous, blocks=40, budget=256, long_prefill_token_threshold=32)
    engine = Engine(OURS[asynchronous], setup)
    engine.add("running", 400)
    engine.step()
    grammar = with_grammar(engine, "structured", 320)  # it fits into what is free, not into what will be left
    engine.step()
    grammar.compiled()
    engine.step()
    engine.step()
    assert engine.admissions == ["running"]
    engine.run()
    assert engine.preemptions == 0
    assert engine.admissions == ["running", "structured"]


class Lora:
    """Stands for an adapter."""

    def __init__(self, number: int) -> None:
        self.lora_int_id = number
        self.lora_name = f"adapter-{number}"


def test_who_waits_for_an_adapter_keeps_the_place_and_holds_nobody_up() -> None:
    engine = Engine(OURS[False], Setup(larry={"alpha": 1, "load_port": None}))
    engine.scheduler.lora_config = type("OneAdapter", (), {"max_loras": 1})()
    engine.add("first", 16, max_tokens=5, lora_request=Lora(1))
    engine.add("other", 16, lora_request=Lora(2))
    engine.add("same", 160, lora_request=Lora(1))
    engine.add("none", 320)
    engine.step()
    assert engine.admissions == ["first", "same", "none"]
    engine.add("late other", 17, lora_request=Lora(2))
    engine.run()
    assert engine.admissions == ["first", "same", "none", "other", "late other"]
