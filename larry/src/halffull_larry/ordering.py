"""In which order an engine's waiting requests are admitted: LARRY, LARRYPlus, FCFS.

Pure: no clock, no vLLM. The same classes stand behind vLLM's waiting queue and behind the emulated engine.

How a scheduler uses an `Ordering`, once per scheduling step::

    ordering.start_step(now)                  # freezes queue_len, and `now` for LARRYPlus
    while (request_id := ordering.peek()) is not None and fits(request_id):
        ordering.pop()                        # admitted

`put_back` undoes a `pop` of the same step (a request that must be skipped: grammar not compiled, LoRA limit).
A request that was preempted in a later step is added again with `preempted=True`.

Every order is taken within a *tier*: lower `priority` first (0 for all when the engine's priorities are off), and
within a priority those that were preempted first. Ties go to the earlier arrival, then to the earlier `add`.

Times are seconds of one clock of the caller's, lengths are tokens.
"""

import math
from bisect import bisect_left, insort
from typing import Final

from halffull_larry.lanes import LARRYPlus
from halffull_larry.waiting import Entry, LazyHeap, Ordering

__all__ = ["FCFS", "LARRY", "POLICIES", "TOKENS_PER_MEMORY_UNIT", "LARRYPlus", "Ordering", "make_ordering", "memory"]

TOKENS_PER_MEMORY_UNIT: Final = 16
"""One unit of LARRY's memory, whatever the engine's block size: one α means the same everywhere."""

POLICIES: Final = ("LARRY", "LARRYPlus", "FCFS")


def memory(tokens: int) -> int:
    """What a request weighs in LARRY's score: its uncached prompt `tokens` in units of 16, rounded up."""
    return -(-tokens // TOKENS_PER_MEMORY_UNIT)


class FCFS(Ordering):
    """By arrival, as stock vLLM."""

    name = "FCFS"

    def __init__(self) -> None:
        super().__init__()
        self._tiers: dict[int, LazyHeap] = {}

    def _insert(self, entry: Entry) -> None:
        heap = self._tiers.get(entry.tier)
        if heap is None:
            heap = self._tiers[entry.tier] = LazyHeap()
        heap.push(entry.arrival, entry)

    def _discard(self, entry: Entry) -> None:
        self._tiers[entry.tier].compact(len(self._waiting))

    def _find(self) -> Entry:
        while True:
            tier = next(iter(self._tiers)) if len(self._tiers) == 1 else min(self._tiers)
            entry = self._tiers[tier].best()
            if entry is not None:
                return entry
            del self._tiers[tier]


class _Sizes:
    """The requests of one tier by their memory, and within equal memory by arrival."""

    __slots__ = ("by_age", "groups", "units")

    def __init__(self) -> None:
        self.by_age = LazyHeap()
        self.groups: dict[int, LazyHeap] = {}
        self.units: list[int] = []  # the keys of `groups`, ascending


class LARRY(Ordering):
    """By score(r) = α·wait(r) − queue_len·memory(r), highest first (arXiv 2410.17840).

    wait in seconds, memory = ceil(uncached prompt tokens / 16), queue_len = waiting requests when the step starts.
    `now` cancels between two requests of one step, so the order is that of α·arrival + queue_len·memory, ascending.

    That key changes with every step, and no sorted structure over it would last. But of requests with equal memory only
    the oldest can be the best, and no request of so much memory can beat what the oldest of all would reach with it:
    the search goes through the sizes, smallest first, and ends where that bound is worse than the best found. The
    longer the queue, the earlier: with α = 1 and 1,000 waiting after one or two sizes. Measured on vLLM's scheduler,
    arrays and an argmin per admitted request cost more, as their code is cold when a step comes to it.
    """

    name = "LARRY"

    def __init__(self, alpha: float = 1.0) -> None:
        """α: how many memory units times waiting requests a second of waiting outweighs.

        Raises:
            ValueError: α is negative or not finite.
        """
        if not (math.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"alpha must be a finite number of at least 0, not {alpha}")
        super().__init__()
        self.alpha = alpha
        self._tiers: dict[int, _Sizes] = {}

    def _insert(self, entry: Entry) -> None:
        sizes = self._tiers.get(entry.tier)
        if sizes is None:
            sizes = self._tiers[entry.tier] = _Sizes()
        units = entry.units = memory(entry.tokens)
        group = sizes.groups.get(units)
        if group is None:
            group = sizes.groups[units] = LazyHeap()
            insort(sizes.units, units)
        group.push(entry.arrival, entry)
        sizes.by_age.push(entry.arrival, entry)

    def _discard(self, entry: Entry) -> None:
        sizes = self._tiers[entry.tier]
        group = sizes.groups[entry.units]
        if group.best() is None:
            del sizes.groups[entry.units]
            del sizes.units[bisect_left(sizes.units, entry.units)]
            if not sizes.units:
                del self._tiers[entry.tier]
                return
        group.compact(len(self._waiting))
        sizes.by_age.compact(len(self._waiting))

    def _find(self) -> Entry:
        sizes = self._tiers[next(iter(self._tiers)) if len(self._tiers) == 1 else min(self._tiers)]
        oldest = sizes.by_age.best()
        assert oldest is not None  # noqa: S101  a tier without requests is gone
        best, smallest = oldest, self._key(oldest)
        bound = self.alpha * oldest.arrival
        for units in sizes.units:
            if bound + self._queue_len * units > smallest:
                break
            entry = sizes.groups[units].best()
            assert entry is not None  # noqa: S101  a group without requests is gone
            key = self._key(entry)
            if key < smallest or (key == smallest and (entry.arrival, entry.sequence) < (best.arrival, best.sequence)):
                best, smallest = entry, key
        return best

    def _key(self, entry: Entry) -> float:
        return self.alpha * entry.arrival + self._queue_len * entry.units


def make_ordering(policy: str, *, alpha: float = 1.0) -> Ordering:
    """The order that `policy` names; α is LARRY's alone.

    Raises:
        ValueError: no such policy, or α out of range.
    """
    if policy == "LARRY":
        return LARRY(alpha)
    if policy == "LARRYPlus":
        return LARRYPlus()
    if policy == "FCFS":
        return FCFS()
    raise ValueError(f"policy must be one of {', '.join(POLICIES)}, not {policy!r}")
