"""Study A, a proposal: short prompts pass a long prefill in progress, as far as a share of the step's budget goes.

A prototype on the emulated core, not the plugin's code. In each step that goes on with a prefill, the waiting requests
at the head of the queue's order whose whole prompts fit into `share` of what the decodes leave of the budget, and that
have less to compute than the prefill in progress, are taken first; the prefill in progress gets the rest.
"""

from halffull_lab.engine import Engine
from halffull_lab.engine_requests import EngineLimits, Request
from halffull_lab.latency import LatencyModel
from halffull_larry.ordering import make_ordering


class HeadroomEngine(Engine):
    """The emulated core with that rule."""

    def __init__(self, *, latency: LatencyModel, limits: EngineLimits, policy: str, share: float) -> None:
        super().__init__(latency=latency, limits=limits, ordering=make_ordering(policy))
        self.share = share

    def _next_chunks(self, budget: int) -> list[tuple[Request, int, int]]:
        if not self._prefilling:
            return []
        left = min(request.prefill_tokens - request.prefill_done for request in self._prefilling)
        room = int(budget * self.share)
        free = self._free - self._growing[self._step % self.limits.block_size] - self._reserved()
        slots = self.limits.max_num_seqs - len(self._running)
        passing: list[str] = []
        taken = 0
        while len(passing) < slots and (head := self.ordering.peek()) is not None:
            tokens = self.requests[head].prefill_tokens
            free -= self._blocks(tokens)
            if taken + tokens > room or tokens >= left or free < 0:
                break
            passing.append(self.ordering.pop())
            taken += tokens
        for request_id in passing:
            self.ordering.put_back(request_id)
        return super()._next_chunks(budget - taken)
