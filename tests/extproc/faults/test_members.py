"""Engines come and go under load; half of them down; none of them pollable."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import yaml

from halffull_lab.stack import Engine, Stack
from tests.extproc.faults.load import Load
from tests.extproc.faults.watching import (
    endpoints,
    eventually,
    fault,
    in_state,
    logged,
    metric,
    picked_again,
    picks,
    served,
    troubles,
)

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(120)]


async def listed(stack: Stack, engine: Engine, *, expected: bool) -> None:
    """Wait until both picker and Envoy know, or no longer know, an engine."""

    async def same() -> bool:
        address = engine.http.address
        return (address in await endpoints(stack)) == (address in await served(stack)) == expected

    await eventually(same, what=f"{engine.name} listed: {expected}")


async def end(engine: Engine) -> None:
    """Stop an engine that is no longer the stack's."""
    await engine.child.stop()
    engine.http.close()
    engine.load.close()


async def test_engines_added_and_removed_under_load(stack: Stack) -> None:
    async with Load(stack.gateway) as load, AsyncExitStack() as leftovers:
        await load.more(20)
        added = await stack.add_engine()
        await listed(stack, added, expected=True)
        await picked_again(stack, added)

        long = [load.send(output_tokens=8_000) for _ in range(12)]
        leaving = stack.engines[0]
        leftovers.push_async_callback(end, leaving)
        leftovers.push_async_callback(load.answered)
        await stack.remove_engine(leaving, stop=False)
        await listed(stack, leaving, expected=False)
        removed = time.monotonic()
        open_on_it = [one for one in long if one.ended is None]
        await load.more(60)

        back = stack.engines[0]  # gone and back, its streams still open
        for _ in range(2):
            stack.engines.remove(back)
            stack.write_files()
            await listed(stack, back, expected=False)
            stack.engines.insert(0, back)
            stack.write_files()
            await listed(stack, back, expected=True)
        await picked_again(stack, back)
        assert min(one["charged_tokens"] for one in (await endpoints(stack)).values()) >= 0
    assert [one.failure for one in load.failed] == []
    entries = await logged(stack, load.sent)
    assert leaving.http.address in {entries[one.request_id]["served"] for one in open_on_it}
    assert leaving.http.address not in {entries[one.request_id]["served"] for one in load.since(removed)}


async def test_half_of_the_engines_and_the_picker_down(stack: Stack) -> None:
    down, up = stack.engines[:2], stack.engines[2:]
    async with Load(stack.gateway) as load:
        await load.more(20)
        for engine in down:
            engine.child.kill()
            await in_state(stack, engine, "failing", within=20)
        await load.more(50)
        stack.picker.kill()
        dead = time.monotonic()
        await load.more(200)
        gone = time.monotonic()
        await stack.start_picker()
        for engine in down:
            engine.child.start()
        for engine in stack.engines:
            await picked_again(stack, engine, within=40)
    entries = await logged(stack, load.sent)
    while_dead = [one for one in load.since(dead) if one.began < gone]
    answered = [one for one in while_dead if not one.failure]
    # Two attempts in all: when the ejection of both dead ones ends at once, a request may meet the one and the other.
    # Until Envoy, on a busy machine, has ejected them anew, near half do. Without any ejection it is 60 of these 200;
    # ejected without the workers being told at once, 46 are refused.
    assert len(while_dead) - len(answered) <= 15
    refused = [one for one in while_dead if entries[one.request_id]["attempts"] > 1]
    assert len(refused) <= 30, "hosts that are ejected still get requests"
    assert {entries[one.request_id]["served"] for one in answered} == {engine.http.address for engine in up}


@asynccontextmanager
async def resetting(count: int) -> AsyncIterator[list[int]]:
    """Ports that take connections and reset each: what a mesh with STRICT mTLS does to plain text."""

    def reset(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()

    servers = [await asyncio.start_server(reset, "127.0.0.1", 0) for _ in range(count)]
    try:
        yield [server.sockets[0].getsockname()[1] for server in servers]
    finally:
        for server in servers:
            server.close()
            await server.wait_closed()


async def test_every_poll_reset_is_one_line_and_routing_goes_on(stack: Stack) -> None:
    errors_before = stack.picker.output().count("no engine can be polled")
    async with Load(stack.gateway) as load, resetting(len(stack.engines)) as ports:
        await load.more(20)
        entries = [
            {"address": engine.http.address, "loadPort": port}
            for engine, port in zip(stack.engines, ports, strict=True)
        ]
        stack.endpoints_file.write_text(yaml.safe_dump({"endpoints": entries}))

        async def told() -> str:
            return (await troubles(stack)).get("polling", "")

        trouble: str = await eventually(told, what="the trouble on the status page")
        for word in ("reset", "load.report.port", "NetworkPolicy", "mesh"):
            assert word in trouble
        assert await metric(stack, 'halffull_picker_trouble{about="polling"}') == 1
        for engine in stack.engines:
            await in_state(stack, engine, "stale")
        slow, *others = stack.engines
        await fault(slow, "slow", factor=20)
        await load.more(20)
        before = await picks(stack)
        await load.more(200)
        after = await picks(stack)
        gained = {address: after[address] - before[address] for address in after}
        assert gained[slow.http.address] <= 0.17 * sum(gained.values()), "its requests stay charged to it for longer"
        assert min(gained[engine.http.address] for engine in others) >= 0.2 * sum(gained.values())
        await fault(slow, "none")
        assert stack.picker.output().count("no engine can be polled") == errors_before + 1
        stack.write_files()
        for engine in stack.engines:
            await picked_again(stack, engine)
        assert await told() == ""
        assert await metric(stack, 'halffull_picker_trouble{about="polling"}') == 0
    assert [one.failure for one in load.failed] == []
