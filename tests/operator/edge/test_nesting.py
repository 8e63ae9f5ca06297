"""JSON that is nested deeper than Python reads: cut, not refused; and what is not deep is left as it is."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.aio import client

from halffull_operator.access import kopf_session
from halffull_operator.nesting import DEEPEST, loads, shallow

VALUES = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(["{", "[[", '"', "\\", '\\"{', "}"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=30,
)


def nested(depth: int) -> bytes:
    return b'{"a":[' * (depth // 2) + b"1" + b"]}" * (depth // 2)


def depth_of(value: Any) -> int:
    depth = 0
    while isinstance(value, dict | list) and value:
        depth, value = depth + 1, value["a"] if isinstance(value, dict) else value[0]
    return depth


@settings(deadline=None)
@given(VALUES, st.booleans())
def test_what_is_not_deep_stays(value: Any, ascii_only: bool) -> None:
    text = json.dumps([value] * 60, ensure_ascii=ascii_only).encode()
    assert shallow(text) == text


@settings(deadline=None)
@given(VALUES)
def test_what_is_around_a_deep_one_stays(value: Any) -> None:
    told = json.dumps(value).encode()
    text = b'{"before":' + told + b',"deep":' + nested(3000) + b',"after":' + told + b"}"
    found = loads(text)
    assert (found["before"], found["after"]) == (value, value)
    assert depth_of(found["deep"]) == DEEPEST - 1


@pytest.mark.parametrize("text", [b"", b"{", b'{"a":' * 2000, b"]" * 2000, b'"' + b"{" * 2000])
def test_what_is_no_json_is_an_error_of_json(text: bytes) -> None:
    with pytest.raises(ValueError, match="line 1"):
        loads(text)


async def test_kopf_reads_lists_and_watches_with_a_deep_object() -> None:
    deep = b'{"deep":' + nested(9000) + b"}"

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return web.Response(body=deep, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (b'{"a":1}\n{"b"', b":2}\n" + deep[:100], deep[100:] + b"\n", b'{"c":3}'):
            await response.write(part)
            await asyncio.sleep(0.01)
        return response

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        async with kopf_session(client.Configuration(host=url), seen=lambda *_: None, user_agent="test") as session:
            async with session.get(url) as response:
                assert depth_of((await response.json())["deep"]) == DEEPEST - 1
            async with session.get(url, params={"watch": "true"}) as response:
                body = b"".join([chunk async for chunk in response.content.iter_chunked(64)])
    finally:
        await runner.cleanup()
    first, second, third, fourth = map(json.loads, body.splitlines())
    assert (first, second, fourth) == ({"a": 1}, {"b": 2}, {"c": 3})
    assert depth_of(third["deep"]) == DEEPEST - 1
