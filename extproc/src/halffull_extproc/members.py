"""One stay of an endpoint in the pool: what is known of it, and what state that makes."""

import enum
import math
from typing import TYPE_CHECKING

from halffull_extproc.charges import Ledger
from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.estimates import Mean, SizeWindow
from halffull_extproc.steps import Pace

if TYPE_CHECKING:
    from halffull_extproc.load_report import LoadReport
    from halffull_extproc.stock_metrics import StockSample

FAILURES = 5
"""Requests that fail in a row before an endpoint is failing."""
PROBE_INTERVAL = 2.0
"""Seconds between the requests that a failing endpoint still gets."""
PRIOR_STEP = 0.03
PRIOR_PREFILL_RATE = 12_000.0
_STEP_ALPHA = 0.2


class State(enum.StrEnum):
    """What an endpoint is to the policies; the first that applies, from the bottom up."""

    OK = "ok"
    NEW = "new"
    """No answer yet: it counts as the median of the pool."""
    STALE = "stale"
    """No answer for staleAfter: ranked by the picker's own view."""
    NOT_PROGRESSING = "not-progressing"
    """It has requests and makes no step: ranks last."""
    FAILING = "failing"
    """It fails every request: ranks last, and is probed."""
    DRAINING = "draining"
    UNHEALTHY = "unhealthy"


class Member:
    """Everything that is known of one endpoint since it was discovered."""

    __slots__ = (
        "added_at",
        "answered_at",
        "endpoint",
        "failures",
        "last_error",
        "ledger",
        "max_model_len",
        "max_tokens_per_batch",
        "mean_step",
        "next_probe",
        "pace",
        "picks",
        "prefill_rate",
        "progress_at",
        "ranks",
        "report",
        "row",
        "sample",
        "sent",
        "since",
        "sizes",
        "speed_window",
        "state",
        "steps_seen",
        "total",
    )

    def __init__(self, endpoint: Endpoint, *, now: float) -> None:
        self.endpoint = endpoint
        self.row = 0
        """Its row of the pool's columns."""
        self.ledger = Ledger()
        self.sizes = SizeWindow()
        self.pace = Pace()
        self.prefill_rate = Mean(PRIOR_PREFILL_RATE, weight=2.0, memory=10.0)
        """Prefill tokens per second while requests wait (source METRICS)."""
        self.mean_step = PRIOR_STEP
        """Seconds."""
        self.steps_seen = False
        self.report: LoadReport | None = None
        self.sample: StockSample | None = None
        self.speed_window: tuple[float, StockSample] | None = None
        """Start of the current window of the step fit (source METRICS)."""
        self.added_at = now
        self.sent = -math.inf
        """When the last answered poll left."""
        self.answered_at: float | None = None
        self.progress_at = now
        """When counters last moved (source METRICS)."""
        self.last_error = ""
        self.ranks = 1
        self.total: float | None = None
        """KV cache in tokens, the last one known."""
        self.max_model_len: float | None = None
        self.max_tokens_per_batch: float | None = None
        """Token budget of a step, the last one known."""
        self.failures = 0
        self.next_probe = 0.0
        self.picks = 0
        self.state = State.NEW
        self.since = now

    def is_same(self, endpoint: Endpoint) -> bool:
        """An endpoint at its address is still this engine: the pod's name, where both are known, is the same."""
        return not self.endpoint.name or not endpoint.name or self.endpoint.name == endpoint.name

    def saw_step(self, seconds: float) -> None:
        """A mean step of this length was seen; the first one replaces the prior."""
        if self.steps_seen:
            self.mean_step += _STEP_ALPHA * (seconds - self.mean_step)
        else:
            self.mean_step = seconds
            self.steps_seen = True

    @property
    def capacity(self) -> float:
        """Longest prompt that it can hold, tokens: a prompt lives on one rank; unknown is no limit."""
        return min(
            math.inf if self.total is None else self.total / self.ranks,
            math.inf if self.max_model_len is None else self.max_model_len,
        )

    def is_silent(self, *, now: float, stale_after: float) -> bool:
        """Neither an answer nor the discovery of it is recent."""
        return now - (self.added_at if self.answered_at is None else self.answered_at) > stale_after

    def is_stuck(self, *, now: float) -> bool:
        """It has requests and makes no step: age > max(1 s, 20 mean steps).

        Stock metrics carry no age. There it is the time since any counter moved, and 5 s instead of 1 s, since a long
        prompt moves none until its prefill ends.
        """
        report = self.report
        if report is not None:
            return report.age > 1.0 and report.running + report.waiting > 0 and report.age > 20.0 * self.mean_step
        sample = self.sample
        if sample is None or not (sample.running or sample.waiting):
            return False
        return now - self.progress_at > max(5.0, 20.0 * self.mean_step)

    def judge(self, *, now: float, silent: bool) -> State:
        """Its state; `silent` as `is_silent` says."""
        if self.endpoint.health is not Health.HEALTHY:
            return State.DRAINING if self.endpoint.health is Health.DRAINING else State.UNHEALTHY
        if self.failures >= FAILURES:
            return State.FAILING
        if silent:
            return State.STALE
        if self.answered_at is None:
            return State.NEW
        return State.NOT_PROGRESSING if self.is_stuck(now=now) else State.OK

    def reason(self, *, now: float, stale_after: float) -> str:
        """Why it is in its state, for people; empty when all is well."""
        because = f": {self.last_error}" if self.last_error else ""
        if self.state is State.STALE:
            if self.answered_at is None:
                return f"no answer since it was discovered {now - self.added_at:.1f} s ago{because}"
            return f"no answer for {now - self.answered_at:.1f} s (limit {stale_after:g} s){because}"
        if self.state is State.NOT_PROGRESSING:
            age = now - self.progress_at if self.report is None else self.report.age
            return f"{self.load} but no step for {age:.1f} s (mean step {1000 * self.mean_step:.0f} ms)"
        return {
            State.OK: self.last_error,
            State.NEW: f"no answer yet{because}",
            State.FAILING: f"the last {self.failures} requests failed; one is tried every {PROBE_INTERVAL:g} s",
            State.DRAINING: f"it is shutting down; {self.ledger.open_count} requests are still open",
            State.UNHEALTHY: "discovery says that it is not ready",
        }[self.state]

    @property
    def load(self) -> str:
        """Its requests, for people."""
        source = self.report or self.sample
        if source is None:
            return "unknown load"
        running, waiting = source.running, source.waiting
        return " and ".join(
            f"{'?' if count is None else round(count)} {what}"
            for count, what in ((running, "running"), (waiting, "waiting"))
        )
