"""LARRYPlus: size lanes under a bound that follows what FCFS would have done. Pure."""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

from halffull_larry.waiting import Entry, LazyHeap, Ordering


class _FCFSDelay:
    """How long FCFS would have made requests wait, from the tokens that arrived against those dispatched.

    Arrivals stand in a virtual first-come queue; each dispatched prompt token, of whichever request, serves its head.
    In plain FCFS that is each request's own delay.
    """

    __slots__ = ("_credit", "_peaks", "_queue", "_unserved", "_window")

    def __init__(self, window: float) -> None:
        self._window = window
        self._credit = 0
        self._queue: deque[Entry] = deque()  # those that were withdrawn go when they come to its head
        self._unserved: set[Entry] = set()
        self._peaks: deque[tuple[float, float]] = deque()  # (when, delay), delays descending

    def arrived(self, entry: Entry) -> None:
        self._queue.append(entry)
        self._unserved.add(entry)

    def withdrawn(self, entry: Entry, now: float) -> None:
        if entry in self._unserved:
            self._unserved.remove(entry)
        else:
            self._credit += entry.tokens  # served in the virtual queue with tokens that it will never take itself
        self._serve(now)

    def dispatched(self, tokens: int, now: float) -> None:
        self._credit += tokens
        self._serve(now)

    def _serve(self, now: float) -> None:
        while (head := self._head()) is not None and head.tokens <= self._credit:
            self._credit -= head.tokens
            self._unserved.remove(head)
            delay = now - head.arrival
            while self._peaks and self._peaks[-1][1] <= delay:
                self._peaks.pop()
            self._peaks.append((now, delay))

    def longest(self, now: float) -> float:
        """The longest delay of the last window, that of the virtual head so far included; s."""
        while self._peaks and self._peaks[0][0] < now - self._window:
            self._peaks.popleft()
        served = self._peaks[0][1] if self._peaks else 0.0
        head = self._head()
        return served if head is None else max(served, now - head.arrival)

    def _head(self) -> Entry | None:
        queue = self._queue
        while queue and queue[0] not in self._unserved:
            queue.popleft()
        return queue[0] if queue else None


class _Lanes:
    """The three views of one tier."""

    __slots__ = ("by_age", "long", "short")

    def __init__(self) -> None:
        self.short = LazyHeap()
        self.long = LazyHeap()
        self.by_age = LazyHeap()


class LARRYPlus(Ordering):
    """Size lanes under a FCFS bound: a median near LARRY's, a tail near FCFS's (Halffull design notes).

    Short lane before long lane. Short: prompts up to the running median of the last 1,000 arrivals, by prompt tokens.
    Long: by arrival + K·prompt/rate. Above both, the oldest waiting request goes first when it has waited longer than
    T = max(0.25 s, γ × the longest delay that FCFS would have given in the last W s).

    A request's lane and its long-lane key are settled when it arrives.
    """

    name = "LARRYPlus"

    ARRIVALS: Final = 1_000
    K: Final = 10.0
    GAMMA: Final = 1.0
    WINDOW: Final = 1_800.0  # s
    SHORTEST_BOUND: Final = 0.25  # s
    NOMINAL_RATE: Final = 12_000.0  # tokens/s, until the engine's own is known; only its scale matters
    RATE_PERIOD: Final = 10.0  # s of busy time per estimate of the rate

    def __init__(self) -> None:
        super().__init__()
        self._tiers: dict[int, _Lanes] = {}
        self._median = _RunningMedian(self.ARRIVALS)
        self._delay = _FCFSDelay(self.WINDOW)
        self._rate = self.NOMINAL_RATE
        self._seen = (0, 0.0)
        self._bound = self.SHORTEST_BOUND

    def progress(self, *, computed_tokens: int, busy_seconds: float) -> None:
        """Renew the rate, Δcomputed/Δbusy, once the engine has been busy for 10 s more."""
        tokens, seconds = computed_tokens - self._seen[0], busy_seconds - self._seen[1]
        if seconds >= self.RATE_PERIOD:
            self._seen = (computed_tokens, busy_seconds)
            if tokens > 0:
                self._rate = tokens / seconds

    def _arrived(self, entry: Entry) -> None:
        if entry.preempted:  # it arrived, and was dispatched, before
            return
        self._median.add(entry.tokens)
        entry.short = entry.tokens <= self._median.value
        self._delay.arrived(entry)

    def _withdrawn(self, entry: Entry) -> None:
        if not entry.preempted:
            self._delay.withdrawn(entry, self._now)

    def _dispatched(self, entries: list[Entry]) -> None:
        for entry in entries:
            if not entry.preempted:
                self._delay.dispatched(entry.tokens, self._now)

    def _refresh(self) -> None:
        self._bound = max(self.SHORTEST_BOUND, self.GAMMA * self._delay.longest(self._now))

    def _insert(self, entry: Entry) -> None:
        lanes = self._tiers.get(entry.tier)
        if lanes is None:
            lanes = self._tiers[entry.tier] = _Lanes()
        if entry.short:
            lanes.short.push(entry.tokens, entry)
        else:
            lanes.long.push(entry.arrival + self.K * entry.tokens / self._rate, entry)
        lanes.by_age.push(entry.arrival, entry)

    def _discard(self, entry: Entry) -> None:
        lanes = self._tiers[entry.tier]
        for heap in (lanes.short if entry.short else lanes.long, lanes.by_age):
            heap.compact(len(self._waiting))

    def _find(self) -> Entry:
        while True:
            tier = next(iter(self._tiers)) if len(self._tiers) == 1 else min(self._tiers)
            lanes = self._tiers[tier]
            oldest = lanes.by_age.best()
            if oldest is None:
                del self._tiers[tier]
                continue
            if self._now - oldest.arrival > self._bound:
                return oldest
            return lanes.short.best() or lanes.long.best() or oldest


class _RunningMedian:
    """The lower median of the last `size` values: a sorted list, O(log size) to search, a short memmove to change."""

    __slots__ = ("_recent", "_sorted")

    def __init__(self, size: int) -> None:
        self._recent: deque[int] = deque(maxlen=size)
        self._sorted: list[int] = []

    def add(self, value: int) -> None:
        if len(self._recent) == self._recent.maxlen:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(value)
        insort(self._sorted, value)

    @property
    def value(self) -> int:
        """Raises IndexError before the first value."""
        return self._sorted[(len(self._sorted) - 1) // 2]
