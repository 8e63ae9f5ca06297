"""An engine as `halffull calibrate` handles it: requests that hold a load, and the time and number of its steps.

With a load report both are the engine's own. Without one they are read off a stream: while a sequence decodes, every
step gives it one token, so the gaps between its tokens are the steps, whatever else they compute. That is closer to
the truth than a TTFT, which holds HTTP, tokenisation and half a step of waiting as well.
"""

import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import aiohttp

from halffull_extproc.load_report import LoadReport, ReportError, decode_load_report
from halffull_extproc.stock_metrics import StockSample, parse_stock_metrics
from halffull_lab.calibration import CalibrationError, Mark
from halffull_lab.sse import EventParser
from halffull_lab.unanswered import unanswered

STALLED: Final = 120.0
"""s without a step of an engine that has work."""
SMALLEST_BUDGET: Final = 16
"""Tokens of a prompt that a step computes at least."""
IDLE_WITHIN: Final = 60.0
"""s in which an engine drops what its client has aborted."""

_ANSWER = aiohttp.ClientTimeout(total=30)
_POLL = 0.02  # s between looks: the report is made in a thread of the engine's core
_STUCK = 100  # steps in which nobody is admitted, though somebody waits,
_STUCK_SECONDS = 5.0  # and the time that a busy machine may need to send a request
_SETTLE = 3  # steps after the last prefill: with async scheduling a report is a step behind
_TOKENS = range(10, 250)  # in every vocabulary, single bytes in most; random, so that no prefix cache answers
_BLOCK_SIZE = re.compile(r'^vllm:cache_config_info\{.*\bblock_size="(\d+)"', re.MULTILINE)


class FullError(Exception):
    """The engine runs fewer sequences at once than are to decode."""

    def __init__(self, running: int) -> None:
        super().__init__(f"{running} at once")
        self.running = running


class OverError(Exception):
    """A sequence has reached its last token, so the load is not what it was."""


class TokenStream:
    """The tokens of one streamed completion, as they come.

    vLLM merges tokens into one event when its client, or itself, is slow; its continuous usage tells how many came.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.at = 0.0
        """s: when the last of them came."""
        self._parser = EventParser()

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body, received at `now`."""
        for event in self._parser.feed(data):
            if event == b"[DONE]":
                continue
            parsed = json.loads(event)
            if parsed.get("error"):
                raise CalibrationError(f"the engine ended a stream: {str(parsed['error'])[:200]}")
            if parsed.get("choices"):
                usage = parsed.get("usage") or {}
                self.tokens = int(usage.get("completion_tokens") or self.tokens + 1)
                self.at = now


class MeasuredEngine:
    """One engine behind `session`.

    Args:
        session: with whatever headers the engine wants.
        url: of its OpenAI API, with or without /v1.
        load_url: of its load report; None: it has none.
        model: name; "": the first that it serves.
    """

    def __init__(self, session: aiohttp.ClientSession, *, url: str, load_url: str | None, model: str = "") -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.load_url = f"{load_url.rstrip('/').removesuffix('/load')}/load" if load_url else None
        self.model = model
        self.others = 0
        """Requests that were there before ours."""
        self._session = session
        self._random = random.Random()

    @property
    def reports(self) -> bool:
        """Whether it has a load report."""
        return self.load_url is not None

    # What it says of itself.

    async def model_card(self) -> dict[str, Any]:
        """What /v1/models says of the model; sets its name if none was given."""
        try:
            cards = json.loads(await self._get(f"{self.url}/v1/models"))["data"]
            named = [card for card in cards if self.model in ("", card["id"])]
        except (ValueError, LookupError, TypeError):
            raise CalibrationError(f"{self.url}/v1/models: not what an OpenAI API answers") from None
        if not named:
            raise CalibrationError(f"{self.url}: no model {self.model!r}, but {[card['id'] for card in cards]}")
        self.model = named[0]["id"]
        return dict(named[0])

    async def metrics(self) -> tuple[StockSample, int | None]:
        """Its /metrics, and the size of a KV block in tokens."""
        text = await self._get(f"{self.url}/metrics")
        block = _BLOCK_SIZE.search(text.decode(errors="replace"))
        return parse_stock_metrics(text), int(block[1]) if block else None

    async def report(self) -> tuple[LoadReport, float]:
        """Its load report, and when that was so, s."""
        if self.load_url is None:
            raise CalibrationError("no load report without its URL")
        sent = time.monotonic()
        try:
            report = decode_load_report(await self._get(self.load_url))
        except ReportError as error:
            raise CalibrationError(f"{self.load_url}: {error}") from None
        return report, (sent + time.monotonic()) / 2 - report.age

    async def requests(self) -> tuple[int, int]:
        """Running, and waiting."""
        if self.reports:
            report, _ = await self.report()
            return report.running, report.waiting
        sample, _ = await self.metrics()
        if sample.running is None or sample.waiting is None:
            raise CalibrationError(f"{self.url}/metrics: no vllm:num_requests_running and _waiting; is this vLLM?")
        return int(sample.running), int(sample.waiting)

    async def idle(self) -> None:
        """Return when it has no more requests than before ours."""
        deadline = time.monotonic() + IDLE_WITHIN
        while sum(await self.requests()) > self.others:
            if time.monotonic() > deadline:
                raise CalibrationError(f"{self.url}: still busy {IDLE_WITHIN:.0f} s after the last request of ours")
            await asyncio.sleep(_POLL)

    async def _get(self, url: str) -> bytes:
        try:
            async with self._session.get(url, timeout=_ANSWER) as response:
                if response.status != 200:
                    raise CalibrationError(f"{url} answers {response.status}")
                return await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CalibrationError(unanswered(url, error)) from None

    # What it is asked for.

    async def prefill(self, prompt: int) -> None:
        """One prompt of so many tokens and a single token of output."""
        async with self.post(prompt, 1, stream=False) as response:
            await response.read()

    @contextlib.asynccontextmanager
    async def hold(self, *, decodes: int, context: int, output: int) -> AsyncIterator["Hold"]:
        """So many sequences that decode, until the end of the `async with`; then they are aborted.

        Args:
            decodes: sequences; 0: an idle engine, which only a load report can tell of.
            context: tokens of each prompt.
            output: tokens that each may produce at most.

        Raises:
            FullError: the engine runs fewer at once.
            OverError: one of them ended before all decoded.
        """
        hold = Hold(self, decodes=decodes, context=context)
        try:
            await hold.begin(output)
            yield hold
        finally:
            await hold.end()

    @contextlib.asynccontextmanager
    async def post(self, prompt: int, output: int, *, stream: bool) -> AsyncIterator[aiohttp.ClientResponse]:
        """A completion of exactly `output` tokens; leaving it early aborts it."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": self._random.choices(_TOKENS, k=prompt),
            "max_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
        }
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        try:
            async with self._session.post(f"{self.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    text = (await response.content.read(300)).decode(errors="replace")
                    raise CalibrationError(f"{self.url} answers {response.status} to a prompt of {prompt}: {text}")
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CalibrationError(f"{self.url}: a request was lost: {error or type(error).__name__}") from None


class Hold:
    """Sequences that decode; see `MeasuredEngine.hold`."""

    def __init__(self, engine: MeasuredEngine, *, decodes: int, context: int) -> None:
        self.decodes = decodes
        self._engine = engine
        self.prompt = context
        """Tokens, of each."""
        self._tasks: list[asyncio.Task[None]] = []
        self._streams: list[TokenStream] = []  # without a report: one each; the first is the clock
        self._first: dict[TokenStream, int] = {}  # the clock's tokens when another's first came
        self._computed = 0

    async def begin(self, output: int) -> None:
        """Start them all and return once they decode."""
        if self._engine.reports:
            self._computed = (await self._engine.report())[0].computed_tokens
        for index in range(self.decodes):
            if self._engine.reports:
                # Not streamed: hundreds of streams would keep this process from looking.
                work = self._silent(output)
            else:
                stream = TokenStream()
                self._streams.append(stream)
                work = self._read(stream, output, clock=not index)
            self._tasks.append(asyncio.create_task(work))
        if self.decodes:
            await (self._until_reported() if self._engine.reports else self._until_streaming())
            await self.advance(_SETTLE)

    async def end(self) -> None:
        """Abort them all and wait until the engine has dropped them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._engine.idle()

    async def mark(self) -> Mark:
        """The counters now."""
        if self._engine.reports:
            report, taken = await self._engine.report()
            return Mark(report.steps, report.busy_seconds, report.computed_tokens, taken)
        clock = self._streams[0]
        return Mark(clock.tokens, clock.at)

    def context(self, mark: Mark) -> float:
        """Σ of the sequences' contexts at a mark, tokens."""
        if not self.decodes:
            return 0.0
        if mark.computed is not None:
            return mark.computed - self._computed
        produced = sum(mark.steps - self._first.get(stream, 0) for stream in self._streams)
        return self.decodes * (self.prompt - 1) + produced

    async def advance(self, steps: int, *, seconds: float = 0.0) -> Mark:
        """The counters after so many more steps, or a few more, and so much time at least."""
        target, until = (await self.mark()).steps + steps, time.monotonic() + seconds
        return await self._until(lambda mark: mark.steps >= target and time.monotonic() >= until)

    async def prefill(self, prompt: int) -> tuple[Mark, Mark]:
        """The counters before and after one more prompt is computed, with a single token of output.

        Raises:
            FullError: it is not admitted beside the load.
        """
        before = await self.mark()
        asked = asyncio.create_task(self._engine.prefill(prompt))
        try:
            while not await self._is_over(asked, steps=prompt // SMALLEST_BUDGET + _STUCK):
                if await self._is_shut_out():
                    raise FullError(self.decodes)
            await asked
        finally:
            asked.cancel()
        if not self._engine.reports:
            return before, await self.advance(1)
        least = (before.computed or 0) + prompt
        return before, await self._until(lambda mark: (mark.computed or 0) >= least)

    async def _until(self, condition: Callable[[Mark], bool]) -> Mark:
        last, since = -1, time.monotonic()
        while not condition(mark := await self.mark()):
            self._check()
            if mark.steps != last:
                last, since = mark.steps, time.monotonic()
            elif time.monotonic() - since > STALLED:
                raise CalibrationError(f"{self._engine.url}: no step for {STALLED:.0f} s")
            await asyncio.sleep(_POLL)
        self._check()
        return mark

    async def _is_over(self, asked: asyncio.Task[None], *, steps: int) -> bool:
        """Wait for an answer, for so many steps and some seconds."""
        latest, until = (await self.mark()).steps + steps, time.monotonic() + _STUCK_SECONDS
        await self._until(lambda mark: asked.done() or (mark.steps > latest and time.monotonic() > until))
        return asked.done()

    async def _is_shut_out(self) -> bool:
        """Whether somebody waits in the engine, and goes on waiting.

        No time tells that: vLLM's API server sleeps for seconds now and then, its engine computing, when a wake-up is
        lost (pyzmq issue 2173; 1 request in 2,000 at steps of 1 ms), and then tells hundreds of tokens at once.
        """
        if not (await self._engine.requests())[1]:
            return False
        await self.advance(_STUCK)
        return (await self._engine.requests())[1] > 0

    def _check(self) -> None:
        for task in self._tasks:
            if task.done():
                task.result()
                raise OverError

    async def _until_reported(self) -> None:
        seen, since, until = (-1, -1), 0, 0.0
        while True:
            self._check()
            report, _ = await self._engine.report()
            if report.running >= self.decodes and not report.waiting and not report.queued_tokens:
                return
            if (report.running, report.queued_tokens) != seen:
                seen, since = (report.running, report.queued_tokens), report.steps
                until = time.monotonic() + _STUCK_SECONDS
            elif report.waiting and report.steps - since > _STUCK and time.monotonic() > until:
                raise FullError(report.running)
            await asyncio.sleep(_POLL)

    async def _until_streaming(self) -> None:
        clock, seen, since, until = self._streams[0], -1, 0, 0.0
        deadline = time.monotonic() + STALLED
        while len(self._first) < self.decodes:
            self._check()
            if clock.tokens:
                deadline = max(deadline, clock.at + STALLED)
            if time.monotonic() > deadline:
                raise CalibrationError(f"{self._engine.url}: no token for {STALLED:.0f} s")
            if len(self._first) != seen:
                seen, since, until = len(self._first), clock.tokens, time.monotonic() + _STUCK_SECONDS
            elif clock.tokens - since > _STUCK + self.prompt // SMALLEST_BUDGET and time.monotonic() > until:
                if await self._is_shut_out():
                    raise FullError(seen)
                seen = -1
            await asyncio.sleep(_POLL)

    async def _silent(self, output: int) -> None:
        async with self._engine.post(self.prompt, output, stream=False) as response:
            await response.read()

    async def _read(self, stream: TokenStream, output: int, *, clock: bool) -> None:
        async with self._engine.post(self.prompt, output, stream=True) as response:
            async for data in response.content.iter_any():
                stream.feed(data, time.monotonic())
                if stream.tokens and stream not in self._first:
                    self._first[stream] = 0 if clock else self._streams[0].tokens
                    if not clock:  # reading on would cost this process more than it has; its socket may fill up
                        await asyncio.Event().wait()
