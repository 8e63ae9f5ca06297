"""`stack`: the whole of Halffull as processes, shared by the tests of this folder and mended after each."""

import asyncio
from collections.abc import AsyncIterator

import pytest_asyncio

from halffull_lab.stack import EngineOptions, Stack
from tests.extproc.faults.watching import endpoints, eventually, fault

ENGINES = 4


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def shared_stack() -> AsyncIterator[Stack]:
    """Four emulated engines at twenty times their speed, the picker, Envoy."""
    async with Stack(
        engines=ENGINES,
        options=EngineOptions(speed=20, stream_interval=10, flags=("--allow-faults",)),
        envoy_flags=("--file-flush-interval-msec", "50", "--drain-time-s", "5", "--log-level", "warning"),
    ) as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="package")
async def stack(shared_stack: Stack) -> AsyncIterator[Stack]:
    """All is well before the test, and again after it, however it ends."""
    await well(shared_stack)
    yield shared_stack
    await mend(shared_stack)


async def well(stack: Stack) -> None:
    """Wait until the picker has heard from every engine and Envoy from the picker."""

    async def fine() -> bool:
        seen = await endpoints(stack)
        expected = {engine.http.address for engine in stack.engines}
        return {address for address, one in seen.items() if one["state"] == "ok"} == expected

    await eventually(fine, within=30, what="every engine is ok")

    async def connected() -> bool:
        return (await stack.envoy_stats("^control_plane.connected_state$")) == {"control_plane.connected_state": 1}

    await eventually(connected, within=30, what="Envoy is connected to the picker")


async def mend(stack: Stack) -> None:
    """Undo every fault."""
    stack.picker.resume()
    if stack.picker.returncode is not None:
        await stack.start_picker()
    for engine in stack.engines:
        engine.child.resume()
        if engine.child.returncode is not None:
            engine.child.start()
        await engine.child.ready(url=f"{engine.url}/health", within=60)
    await asyncio.gather(*(fault(engine, "none") for engine in stack.engines))
    stack.config["policy"] = "SAL"
    stack.write_files()
