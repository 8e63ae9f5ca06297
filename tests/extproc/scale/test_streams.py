"""Thousands of streams at once, through the real Envoy and the real picker."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from halffull_lab.stack import EngineOptions, Stack, get_json
from tests.extproc.scale.client import Client, post
from tests.extproc.scale.figures import endpoints, eventually, ext_proc, finished, nothing_owed, ok, total, upstreams

STREAMS = 4_000
OPENED_OVER = 13.0  # s
UNANSWERED = 16  # at once: a slow machine opens more slowly, instead of showing faults that are its own
BODY = json.dumps({"model": "emulated", "prompt": " the" * 50, "stream": True}).encode()


async def open_streams(url: str, *, request: bytes, count: int, over: float, made: list[Client]) -> None:
    """Open streams at an even pace and wait until each has its headers."""
    loop = asyncio.get_running_loop()
    start, few = loop.time(), asyncio.Semaphore(UNANSWERED)

    async def one(number: int) -> None:
        await asyncio.sleep(start + over * number / count - loop.time())  # the pace is the test's
        async with few:
            client = await Client.connect(url)
            made.append(client)
            client.send(request)
            assert await asyncio.wait_for(client.answered, 60) == 200

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))


async def flushed(stack: Stack, count: int) -> bool:
    """Whether Envoy has written so many entries of its access log to the picker's connections."""
    stats = await stack.envoy_stats(r"grpc_entries_flushed$")
    return sum(stats.values()) >= count


def abort(clients: list[Client]) -> None:
    for client in clients:
        client.abort()


@pytest.mark.timeout(300)
async def test_4000_long_streams_are_all_picked_and_none_refused() -> None:
    clients: list[Client] = []
    async with AsyncExitStack() as cleanup:
        engines = await upstreams(cleanup, 4)
        stack = await cleanup.enter_async_context(Stack(engines=0, endpoints=[engine.entry() for engine in engines]))
        cleanup.callback(abort, clients)
        await eventually(lambda: ok(stack), what="all engines reported")
        await open_streams(
            stack.gateway, request=post("/v1/stream", BODY), count=STREAMS, over=OPENED_OVER, made=clients
        )

        counted = await ext_proc(stack)
        late = counted["message_timeouts"]  # the machine was busy for 100 ms, as many are now and then
        assert counted["streams_started"] == STREAMS
        assert counted["failure_mode_allowed"] == late  # nothing passed unpicked for any other reason
        assert late <= STREAMS // 4, f"{late} picks took longer than 100 ms"
        assert counted.get("streams_failed", 0) == 0
        limits = await stack.envoy_stats(
            r"^cluster\.(engines|picker)\.(upstream_(cx_overflow|rq_pending_overflow|rq_retry)|circuit_breakers\..*_open)$"
        )
        assert {name.split(".")[1] for name in limits} == {"engines", "picker"}
        assert not any(limits.values()), limits
        active = await stack.envoy_stats(r"^cluster\.(engines|picker)\.upstream_rq_active$")
        assert active["cluster.engines.upstream_rq_active"] == STREAMS
        assert active["cluster.picker.upstream_rq_active"] >= STREAMS - late  # each keeps its own until it ends
        assert STREAMS - late <= (await stack.status())["pool"]["picks"] <= STREAMS
        assert STREAMS - late <= await total(stack, "open_picks") <= STREAMS
        assert sum(len(engine.streams) for engine in engines) == STREAMS
        for engine in engines:  # all alike: nobody is left out
            assert STREAMS / 8 < len(engine.streams) < STREAMS / 2.5

        # The worst moment: the picker reads nothing, what is logged of some ends has filled its socket, and all others
        # come at once. By default Envoy drops a connection on which more than 1,000 such frames wait.
        stack.picker.suspend()
        first, *others = engines
        ending = len(first.streams)
        first.finish()
        await eventually(lambda: flushed(stack, ending), what="they are logged")
        for engine in others:
            engine.finish()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(client.answer() for client in clients))
        assert {answer.body for answer in answers} == {b"data: first\n\ndata: [DONE]\n\n"}
        stack.picker.resume()
        await eventually(lambda: nothing_owed(stack), what="charges back to 0")

        async def logged() -> bool:
            return await finished(stack) == STREAMS

        await eventually(logged, what="all outcomes told")
        assert await finished(stack, 'status="2xx"', 'flag="none"') == STREAMS
        lost = await stack.envoy_stats(r"^cluster\.picker\.(http2\.outbound_.*flood|upstream_cx_protocol_error)$")
        assert lost
        assert not any(lost.values()), lost


ABORTED = 1_000
LONG = {"model": "emulated", "prompt": " the" * 50, "max_tokens": 8_000, "ignore_eos": True}


async def test_1000_clients_that_leave_give_everything_back_and_blame_nobody() -> None:
    clients: list[Client] = []
    options = EngineOptions(stream_interval=1_000, speed=0.25)  # few steps: the machine is for the streams
    async with Stack(engines=2, options=options) as stack:

        async def in_engines() -> int:
            loads = await asyncio.gather(*(get_json(engine.load_url) for engine in stack.engines))
            return sum(int(load["running"]) + int(load["waiting"]) for load in loads)

        async def all_there() -> bool:
            return await in_engines() == ABORTED

        async def none_there() -> bool:
            return await in_engines() == 0

        try:
            streaming = post("/v1/completions", json.dumps({**LONG, "stream": True}).encode())
            await open_streams(stack.gateway, request=streaming, count=ABORTED // 2, over=2, made=clients)
            silent = post("/v1/completions", json.dumps(LONG).encode())  # answered at its end only
            for number in range(ABORTED // 2):
                client = await Client.connect(stack.gateway)
                clients.append(client)
                client.send(silent)
                if number % 10 == 0:
                    await asyncio.sleep(0.05)
            await eventually(all_there, what="all requests in the engines")
            late = (await ext_proc(stack))["message_timeouts"]
            assert late <= ABORTED // 4, f"{late} picks took longer than 100 ms"
            assert ABORTED - late <= await total(stack, "open_picks") <= ABORTED
            before = await finished(stack)
        finally:
            abort(clients)
        await eventually(lambda: nothing_owed(stack), what="charges back to 0")
        await eventually(none_there, what="the engines' requests aborted")

        async def logged() -> bool:
            return await finished(stack) == before + ABORTED

        await eventually(logged, what="all outcomes told")
        assert await finished(stack, 'flag="client_left"') == ABORTED
        assert await finished(stack, 'status="5xx"') == 0
        for endpoint in await endpoints(stack):
            assert (endpoint["state"], endpoint["failures"]) == ("ok", 0)
        stats = await stack.envoy_stats(
            r"^(http\.ingress\.downstream_rq_5xx|cluster\.engines\.outlier_detection\.ejections_(active|total))$"
        )
        assert len(stats) >= 2
        assert not any(stats.values()), stats

        short = post("/v1/completions", json.dumps({**LONG, "max_tokens": 1}).encode())
        client = await Client.connect(stack.gateway)
        assert {(await client.ask(short)).status for _ in range(20)} == {200}
        client.close()
        await eventually(lambda: nothing_owed(stack), what="charges back to 0")
