"""Only the allowed paths reach an engine: vLLM's control endpoints ask for no key."""

import asyncio
import json
import re

import pytest

from tests.extproc.envoy.conftest import StartGateway
from tests.extproc.envoy.stack import Gateway


async def raw(
    running: Gateway, target: str, *, method: str = "GET", head: str = "", body: bytes = b""
) -> tuple[int, bytes]:
    """Send a request target as it is written: client libraries tidy it up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(f"{method} {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{head}\r\n".encode("latin-1") + body)
    answer = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).lower()
    length = re.search(rb"content-length: (\d+)", answer)
    content = await asyncio.wait_for(reader.readexactly(int(length[1]) if length else 0), 60)
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), content


REFUSED = [
    "/metrics",
    "/",
    "/v1",
    "/V1/models",
    "/healthz",
    "/health/",
    "/reset_prefix_cache",
    "/v1/../metrics",
    "/v1/./../metrics",
    "/v1/x/../../metrics",
    "/v1/%2e%2e/metrics",
    "/v1/%2E%2E/metrics",
    "/v1/.%2e/metrics",
    "/v1/..%2fmetrics",
    "/v1/%2e%2e%2fmetrics",
    "/v1/..%5cmetrics",
    "/v1/..\\metrics",
    "//metrics",
    "/v1/..//metrics",
    "/%2fmetrics",
    "/%76%31/../metrics",
    "http://x/metrics",
    "http://x/v1/../metrics",
    "/metrics?/v1/",
    "/metrics;/v1/",
    "/metrics#/v1/models",
    "/v1/%00",
    "/v1/models#",
]


async def test_paths_outside_the_allowed_ones_never_reach_an_engine(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    for target in REFUSED:
        status, body = await raw(running, target)
        assert status in (400, 404), (target, status)
        error = json.loads(body)["error"]
        assert error["code"] == status, (target, body)
        assert error["message"], target
    assert not running.engines[0].requests
    assert not running.picker.pool.picks  # nor is anything charged for them
    status, body = await raw(running, "/metrics")
    assert json.loads(body)["error"]["message"] == "This path is not served here."
    status, body = await raw(running, "/v1/%00")
    assert json.loads(body)["error"]["message"].startswith("The path of the URL cannot be read: mind zero bytes")


async def test_tricks_that_stay_inside_arrive_in_the_form_that_was_judged(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    for target, path in {
        "/v1//models": "/v1/models",
        "/v1//../metrics": "/v1/metrics",
        "/v1/../v1/models": "/v1/models",
        "/v1/%2e%2e/v1/models": "/v1/models",
        "/metrics/../v1/models": "/v1/models",
        "//v1/models": "/v1/models",
        "/v1/models/org%2fname": "/v1/models/org/name",
        "/v1/..%252fmetrics": "/v1/..%252fmetrics",  # encoded twice: a name, decoded once by an engine
        "/v1/models?path=/../metrics": "/v1/models?path=/../metrics",
    }.items():
        status, body = await raw(running, target)
        assert (status, json.loads(body)["path"]) == (200, path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/models"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/audio/transcriptions"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/health"),
        ("OPTIONS", "/v1/chat/completions"),
        ("POST", "/v1/something/of/next/year"),
    ],
)
async def test_unknown_endpoints_of_the_api_are_not_rejected(gateway: StartGateway, method: str, path: str) -> None:
    running = await gateway(engines=1)
    multipart = {"content-type": "multipart/form-data; boundary=x"}
    status, told = await running.ask(
        path, method=method, data=b"--x--" if method == "POST" else None, headers=multipart
    )
    assert (status, told["path"]) == (200, path)


async def test_other_paths_can_be_allowed(gateway: StartGateway) -> None:
    running = await gateway(engines=1, paths=("/v2/*", "/exact"))
    got = {
        path: (await raw(running, path))[0]
        for path in ("/v2/x", "/exact", "/exact/x", "/exacter", "/v1/models", "/health")
    }
    assert got == {"/v2/x": 200, "/exact": 200, "/exact/x": 404, "/exacter": 404, "/v1/models": 404, "/health": 404}


async def test_too_large_requests_are_refused_by_their_content_length(gateway: StartGateway) -> None:
    running = await gateway(engines=1, max_request_bytes=1000)
    assert (await running.ask(data=b"x" * 1000))[0] == 200
    status, told = await running.ask(data=b"x" * 1001)
    assert (status, told["error"]["message"]) == (
        413,
        "The request is larger than the 1000 bytes that are allowed here.",
    )
    assert len(running.picker.pool.picks) == 1


async def test_smuggling_shapes_are_refused(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    for head in (
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "content-length: 5\r\ncontent-length: 6\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "content-length: -1\r\n",
    ):
        status, _ = await raw(running, "/v1/completions", method="POST", head=head, body=b"0\r\n\r\n")
        assert status in (400, 501), head
    assert not running.engines[0].requests


async def test_headers_with_underscores_do_not_pass_for_others(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    _, body = await raw(running, "/v1/models", head="x_gateway_destination_endpoint: 127.0.0.1:1\r\nx-fine: 1\r\n")
    headers = json.loads(body)["headers"]
    assert headers["x-fine"] == "1"
    assert "x_gateway_destination_endpoint" not in headers


async def test_readiness_port_serves_two_paths_and_not_the_admin_interface(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    base = f"http://127.0.0.1:{running.ready_port}"
    for method, path, status in (
        ("GET", "/ready", 200),
        ("GET", "/stats/prometheus", 200),
        ("POST", "/ready", 404),
        ("POST", "/quitquitquit", 404),
        ("GET", "/config_dump", 404),
        ("GET", "/ready/../config_dump", 404),
        ("GET", "/", 404),
    ):
        async with running.session.request(method, base + path) as response:
            assert response.status == status, (method, path)
    assert running.envoy.process.returncode is None
