"""An optional API that is watched and not served any more: kopf, which would end over it, is kept waiting."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kubernetes.aio import client

from halffull_operator import access

PATH = "/apis/monitoring.coreos.com/v1/podmonitors"


@pytest.fixture
async def answers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[client.Configuration, list[int]]]:
    """A server that answers with these, in turn, and the way to it."""
    monkeypatch.setattr(access, "_ABSENT_AGAIN", 0.01)
    left: list[int] = []

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=left.pop(0))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield configuration, left
    await runner.cleanup()


async def test_it_waits_until_it_is_served_again(answers: tuple[client.Configuration, list[int]]) -> None:
    configuration, left = answers
    left += [404, 404, 200]
    absent, seen = list[str](), list[str]()
    session = access.kopf_session(
        configuration,
        seen=lambda _, path, __: seen.append(path),
        absent=lambda path: not absent.append(path),  # type: ignore[func-returns-value]  # True
        user_agent="x",
    )
    async with session, asyncio.timeout(10), session.get(configuration.host + PATH) as response:
        assert response.status == 200
    assert (absent, seen, left) == ([PATH, PATH], [PATH], [])


async def test_of_others_kopf_is_told(answers: tuple[client.Configuration, list[int]]) -> None:
    configuration, left = answers
    left += [404]
    session = access.kopf_session(configuration, seen=lambda *_: None, absent=lambda _: False, user_agent="x")
    async with session, session.get(configuration.host + PATH) as response:
        assert response.status == 404
