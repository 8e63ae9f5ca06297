"""A keyed work queue: one worker per key at a time, bursts run once, failures wait longer and longer.

A key is due at a moment and never queued twice. What makes it due decides when:

- `add(urgent=True)`, an edit by a person: at once, whatever the key waited for, and before all that is not urgent: the
  thousand that a new operator looks through first.
- `add()`, news about a child: at most once per `spacing`, so that the ten events of ten new children are one run, and
  never before the end of a wait that a failure or a repair has set.
- `done(repaired=True)`, a run that had to put right what the same spec had already put right: the first few are free,
  then each waits for a token, one in three minutes. Two writers that fight over a field so cost a call a minute, not a
  core.
- `failed()`: exponential back-off with jitter.
"""

import asyncio
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

SPACING: Final = 1.0  # s between two runs of a key that nobody waits for
FIRST_BACKOFF: Final = 0.5  # s
LONGEST_BACKOFF: Final = 300.0  # s
FREE_REPAIRS: Final = 5
REPAIR_EVERY: Final = 180.0  # s; a repair is up to three calls


@dataclass(slots=True)
class _State:
    due: float | None = None
    """When the key runs next; None: not queued."""
    urgent: bool = False
    """A person waits: no wait holds it."""
    active: bool = False
    forgotten: bool = False
    """Gone while active: dropped when the run ends."""
    started: float = float("-inf")
    held_until: float = float("-inf")
    """No run before, unless urgent."""
    failures: int = 0
    repairs: float = 0.0
    """Tokens spent, as of `repaired_at`."""
    repaired_at: float = float("-inf")


class WorkQueue:
    """Which key runs when; used from one event loop."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        rng: random.Random | None = None,
        spacing: float = SPACING,
    ) -> None:
        """Begin empty.

        Args:
            clock: seconds, monotonic.
            rng: for the jitter of back-off.
            spacing: seconds between two runs of a key that nobody waits for.
        """
        self._clock = clock
        self._rng = rng or random.Random()
        self._spacing = spacing
        self._states: dict[str, _State] = {}
        self._heap: list[tuple[bool, float, str]] = []
        """(not urgent, due, key)."""
        self._changed = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        """Keys that are due now or later."""
        return sum(state.due is not None for state in self._states.values())

    def overdue(self) -> int:
        """Keys that would run now if a worker were free."""
        now = self._clock()
        return sum(state.due is not None and state.due <= now for state in self._states.values())

    @property
    def active(self) -> int:
        """Keys that a worker has."""
        return sum(state.active for state in self._states.values())

    def add(self, key: str, *, urgent: bool = False) -> None:
        """Run a key: now when urgent, else when its spacing and its waits allow."""
        state = self._states.setdefault(key, _State())
        state.forgotten = False
        now = self._clock()
        if urgent:
            if not state.urgent:
                state.urgent, state.due = True, None
            self._set_due(key, state, now)
        else:
            self._set_due(key, state, max(now, state.started + self._spacing, state.held_until))

    def done(self, key: str, *, again: float | None = None, repaired: bool = False) -> None:
        """A run has ended well.

        Args:
            key: what `get` gave.
            again: seconds after which to run it even if nothing happens.
            repaired: it changed children though the spec had not changed.
        """
        state = self._finish(key)
        if state is None:
            return
        now = self._clock()
        state.failures = 0
        state.held_until = float("-inf")
        if repaired:
            spent = max(0.0, state.repairs - (now - state.repaired_at) / REPAIR_EVERY)
            state.repairs, state.repaired_at = spent + 1.0, now
            if state.repairs > FREE_REPAIRS:
                state.held_until = now + (state.repairs - FREE_REPAIRS) * REPAIR_EVERY
                self._postpone(key, state)
        if again is not None:
            self._set_due(key, state, max(now + again, state.held_until))

    def failed(self, key: str, *, at_least: float = 0.0, progress: bool = False) -> float:
        """A run has failed: again after a back-off. Returns the seconds.

        Args:
            key: what `get` gave.
            at_least: seconds that the API server asks for.
            progress: it has done something that the next run need not do: the back-off begins anew.
        """
        state = self._finish(key)
        if state is None:
            return 0.0
        if progress:
            state.failures = 0
        longest = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(state.failures, 32))
        delay = max(at_least, longest * self._rng.uniform(0.5, 1.0))
        state.failures += 1
        state.held_until = self._clock() + delay
        self._postpone(key, state)
        self._set_due(key, state, state.held_until)
        return delay

    def forget(self, key: str) -> None:
        """Drop a key and its waits: the object is gone. A run of it that is under way ends without a trace."""
        state = self._states.get(key)
        if state is not None and state.active:
            state.forgotten, state.due = True, None
        else:
            self._states.pop(key, None)

    async def get(self) -> str | None:
        """The next key that is due, when it is; None once the queue is closed. End its run by `done` or `failed`."""
        while not self._closed:
            key, wait = self._next()
            if key is not None:
                return key
            self._changed.clear()
            try:
                async with asyncio.timeout(wait):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return None

    def close(self) -> None:
        """No key comes out any more; runs under way may end."""
        self._closed = True
        self._changed.set()

    def _next(self) -> tuple[str | None, float | None]:
        """(a key to run now, or None; seconds until one is due, None: nothing is queued)."""
        now = self._clock()
        while self._heap:
            patient, due, key = self._heap[0]
            state = self._states.get(key)
            if state is None or state.due != due or state.urgent == patient or state.active:
                heapq.heappop(self._heap)  # overtaken by a later decision; `_finish` queues what is due again
                continue
            if due > now:
                return None, due - now
            heapq.heappop(self._heap)
            state.due, state.urgent, state.active, state.started = None, False, True, now
            return key, None
        return None, None

    def _finish(self, key: str) -> _State | None:
        state = self._states.get(key)
        if state is None or not state.active:
            return None
        state.active = False
        if state.forgotten:
            del self._states[key]
            return None
        if state.due is not None:
            heapq.heappush(self._heap, (not state.urgent, state.due, key))
            self._changed.set()
        return state

    def _postpone(self, key: str, state: _State) -> None:
        """Move what is queued to the end of the wait, unless somebody waits for it."""
        if state.due is not None and state.due < state.held_until and not state.urgent:
            state.due = None
            self._set_due(key, state, state.held_until)

    def _set_due(self, key: str, state: _State, due: float) -> None:
        """Make a key due then, unless it is due earlier."""
        if state.due is not None and state.due <= due:
            return
        state.due = due
        if not state.active:
            heapq.heappush(self._heap, (not state.urgent, due, key))
            self._changed.set()
