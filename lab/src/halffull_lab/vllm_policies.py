"""The lab's own engine policies on vLLM's scheduler: subclasses of the plugin's, which has the queue and the stop rule.

What they do is said where the emulated core does it: `engine_policies.NoPreempt`, and `shortest_remaining` for TRAIL+.

Made for vLLM 0.32; import this module only where that is installed.
"""

from collections.abc import Mapping
from typing import Any, Final

from vllm.v1.request import Request as VLLMRequest

from halffull_lab.engine_policies import NO_PREEMPT, TRAIL_PLUS, promised_blocks
from halffull_lab.engine_requests import Request
from halffull_lab.shortest_remaining import Running, ShortestRemaining
from halffull_larry.scheduler import Scheduler, SyncScheduler


class OracleScheduler(SyncScheduler):
    """One that asks the lab for what no scheduler knows."""

    known: Mapping[str, Request]
    """What was added and is not over, by id; to be set before the first request comes."""

    def _all_blocks(self) -> int:
        manager: Any = self.kv_cache_manager
        return int(manager.block_pool.num_gpu_blocks) - 1  # block 0 is the null block


class NoPreempt(OracleScheduler):
    """First come, first served, each with room for its whole sequence."""

    def _fits_now(self, request: VLLMRequest, popped: list[VLLMRequest]) -> bool:  # noqa: ARG002  they run by now
        size = self.block_size
        promised = sum(promised_blocks(self.known[other.request_id], size) for other in self.running)
        return bool(promised + promised_blocks(self.known[request.request_id], size) <= self._all_blocks())


class TRAILPlus(OracleScheduler):
    """Shortest remaining output first, preempting."""

    def _take_over(self) -> None:
        super()._take_over()
        self._order = ShortestRemaining(lambda: self.known)
        queue: Any = self._queue
        queue._ordering = self._order  # noqa: SLF001  empty yet, and of FCFS

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """One step, room made before."""
        while victims := self._victims():
            for request_id in victims:
                request = self.requests[request_id]
                self.running.remove(request)
                self._preempt_request(request, 0.0)  # the time is for vLLM's log of events, which is off
        return super().schedule(*args, **kwargs)

    def _victims(self) -> list[str]:
        threshold = self._threshold()
        budget: int = self.max_num_scheduled_tokens
        running = []
        for position, request in enumerate(self.running):
            known = self.known[request.request_id]
            # With asynchronous scheduling the token of the step in flight is counted; nothing is computed for the last.
            tokens = min(
                request.num_tokens + request.num_output_placeholders, known.prompt.tokens + known.output_tokens - 1
            )
            left = tokens - request.num_computed_tokens
            budget -= min(left, budget, threshold or left)
            running.append(
                Running(
                    known.output_tokens - known.generated,
                    request.arrival_time,
                    position,
                    request.request_id,
                    -(-tokens // self.block_size),
                )
            )
        return self._order.victims(
            room=self._all_blocks() - sum(one.blocks for one in running),
            places=self.max_num_running_reqs - len(running),
            budget=budget,
            threshold=threshold,
            block_size=self.block_size,
            running=lambda: running,
        )

    def _threshold(self) -> int:
        """For long prefills, as vLLM applies it in a step; 0: none."""
        count = sum(self.get_request_counts())
        threshold = int(self.scheduler_config.long_prefill_token_threshold)
        if count <= 1 or not threshold:
            return 0
        share = int(self.max_num_scheduled_tokens) // count if self.adaptive_long_prefill_threshold else 0
        return max(threshold, share)


class AsyncNoPreempt(NoPreempt, Scheduler):
    """For asynchronous scheduling."""


class AsyncTRAILPlus(TRAILPlus, Scheduler):
    """For asynchronous scheduling."""


LAB_POLICIES: Final = {NO_PREEMPT: (NoPreempt, AsyncNoPreempt), TRAIL_PLUS: (TRAILPlus, AsyncTRAILPlus)}
"""The classes for synchronous and for asynchronous scheduling, by policy."""
