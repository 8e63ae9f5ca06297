"""Arrivals, aborts, ends and preemptions in any order: nobody is lost, and the report is right at every moment."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler as VLLMScheduler

import halffull_larry
from halffull_larry.ordering import POLICIES

from .engine import BLOCK, Engine, Setup, make_request
from .ledger import Watched

# Older releases lose or repeat a token of a request that reset_prefix_cache preempts while its output is in flight.
RESETS_IN_FLIGHT = hasattr(make_request("r", [1], arrival=0.0), "num_stale_output_tokens")
OURS = {False: halffull_larry.SyncScheduler, True: halffull_larry.Scheduler}
STOCK = {False: VLLMScheduler, True: AsyncScheduler}


@dataclass(frozen=True)
class Add:
    prompt: int
    shared: int
    """Tokens at its start that others begin with too."""
    max_tokens: int
    stop_after: int | None
    priority: int
    children: int
    abort_after: int | None
    """The client leaves once it has so many tokens."""


@dataclass(frozen=True)
class Abort:
    which: int


@dataclass(frozen=True)
class Steps:
    count: int
    abort_in_flight: int | None
    """Whose client leaves between the halves of the last of them."""


@dataclass(frozen=True)
class Reset:
    """reset_prefix_cache(reset_running_requests=True)."""


def adds(*, prompts: int, outputs: int) -> st.SearchStrategy[Add]:
    return st.builds(
        Add,
        prompt=st.one_of(st.integers(1, prompts), st.sampled_from([1, BLOCK, BLOCK + 1, prompts])),
        shared=st.sampled_from([0, 0, BLOCK, 3 * BLOCK]),
        max_tokens=st.integers(1, outputs),
        stop_after=st.none() | st.integers(1, outputs),
        priority=st.integers(-1, 1),
        children=st.sampled_from([1, 1, 1, 2, 3]),
        abort_after=st.none() | st.none() | st.integers(0, 4),
    )


def scripts(*, prompts: int, outputs: int) -> st.SearchStrategy[list[Any]]:
    add = adds(prompts=prompts, outputs=outputs)
    others = st.one_of(
        st.builds(Steps, st.integers(1, 6), st.none() | st.integers(0, 5)),
        st.builds(Abort, st.integers(0, 5)),
        st.just(Reset()),
    )
    return st.lists(st.one_of(add, add, others), min_size=1, max_size=25)


setups = st.builds(
    Setup,
    blocks=st.sampled_from([6, 9, 24]),
    budget=st.sampled_from([16, 40, 256]),
    max_num_seqs=st.sampled_from([1, 3, 16]),
    policy=st.sampled_from(["fcfs", "priority"]),
    prefix_caching=st.booleans(),
    long_prefill_token_threshold=st.sampled_from([0, 0, 24]),
    larry=st.sampled_from(POLICIES).flatmap(
        lambda policy: st.sampled_from([0, 1, 1000]).map(
            lambda alpha: {"policy": policy, "alpha": alpha, "load_port": None}
        )
    ),
)


class Player:
    """Runs a script on an engine, and lets those leave who have what they wanted."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.enough: dict[str, int] = {}  # tokens

    def add(self, number: int, action: Add) -> None:
        # All prompts share the same tokens as far as they share any, and a part of their own follows.
        shared = min(action.shared, action.prompt - 1)
        own = 200 + len(self.engine.clients) % 700
        prompt = [*range(50, 50 + shared), *[own] * (action.prompt - shared)]
        for child in range(action.children):
            request_id = f"r{number}" if action.children == 1 else f"{child}_r{number}"
            if action.abort_after is not None:
                self.enough[request_id] = action.abort_after
            self.engine.add(
                request_id,
                prompt,
                max_tokens=action.max_tokens,
                stop_after=action.stop_after,
                priority=action.priority,
            )

    def step(self) -> None:
        for request_id in self.engine.live:
            enough = self.enough.get(request_id)
            if enough is not None and len(self.engine.clients[request_id].tokens) >= enough:
                self.engine.abort(request_id)
        self.engine.step()

    def abort(self, which: int) -> None:
        if live := self.engine.live:
            self.engine.abort(live[which % len(live)])

    def abort_in_flight(self, which: int) -> None:
        step = self.engine.schedule()
        self.abort(which)
        if not self.engine.may_overlap(step):
            self.engine.deliver_any()

    def reset(self) -> None:
        if RESETS_IN_FLIGHT or not self.engine.in_flight:
            self.engine.reset()

    def play(self, script: list[Any]) -> None:
        for number, action in enumerate(script):
            match action:
                case Add():
                    self.add(number, action)
                case Abort():
                    self.abort(action.which)
                case Steps():
                    for _ in range(action.count):
                        self.step()
                    if action.abort_in_flight is not None:
                        self.abort_in_flight(action.abort_in_flight)
                case Reset():
                    self.reset()
        for _ in range(3_000):
            if not self.engine.in_flight and not self.engine.scheduler.has_requests():
                return
            self.step()
        raise AssertionError(f"somebody waits for ever: {self.engine.live}")


def play(engine: Engine, script: list[Any]) -> Engine:
    """Run a script to its end."""
    Player(engine).play(script)
    return engine


def natural(engine: Engine, request_id: str) -> tuple[str, int]:
    """How a request ends whose client stays: by its own nature, or by that of the cache."""
    client = engine.clients[request_id]
    prompt, max_tokens = client.request.num_prompt_tokens, client.request.max_tokens
    capacity = engine.setup.blocks * BLOCK
    if prompt > capacity:
        return "error", 0
    length, reason = max_tokens, "length"
    if client.stop_after is not None and client.stop_after <= max_tokens:
        length, reason = client.stop_after, "stop"
    # The last token needs no room: nothing is computed from it.
    return (reason, length) if prompt + length <= capacity + 1 else ("length", capacity + 1 - prompt)


def check_outcomes(engine: Engine) -> Counter[str]:
    """Everybody has ended as they must; returns how many in which way."""
    for request_id, (reason, length) in engine.outcomes().items():
        expected = natural(engine, request_id)
        if reason == "abort":
            assert length <= expected[1]
        else:
            assert (reason, length) == expected, request_id
    return Counter(str(reason) for reason, _ in engine.outcomes().values())


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@given(setup=setups, data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_nobody_is_lost_and_the_report_is_right(*, asynchronous: bool, setup: Setup, data: st.DataObject) -> None:
    setup = replace(setup, asynchronous=asynchronous)
    # Some prompts are larger than the cache, and some requests outgrow it.
    script = data.draw(scripts(prompts=setup.blocks * BLOCK + 40, outputs=60))
    engine = play(Watched(OURS[asynchronous], setup), script)
    ends = check_outcomes(engine)
    for what, happened in (("error", ends["error"]), ("abort", ends["abort"]), ("preemption", engine.preemptions)):
        if happened:
            event(what)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@given(setup=setups, data=st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_same_ends_as_with_the_stock_scheduler(*, asynchronous: bool, setup: Setup, data: st.DataObject) -> None:
    setup = replace(setup, asynchronous=asynchronous)
    room = setup.blocks * BLOCK
    script = [
        action
        for action in data.draw(scripts(prompts=room // 2, outputs=room // 2))
        # When it comes depends on the schedule, and so does whom it hits.
        if not isinstance(action, Abort)
    ]
    script = [replace(action, abort_in_flight=None) if isinstance(action, Steps) else action for action in script]
    ours = play(Engine(OURS[asynchronous], setup), script)
    stock = play(Engine(STOCK[asynchronous], setup), script)
    check_outcomes(ours)

    def outcomes(engine: Engine) -> Counter[tuple[str, str | None, int]]:
        return Counter((request_id, *outcome) for request_id, outcome in engine.outcomes().items())

    assert outcomes(ours) == outcomes(stock)
