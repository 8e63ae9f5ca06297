"""The gRPC edge, by grpc's own client: streams, health, limits, TLS, stopping."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halffull_extproc import wire
from halffull_extproc.policies import Policy
from halffull_extproc.server import Hooks, Server
from halffull_extproc.tls import SelfSigned, TlsError, TlsFiles, self_signed
from halffull_extproc.xds.ads import AdsServer
from halffull_extproc.xds.gateway_config import GatewayConfig
from halffull_extproc.xds.resources import CLUSTER
from tests.extproc.edge.waiting import until
from tests.extproc.protocol.messages import DUPLEX, Account, body, decoded, request
from tests.extproc.protocol.test_tls import write
from tests.extproc.xds.test_access_log import logged, message
from tests.extproc.xds.test_ads import ask

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
PROCESS = f"/{wire.EXT_PROC_SERVICE}/Process"
LOGS = f"/{wire.ACCESS_LOG_SERVICE}/StreamAccessLogs"
ADS = f"/{wire.ADS_SERVICE}/StreamAggregatedResources"


class Bench:
    """A server with an Account for a pool, and a client's channel to it."""

    def __init__(self, *addresses: str) -> None:
        self.account = Account(*addresses)
        self.logged: list[Any] = []
        self.alive = self.ready = True
        self.server: Server
        self.channel: Any

    def hooks(self) -> Hooks:
        return Hooks(
            pick=self.account.pick,
            close=lambda pick, *, body_bytes: self.account.close(pick, body_bytes=body_bytes),
            outcome=self.account.outcomes.append,
            access_log=self.logged.append,
            alive=lambda: self.alive and 1 / self.alive > 0,
            ready=lambda: self.ready,
        )

    def process(self) -> Any:
        return self.channel.stream_stream(PROCESS)()

    async def health(self, service: str, channel: Any = None) -> int:
        stub = health_pb2_grpc.HealthStub(channel or self.channel)
        status: int = (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status
        return status

    async def idle(self) -> None:
        for _ in range(500):
            if self.server.streams == 0:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(self.server.streams)


StartBench = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def bench() -> AsyncIterator[StartBench]:
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="hf"))

        async def start(*addresses: str, listen: str | None = None, **kwargs: Any) -> Bench:
            made = Bench(*(addresses or ("10.0.0.1:80",)))
            listen = listen or f"unix:{folder}/s"
            made.server = Server(hooks=made.hooks(), listen=listen, **kwargs)
            await made.server.start()
            stack.push_async_callback(made.server.stop, 0)
            target = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{made.server.port}"
            made.channel = grpc.aio.insecure_channel(target)
            stack.push_async_callback(made.channel.close)
            return made

        yield start


async def test_a_stream_is_a_pick_until_it_ends(bench: StartBench) -> None:
    made = await bench()
    call = made.process()
    await call.write(request({"content-length": "5"}))
    (answer,) = decoded([await call.read()])
    assert answer.HasField("request_headers")
    assert (made.server.streams, made.account.closed) == (1, [])
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await made.idle()
    assert len(made.account.closed) == 1


async def test_a_client_that_vanishes_leaves_no_charge(bench: StartBench) -> None:
    made = await bench()
    for _ in range(20):
        call = made.process()
        await call.write(request())
        await call.read()
        call.cancel()
    await made.idle()
    assert len(made.account.picked) == len(made.account.closed) == 20


async def test_malformed_bytes_end_the_stream_with_an_error_and_no_charge(bench: StartBench) -> None:
    made = await bench()
    for first in (None, request()):
        call = made.process()
        if first is not None:
            await call.write(first)
            await call.read()
        await call.write(b"\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await made.idle()
    assert made.server.counts["pick", "malformed"] == 2
    assert len(made.account.picked) == len(made.account.closed) == 1


async def test_a_pick_that_raises_leaves_the_request_to_the_failure_mode(bench: StartBench) -> None:
    made = await bench()
    made.account.error = RuntimeError("bug")
    call = made.process()
    await call.write(request())
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.INTERNAL
    assert "bug" not in error.value.details()
    assert made.server.counts["pick", "failed"] == 1
    made.account.error = None
    call = made.process()
    await call.write(request())
    assert decoded([await call.read()])[0].HasField("request_headers")


async def test_a_close_that_raises_is_counted(bench: StartBench) -> None:
    made = await bench()
    made.account.close = lambda *_args, **_kwargs: 1 / 0  # type: ignore[method-assign,assignment]
    call = made.process()
    await call.write(request())
    await call.read()
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    await made.idle()
    assert made.server.counts["pick", "failed"] == 1


async def test_messages_above_4_mib_are_taken_and_there_is_a_limit(bench: StartBench) -> None:
    made = await bench()
    call = made.process()
    await call.write(request(modes=(DUPLEX, DUPLEX)))
    await call.read()
    await call.write(body(b"x" * 8_000_000, end=True))
    size = 0
    while size < 8_000_000:
        part = decoded([await call.read()])[0].request_body.response.body_mutation.streamed_response
        size += len(part.body)
    await call.write(body(b"x" * 40_000_000, of="response"))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await made.idle()
    assert len(made.account.closed) == 1


async def test_3000_streams_at_once(bench: StartBench) -> None:
    made = await bench()
    calls = []
    for _ in range(3000):
        call = made.process()
        await call.write(request())
        calls.append(call)
    for call in calls:
        assert decoded([await call.read()])[0].HasField("request_headers")
    assert made.server.streams == 3000
    for call in calls:
        call.cancel()
    await made.idle()
    assert len(made.account.closed) == 3000


async def test_health_services_tell_what_is_true_when_asked(bench: StartBench) -> None:
    made = await bench(health_listen="127.0.0.1:0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{made.server.health_port}") as plain:
        services = ("", "liveness", "readiness", wire.EXT_PROC_SERVICE)
        for channel in (made.channel, plain):
            assert [await made.health(service, channel) for service in services] == [SERVING] * 4
            made.ready = False  # no endpoints are known
            assert [await made.health(s, channel) for s in services] == [NOT_SERVING, SERVING, NOT_SERVING, NOT_SERVING]
            made.ready, made.alive = True, False  # the pick raises: a probe that really picks
            assert [await made.health(service, channel) for service in services] == [NOT_SERVING] * 4
            made.alive = True
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await made.health("nobody", channel)
            assert error.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health_pb2_grpc.HealthStub(plain).Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == SERVING
        made.ready = False
        assert (await asyncio.wait_for(watch.read(), 5)).status == NOT_SERVING
        watch.cancel()


async def test_a_health_check_that_raises_is_not_serving(bench: StartBench) -> None:
    made = await bench()
    made.alive = None  # type: ignore[assignment]
    made.server._hooks = Hooks(**{**_fields(made.hooks()), "alive": lambda: 1 / 0})
    assert await made.health("liveness") == NOT_SERVING


def _fields(hooks: Hooks) -> dict[str, Any]:
    return {name: getattr(hooks, name) for name in Hooks.__dataclass_fields__}


async def test_access_log_reaches_both_hooks_and_survives_what_they_raise(bench: StartBench) -> None:
    made = await bench("10.0.0.1:8000")
    call = made.channel.stream_unary(LOGS)()
    await call.write(message(logged(), logged(status=500)))
    await call.write(b"\xff\xff")
    made.server._hooks = Hooks(**{**_fields(made.hooks()), "access_log": lambda _entry: 1 / 0})
    await asyncio.sleep(0)
    await call.write(message(logged(), logged()))
    await call.done_writing()
    assert await call == b""
    assert len(made.account.outcomes) == 4
    assert len(made.logged) + made.server.counts["access_log", "failed"] == 4


@pytest.mark.parametrize("full_duplex", [False, True])
async def test_stop_ends_answered_streams_as_done_and_waits_for_bodies(bench: StartBench, *, full_duplex: bool) -> None:
    made = await bench()
    call = made.process()
    await call.write(request(modes=(DUPLEX, DUPLEX)) if full_duplex else request())
    await call.read()
    stopping = asyncio.create_task(made.server.stop(10))
    if full_duplex:  # the gateway would lose the body
        await asyncio.sleep(0)
        await call.write(body(b"x", end=True))
        assert decoded([await call.read()])[0].request_body.response.body_mutation.streamed_response.body == b"x"
        assert not stopping.done()
        await call.done_writing()
    assert await call.read() is grpc.aio.EOF
    assert await call.code() is grpc.StatusCode.OK
    await asyncio.wait_for(stopping, 5)
    assert len(made.account.closed) == 1
    assert not await made.server.stop(0)  # twice is once


async def test_ads_streams_are_told_of_changes_and_ended_at_a_stop(bench: StartBench) -> None:
    ads = AdsServer(GatewayConfig(), policy=Policy.SAL, fail_open=True)
    made = await bench(ads=ads)
    calls = [made.channel.stream_stream(ADS)() for _ in range(2)]
    for call in calls:
        await call.write(ask(CLUSTER))
        await call.read()
        await call.write(ask("type.googleapis.com/envoy.config.route.v3.RouteConfiguration", ("ingress",)))
        await call.read()
    assert ads.connected == 2
    for policy in (Policy.Random, Policy.SAL):
        ads.set_route(policy, True)
        for call in calls:
            assert (b"engines-random" in await call.read()) is (policy is Policy.Random)
    bad = made.channel.stream_stream(ADS)()
    await bad.write(b"\xff\xff")
    assert await bad.read() is grpc.aio.EOF
    await made.server.stop(10)
    for call in calls:
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK
    assert ads.connected == 0


@pytest.mark.parametrize("method", [ADS, LOGS])
async def test_who_asks_anew_while_it_stops_does_not_keep_it(bench: StartBench, method: str) -> None:
    made = await bench(ads=AdsServer(GatewayConfig(), policy=Policy.SAL, fail_open=True))

    async def envoy() -> None:
        with contextlib.suppress(grpc.aio.AioRpcError):  # at last it is refused
            while True:
                call = made.channel.stream_stream(method)()
                await call.write(ask(CLUSTER) if method == ADS else message(logged()))
                while await call.read() is not grpc.aio.EOF:
                    pass

    envoys = [asyncio.create_task(envoy()) for _ in range(20)]
    await until(lambda: made.server.streams == len(envoys))
    await asyncio.wait_for(made.server.stop(60), 10)
    await asyncio.gather(*envoys)


async def test_without_ads_there_is_no_ads(bench: StartBench) -> None:
    made = await bench()
    call = made.channel.stream_stream(ADS)()
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call.read()
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "[::]:0"])
async def test_every_family_of_address(bench: StartBench, listen: str) -> None:
    made = await bench(listen=listen)
    assert made.server.port
    if listen == "[::]:0":
        async with grpc.aio.insecure_channel(f"127.0.0.1:{made.server.port}") as channel:  # takes IPv4 too
            assert await made.health("", channel) == SERVING
    else:
        assert await made.health("") == SERVING


async def test_an_address_in_use_is_an_error(bench: StartBench) -> None:
    made = await bench(listen="127.0.0.1:0")
    second = Server(hooks=made.hooks(), listen=f"127.0.0.1:{made.server.port}")
    with pytest.raises(RuntimeError, match="bind"):
        await second.start()
    await second.stop(0)


async def test_given_and_self_signed_certificates(bench: StartBench, tmp_path: Path) -> None:
    pair = self_signed()
    files = TlsFiles(str(tmp_path / "tls.crt"), str(tmp_path / "tls.key"))
    with pytest.raises(TlsError, match=r"tls\.crt: No such file"):
        await bench(listen="127.0.0.1:0", tls=files)
    write(files, pair)
    for tls in (files, SelfSigned()):
        made = await bench(listen="127.0.0.1:0", tls=tls)
        with pytest.raises(grpc.aio.AioRpcError):  # in the clear
            await made.health("")
        if tls is files:
            trusted = grpc.ssl_channel_credentials(pair.certificate)
            async with grpc.aio.secure_channel(f"localhost:{made.server.port}", trusted) as channel:
                assert await made.health("", channel) == SERVING
