"""What every order of the waiting requests shares: bookkeeping by id, tiers, put back, and a heap with lazy removal.

Pure: no clock, no vLLM. The orders themselves are in `ordering`.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator


class Entry:
    """One request, from `add` until it is removed or the step that popped it is over."""

    __slots__ = (
        "arrival",
        "preempted",
        "request_id",
        "sequence",
        "short",
        "tier",
        "tokens",
        "units",
        "waiting",
    )

    def __init__(self, request_id: str, *, arrival: float, tokens: int, tier: int, sequence: int) -> None:
        self.request_id = request_id
        self.arrival = arrival
        self.tokens = tokens
        self.tier = tier
        self.preempted = tier % 2 == 0
        self.sequence = sequence
        self.waiting = True
        self.units = 0  # LARRY: its memory
        self.short = False  # LARRYPlus: its lane


class Ordering(ABC):
    """The waiting requests of one engine, best first. Not thread-safe."""

    name: str

    def __init__(self) -> None:
        self._waiting: dict[str, Entry] = {}
        self._popped: dict[str, Entry] = {}  # of the current step
        self._sequence = 0
        self._queue_len = 0
        self._now = 0.0
        self._best: Entry | None = None  # remembered between peek and pop

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._waiting

    def __iter__(self) -> Iterator[str]:
        """The waiting ids, in the order of their last `add` or `put_back`."""
        return iter(self._waiting)

    def add(self, request_id: str, *, arrival: float, tokens: int, priority: int = 0, preempted: bool = False) -> None:
        """Enqueue a request.

        Args:
            request_id: unique among the waiting ones.
            arrival: s; for a preempted request still that of its first arrival.
            tokens: prompt tokens that admission would have to compute (prefix-cached ones not counted).
            priority: lower goes first; leave 0 when the engine's priorities are off.
            preempted: it ran before and lost its blocks; it goes before all others of its priority.

        Raises:
            ValueError: the id is waiting already.
        """
        if request_id in self._waiting:
            raise ValueError(f"request {request_id!r} is waiting already")
        if (popped := self._popped.pop(request_id, None)) is not None:
            self._dispatched([popped])
        self._sequence += 1
        entry = Entry(
            request_id, arrival=arrival, tokens=tokens, tier=2 * priority + (not preempted), sequence=self._sequence
        )
        self._waiting[request_id] = entry
        self._best = None
        self._arrived(entry)
        self._insert(entry)

    def remove(self, request_id: str) -> None:
        """Drop a waiting request that will not be admitted (aborted).

        Raises:
            KeyError: it is not waiting.
        """
        entry = self._take(request_id)
        self._withdrawn(entry)

    def start_step(self, now: float, *, queue_len: int | None = None) -> None:
        """Begin a scheduling step at `now` (s).

        Args:
            now: of the clock of the arrivals; not before the last step's.
            queue_len: waiting requests, when the scheduler keeps some elsewhere (skipped, blocked); else those here.
        """
        if self._popped:
            self._dispatched(list(self._popped.values()))
            self._popped.clear()
        self._now = now
        self._queue_len = len(self._waiting) if queue_len is None else queue_len
        self._best = None
        self._refresh()

    def peek(self) -> str | None:
        """The request to admit next, or None when nobody waits."""
        if self._best is None:
            if not self._waiting:
                return None
            self._best = self._find()
        return self._best.request_id

    def pop(self) -> str:
        """Take the request that `peek` shows.

        Raises:
            IndexError: nobody waits.
        """
        request_id = self.peek()
        if request_id is None:
            raise IndexError("pop from an empty queue")
        self._popped[request_id] = self._take(request_id)
        return request_id

    def put_back(self, request_id: str) -> None:
        """Undo a `pop` of this step: the request is where it was, its arrival and rank among ties too.

        Raises:
            KeyError: it was not popped in this step.
        """
        entry = self._popped.pop(request_id)
        entry.waiting = True
        self._waiting[request_id] = entry
        self._best = None
        self._insert(entry)

    def progress(self, *, computed_tokens: int, busy_seconds: float) -> None:  # noqa: B027  most orders need none
        """Told now and then the engine's cumulative counters of its load report; LARRYPlus takes its rate from them."""

    def _take(self, request_id: str) -> Entry:
        entry = self._waiting.pop(request_id)
        entry.waiting = False
        self._best = None
        self._discard(entry)
        return entry

    @abstractmethod
    def _insert(self, entry: Entry) -> None:
        """Make a waiting entry findable."""

    @abstractmethod
    def _find(self) -> Entry:
        """The best entry; at least one waits."""

    def _discard(self, entry: Entry) -> None:  # noqa: B027  an optional hook
        """An entry stopped waiting (its flag says so already)."""

    def _refresh(self) -> None:  # noqa: B027  an optional hook
        """A step begins."""

    def _arrived(self, entry: Entry) -> None:  # noqa: B027  an optional hook
        """First time that the entry is seen."""

    def _withdrawn(self, entry: Entry) -> None:  # noqa: B027  an optional hook
        """The entry was aborted while it waited."""

    def _dispatched(self, entries: list[Entry]) -> None:  # noqa: B027  an optional hook
        """The last step, at `_now`, admitted these."""


class LazyHeap:
    """A heap whose entries may stop waiting anywhere in it; those are dropped when they surface, or by compaction."""

    __slots__ = ("_heap", "_held")

    def __init__(self) -> None:
        self._heap: list[tuple[float, float, int, Entry]] = []
        self._held: set[Entry] = set()

    def push(self, key: float, entry: Entry) -> None:
        """Insert a waiting entry; a key never changes, so one that is still inside stays as it is."""
        if entry in self._held:  # popped from the queue and put back before it surfaced here
            return
        self._held.add(entry)
        heapq.heappush(self._heap, (key, entry.arrival, entry.sequence, entry))

    def best(self) -> Entry | None:
        """The waiting entry with the smallest key (then arrival, then sequence), or None."""
        heap = self._heap
        while heap:
            entry = heap[0][3]
            if entry.waiting:
                return entry
            heapq.heappop(heap)
            self._held.discard(entry)
        return None

    def compact(self, alive: int) -> None:
        """Keep the size within about twice the `alive` entries: O(1) amortised per removal."""
        if len(self._heap) > 2 * alive + 64:
            self._heap = [item for item in self._heap if item[3].waiting]
            heapq.heapify(self._heap)
            self._held = {item[3] for item in self._heap}
