"""TRAIL+, shortest remaining output first by an oracle, preempting: the order, and whom to preempt. Pure.

TRAIL (Shahout et al., arXiv 2410.01035) predicts after each token how many more a request will produce, and runs those
with the fewest. It lets a request be preempted only early in its life, while its KV cache is small: before it has
produced the share C of its predicted length. C = 1 is shortest remaining first without a limit; with C = 0 nothing that
runs would ever be preempted. TRAIL+ is the baseline of Kossmann et al. (arXiv 2410.17840): true lengths in place of
predictions. Of both papers we had the abstracts alone; C is told from memory. "Preempting, c = 0" is taken to mean that
no part of a request's life is protected, TRAIL's own C = 1:

- vLLM serves running requests before waiting ones within the step's token budget, in the order of their admission. So
  nobody who runs misses a step for lack of budget: preempted is only for lack of KV blocks, or of a place among
  max_num_seqs.
- Waiting requests are admitted by remaining output tokens, fewest first, then by arrival, then who came to wait first.
  (Priorities are not looked at.) The first that does not fit ends admission, as with every order here.
- A running request counts with the KV blocks that it holds when the step is over, in its prefill with all that the
  prefill takes. Where they are more than there are, the one with the most remaining is preempted (then the one that
  arrived last, then the one admitted last).
- A waiting request whose turn comes while budget is left, but which finds too few blocks or no place, preempts those
  with more remaining than itself, the most remaining first and as few as suffice; nobody, if all do not suffice.
- Who is preempted loses its blocks, keeps its output, waits with the others, and computes both anew, as in vLLM.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from halffull_lab.engine_requests import Request
from halffull_larry.waiting import Entry, LazyHeap, Ordering


class Running(NamedTuple):
    """A running request, as whom to preempt is chosen: the largest first."""

    remaining: int
    """Output tokens."""
    arrival: float
    """s."""
    position: int
    """In the order of admission."""
    request_id: str
    blocks: int
    """KV blocks that it holds when the step is over, its whole prefill included."""


class ShortestRemaining(Ordering):
    """By the output tokens that are still to come, fewest first; it knows the true number."""

    name = "TRAILPlus"

    def __init__(self, known: Callable[[], Mapping[str, Request]]) -> None:
        """`known`: the engine's requests, by id, the one that is being added included."""
        super().__init__()
        self._known = known
        self._heap = LazyHeap()

    def victims(
        self,
        *,
        room: int,
        places: int,
        budget: int,
        threshold: int,
        block_size: int,
        running: Callable[[], Iterable[Running]],
    ) -> list[str]:
        """Whom to preempt before a step begins; after that, ask again, until nobody is named.

        Args:
            room: KV blocks that no running request counts as its own; negative: they want more than there are.
            places: how many more may run.
            budget: tokens that a step leaves to waiting requests.
            threshold: for long prefills, as it holds in this step; 0: none.
            block_size: tokens.
            running: all that run; asked for only when somebody may have to go.
        """
        if room < 0:
            return [max(running()).request_id]
        taken: list[str] = []
        chosen: list[str] = []
        while budget > 0 and (head := self.peek()) is not None:
            tokens = self._waiting[head].tokens
            room -= -(-tokens // block_size)
            places -= 1
            if room < 0 or places < 0:
                chosen = _to_make_room(-room, self._remaining(head), running())
                break
            taken.append(self.pop())
            budget -= min(tokens, threshold or tokens)
        for request_id in taken:
            self.put_back(request_id)
        return chosen

    def _remaining(self, request_id: str) -> int:
        request = self._known()[request_id]
        return request.output_tokens - request.generated

    def _insert(self, entry: Entry) -> None:
        self._heap.push(self._remaining(entry.request_id), entry)

    def _discard(self, entry: Entry) -> None:  # noqa: ARG002  whose place in the heap is not looked for
        self._heap.compact(len(self._waiting))

    def _find(self) -> Entry:
        entry = self._heap.best()
        assert entry is not None  # noqa: S101  at least one waits
        return entry


def _to_make_room(blocks: int, remaining: int, running: Iterable[Running]) -> list[str]:
    """The fewest of those with more than `remaining`, the most remaining first, that hold so many blocks; at least one.

    None if all of them do not hold as many.
    """
    longer = [one for one in running if one.remaining > remaining]
    if sum(one.blocks for one in longer) < blocks:
        return []
    chosen = []
    for one in sorted(longer, reverse=True):
        chosen.append(one.request_id)
        blocks -= one.blocks
        if blocks <= 0:
            break
    return chosen
