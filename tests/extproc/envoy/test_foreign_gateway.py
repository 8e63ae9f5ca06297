"""Other people's gateways: a plain Envoy whose configuration is not ours, in each body mode that it may choose."""

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.tls import SelfSigned
from tests.extproc.envoy.stack import Engine, Envoy, Gateway, Picker, eventually, lines, pattern
from tests.ports import free_port

SIZES = [0, 1, 128 * 1024, 1024 * 1024, 5 * 1024 * 1024]
StartForeign = Callable[..., Awaitable[Gateway]]
HERE = Path(__file__).parent


def configuration(body_mode: str, *, engines: list[str], picker: str, admin_port: int, buffer: int) -> str:
    """Fill in foreign.yaml. `body_mode` is the request's and the response's."""
    text = (HERE / "foreign.yaml").read_text()
    hosts = [{"endpoint": {"address": {"socket_address": _host(address)}}} for address in engines]
    values = {
        "BODY_MODE": body_mode,
        "HOSTS": hosts,
        "PICKER_PORT": int(picker.rpartition(":")[2]),
        "ADMIN_PORT": admin_port,
        "BUFFER": buffer,
    }
    for name, value in values.items():
        text = text.replace(f"${name}", yaml.safe_dump(value, default_flow_style=True).replace("...", "").strip())
    return text


def _host(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"address": host, "port_value": int(port)}


@pytest.fixture
async def foreign(tmp_path: Path) -> AsyncIterator[StartForeign]:
    """`await foreign("BUFFERED")` starts a gateway of somebody else's, which reaches our picker by TCP and TLS."""
    async with AsyncExitStack() as stack:

        async def start(body_mode: str, *, buffer: int = 16 * 1024 * 1024) -> Gateway:
            engines = [await Engine().start() for _ in range(3)]
            for engine in engines:
                stack.push_async_callback(engine.stop)
            picker = Picker("127.0.0.1:0", tls=SelfSigned())
            picker.set_endpoints([Endpoint(engine.address) for engine in engines])
            await picker.start()
            stack.push_async_callback(picker.stop)
            assert picker.server is not None
            config = configuration(
                body_mode,
                engines=[engine.address for engine in engines],
                picker=f"127.0.0.1:{picker.server.port}",
                admin_port=(admin_port := free_port()),
                buffer=buffer,
            )
            envoy = await Envoy.start(config, folder=tmp_path, admin_port=admin_port)
            stack.push_async_callback(envoy.stop)
            session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(100)))
            return Gateway(envoy, picker, engines, await envoy.listening("foreign"), session, 0)

        yield start


@pytest.mark.parametrize("body_mode", ["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_bodies_pass_whole_in_every_mode(foreign: StartForeign, body_mode: str) -> None:
    running = await foreign(body_mode)
    pool = running.picker.pool
    for number, size in enumerate(SIZES):
        engine = running.engines[number % 3]
        pool.choose = lambda _eligible, address=engine.address: [address]
        body = pattern(size)
        status, told = await running.ask(data=io.BytesIO(body), headers={"content-length": str(size)})
        assert (status, told["engine"]) == (200, engine.address)
        assert (told["bytes"], told["sha256"]) == (size, hashlib.sha256(body).hexdigest())
        assert told["headers"]["x-gateway-destination-endpoint"] == engine.address
        async with running.session.post(
            running.url + "/v1/x", data=io.BytesIO(body), headers={"answer-bytes": str(size)}
        ) as response:
            answer = await response.read()
            assert response.headers["sha256"] == hashlib.sha256(body).hexdigest()
            assert (len(answer), answer) == (size, pattern(size))
    await eventually(lambda: not pool.open, what="every pick closed")
    assert len(pool.closed) == 2 * len(SIZES)
    sizes = [size for size in SIZES for _ in range(2)]
    assert [seen for _, seen in pool.closed] == ([None if body_mode == "NONE" or not s else s for s in sizes])
    assert {outcome.succeeded for outcome in pool.outcomes} <= {engine.address for engine in running.engines}


@pytest.mark.parametrize("body_mode", ["NONE", "BUFFERED", "STREAMED", "FULL_DUPLEX_STREAMED"])
async def test_chunked_bodies_and_trailers_arrive_in_order(foreign: StartForeign, body_mode: str) -> None:
    running = await foreign(body_mode)
    parts = [pattern(size) for size in (1, 70_000, 62_000, 62_001, 5)]
    reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
    writer.write(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: checksum\r\n\r\n")
    for part in parts:
        writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\nchecksum: of-the-client\r\n\r\n")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    assert head.startswith(b"HTTP/1.1 200"), head
    writer.close()
    await writer.wait_closed()
    whole = b"".join(parts)
    assert len(running.engines[0].requests) == 1
    running.engines[0].finish.set()
    request = running.engines[0].requests[0]
    assert request.headers.get("transfer-encoding") == "chunked"
    status, told = await running.ask(data=io.BytesIO(whole))
    assert (status, told["sha256"]) == (200, hashlib.sha256(whole).hexdigest())
    await eventually(lambda: not running.picker.pool.open, what="every pick closed")


async def test_utf8_and_events_split_across_chunks_pass_as_they_are(foreign: StartForeign) -> None:
    running = await foreign("FULL_DUPLEX_STREAMED")
    text = '{"prompt": "' + "żółć🙂" * 20_000 + '"}'

    async def cut() -> AsyncIterator[bytes]:
        data = text.encode()
        for start in range(0, len(data), 61_999):  # in the middle of letters
            yield data[start : start + 61_999]

    status, told = await running.ask(data=cut())
    assert (status, told["sha256"]) == (200, hashlib.sha256(text.encode()).hexdigest())
    async with running.session.post(running.url + "/v1/stream", data=b"{}") as response:
        stream = lines(response)
        assert await anext(stream) == b"data: first"  # not held back until the end
        for engine in running.engines:
            engine.finish.set()
        assert [line async for line in stream][-1] == b"data: [DONE]"


@pytest.mark.parametrize("body_mode", ["NONE", "BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_no_endpoint_is_503_in_words(foreign: StartForeign, body_mode: str) -> None:
    running = await foreign(body_mode)
    running.picker.set_endpoints([])
    status, told = await running.ask(data=io.BytesIO(pattern(200_000)))
    assert status == 503
    assert "No engine is ready" in told["error"]["message"]


@pytest.mark.parametrize("body_mode", ["NONE", "BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_subset_hint_limits_the_pick(foreign: StartForeign, body_mode: str) -> None:
    running = await foreign(body_mode)
    allowed = running.engines[2].address
    status, told = await running.ask("/v1/x", headers={"test-subset": allowed}, data=b"{}")
    assert (status, told["engine"]) == (200, allowed)
    for hint in ("", "10.0.0.1:1"):
        status, told = await running.ask("/v1/x", headers={"test-subset": hint, "test-subset-set": "1"}, data=b"{}")
        assert status == 503, hint
        assert "None of the engines that the gateway allows" in told["error"]["message"]
    assert running.picker.pool.picks[0][2] == {allowed}


async def test_served_feedback_says_who_answered(foreign: StartForeign) -> None:
    running = await foreign("FULL_DUPLEX_STREAMED")
    pool, engine = running.picker.pool, running.engines[1]
    pool.choose = lambda _eligible: [engine.address]
    await running.ask()
    engine.status = 500
    await running.ask()
    assert [(o.picked, o.served, o.failed, o.succeeded) for o in pool.outcomes] == [
        (engine.address, engine.address, (), engine.address),
        (engine.address, engine.address, (engine.address,), None),
    ]


@pytest.mark.parametrize("body_mode", ["NONE", "BUFFERED", "FULL_DUPLEX_STREAMED"])
async def test_client_sent_control_headers_are_overwritten(foreign: StartForeign, body_mode: str) -> None:
    running = await foreign(body_mode)
    pool, trap = running.picker.pool, running.engines[2].address
    status, told = await running.ask(
        data=b"{}",
        headers={
            "x-gateway-destination-endpoint": trap,
            "x-gateway-destination-endpoint-subset": trap,
            "x-gateway-destination-endpoint-served": trap,
        },
    )
    assert (status, told["engine"]) == (200, running.engines[0].address)
    assert told["headers"]["x-gateway-destination-endpoint"] == ",".join(pool.picks[0][0].addresses)
    assert "x-gateway-destination-endpoint-subset" not in told["headers"]
    assert "x-gateway-destination-endpoint-served" not in told["headers"]


async def test_buffered_body_above_grpc_s_default_limit(foreign: StartForeign) -> None:
    running = await foreign("BUFFERED")
    body = pattern(12 * 1024 * 1024)  # grpc takes 4 MiB by default
    status, told = await running.ask(data=io.BytesIO(body))
    assert (status, told["sha256"]) == (200, hashlib.sha256(body).hexdigest())
