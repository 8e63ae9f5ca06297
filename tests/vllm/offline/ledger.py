"""What the load report must say, computed anew from the requests at every moment; and what must always be true."""

import re
from typing import Any

from vllm.v1.request import Request

from .engine import BLOCK, STEP, Engine, Step

CUMULATIVE = (
    "steps", "busy_seconds", "computed_tokens", "first_tokens", "ttft_seconds", "prompt_tokens", "generation_tokens",
    "requests",
)  # fmt: skip


class Watched(Engine):
    """An engine that is checked after everything that happens to it."""

    def __init__(self, scheduler_class: type, setup: Any) -> None:
        super().__init__(scheduler_class, setup)
        self._waiting_tokens: dict[str, int] = {}  # by waiting id: uncached when it entered the queue
        self._target: dict[str, int] = {}  # by running id: tokens to compute before it decodes
        self._given_back = 0  # tokens of steps whose output is there
        self._steps = 0
        self._last = self.report()
        self._exact = True  # False once a cache hit of a preempted request cannot be told from outside
        self.check()

    @property
    def waiting(self) -> dict[str, Request]:
        """Every request in a queue; no request is in two."""
        queues = [self.scheduler.waiting]
        queues += [
            getattr(self.scheduler, name)
            for name in ("kv_holding_waiting", "skipped_waiting")
            if hasattr(self.scheduler, name)
        ]
        found = [request for queue in queues for request in queue]
        ids = {request.request_id: request for request in found}
        assert len(ids) == len(found)
        return ids

    def add(self, request_id: str, prompt: Any, **more: Any) -> Request:
        """A request arrives; what the prefix cache has for it is looked up as vLLM does it."""
        request = super().add(request_id, prompt, **more)
        self._waiting_tokens[request_id] = self._uncached(request)
        self.check()
        return request

    def _uncached(self, request: Request) -> int:
        hit: int = self.scheduler.kv_cache_manager.get_computed_blocks(request)[1]
        return int(request.num_tokens) - hit

    def abort(self, request_id: str) -> None:
        """The client leaves."""
        super().abort(request_id)
        self.check()

    def reset(self) -> None:
        """Every running request is preempted, and the prefix cache emptied."""
        running = [request.request_id for request in self.scheduler.running]
        super().reset()
        self._preempted(running)

    def _preempted(self, ids: Any) -> None:
        for request_id in ids:
            self._waiting_tokens[request_id] = self.clients[request_id].request.num_tokens
            self._target.pop(request_id, None)
            self._exact &= not self.setup.prefix_caching

    def schedule(self) -> Step | None:
        """The first half of a step."""
        before = self.scheduler.get_request_counts()[0]
        step = super().schedule()
        if step is None:
            return None
        assert not before or not step.output.preempted_req_ids or not step.admitted, "vLLM preempts or admits"
        self._preempted(step.output.preempted_req_ids or ())
        for request_id in step.admitted:
            self._waiting_tokens.pop(request_id)
            self._target[request_id] = self.clients[request_id].request.num_tokens
        assert step.output.num_scheduled_tokens.keys() <= {request.request_id for request in self.scheduler.running}
        self.check()
        return step

    def deliver(self) -> None:
        """The second half of a step."""
        tokens = self.in_flight[0].output.total_num_scheduled_tokens
        super().deliver()
        self._steps += tokens > 0
        self._given_back += tokens
        self.check()

    def check(self) -> None:
        """All of it."""
        running = {request.request_id: request for request in self.scheduler.running}
        waiting = self.waiting
        assert not running.keys() & waiting.keys()
        assert running.keys() | waiting.keys() == set(self.live)
        assert self.scheduler.requests.keys() == set(self.live), "a request leaves no trace"
        for request_id, client in self.clients.items():
            assert client.tokens == [self._token(request_id, index) for index in range(len(client.tokens))]
        self._check_report(running, waiting)

    def _token(self, request_id: str, index: int) -> int:
        return 7 if index + 1 == self.clients[request_id].stop_after else 100 + index % 800

    def _check_report(self, running: dict[str, Request], waiting: dict[str, Request]) -> None:
        report, last = self.report(), self._last
        self._last = report
        assert report["age"] == 0
        assert (report["running"], report["waiting"]) == (len(running), len(waiting))
        total = self.setup.blocks * BLOCK
        used = {
            block
            for request in self.scheduler.requests.values()
            for group in self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
            for block in group
        }
        assert report["total_tokens"] == total
        assert report["free_tokens"] == total - len(used) * BLOCK

        queued = sum(tokens for request_id, tokens in self._waiting_tokens.items() if self._is_queued(request_id))
        queued += sum(max(0, self._target[name] - request.num_computed_tokens) for name, request in running.items())
        if self._exact:
            assert report["queued_tokens"] == queued
        else:
            assert 0 <= report["queued_tokens"] <= queued

        assert all(report[name] >= last[name] for name in CUMULATIVE)
        assert report["steps"] == self._steps
        assert report["computed_tokens"] == self._given_back
        assert report["busy_seconds"] <= report["steps"] * 2 * STEP
        assert report["first_tokens"] == sum(bool(client.tokens) for client in self.clients.values())
        assert report["ttft_seconds"] == sum(self.first_tokens.values())
        finished = [name for name, client in self.clients.items() if client.reason in ("stop", "length")]
        first_children = [name for name in finished if not re.match(r"[1-9]\d*_", name)]
        assert report["requests"] == len(first_children)
        assert report["prompt_tokens"] == sum(self.clients[name].request.num_prompt_tokens for name in first_children)
        assert report["generation_tokens"] == sum(len(self.clients[name].tokens) for name in finished)
        if not self.live and not self.in_flight:
            assert (report["queued_tokens"], report["running"], report["waiting"]) == (0, 0, 0)
            assert report["free_tokens"] == total
            self._check_idle()

    def _is_queued(self, request_id: str) -> bool:
        """Whether it waits for a prefill: one that no cache could hold does not, it waits for its end."""
        return request_id in self.live and request_id not in self.scheduler._queue.aside

    def _check_idle(self) -> None:
        scheduler = self.scheduler
        assert len(scheduler.waiting) == 0
        assert not scheduler.waiting
        assert not scheduler._queue._requests
        assert not scheduler._queue.aside
        assert not scheduler._remote
        accounts = scheduler._accounts
        assert not accounts._waiting
        assert not accounts._admitted
        assert not accounts._tokenless
        assert not accounts._waiting_tokens
