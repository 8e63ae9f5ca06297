"""Whom each step admits, against the rule written down once more: from what stands before the step alone."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.v1.request import Request

import halffull_larry

from .engine import BLOCK, STEP, Engine, Setup, Step

OURS = {False: halffull_larry.SyncScheduler, True: halffull_larry.Scheduler}


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


@dataclass(frozen=True)
class Waiting:
    request: Request
    uncached: int
    """Tokens, when it entered the queue."""
    entered: int
    preempted: bool


class Judged(Engine):
    """An engine whose every admission is foretold."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(OURS[setup.asynchronous], setup)
        self.alpha: float = setup.larry["alpha"]
        self.fcfs = setup.larry["policy"] == "FCFS"
        self.line: dict[str, Waiting] = {}
        self.blocked: set[str] = set()
        """Whom vLLM would skip: grammar not compiled."""
        self.entered = 0

    def add(self, request_id: str, prompt: Any, **more: Any) -> Request:
        """A request arrives."""
        request = super().add(request_id, prompt, **more)
        self._enter(request, preempted=False)
        return request

    def _enter(self, request: Request, *, preempted: bool) -> None:
        self.entered += 1
        hit = self.scheduler.kv_cache_manager.get_computed_blocks(request)[1]
        self.line[request.request_id] = Waiting(request, request.num_tokens - hit, self.entered, preempted)

    def _key(self, waiting: Waiting, queue_len: int) -> tuple[Any, ...]:
        """design.md: priority, then preempted, then score = α·wait − queue_len·memory, highest first."""
        request = waiting.request
        score = self.alpha * (self.now - request.arrival_time) - queue_len * blocks(waiting.uncached)
        priority = request.priority if self.setup.policy == "priority" else 0
        order = request.arrival_time if self.fcfs else -score
        return priority, not waiting.preempted, order, request.arrival_time, waiting.entered

    def ranking(self) -> list[Waiting]:
        """Those who wait, best first; not those who could never fit, who wait for their end."""
        self.line = {name: waiting for name, waiting in self.line.items() if self.clients[name].reason is None}
        possible = [w for w in self.line.values() if w.request.num_tokens <= self.setup.blocks * BLOCK]
        return sorted(possible, key=lambda waiting: self._key(waiting, len(self.line)))

    def schedule(self) -> Step | None:
        """One step, and the judgement."""
        ranking = self.ranking()
        running = list(self.scheduler.running)
        computed = {request.request_id: request.num_computed_tokens for request in running}
        step = super().schedule()
        if step is None:
            return None
        if step.output.preempted_req_ids:
            assert step.admitted == []
            for request_id in step.output.preempted_req_ids:
                self._enter(self.clients[request_id].request, preempted=True)
            return step
        expected = self._admit(ranking, running, computed, step.output.num_scheduled_tokens)
        assert step.admitted == expected
        for request_id in expected:
            del self.line[request_id]
        return step

    def _admit(
        self, ranking: list[Waiting], running: list[Request], computed: dict[str, int], scheduled: dict[str, int]
    ) -> list[str]:
        """design.md: from the best on, until one does not fit beside what admitted prefills still need."""
        setup = self.setup
        budget = setup.budget - sum(scheduled.get(request.request_id, 0) for request in running)
        threshold = setup.long_prefill_token_threshold if len(running) + len(ranking) > 1 else 0
        free, promised = setup.blocks, 0
        for request in running:
            held = blocks(computed[request.request_id] + scheduled.get(request.request_id, 0))
            free -= held
            if computed[request.request_id] < request.num_tokens and not request.num_output_placeholders:
                promised += max(0, blocks(request.num_tokens) - held)
        admitted: list[str] = []
        for waiting in ranking:
            if budget <= 0 or len(running) + len(admitted) >= setup.max_num_seqs:
                break
            request = waiting.request
            if request.request_id in self.blocked:
                continue
            need = blocks(request.num_tokens)
            if need > free - promised:
                break
            if getattr(request, "num_stale_output_tokens", 0):
                continue  # vLLM waits for the output that is in flight
            chunk = min(request.num_tokens, budget, threshold or budget)
            budget -= chunk
            free -= blocks(chunk)
            promised += need - blocks(chunk)
            admitted.append(request.request_id)
        return admitted


setups = st.builds(
    Setup,
    asynchronous=st.booleans(),
    blocks=st.sampled_from([12, 30]),
    budget=st.sampled_from([32, 100, 1024]),
    max_num_seqs=st.sampled_from([1, 4, 32]),
    policy=st.sampled_from(["fcfs", "priority"]),
    long_prefill_token_threshold=st.sampled_from([0, 24]),
    larry=st.builds(
        lambda policy, alpha: {"policy": policy, "alpha": alpha, "load_port": None},
        st.sampled_from(["LARRY", "LARRY", "FCFS"]),
        st.sampled_from([0, 0.5, 1, 16, 1000]),
    ),
)
arrivals = st.lists(
    st.tuples(
        st.integers(1, 180),  # prompt
        st.integers(1, 30),  # output
        st.integers(-1, 1),  # priority
        st.integers(0, 6),  # steps before it
        st.integers(0, 16),  # how much earlier it arrived at the API server, in steps
    ),
    min_size=2,
    max_size=25,
)


@given(setup=setups, arrivals=arrivals)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_step_admits_whom_the_score_says(setup: Setup, arrivals: list[tuple[int, ...]]) -> None:
    engine = Judged(setup)
    for number, (prompt, output, priority, steps, delay) in enumerate(arrivals):
        for _ in range(steps):
            engine.step()
        engine.add(f"r{number}", prompt, max_tokens=output, priority=priority, arrival=engine.now - delay * STEP)
    engine.run(steps=4_000)


def larry(**settings: Any) -> dict[str, Any]:
    return {"load_port": None, **settings}


@pytest.mark.parametrize(("alpha", "expected"), [(0, ["short", "middle", "long"]), (1000, ["long", "middle", "short"])])
def test_alpha_weighs_waiting_against_size(alpha: float, expected: list[str]) -> None:
    engine = Engine(OURS[False], Setup(max_num_seqs=1, larry=larry(alpha=alpha)))
    for age, (name, prompt) in enumerate((("short", 16), ("middle", 160), ("long", 480))):
        engine.add(name, prompt, arrival=engine.now - 10 * age)
    engine.run()
    assert engine.admissions == expected
    # Reordered is who goes before the one that has stood here longest, and arrived after it.
    assert engine.scheduler._accounts.reordered == (0 if alpha else 2)


def test_a_cached_prompt_weighs_only_what_is_not_cached() -> None:
    engine = Engine(OURS[False], Setup(max_num_seqs=1, prefix_caching=True, larry=larry(alpha=0)))
    prefix = list(range(50, 50 + 400))
    engine.add("first", [*prefix, 1])
    engine.run()
    engine.add("fresh", [2] * 100)
    engine.add("cached", [*prefix, 3, 4, 5])
    assert engine.report()["queued_tokens"] == 100 + 3
    engine.run()
    assert engine.admissions == ["first", "cached", "fresh"]


def test_the_cache_is_looked_up_once_per_request_not_once_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(OURS[False], Setup(max_num_seqs=1, prefix_caching=True))
    coordinator = engine.scheduler.kv_cache_manager.coordinator
    asked: list[int] = []
    lookup = coordinator.find_longest_cache_hit

    def counted(*args: Any) -> Any:
        asked.append(1)
        return lookup(*args)

    monkeypatch.setattr(coordinator, "find_longest_cache_hit", counted)
    engine.add("running", 40, max_tokens=200)
    engine.step()
    for number in range(50):
        engine.add(f"r{number}", 33 + number)
    asked.clear()
    for _ in range(100):
        engine.step()
    assert asked == []
