"""Open-loop replay of a trace: requests leave at their times whatever becomes of those before them.

The client distrusts itself: it measures how late it sent, how late its event loop ran, and how busy the machine was,
and `bottlenecks` says when a run shows the client or the machine rather than the system under test.
"""

import asyncio
import contextlib
import gc
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import aiohttp
import numpy as np
import psutil
from numpy.typing import NDArray

from halffull_lab.completion import CompletionStream, Failure, Verdict
from halffull_lab.traces import Trace
from halffull_lab.unanswered import KEEP_ALIVE

# Limits of `bottlenecks`.
ADDED_WALL = 0.025  # s
ADDED_TRACE = 0.1  # s of trace time
CLIENT_CORES = 0.9
MACHINE_BUSY = 0.92

_BUFFER = 1 << 20  # bytes of one answer that may wait for its reader before the socket is left unread
_LAG_EVERY = 0.02  # s
# Each word is four bytes and, in the usual vocabularies, one token.
_WORDS = (
    " the",
    " and",
    " for",
    " you",
    " was",
    " are",
    " his",
    " not",
    " all",
    " can",
    " had",
    " her",
    " one",
    " our",
    " out",
    " new",
)
_HEAD = 12  # words that make a prompt's beginning unlike any other's, so that no prefix cache answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The server under test: base URL (with or without `/v1`), model name, and a key for `Authorization: Bearer`."""

    url: str
    model: str = "emulated"
    api_key: str | None = None

    @property
    def completions(self) -> str:
        """URL of the completions endpoint."""
        return f"{self.url.rstrip('/').removesuffix('/v1')}/v1/completions"


@dataclass(slots=True, kw_only=True)
class Record:
    """One request. Times in wall seconds from the start of the run; None: it never came to that.

    `tokens` is what the answer said it held; `failure` is None for a whole answer.
    """

    index: int
    scheduled: float
    prompt_tokens: int
    output_tokens: int
    sent: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    status: int | None = None
    failure: Verdict | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientHealth:
    """What the client saw of itself and of its machine. Wall seconds; CPU shares from 0 to 1, client CPU in cores.

    All but the cost of an event is of the time in which a TTFT could be spoiled: until the last request had its first
    token. The quiet minutes in which the last answers end would dilute it.
    """

    lateness_p99: float  # sent − scheduled
    lateness_max: float
    loop_lag_p99: float  # a 20 ms timer's delay
    loop_lag_max: float
    client_cores: float
    machine_busy: float
    events: int
    us_per_event: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished replay.

    `speed` is trace seconds per wall second; `started` is when it began, by its clock; `wall` is how long it took.
    """

    trace: Trace
    speed: float
    started: float
    wall: float
    records: list[Record] = field(repr=False)
    client: ClientHealth


def bottlenecks(client: ClientHealth, *, speed: float = 1.0) -> list[str]:
    """Why the run is invalid; empty when neither client nor machine was the bottleneck.

    Client-bound: what it may have added to a TTFT is above 25 ms of wall time, or above 100 ms of trace time; or it
    used more than 0.9 of a core. A request leaves late, and the event loop turns twice more before its first token is
    noticed (connected, received): p99 of the lateness + 2 × p99 of the loop's lag. Each alone may look harmless.
    Machine-bound: its processors were busy more than 92% of the time.
    """
    limit = min(ADDED_WALL, ADDED_TRACE / speed)
    reasons = []
    added = client.lateness_p99 + 2 * client.loop_lag_p99
    if added > limit:
        reasons.append(
            f"client-bound: it may have added {1000 * added:.0f} ms to a TTFT (limit {1000 * limit:.0f}): p99 of its "
            f"lateness {1000 * client.lateness_p99:.0f} ms, of its event loop's lag {1000 * client.loop_lag_p99:.0f} ms"
        )
    if client.client_cores > CLIENT_CORES:
        reasons.append(f"client-bound: {client.client_cores:.2f} of a core (limit {CLIENT_CORES})")
    if client.machine_busy > MACHINE_BUSY:
        reasons.append(f"machine-bound: processors {client.machine_busy:.0%} busy (limit {MACHINE_BUSY:.0%})")
    return reasons


def prompt_text(tokens: int, *, index: int) -> str:
    """A prompt of 4·`tokens` bytes, about `tokens` tokens, that shares no beginning with those of other indices."""
    head = "".join(_WORDS[index >> 4 * place & 15] for place in range(min(tokens, _HEAD)))
    return head + _WORDS[0] * (tokens - min(tokens, _HEAD))


def request_body(record: Record, *, model: str) -> bytes:
    """What is posted for a request."""
    prompt = prompt_text(record.prompt_tokens, index=record.index)
    return (
        f'{{"model":"{model}","prompt":"{prompt}","max_tokens":{record.output_tokens},"ignore_eos":true,'
        '"temperature":0,"stream":true,"stream_options":{"include_usage":true}}'
    ).encode()


class Replay:
    """One run of a trace against a target.

    `sent`, `finished` and `failed` count while `run` is under way.

    Args:
        timeout: wall seconds for one request, all in all.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        trace: Trace,
        target: Target,
        *,
        speed: float = 1.0,
        timeout: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trace = trace
        self.target = target
        self.speed = speed
        self.sent = 0
        self.finished = 0
        self.failed = 0
        self.events = 0
        self._timeout = timeout
        self._clock = clock
        self._start = 0.0
        self._tokenless = 0  # requests that wait for their first token, or are still to come

    async def run(self) -> Run:
        """Send everything at its time and wait for every answer."""
        wall = self.trace.arrival / self.speed
        records = [
            Record(index=index, scheduled=float(at), prompt_tokens=int(prompt), output_tokens=int(output))
            for index, (at, prompt, output) in enumerate(
                zip(wall, self.trace.prompt_tokens, self.trace.output_tokens, strict=True)
            )
        ]
        connector = aiohttp.TCPConnector(limit=0, limit_per_host=0, keepalive_timeout=KEEP_ALIVE)
        session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            read_bufsize=_BUFFER,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers(),
            skip_auto_headers=("User-Agent", "Accept-Encoding"),
        )
        gc.collect()
        gc.freeze()  # what exists by now lives on: collections during the run need not look at it
        try:
            self._tokenless = len(records)
            async with session, _Watch() as watch:
                self._start = self._clock()
                await self._send_all(records, session, watch)
                took = self._clock() - self._start
        finally:
            gc.unfreeze()
        lateness = np.array([record.sent - record.scheduled for record in records if record.sent is not None])
        client = watch.health(lateness=lateness, events=self.events)
        return Run(trace=self.trace, speed=self.speed, started=self._start, wall=took, records=records, client=client)

    async def _send_all(self, records: list[Record], session: aiohttp.ClientSession, watch: "_Watch") -> None:
        async with asyncio.TaskGroup() as tasks:
            for record in records:
                delay = self._start + record.scheduled - self._clock()
                if (
                    delay > 0
                ):  # all that is due leaves at once: one per turn of a busy loop would fall ever further behind
                    await asyncio.sleep(delay)
                tasks.create_task(self._send(record, session, watch))

    async def _send(self, record: Record, session: aiohttp.ClientSession, watch: "_Watch") -> None:
        clock, start, waits = self._clock, self._start, True
        body = request_body(record, model=self.target.model)
        stream = CompletionStream()
        record.sent = clock() - start
        self.sent += 1
        try:
            async with session.post(self.target.completions, data=body) as response:
                record.status = response.status
                if response.status // 100 != 2:
                    text = (await response.content.read(300)).decode(errors="replace")
                    record.failure = Verdict(Failure.STATUS, f"{response.status} {text}".strip())
                else:
                    async for chunk in response.content.iter_any():
                        stream.feed(chunk, clock() - start)
                        if waits and stream.first_token is not None:
                            waits = False
                            self._got_first_token(watch)
                    record.failure = stream.end(expected_tokens=record.output_tokens)
        except TimeoutError:
            record.failure = Verdict(Failure.TIMEOUT, f"{self._timeout:g} s")
        except aiohttp.ClientConnectorError as error:
            record.failure = Verdict(Failure.CONNECT, str(error))
        except (aiohttp.ClientError, OSError) as error:
            record.failure = Verdict(Failure.RESET, f"{type(error).__name__}: {error}")
        if waits:
            self._got_first_token(watch)  # it never will
        record.first_token, record.last_token, record.tokens = stream.first_token, stream.last_token, stream.tokens
        self.events += stream.events
        self.finished += 1
        self.failed += record.failure is not None

    def _got_first_token(self, watch: "_Watch") -> None:
        self._tokenless -= 1
        if not self._tokenless:
            watch.conclude()

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        if self.target.api_key:
            headers["Authorization"] = f"Bearer {self.target.api_key}"
        return headers


class _Watch:
    """Measures the event loop's lag and the CPU of client and machine, from its entry until `conclude`."""

    def __init__(self) -> None:
        self._lags: list[float] = []
        self._process = psutil.Process(os.getpid())

    async def __aenter__(self) -> Self:
        self._began = time.monotonic()
        self._cpu_before = self._own_cpu()
        self._machine = _machine_times()
        self._concluded = False
        self._task = asyncio.create_task(self._measure_lag())
        return self

    def conclude(self) -> None:
        """What comes later spoils nothing; only the cost of its events is counted."""
        if self._concluded:
            return
        self._concluded = True
        self._task.cancel()
        self._cores = (self._own_cpu() - self._cpu_before) / (time.monotonic() - self._began)
        busy, total = _machine_times()
        self._busy = (busy - self._machine[0]) / max(total - self._machine[1], 1e-9)

    async def __aexit__(self, *exc: object) -> None:
        self.conclude()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._cpu = self._own_cpu() - self._cpu_before

    def health(self, *, lateness: NDArray[np.float64], events: int) -> ClientHealth:
        lags = np.array(self._lags or [0.0])
        return ClientHealth(
            lateness_p99=float(np.percentile(lateness, 99)),
            lateness_max=float(lateness.max()),
            loop_lag_p99=float(np.percentile(lags, 99)),
            loop_lag_max=float(lags.max()),
            client_cores=self._cores,
            machine_busy=self._busy,
            events=events,
            us_per_event=1e6 * self._cpu / max(events, 1),
        )

    async def _measure_lag(self) -> None:
        while True:
            due = time.monotonic() + _LAG_EVERY
            await asyncio.sleep(_LAG_EVERY)
            self._lags.append(max(0.0, time.monotonic() - due))

    def _own_cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


def _machine_times() -> tuple[float, float]:
    """Busy and total processor seconds of the whole machine since it started."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    guest = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # already in user and nice
    total = sum(times) - guest
    return total - idle, total
