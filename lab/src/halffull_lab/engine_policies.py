"""Every engine policy that is compared, on the emulated core: the product's, and two of the paper's for the lab alone.

`make_engine` builds the emulated core. `halffull_lab.vllm_engine.VLLMEngine` takes the same arguments and runs vLLM's
own scheduler; import that only where vLLM is installed.
"""

from typing import Final

from halffull_lab.engine import Engine
from halffull_lab.engine_requests import EngineLimits, Request, StepPlan
from halffull_lab.latency import LatencyModel
from halffull_lab.shortest_remaining import Running, ShortestRemaining
from halffull_larry.ordering import FCFS, POLICIES, make_ordering

NO_PREEMPT: Final = "NoPreempt"
TRAIL_PLUS: Final = "TRAILPlus"

ENGINE_POLICIES: Final = (*POLICIES, NO_PREEMPT, TRAIL_PLUS)


def make_engine(*, latency: LatencyModel, limits: EngineLimits, policy: str, alpha: float = 1.0) -> Engine:
    """An emulated engine under a policy, which is one of ENGINE_POLICIES.

    Args:
        latency: how long a step takes.
        limits: of the engine.
        policy: its name.
        alpha: LARRY's α.

    Raises:
        ValueError: no such policy, or α out of range.
    """
    if policy == NO_PREEMPT:
        return NoPreempt(latency=latency, limits=limits)
    if policy == TRAIL_PLUS:
        return TRAILPlus(latency=latency, limits=limits)
    if policy not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(ENGINE_POLICIES)}, not {policy!r}")
    return Engine(latency=latency, limits=limits, ordering=make_ordering(policy, alpha=alpha))


class NoPreempt(Engine):
    """First come, first served, and a request is admitted only when all that it may ever hold is still unpromised.

    That is prompt + max_tokens - 1 tokens of KV cache, in whole blocks (nothing is computed for the last token), beside
    what running requests have been promised likewise: so no decode ever lacks a block, and nobody is preempted. A trace
    tells no max_tokens: unless `add` is given one, it is the true output length, which is the best case of this policy.

    Source: "No-Preempt" of Kossmann et al., arXiv 2410.17840; TensorRT-LLM's GUARANTEED_NO_EVICT.
    """

    def __init__(self, *, latency: LatencyModel, limits: EngineLimits) -> None:
        super().__init__(latency=latency, limits=limits, ordering=FCFS())
        self._unpromised = limits.total_blocks

    def _claim(self, request: Request, blocks: int) -> bool:  # noqa: ARG002  the prefill is part of the promise
        promise = promised_blocks(request, self.limits.block_size)
        if promise > self._unpromised:
            return False
        self._unpromised -= promise
        return True

    def _leave_running(self, request: Request) -> None:
        self._unpromised += promised_blocks(request, self.limits.block_size)
        super()._leave_running(request)

    def _finish(self, request: Request, now: float) -> None:
        self._unpromised += promised_blocks(request, self.limits.block_size)
        super()._finish(request, now)


def promised_blocks(request: Request, block_size: int) -> int:
    """KV blocks that NoPreempt sets aside for a request."""
    return -(-(request.prompt.tokens + request.max_tokens - 1) // block_size)


class TRAILPlus(Engine):
    """Shortest remaining output first, preempting, by an oracle: see `halffull_lab.shortest_remaining`.

    Whom to preempt is settled before a step begins; what then runs always fits. A step in which a waiting request lacks
    room walks over the running ones, others cost what they cost under any order.
    """

    def __init__(self, *, latency: LatencyModel, limits: EngineLimits) -> None:
        self._order = ShortestRemaining(lambda: self.requests)
        super().__init__(latency=latency, limits=limits, ordering=self._order)

    def step_begin(self, now: float) -> StepPlan | None:
        """Schedule a step at `now`, room made before; see `Engine.step_begin`."""
        preempted = 0
        if self._plan is None:
            self.ordering.start_step(now)
            while victims := self._victims():
                for request_id in victims:
                    self._preempt(self.requests[request_id])
                preempted += len(victims)
        plan = super().step_begin(now)
        if plan is None or not preempted:
            return plan
        self._plan = plan._replace(preempted=preempted)
        return self._plan

    def _victims(self) -> list[str]:
        limits = self.limits
        budget = limits.max_tokens_per_batch - self._decodes
        return self._order.victims(
            room=self._free - self._growing[self._step % limits.block_size] - self._reserved(),
            places=limits.max_num_seqs - len(self._running),
            budget=budget - sum(chunk for _, chunk, _ in self._next_chunks(budget)),
            threshold=limits.long_prefill_token_threshold if len(self.requests) > 1 else 0,
            block_size=limits.block_size,
            running=lambda: [self._as_running(*one) for one in enumerate(self._running)],
        )

    def _as_running(self, position: int, request: Request) -> Running:
        generated = self.generated(request)
        # All of them: what a prefill ends at, or with the token that a decode computes in this step.
        blocks = self._blocks(request.prompt.tokens + generated)
        return Running(request.output_tokens - generated, request.arrival, position, request.request_id, blocks)
