"""What Envoy and the picker count, as the tests of scale read it."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from halffull_lab.stack import Stack, get_text
from tests.extproc.scale.client import Client
from tests.extproc.scale.upstream import Upstream

EXT_PROC = "http.ingress.ext_proc."


async def eventually(holds: Callable[[], Awaitable[object]], *, within: float = 60.0, what: str) -> None:
    """Poll a condition until it holds, and fail with `what` and its last value after `within` seconds."""
    deadline = time.monotonic() + within
    while not (value := await holds()):
        assert time.monotonic() < deadline, f"{what}: not within {within:g} s, last {value!r}"
        await asyncio.sleep(0.05)


async def upstreams(stack: AsyncExitStack, count: int, *, host: str = "127.0.0.1") -> list[Upstream]:
    """Start some, to be stopped with the stack."""
    started = []
    for _ in range(count):
        started.append(await Upstream().start(host))
        stack.push_async_callback(started[-1].stop)
    return started


async def ext_proc(stack: Stack) -> dict[str, int]:
    """Envoy's counters of the ext_proc filter, names without their prefix."""
    stats = await stack.envoy_stats(rf"^{EXT_PROC}".replace(".", r"\."))
    return {name.removeprefix(EXT_PROC): value for name, value in stats.items()}


async def picked(stack: Stack, request: bytes) -> Client:
    """Send a request on a connection of its own, again while the picker misses Envoy's 100 ms and it passes unpicked.

    Nobody else may ask meanwhile. The answer may have begun or not.
    """
    async with asyncio.timeout(60):
        while True:
            before = await ext_proc(stack)
            client = await Client.connect(stack.gateway)
            client.send(request)
            after = before
            while all(after[name] == before[name] for name in ("stream_msgs_received", "message_timeouts")):
                await asyncio.sleep(0.02)
                after = await ext_proc(stack)
            if after["message_timeouts"] == before["message_timeouts"]:
                return client
            client.abort()


async def ok(stack: Stack) -> bool:
    """Whether every engine has reported and is well."""
    return all(endpoint["state"] == "ok" for endpoint in await endpoints(stack))


async def endpoints(stack: Stack) -> list[dict[str, Any]]:
    """The picker's view of each engine."""
    found: list[dict[str, Any]] = (await stack.status())["pool"]["endpoints"]
    return found


async def total(stack: Stack, field: str) -> float:
    """The sum of a figure over the engines."""
    return sum(float(endpoint[field]) for endpoint in await endpoints(stack))


async def nothing_owed(stack: Stack) -> bool:
    """Whether no pick is open and nothing is charged."""
    names = ("open_picks", "charged_requests", "charged_tokens")
    return all(endpoint[name] == 0 for endpoint in await endpoints(stack) for name in names)


async def picker_metric(stack: Stack, name: str, *labels: str) -> float:
    """The sum of the picker's series of this name that carry all of these labels, such as `flag="none"`."""
    text = await get_text(f"{stack.metrics}/metrics")
    lines = re.findall(rf"^halffull_picker_{name}(?:\{{(.*)\}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for found, value in lines if all(label in found for label in labels))


async def finished(stack: Stack, *labels: str) -> float:
    """Requests that ended, by what Envoy's access log told the picker."""
    return await picker_metric(stack, "requests_total", *labels)
