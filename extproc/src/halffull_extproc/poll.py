"""Asks every engine for its load, ten times a second, and tells the pool what it said.

One kept-alive connection per engine and rank; the engines' phases are spread over the interval; an engine that is slow
or gone delays nobody else. Two sources: load reports of the plugin, or the metrics of stock vLLM (Halffull contract 1).
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import structlog

from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.poll_target import LOG_EVERY, PollConfig, PollStatus, PoolSide, Target
from halffull_extproc.pool import Source

__all__ = ["PollConfig", "PollStatus", "Poller"]

BLOCKED_FOR: Final = 1.0  # s during which every connection must have failed before it is called a blockade
_SLOT: Final = 0.005  # s; polls that fall into one slot leave together
_GOLDEN: Final = (math.sqrt(5) - 1) / 2  # multiples of it, modulo 1, stay evenly spread however many there are

_log = structlog.get_logger(__name__)


class Poller:
    """Polls the endpoints that it was told about, until stopped. Everything happens in one event loop."""

    def __init__(self, pool: PoolSide, config: PollConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is sent before `start`."""
        self.pool = pool
        self.config = config
        self.clock = clock
        self._targets: dict[Endpoint, Target] = {}
        self._slots: list[list[Target]] = []
        self._slot = 0
        self._next_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._running = False
        self._added = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self._log_after = -math.inf
        self.problem = ""
        """One line for people while no engine at all can be reached, else empty."""

    def start(self) -> None:
        """Begin to poll."""
        if not self._running:
            self._running = True
            self._arrange()

    async def stop(self) -> None:
        """End every connection; safe to call twice."""
        self._running = False
        self._cancel_timer()
        for target in self._targets.values():
            target.close()
        self._targets.clear()
        self._slots = []
        while self._leaving:
            await asyncio.gather(*self._leaving, return_exceptions=True)

    def update(self, endpoints: Iterable[Endpoint]) -> None:
        """Poll these from now on. An endpoint that stays keeps its connection and its phase."""
        wanted = {(endpoint.address, endpoint.load_port, endpoint.name): endpoint for endpoint in endpoints}
        kept: dict[Endpoint, Target] = {}
        # Another health is the same engine; another pod at the same address is another engine.
        known = {(old.address, old.load_port, old.name): target for old, target in self._targets.items()}
        for key, endpoint in wanted.items():
            target = known.pop(key, None)
            if target is None:
                self._added += 1
                target = Target(self, endpoint, phase=self._added * _GOLDEN % 1)
            target.expected = endpoint.health is Health.HEALTHY
            kept[endpoint] = target
        for gone in known.values():
            gone.close()
        self._targets = kept
        self._arrange()

    def set_interval(self, interval: float) -> None:
        """Change the interval, in seconds, from the next tick on."""
        if interval != self.config.interval:
            self.config = replace(self.config, interval=interval)
            self._cancel_timer()
            self._arrange()

    def status(self) -> dict[str, PollStatus]:
        """How polling went, by address."""
        return {
            endpoint.address: PollStatus(target.answers, dict(target.failures), target.reason)
            for endpoint, target in self._targets.items()
        }

    def leaving(self, task: asyncio.Task[None]) -> None:
        """Remember a cancelled task until it has ended."""
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arrange(self) -> None:
        """Put each target into the slot of its phase. A running round goes on: its timer is left alone."""
        count = min(1000, max(1, round(self.config.interval / _SLOT)))
        if count != len(self._slots):
            self._slot = 0
            self._cancel_timer()
        self._slots = [[] for _ in range(count)]
        for target in self._targets.values():
            self._slots[int(target.phase * count)].append(target)
        if not self._targets or not self._running:
            self._cancel_timer()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._next_at = loop.time()
            self._timer = loop.call_at(self._next_at, self._tick)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = self.clock()
        slots = self._slots
        for target in slots[self._slot]:
            target.tick(now)
        steps = 1
        while not slots[(self._slot + steps) % len(slots)] and steps < len(slots):
            steps += 1
        if self._slot + steps >= len(slots):
            self._look_for_blockade(now)
        self._slot = (self._slot + steps) % len(slots)
        # Late by more than a slot: go on from now instead of catching up with a burst.
        self._next_at = max(self._next_at + steps * self.config.interval / len(slots), loop.time())
        self._timer = loop.call_at(self._next_at, self._tick)

    def _look_for_blockade(self, now: float) -> None:
        """Every connection of every engine fails: hardly the engines' fault. Say once what to look at."""
        patience = max(BLOCKED_FOR, 3 * self.config.interval)
        expected = [target for target in self._targets.values() if target.expected]
        if not expected or any(t.blocked_since is None or now - t.blocked_since < patience for t in expected):
            self.problem = ""
            return
        some = expected[0]
        where = "the engines' own port" if self.config.source is Source.METRICS else "load.report.port"
        self.problem = (
            f"no engine can be polled, all {len(expected)} refuse or reset the connection ({some.reason}): check "
            f"{where}, any NetworkPolicy, and whether a service mesh enforces mTLS on pod addresses"
        )
        if now >= self._log_after:
            self._log_after = now + LOG_EVERY
            _log.error(self.problem, check=["port", "NetworkPolicy", "mesh mTLS"])
