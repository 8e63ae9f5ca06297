"""Waits of minutes are normal for an engine and pass: silences, long streams. Shortened forms run in `make test`.

An emulated engine whose virtual time is slowed down is silent, or sends an event, exactly as seldom as asked for; it is
served by the same uvicorn as vLLM.
"""

import asyncio
import json
from typing import Any

import pytest

from halffull_lab.latency import PROFILES
from halffull_lab.stack import EngineOptions, Stack, get_json
from tests.extproc.scale.client import Client, get, post
from tests.extproc.scale.figures import eventually, ext_proc, nothing_owed, total
from tests.extproc.scale.upstream import Upstream

PROFILE = "70b-2xh100"
STEP = PROFILES[PROFILE].latency.step_seconds(prefill_tokens=0, decodes=1, decode_context=40)
POLLS = {"poll": {"interval": "1s"}}  # of wall time, as the engine's own runs a thousand times slower


def slowed(step: float) -> EngineOptions:
    """An engine that takes about `step` seconds for each step of a small batch."""
    return EngineOptions(profile=PROFILE, speed=STEP / step)


def completion(tokens: int, *, stream: bool) -> bytes:
    fields = {"model": "emulated", "prompt": " the" * 40, "max_tokens": tokens, "stream": stream, "ignore_eos": True}
    return post("/v1/completions", json.dumps(fields).encode())


async def nothing_was_cut(stack: Stack) -> None:
    """Envoy's counters know of no timeout, no reset and no second attempt."""
    stats = await stack.envoy_stats(
        r"^(http\.ingress\.downstream_rq_(idle_timeout|timeout|max_duration_reached|rx_reset|tx_reset|5xx)"
        r"|cluster\.engines\.upstream_rq_(timeout|per_try_timeout|max_duration_reached|retry|rx_reset|tx_reset)"
        r"|cluster\.engines\.upstream_cx_destroy_(local|remote)_with_active_rq)$"
    )
    assert len(stats) >= 10, stats
    assert not any(stats.values()), stats


SECONDS = [pytest.param(12, id="short"), pytest.param(310, id="longer-than-any-idle-timer", marks=pytest.mark.soak)]


@pytest.mark.parametrize("seconds", SECONDS)
async def test_an_answer_after_a_long_silence_passes(seconds: int) -> None:
    async with Stack(engines=1, options=slowed(seconds), picker=POLLS) as stack:
        client = await Client.connect(stack.gateway)
        try:
            loop = asyncio.get_running_loop()
            began = loop.time()
            client.send(completion(1, stream=False))
            await asyncio.wait((client.answered,), timeout=seconds * 0.8)
            assert not client.answered.done()  # not a byte
            late = (await ext_proc(stack))["message_timeouts"]  # the machine was busy for 100 ms: it passed unpicked
            assert await total(stack, "open_picks") == 1 - late  # and the picker still counts it
            async with asyncio.timeout(seconds + 60):
                answer = await client.answer()
            assert loop.time() - began > 0.95 * seconds
            assert answer.status == 200
            assert json.loads(answer.body)["usage"]["completion_tokens"] == 1
            await eventually(lambda: nothing_owed(stack), what="the pick closed")
            await nothing_was_cut(stack)
        finally:
            client.abort()


@pytest.mark.parametrize(
    ("events", "every"),
    [pytest.param(17, 1, id="longer-than-15-s"), pytest.param(120, 10, id="20-minutes", marks=pytest.mark.soak)],
)
async def test_a_long_stream_passes_whole(events: int, every: int) -> None:
    async with Stack(engines=1, options=slowed(every), picker=POLLS) as stack:
        client = await Client.connect(stack.gateway)
        try:
            loop = asyncio.get_running_loop()
            began = loop.time()
            client.send(completion(events, stream=True))
            assert await asyncio.wait_for(client.answered, 30) == 200  # a stream's headers come at once
            assert loop.time() - began < every / 2 + 5
            async with asyncio.timeout(events * every * 1.5 + 60):
                answer = await client.answer()
            assert loop.time() - began > 0.9 * events * every
            data = [line.removeprefix("data: ") for line in answer.body.decode().split("\n\n") if line]
            assert data[-1] == "[DONE]"
            chunks = [json.loads(event) for event in data[:-1]]
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " the" * events
            assert len(chunks) == events
            assert chunks[-1]["choices"][0]["finish_reason"] == "length"
            await eventually(lambda: nothing_owed(stack), what="the pick closed")
            await nothing_was_cut(stack)
        finally:
            client.abort()


def found(tree: Any, key: str) -> list[Any]:
    """Every value of `key`, wherever it stands."""
    if isinstance(tree, list):
        return [value for item in tree for value in found(item, key)]
    if isinstance(tree, dict):
        here = [tree[key]] if key in tree else []
        return here + [value for item in tree.values() for value in found(item, key)]
    return []


async def timeouts(stack: Stack) -> dict[str, Any]:
    """What the managed Envoy says of the route to the engines and of its listener."""
    dump = (await get_json(f"{stack.admin}/config_dump"))["configs"]
    routes = found([part for part in dump if part["@type"].endswith("RoutesConfigDump")], "dynamic_route_configs")
    route = next(each["route"] for each in found(routes, "routes")[0] if each["name"] == "engines")
    listeners = found([part for part in dump if part["@type"].endswith("ListenersConfigDump")], "dynamic_listeners")
    names = ("stream_idle_timeout", "request_timeout", "max_stream_duration", "request_headers_timeout")
    return {
        "route": (route["timeout"], route["idle_timeout"]),
        "other": [key for key in ("max_stream_duration", "per_try_timeout", "grpc_timeout") if found(route, key)],
        **{name: found(listeners, name) for name in names},
    }


@pytest.mark.parametrize(
    ("given", "route", "idle"),
    [
        ({}, ("0s", "0s"), "0s"),
        ({"request": "1h", "idle": "7m"}, ("3600s", "420s"), "420s"),
    ],
)
async def test_timeouts_are_none_or_those_of_the_settings(
    given: dict[str, str], route: tuple[str, str], idle: str
) -> None:
    nobody = [{"address": "127.0.0.1:9"}]
    async with Stack(engines=0, endpoints=nobody, picker={"gateway": {"timeouts": given}}) as stack:
        assert await timeouts(stack) == {
            "route": route,
            "other": [],
            "stream_idle_timeout": [idle],
            "request_timeout": [],
            "max_stream_duration": [],
            "request_headers_timeout": ["10s"],
        }


async def test_a_client_that_never_ends_its_headers_is_let_go_and_a_slow_body_is_not() -> None:
    engine = await Upstream().start()
    try:
        async with Stack(engines=0, endpoints=[engine.entry()]) as stack:
            never, slow = await Client.connect(stack.gateway), await Client.connect(stack.gateway)
            never.send(get("/v1/models").removesuffix(b"\r\n\r\n") + b"\r\nx-one: 1\r\n")
            slow.send(post("/v1/completions", b"x" * 4)[:-2])
            status = await asyncio.wait_for(never.answered, 40)
            assert status in (0, 408)  # answered or not, the connection ends
            await asyncio.wait_for(never.done, 10)
            stats = await stack.envoy_stats(r"^http\.ingress\.downstream_rq_(header_timeout|timeout|idle_timeout)$")
            assert stats["http.ingress.downstream_rq_header_timeout"] == 1
            assert not slow.done.done()
            assert slow._transport is not None
            slow._transport.write(b"xx")
            assert (await asyncio.wait_for(slow.answer(), 20)).status == 200
            assert [seen.size for seen in engine.requests] == [4]
            never.abort()
            slow.close()
    finally:
        await engine.stop()
