"""Runs an emulated engine's core in real time, dilated: one step after the other, by deadlines that do not drift.

Steps follow each other in virtual time, whatever the machine does: a step that is handled late begins no later for
it, and a request takes part in a step only when it had arrived by its beginning. So a machine that is too slow shows
as lateness, which is measured, and not as another schedule.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from halffull_lab.engine import Engine
from halffull_lab.engine_requests import Output, Prompt

EARLY: Final = 0.0005
"""s of wall time that a step may be handled early: the event loop's timers count in milliseconds."""
STEPS_AT_ONCE: Final = 32
"""Late steps that are made up for before the event loop may do something else."""


class _Arrival(NamedTuple):
    request_id: str
    prompt: Prompt
    output_tokens: int
    at: float
    priority: int
    interval: int


class EngineLoop:
    """Drives an `Engine`. All methods are called in the event loop; `engine.snapshot` may be read by any thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        speed: float,
        deliver: Callable[[list[Output]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`speed`: virtual seconds per second of `clock`; `deliver` takes what each step's end brings."""
        if not speed > 0:
            raise ValueError(f"speed must be positive, not {speed}")
        self.engine = engine
        self.speed = speed
        self.late_max = 0.0
        """Virtual s: the latest that the end of a step was handled."""
        self.late_total = 0.0
        """Virtual s, over all steps."""
        self._deliver = deliver
        self._clock = clock
        self._origin = clock()
        self._arrivals: deque[_Arrival] = deque()  # those that no step has seen
        self._end: float | None = None  # of the step in flight, virtual
        self._handle: asyncio.Handle | None = None
        self._wedged = False

    def now(self) -> float:
        """The virtual time, s since the loop was made."""
        return (self._clock() - self._origin) * self.speed

    def submit(
        self, request_id: str, *, at: float, prompt: Prompt, output_tokens: int, priority: int = 0, interval: int = 0
    ) -> None:
        """Hand in a sequence that arrived `at`, about now; the engine has checked it (`Engine.check`)."""
        self._arrivals.append(_Arrival(request_id, prompt, output_tokens, at, priority, interval))
        if self._end is None and not self._wedged and self._handle is None:
            # Not at once: the other sequences of the same HTTP request, handed in next, share the step.
            self._handle = asyncio.get_running_loop().call_soon(self._wake, at)

    def abort(self, request_id: str) -> None:
        """Forget a sequence, wherever it is."""
        for arrival in self._arrivals:
            if arrival.request_id == request_id:
                self._arrivals.remove(arrival)
                return
        self.engine.abort(request_id, self.now())

    def wedge(self) -> None:
        """Stop stepping, as an engine core that hangs, until `heal`."""
        self._wedged = True
        self._cancel()

    def heal(self) -> None:
        """Go on stepping; the time in between is lost, the step in flight ends now."""
        if not self._wedged:
            return
        self._wedged = False
        now = self.now()
        if self._end is None:
            self._begin(now)
        else:
            self._end = max(self._end, now)
            self._sleep()

    def close(self) -> None:
        """Stop for good."""
        self.wedge()

    def _cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wake(self, at: float) -> None:
        self._handle = None
        self._begin(at)

    def _begin(self, at: float) -> None:
        """Begin a step at `at`, or when the next request arrives, or be idle."""
        engine, arrivals = self.engine, self._arrivals
        if arrivals and not engine.requests:
            at = max(at, arrivals[0].at)
        while arrivals and arrivals[0].at <= at:
            arrival = arrivals.popleft()
            engine.add(
                arrival.request_id,
                prompt=arrival.prompt,
                output_tokens=arrival.output_tokens,
                arrival=arrival.at,
                priority=arrival.priority,
                interval=arrival.interval,
            )
        plan = engine.step_begin(at)
        if plan is None:
            self._end = None
        else:
            self._end = at + plan.duration
            self._sleep()

    def _sleep(self) -> None:
        """Come back when the step in flight is over."""
        if self._end is not None and self._handle is None:
            delay = (self._end - self.now()) / self.speed
            self._handle = asyncio.get_running_loop().call_later(max(0.0, delay), self._tick)

    def _tick(self) -> None:
        handle, self._handle = self._handle, None
        for _ in range(STEPS_AT_ONCE):
            if self._end is None:
                return
            late = self.now() - self._end
            if late < -EARLY * self.speed:
                break
            if late > 0:
                self.late_max = max(self.late_max, late)
                self.late_total += late
            end = self._end
            self._handle = handle  # `_begin` shall not set a timer for a step that is over already
            self._deliver(self.engine.step_end(end))
            self._begin(end)
            self._handle = None
        self._sleep()
