"""A server that closes idle connections (uvicorn: after 5 s) and a client that still uses them: the classic race.

It is won by closing first. Envoy's counters show that for certain; that a request got through shows little.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from halffull_lab.stack import Stack
from tests.extproc.scale.client import Client, post
from tests.extproc.scale.figures import eventually

BODY = json.dumps({"model": "emulated", "prompt": "Hi", "max_tokens": 4, "ignore_eos": True}).encode()
AT_ONCE = 4  # each on a connection of its own to the engine


@asynccontextmanager
async def clients(stack: Stack, count: int) -> AsyncIterator[list[Client]]:
    """Connections to the gateway, which are not idle long enough for it to mind."""
    made = [await Client.connect(stack.gateway) for _ in range(count)]
    try:
        yield made
    finally:
        for client in made:
            client.close()


async def connections(stack: Stack) -> dict[str, int]:
    """Envoy's count of connections to engines, by how they ended."""
    stats = await stack.envoy_stats(r"^cluster\.engines\.upstream_(cx_|rq_retry$)")
    names = ("cx_total", "cx_active", "cx_idle_timeout", "cx_destroy_local", "cx_destroy_remote", "rq_retry")
    return {name: stats[f"cluster.engines.upstream_{name}"] for name in names}


async def test_envoy_closes_idle_connections_before_uvicorn_does() -> None:
    async with Stack(engines=1) as stack, clients(stack, 8) as made:
        answers = await asyncio.gather(*(client.ask(post("/v1/completions", BODY)) for client in made))
        assert [answer.status for answer in answers] == [200] * 8

        async def all_idle() -> bool:
            return (await connections(stack))["cx_active"] == 0

        await eventually(all_idle, what="all connections idle for long enough")
        ended = await connections(stack)
        assert ended["cx_total"] >= 2
        assert ended["cx_destroy_remote"] == 0
        assert ended["cx_idle_timeout"] == ended["cx_destroy_local"] == ended["cx_total"]


@pytest.mark.soak
async def test_200_requests_with_pauses_of_uvicorns_keep_alive() -> None:
    rng = random.Random(3)
    async with Stack(engines=2) as stack, clients(stack, AT_ONCE) as made:
        for _ in range(200):
            answers = await asyncio.gather(*(client.ask(post("/v1/completions", BODY)) for client in made))
            assert [answer.status for answer in answers] == [200] * AT_ONCE
            await asyncio.sleep(rng.uniform(4.9, 5.1))  # the pause is what is tested
        ended = await connections(stack)
        # None, unless the machine stood still over both timers once; else it would be half of them.
        assert ended["cx_destroy_remote"] <= AT_ONCE
        assert ended["rq_retry"] <= ended["cx_destroy_remote"]  # no other failure was papered over
        stats = await stack.envoy_stats(r"^http\.ingress\.downstream_rq_(2xx|4xx|5xx)$")
        assert stats["http.ingress.downstream_rq_2xx"] >= 200 * AT_ONCE
        assert stats["http.ingress.downstream_rq_4xx"] == stats["http.ingress.downstream_rq_5xx"] == 0


LOADS = [
    pytest.param({"metrics": {}}, id="uvicorn"),
    pytest.param({"report": {"port": 9400, "ranks": 1}}, id="load-report"),
]
INTERVALS = ("5s", "4999ms", "5001ms", "5002ms", "5003ms", "5005ms", "4995ms", "5010ms", "4990ms", "5050ms")


async def endpoints(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await stack.status())["pool"]["endpoints"]
    return found


async def polled(stack: Stack, *, times: int) -> bool:
    """Whether every engine has answered so often; no poll has failed and nobody was ever stale so far."""
    now = await endpoints(stack)
    for endpoint in now:
        assert endpoint["poll_failures"] == 0, endpoint
        assert endpoint["state"] in ("new", "ok"), endpoint
        assert endpoint["last_error"] == "", endpoint
    return all(endpoint["polls"] >= times for endpoint in now)


def poll_every(stack: Stack, interval: str) -> None:
    stack.config["poll"]["interval"] = interval
    stack.write_files()


async def polls_for(stack: Stack, *, times: int, interval: float) -> None:
    """Wait for that many more answers of everyone, looking each second."""
    start = max(endpoint["polls"] for endpoint in await endpoints(stack))
    async with asyncio.timeout(times * interval * 2 + 60):
        # A look each second, so that a state of a second is seen
        while not await polled(stack, times=start + times):  # noqa: ASYNC110
            await asyncio.sleep(1)


async def test_polling_as_seldom_as_the_keep_alive_allows_loses_no_poll() -> None:
    picker = {"load": {"metrics": {}}, "poll": {"interval": "5s"}}
    async with Stack(engines=3, picker=picker) as stack:
        await polls_for(stack, times=1, interval=5)
        poll_every(stack, "5500ms")  # now the server closes first, each time
        await polls_for(stack, times=2, interval=5)


@pytest.mark.soak
@pytest.mark.parametrize("load", LOADS)
async def test_200_polls_around_the_keep_alive_lose_none(load: dict[str, Any]) -> None:
    picker = {"load": load, "poll": {"interval": INTERVALS[0]}}
    async with Stack(engines=4, picker=picker) as stack:
        for interval in INTERVALS:  # of the race's two sides
            poll_every(stack, interval)
            await polls_for(stack, times=20, interval=5)
