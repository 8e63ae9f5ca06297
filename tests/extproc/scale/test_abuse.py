"""What a client writes never steers: the whole managed gateway, with the picker and without it."""

import json
from contextlib import AsyncExitStack

from halffull_lab.stack import Stack
from tests.extproc.scale.client import Answer, Client, get, post
from tests.extproc.scale.figures import eventually, ok, picker_metric, upstreams
from tests.extproc.scale.upstream import Upstream

TRIES = 60
DESTINATION = "x-gateway-destination-endpoint"


def steering(target: str) -> list[str]:
    """Every header that one might hope to steer with."""
    return [
        f"{DESTINATION}: {target}",
        f"X-Gateway-Destination-Endpoint: {target},{target}",
        f"{DESTINATION}-served: {target}",
        f"{DESTINATION}-subset: {target}",
        f"{DESTINATION.replace('-', '_')}: {target}",
        f"X_Gateway_Destination_Endpoint_Subset: {target}",
        f"x-envoy-original-dst-host: {target}",
        f"x_envoy_original_dst_host: {target}",
        f"x-envoy-lb-metadata: {target}",
        "x-envoy-upstream-rq-timeout-ms: 1",
        "x-envoy-upstream-rq-per-try-timeout-ms: 1",
        "x-envoy-expected-rq-timeout-ms: 1",
        "x-envoy-max-retries: 9",
        "x-envoy-retry-on: 5xx,connect-failure",
        "x-envoy-internal: true",
        "x-envoy-upstream-alt-stat-name: mine",
        "x-envoy-decorator-operation: mine",
        f"x-forwarded-host: {target}",
    ]


HIDDEN = ("x-gateway-", "x_gateway", "x_envoy", "x-envoy-original", "x-envoy-upstream", "x-envoy-max", "x-envoy-retry")
"""What no engine may be told: beginnings of names."""


async def tries(stack: Stack, engines: list[Upstream], headers: list[str]) -> dict[str, int]:
    """Ask many times with these headers; how often each engine was asked."""
    for engine in engines:
        engine.requests.clear()
    client = await Client.connect(stack.gateway)
    try:
        for _ in range(TRIES):
            assert (await client.ask(post("/v1/completions", b"{}", *headers))).status == 200
        slow = await client.ask(post("/v1/slow", b"{}", *headers))
        assert slow.status == 200  # none of the client's timeouts
    finally:
        client.close()
    for engine in engines:
        for seen in engine.requests:
            assert not [name for name, _ in seen.headers if name.startswith(HIDDEN)], seen.headers
    return {engine.address: len(engine.requests) for engine in engines}


async def raw(stack: Stack, request: bytes) -> Answer:
    client = await Client.connect(stack.gateway)
    try:
        return await client.ask(request, within=20)
    finally:
        client.abort()


BODY = b"0\r\n\r\nGET /v1/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
SMUGGLED = (
    f"content-length: {len(BODY)}\r\ntransfer-encoding: chunked",
    f"transfer-encoding: chunked\r\ncontent-length: {len(BODY)}",
    f"content-length: 5\r\ncontent-length: {len(BODY)}",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "transfer-encoding: xchunked",
    f"content-length: +{len(BODY)}",
    "content-length: 0x10",
)
REFUSED_PATHS = ("/metrics", "/reset_prefix_cache", "/v1/../metrics", "/v1/%2e%2e/sleep", "/load", "/status.json")


async def test_nothing_that_a_client_writes_steers_with_the_picker_or_without() -> None:
    async with AsyncExitStack() as cleanup:
        *engines, stranger = await upstreams(cleanup, 3)
        stack = await cleanup.enter_async_context(Stack(engines=0, endpoints=[engine.entry() for engine in engines]))
        await eventually(lambda: ok(stack), what="all engines reported")

        first, second = (engine.address for engine in engines)
        shapes = [steering(first), steering(f"{second},{stranger.address}"), steering(stranger.address)]
        shapes += [[f"{DESTINATION}: {first}"], [f"x-envoy-original-dst-host: {stranger.address}"]]
        for headers in shapes:
            asked = await tries(stack, engines, headers)
            assert sum(asked.values()) == TRIES + 1  # each once: no retries of the client's
            assert min(asked.values()) >= 8, asked

        async def told() -> bool:
            return await picker_metric(stack, "requests_total") == len(shapes) * (TRIES + 1)

        await eventually(told, what="all outcomes told")
        assert await picker_metric(stack, "picks_not_obeyed_total") == 0
        for engine in engines:
            engine.requests.clear()

        for path in REFUSED_PATHS:
            answer = await raw(stack, get(path, *steering(first)))
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, 404), path
        for head in SMUGGLED:
            answer = await raw(stack, f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode() + BODY)
            assert answer.status in (400, 501), head
        answer = await raw(stack, get("/v1/models", f"x-long: {'x' * 100_000}"))
        assert answer.status == 431
        answer = await raw(stack, get("/v1/models", *(f"x-{number}: 1" for number in range(200))))
        assert answer.status == 431
        assert not any(engine.requests for engine in engines)

        stack.picker.kill()
        for headers in shapes:
            asked = await tries(stack, engines, headers)
            assert sum(asked.values()) == TRIES + 1
            assert min(asked.values()) >= 8, asked
        assert not stranger.requests
