"""A poller at work, and a pool that remembers what it was told."""

import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.load_report import LoadReport
from halffull_extproc.poll import PollConfig, Poller
from halffull_extproc.pool import Source
from halffull_extproc.stock_metrics import StockSample

LATE = re.compile(r": no (answer|connection) for \d\.\d s$")
REPORTS = PollConfig(source=Source.REPORT, interval=0.02)
METRICS = PollConfig(source=Source.METRICS, interval=0.02)


@dataclass
class Pool:
    """Remembers what it was told."""

    reports: list[tuple[str, LoadReport, float, float]] = field(default_factory=list)
    samples: list[tuple[str, StockSample]] = field(default_factory=list)
    silences: list[tuple[str, str]] = field(default_factory=list)

    def report(self, address: str, report: LoadReport, *, sent: float, now: float) -> None:
        self.reports.append((address, report, sent, now))

    def sample(self, address: str, sample: StockSample, *, sent: float, now: float) -> None:
        assert sent <= now
        self.samples.append((address, sample))

    def silent(self, address: str, reason: str, *, now: float) -> None:  # noqa: ARG002 (the pool's interface)
        self.silences.append((address, reason))

    @property
    def broken(self) -> list[tuple[str, str]]:
        """Silences but for connections and answers later than an interval, which a busy machine may cause."""
        return [(address, reason) for address, reason in self.silences if not LATE.search(reason)]

    @property
    def reasons(self) -> set[str]:
        return {reason for _, reason in self.silences}


@contextlib.asynccontextmanager
async def polling(*endpoints: Endpoint, config: PollConfig = REPORTS) -> AsyncIterator[tuple[Poller, Pool]]:
    pool = Pool()
    poller = Poller(pool, config)
    poller.update(endpoints)
    poller.start()
    try:
        yield poller, pool
    finally:
        await poller.stop()


def at(load_port: int, *, address: str = "127.0.0.1:8000", **more: Any) -> Endpoint:
    return Endpoint(address=address, load_port=load_port, **more)
