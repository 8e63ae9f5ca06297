"""An engine whose API server sleeps while its scheduler works, as vLLM's does when it loses a wake-up (pyzmq issue
2173): then hundreds of tokens come at once, and an answer comes late. Neither means that the engine is full."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from halffull_lab import measured_engine
from halffull_lab.calibration_design import Length, Limits, lengths
from halffull_lab.measured_engine import FullError, MeasuredEngine
from halffull_lab.measuring import _Measuring, measure

pytestmark = pytest.mark.timeout(60)
LIMITS = Limits(kv_tokens=100_000, block_size=16, max_tokens_per_batch=64, max_num_seqs=4, max_model_len=1_000)


@dataclass
class Sleepy:
    """Streams a token per millisecond until a prompt comes; then `burst` of them at once, and the answer after them."""

    burst: int = 800
    at_once: int = 1
    """Tokens of every other event."""
    waiting: int = 0
    """What its metrics say."""
    admits: bool = True
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=f"vllm:num_requests_running 0\nvllm:num_requests_waiting {self.waiting}\n")

    async def completion(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            self.asked.set()
            await self.woken.wait()
            if not self.admits:
                await asyncio.Event().wait()
            await asyncio.sleep(0.1)  # some of the client's looks after the burst
            return web.json_response({})
        response = web.StreamResponse()
        await response.prepare(request)
        tokens = 0
        while tokens < body["max_tokens"]:
            await asyncio.sleep(0.001)
            tokens += self.at_once
            if self.asked.is_set() and not self.woken.is_set():
                await asyncio.sleep(0.1)  # longer than the client's patience
                tokens += self.burst
                self.woken.set()
            event = {"choices": [{"text": "x"}], "usage": {"completion_tokens": tokens}}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        return response


@pytest.fixture
def sleepy() -> Sleepy:
    return Sleepy()


@pytest_asyncio.fixture
async def engine(sleepy: Sleepy, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MeasuredEngine]:
    monkeypatch.setattr(measured_engine, "_STUCK_SECONDS", 0.05)
    app = web.Application()
    app.add_routes([web.get("/metrics", sleepy.metrics), web.post("/v1/completions", sleepy.completion)])
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with aiohttp.ClientSession() as session:
        yield MeasuredEngine(session, url=f"http://127.0.0.1:{port}", load_url=None, model="sleepy")
    await runner.cleanup()


async def test_a_late_answer_is_waited_for(engine: MeasuredEngine, sleepy: Sleepy) -> None:
    async with engine.hold(decodes=1, context=16, output=1_000_000) as hold:
        before, after = await hold.prefill(64)
    assert after.steps - before.steps > sleepy.burst


async def test_a_full_engine_says_so_itself(engine: MeasuredEngine, sleepy: Sleepy) -> None:
    sleepy.waiting, sleepy.admits = 1, False
    async with engine.hold(decodes=1, context=16, output=1_000_000) as hold:
        with pytest.raises(FullError):
            await hold.prefill(64)
        sleepy.waiting = 0


async def test_a_sequence_that_has_ended_is_no_failure(engine: MeasuredEngine, sleepy: Sleepy) -> None:
    sleepy.at_once = LIMITS.max_model_len
    sleepy.woken.set()
    measured = await measure(engine, LIMITS, seconds=0.0, rounds=1, told=lambda *_: None)
    assert measured.samples == []


async def test_one_stalled_prompt_does_not_end_the_others(
    engine: MeasuredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    took = iter([0.05, 50.0])  # s; the second meets a stall
    asked: list[int] = []

    async def prefill(_: object, __: object, length: Length, **___: object) -> float:
        asked.append(length.tokens)
        return next(took, 0.05)

    monkeypatch.setattr(_Measuring, "_prefill", prefill)
    work = _Measuring(engine, LIMITS, seconds=60.0, rounds=1, told=lambda *_: None)
    await work.prefills()
    assert asked == [length.tokens for length in lengths(LIMITS, budget=63)]
    assert work.measured.notes == []
