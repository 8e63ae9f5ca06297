"""A clock that jumps from one event to the next. Pure."""

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class VirtualClock:
    """Calls functions in the order of their times, each at its own; equal times in the order in which they were set."""

    def __init__(self) -> None:
        """It stands at 0 s."""
        self.now = 0.0
        """s."""
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, time: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call `call(*arguments)` at `time` (s, not before `now`).

        Raises:
            ValueError: the time is in the past.
        """
        if time < self.now:
            raise ValueError(f"{time} s is in the past: it is {self.now} s")
        heapq.heappush(self._events, (time, next(self._order), call, arguments))

    def run(self) -> None:
        """Until nothing is left to call."""
        events = self._events
        while events:
            self.now, _, call, arguments = heapq.heappop(events)
            call(*arguments)
