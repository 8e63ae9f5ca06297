"""Whatever could stop the queue for ever, does not (vllm-project/vllm#39734, #45388)."""

from typing import Any

import pytest
from vllm.v1.core.sched.scheduler import Scheduler as VLLMScheduler

import halffull_larry

from .engine import BLOCK, STEP, Engine, Setup, make_request

OURS = {False: halffull_larry.SyncScheduler, True: halffull_larry.Scheduler}
MODES = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
CAPACITY = 40 * BLOCK  # tokens

SETTINGS = [
    {"policy": "LARRY", "alpha": 1},
    {"policy": "LARRY", "alpha": 1000},
    {"policy": "LARRYPlus"},
    {"policy": "FCFS"},
]


def a_minute_of_short_prompts(setup: Setup, scheduler_class: type, *, giant: bool) -> Engine:
    engine = Engine(scheduler_class, setup)
    if giant:
        engine.add("giant", CAPACITY + 1, max_tokens=10, priority=-5)
    for second in range(60):
        engine.add(f"short {second}", 50, max_tokens=10)
        for _ in range(round(1 / STEP)):
            engine.step()
    return engine


@MODES
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("larry", SETTINGS, ids=str)
def test_a_prompt_larger_than_the_cache_stops_nobody(*, asynchronous: bool, policy: str, larry: dict[str, Any]) -> None:
    setup = Setup(
        asynchronous=asynchronous, blocks=40, max_num_seqs=2, policy=policy, larry={**larry, "load_port": None}
    )
    without = a_minute_of_short_prompts(setup, OURS[asynchronous], giant=False)
    engine = a_minute_of_short_prompts(setup, OURS[asynchronous], giant=True)
    assert engine.outcomes()["giant"] == ("error", 0)
    assert "giant" not in engine.admissions
    assert engine.first_tokens == without.first_tokens
    assert len(engine.first_tokens) == 60
    assert engine.scheduler._accounts.unservable == 1
    engine.run()
    report = engine.report()
    assert (report["requests"], report["prompt_tokens"]) == (60, 60 * 50)


def test_it_stops_the_stock_scheduler() -> None:
    """What the test above would show without us; a release that got over it needs the test no more."""
    engine = a_minute_of_short_prompts(Setup(blocks=40, max_num_seqs=2), VLLMScheduler, giant=True)
    assert engine.first_tokens == {}


def test_a_giant_that_arrives_alone_is_ended_by_the_next_step() -> None:
    engine = Engine(OURS[False], Setup(blocks=40))
    engine.add("giant", CAPACITY + 1)
    assert engine.report()["waiting"] == 1
    assert engine.report()["queued_tokens"] == 0
    engine.step()
    assert engine.outcomes() == {"giant": ("error", 0)}
    assert not engine.scheduler.has_unfinished_requests()


def test_a_giant_may_be_aborted_first() -> None:
    engine = Engine(OURS[False], Setup(blocks=40))
    engine.add("giant", CAPACITY + 1)
    engine.abort("giant")
    engine.add("giant's twin", CAPACITY + 1)
    engine.schedule()
    engine.abort("giant's twin")
    engine.deliver()
    engine.run()
    assert engine.outcomes() == {"giant": ("abort", 0), "giant's twin": ("abort", 0)}


def test_a_prompt_of_exactly_the_cache_is_served() -> None:
    engine = Engine(OURS[False], Setup(blocks=40))
    engine.add("exact", CAPACITY)
    engine.run()
    assert engine.outcomes() == {"exact": ("length", 1)}


@MODES
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_who_outgrows_the_cache_ends_and_keeps_the_text(*, asynchronous: bool, policy: str) -> None:
    engine = Engine(OURS[asynchronous], Setup(asynchronous=asynchronous, blocks=40, policy=policy))
    engine.add("grows", CAPACITY - 100, max_tokens=10_000)
    for number in range(40):
        engine.add(f"short {number}", 30, max_tokens=30)
        engine.step()
    engine.run(steps=2_000)
    outcomes = engine.outcomes()
    # Its last token needs no room: nothing is computed from it.
    assert outcomes.pop("grows") == ("length", 101)
    assert set(outcomes.values()) == {("length", 30)}
    assert engine.scheduler._accounts.unservable == 0
    assert engine.report()["requests"] == 41


class Session:
    """A client that sends its prompt piece by piece, and gets one token for each."""

    def __init__(self, engine: Engine, name: str, prompt: int) -> None:
        self._engine, self._name = engine, name
        engine.add(name, prompt, resumable=True)

    def goes_on(self, prompt: int) -> None:
        """The next piece; what vLLM has of the session it keeps in memory."""
        client = self._engine.clients[self._name]
        client.reason, client.tokens = None, []
        more = make_request(self._name, [5] * prompt, arrival=self._engine.now, resumable=True)
        self._engine.scheduler.add_request(more)


def test_a_streaming_session_that_outgrows_the_cache_stops_nobody() -> None:
    engine = Engine(OURS[False], Setup(blocks=40))
    session = Session(engine, "session", 300)
    for _ in range(3):
        engine.step()
    assert engine.clients["session"].tokens
    session.goes_on(CAPACITY - 200)
    engine.add("short", 50, max_tokens=5)
    engine.run()
    assert engine.outcomes()["session"] == ("error", 0)
    assert engine.outcomes()["short"] == ("length", 5)
    assert engine.report()["free_tokens"] == CAPACITY


def test_a_streaming_session_that_fits_goes_on() -> None:
    engine = Engine(OURS[False], Setup(blocks=40))
    session = Session(engine, "session", 300)
    for _ in range(3):
        engine.step()
    session.goes_on(200)
    for _ in range(5):
        engine.step()
    assert len(engine.clients["session"].tokens) == 1
    engine.abort("session")
    engine.run()
    assert engine.report()["free_tokens"] == CAPACITY


LOOKAHEAD = 5


def with_lookahead(monkeypatch: pytest.MonkeyPatch, *, prompt: int) -> Engine:
    """An engine whose speculative decoder wants five more slots for each request."""
    memory = "halffull_larry.scheduler._Larry._make_memory"
    original = halffull_larry.SyncScheduler._make_memory

    def make_memory(scheduler: Any) -> Any:
        scheduler.num_lookahead_tokens = LOOKAHEAD
        return original(scheduler)

    monkeypatch.setattr(memory, make_memory)
    engine = Engine(OURS[False], Setup(blocks=40))
    engine.add("tight", prompt, max_tokens=3)
    engine.add("short", 50, max_tokens=3)
    engine.run(steps=500)
    return engine


def test_the_slots_of_a_speculative_decoder_count(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_lookahead(monkeypatch, prompt=CAPACITY - LOOKAHEAD + 1)
    assert engine.outcomes() == {"tight": ("error", 0), "short": ("length", 3)}


def test_with_a_speculative_decoder_a_prompt_that_just_fits_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = with_lookahead(monkeypatch, prompt=CAPACITY - LOOKAHEAD)
    assert engine.outcomes() == {"tight": ("length", 1), "short": ("length", 3)}
