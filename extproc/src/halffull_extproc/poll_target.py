"""One polled endpoint: the state of its ranks' polls, their merged answers, and how polling went."""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import structlog

from halffull_extproc.addresses import format_address, split_address
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.load_report import LoadReport, ReportError, decode_load_report, merge_ranks
from halffull_extproc.poll_connection import Connection
from halffull_extproc.pool import Source
from halffull_extproc.stock_metrics import StockSample, parse_stock_metrics

REPORT_BYTES: Final = 64 * 1024
METRICS_BYTES: Final = 4 * 1024 * 1024
MODELS_BYTES: Final = 1024 * 1024
MODELS_EVERY: Final = 60.0  # s; max_model_len does not change while an engine runs
GIVE_UP: Final = (
    5.0  # s without an answer after which a new connection is tried; a partition may have eaten the request
)
CONNECT_WITHIN: Final = 2.0  # s
SLOWEST_RETRY: Final = 1.0  # s between attempts to connect to an engine that refuses; keeps a thousand dead ones cheap
LOG_EVERY: Final = 60.0  # s between two lines about the same trouble

LOG_PATIENCE: Final = 1.5  # s of failing polls before a line about one engine; longer than before the one about all

_log = structlog.get_logger(__name__)


class PoolSide(Protocol):
    """What the poller needs of the pool."""

    def report(self, address: str, report: LoadReport, *, sent: float, now: float) -> None:
        """An engine answered."""

    def sample(self, address: str, sample: StockSample, *, sent: float, now: float) -> None:
        """An engine without the plugin answered."""

    def silent(self, address: str, reason: str, *, now: float) -> None:
        """A poll failed; called about once per interval while it lasts."""


@dataclass(frozen=True, slots=True)
class PollConfig:
    """How to poll. Only the interval may change while running."""

    source: Source
    interval: float = 0.1  # s
    ranks: int = 1
    metrics_path: str = "/metrics"


class PollerSide(Protocol):
    """What a target needs of the poller."""

    pool: PoolSide
    config: PollConfig
    clock: Callable[[], float]
    problem: str

    def leaving(self, task: asyncio.Task[None]) -> None:
        """Remember a cancelled task until it has ended."""


@dataclass(frozen=True, slots=True)
class PollStatus:
    """Polling of one endpoint, for metrics."""

    answers: int
    failures: dict[str, int]
    """By kind: connect, reset, timeout, status, invalid."""
    reason: str
    """Why the last poll failed; empty when it did not."""


class _Model(msgspec.Struct):
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


_models_decoder = msgspec.json.Decoder(_Models)


class Rank:
    """Polls one port of an engine: idle, connecting, or waiting for an answer."""

    __slots__ = (
        "_attempts",
        "_connection",
        "_host",
        "_kind",
        "_path_bytes",
        "_port",
        "_retry_at",
        "_started",
        "_target",
        "_task",
        "index",
        "sent",
    )  # fmt: skip

    def __init__(self, target: "Target", *, host: str, port: int, index: int) -> None:
        self._target = target
        self._host = host
        self._port = port
        self.index = index
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._kind = target.kind
        self._attempts = 0  # connections in a row that failed
        self._retry_at = -math.inf
        self._started: float | None = None  # when the open poll began; None: none is open
        self.sent = 0.0  # when its request left

    def tick(self, now: float) -> None:
        """Start a poll, unless the last one is still open."""
        target = self._target
        if self._started is not None:
            self._overdue(now - self._started, now)
            return
        connection = self._connection
        if connection is not None and connection.reusable:
            self._kind = target.kind
            self._started = self.sent = now
            connection.request(target.request(self._kind, self._port), limit=target.limit(self._kind))
        elif now < self._retry_at:
            target.still_silent(now)
        else:
            self._started = now
            self._connect()

    def _overdue(self, waited: float, now: float) -> None:
        """The last poll is still open at the next tick: never doubled, given up after a while."""
        connecting = self._task is not None
        kind, what = ("connect", "no connection") if connecting else ("timeout", "no answer")
        self._failed(kind, f"{what} for {waited:.1f} s", now)
        if waited >= (CONNECT_WITHIN if connecting else GIVE_UP):
            self.close()
            self._backed_off(now)
            if not connecting:
                self._target.blocked_since = None  # nobody resets what stays open for so long: it hangs

    def _failed(self, kind: str, reason: str, now: float) -> None:
        self._target.failed(kind, f"{self._target.url(self._kind, self._port)}: {reason}", now)

    def _backed_off(self, now: float) -> None:
        self._started = None
        self._attempts += 1
        self._retry_at = now + min(SLOWEST_RETRY, self._target.interval * 2 ** min(self._attempts - 1, 10)) * 0.99

    def _connect(self) -> None:
        self._connection = None
        self._kind = self._target.kind
        self._task = asyncio.get_running_loop().create_task(self._open())
        # The loop keeps a weak reference only; ours is dropped by the task itself.

    async def _open(self) -> None:
        task = asyncio.current_task()
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), self._host, self._port
            )
        except OSError as error:
            if self._task is task:
                self._task = None
                now = self._target.clock()
                self._backed_off(now)
                self._failed("connect", f"cannot connect: {error.strerror or type(error).__name__}", now)
            return
        if self._task is not task:
            connection.close()
            return
        self._task = None
        self._connection = connection
        self.sent = self._target.clock()
        if not connection.reusable:  # reset before we came to use it
            self.on_lost(connection, "reset the connection", retriable=False)
            return
        target = self._target
        connection.request(target.request(self._kind, self._port), limit=target.limit(self._kind))

    def ask_models(self) -> None:
        """Ask for max_model_len on the same connection, right after an answer."""
        connection = self._connection
        if connection is not None and connection.reusable:
            self._kind = "models"
            self._started = self.sent = self._target.clock()
            connection.request(self._target.request("models", self._port), limit=MODELS_BYTES)

    def on_response(self, connection: Connection, status: int, body: bytes) -> None:
        """An answer came."""
        if connection is not self._connection:
            return
        if not connection.reusable:
            self._connection = None
        self._started = None
        self._attempts = 0
        now = self._target.clock()
        if self._kind == "models":
            self._target.models(status, body)
        elif status != 200:
            hint = " (redirects are not followed)" if 300 <= status < 400 else ""
            self._failed("status", f"HTTP status {status}{hint}", now)
        else:
            try:
                self._target.answered(self, body, now)
            except ReportError as error:
                self._failed("invalid", str(error), now)

    def on_lost(self, connection: Connection, reason: str, *, retriable: bool) -> None:
        """The connection is gone."""
        if connection is not self._connection:
            return
        self._connection = None
        if self._started is None:
            return  # it was idle: the next poll makes a new one
        if retriable:
            self._connect()  # the usual race with a server that closes idle connections; no failure
            return
        now = self._target.clock()
        self._backed_off(now)
        self._failed("reset", reason, now)

    def close(self) -> None:
        """Drop the connection and whatever is open on it."""
        self._started = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            self._target.leaving(task)
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Target:
    """One endpoint: its ranks, their answers of this round, and how polling went."""

    def __init__(self, poller: PollerSide, endpoint: Endpoint, *, phase: float) -> None:
        self._poller = poller
        self._pool = poller.pool
        self._address = endpoint.address
        self.clock = poller.clock
        self.phase = phase
        self.kind = "metrics" if poller.config.source is Source.METRICS else "report"
        self.expected = True  # to answer: an engine that starts or ends may refuse without a line in the log
        self.answers = 0
        self.failures: Counter[str] = Counter()
        self.reason = ""
        self.blocked_since: float | None = None  # connections fail since then
        self._failing_since: float | None = None
        self._log_after = -math.inf
        self._told = False
        self._reports: dict[int, tuple[LoadReport, float]] = {}
        self._max_model_len: int | None = None
        self._models_at = -math.inf
        self._last_prompt_tokens = 0.0
        self._requests: dict[tuple[str, int], bytes] = {}
        host, port = split_address(endpoint.address)
        if self.kind == "metrics":
            self._ranks = [Rank(self, host=host, port=port, index=0)]
        else:
            self._ranks = [
                Rank(self, host=host, port=endpoint.load_port + index, index=index)
                for index in range(poller.config.ranks)
            ]
        self._host = host

    @property
    def interval(self) -> float:
        """Seconds between two polls, as it is now."""
        return self._poller.config.interval

    def request(self, kind: str, port: int) -> bytes:
        """The bytes of a request: `kind` is report, metrics or models."""
        data = self._requests.get((kind, port))
        if data is None:
            path = self._path(kind)
            accept = "text/plain" if kind == "metrics" else "application/json"
            data = (
                f"GET {path} HTTP/1.1\r\nHost: {format_address(self._host, port)}\r\n"
                f"User-Agent: halffull-extproc\r\nAccept: {accept}\r\n\r\n"
            ).encode()
            self._requests[kind, port] = data
        return data

    def url(self, kind: str, port: int) -> str:
        """What a request of that kind asks for, as people can ask for it with curl."""
        return f"http://{format_address(self._host, port)}{self._path(kind)}"

    def _path(self, kind: str) -> str:
        return {"report": "/load", "models": "/v1/models"}.get(kind, self._poller.config.metrics_path)

    def limit(self, kind: str) -> int:
        """The largest body accepted, in bytes."""
        return METRICS_BYTES if kind == "metrics" else REPORT_BYTES

    def tick(self, now: float) -> None:
        """Its turn in the round: poll every rank."""
        for rank in self._ranks:
            rank.tick(now)

    def answered(self, rank: Rank, body: bytes, now: float) -> None:
        """A rank answered with status 200.

        Raises:
            ReportError: with something else than what was asked for.
        """
        if self.kind == "metrics":
            sample = parse_stock_metrics(body, max_model_len=self._max_model_len)
            self._ok()
            self._pool.sample(self._address, sample, sent=rank.sent, now=now)
            self._ask_models_when_due(rank, sample, now)
            return
        report, sent = decode_load_report(body), rank.sent
        if len(self._ranks) > 1:
            self._reports[rank.index] = (report, sent)
            if len(self._reports) < len(self._ranks):
                return
            ordered = [self._reports[index] for index in range(len(self._ranks))]
            self._reports.clear()
            report, sent = merge_ranks([one for one, _ in ordered]), min(left for _, left in ordered)
        self._ok()
        self._pool.report(self._address, report, sent=sent, now=now)

    def _ask_models_when_due(self, rank: Rank, sample: StockSample, now: float) -> None:
        counted = sample.prompt_tokens
        restarted = counted is not None and counted < self._last_prompt_tokens
        if counted is not None:
            self._last_prompt_tokens = counted
        if restarted or now >= self._models_at:
            self._models_at = now + MODELS_EVERY
            rank.ask_models()

    def models(self, status: int, body: bytes) -> None:
        """max_model_len of the smallest model; what cannot be read changes nothing until the next minute."""
        if status != 200:
            return
        try:
            lengths = [model.max_model_len for model in _models_decoder.decode(body).data if model.max_model_len]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        usable = [length for length in lengths if 0 < length < 2**53]
        if usable:
            self._max_model_len = min(usable)

    def _ok(self) -> None:
        self.answers += 1
        self._failing_since = None
        self.blocked_since = None
        if self.reason:
            self.reason = ""
            if self._told:
                self._told = False
                _log.info("an engine answers its polls again", endpoint=self._address)

    def failed(self, kind: str, reason: str, now: float) -> None:
        """A poll failed, or is still unanswered at the next tick."""
        self.failures[kind] += 1
        self.reason = reason
        if self._failing_since is None:
            self._failing_since = now
        if kind in ("status", "invalid"):
            self.blocked_since = None  # it can be reached
        elif kind in ("connect", "reset") and self.blocked_since is None:
            self.blocked_since = now  # an answer that is late may yet come, or be a reset: that says nothing
        self._pool.silent(self._address, reason, now=now)
        lasting = now - self._failing_since >= max(LOG_PATIENCE, 5 * self.interval)
        if self.expected and lasting and not self._told and now >= self._log_after and not self._poller.problem:
            self._told = True
            self._log_after = now + LOG_EVERY
            _log.warning("an engine does not answer its polls", endpoint=self._address, reason=reason)

    def still_silent(self, now: float) -> None:
        """Between two attempts to connect."""
        self._pool.silent(self._address, self.reason, now=now)

    def leaving(self, task: asyncio.Task[None]) -> None:
        """Let the poller wait for a task that was cancelled."""
        self._poller.leaving(task)

    def close(self) -> None:
        """End every connection."""
        for rank in self._ranks:
            rank.close()
