"""IPv6 throughout: engines at [::1], every port on [::], which takes IPv4 too."""

import json
import socket
from contextlib import AsyncExitStack

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halffull_lab.child import Child, Port
from halffull_lab.stack import EngineOptions, Stack
from tests.extproc.scale.client import Client, get, post
from tests.extproc.scale.figures import endpoints, eventually, ext_proc, ok, picker_metric

REQUESTS = 40


def test_this_machine_has_ipv6() -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError as error:
        pytest.fail(f"this machine has no ::1, so nothing here says that Halffull works with IPv6: {error}")


async def serving(address: str) -> bool:
    """Whether grpc.health.v1 at the address says so."""
    async with grpc.aio.insecure_channel(address) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = await check(health_pb2.HealthCheckRequest(service="readiness"), timeout=20, wait_for_ready=True)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def status_of(url: str, path: str) -> int:
    client = await Client.connect(url)
    try:
        return (await client.ask(get(path), within=20)).status
    finally:
        client.close()


async def test_engines_picks_and_every_port_work_on_ipv6() -> None:
    async with AsyncExitStack() as cleanup:
        ports = [Port("::1") for _ in range(5)]
        for port in ports:
            cleanup.callback(port.close)
        grpc_port, listed = ports[0], [(ports[1], ports[2]), (ports[3], ports[4])]
        entries = [{"address": http.address, "loadPort": load.number} for http, load in listed]
        stack = Stack(engines=0, endpoints=entries, picker={"listen": {"grpc": f"[::]:{grpc_port.number}"}})
        named = {"gateway": stack.ports.gateway, "health": stack.ports.health, "metrics": stack.ports.metrics}
        on_all = {name: f"[::]:{port.number}" for name, port in named.items()}
        stack.config["gateway"]["listen"] = on_all["gateway"]
        stack.config["listen"] |= {"health": on_all["health"], "metrics": on_all["metrics"]}
        options = EngineOptions(speed=20, flags=("--host", "::1"))
        engines = [
            Child(options.argv(port=http.number, load_port=load.number), log=stack.folder / f"six-{http.number}.log")
            for http, load in listed
        ]
        for engine in engines:
            engine.start()
            cleanup.push_async_callback(engine.stop)
        for engine, (http, _) in zip(engines, listed, strict=True):
            await engine.ready(url=f"http://{http.address}/health", within=60)
        await cleanup.enter_async_context(stack)
        await eventually(lambda: ok(stack), what="load reports over IPv6")

        body = json.dumps({"model": "emulated", "prompt": "Hi", "max_tokens": 2}).encode()
        client = await Client.connect(f"http://[::1]:{stack.ports.gateway.number}")
        cleanup.callback(client.close)
        for _ in range(REQUESTS):
            assert (await client.ask(post("/v1/completions", body))).status == 200
        picked = REQUESTS - (await ext_proc(stack))["message_timeouts"]  # the machine was busy for 100 ms
        assert picked > 0

        async def told() -> bool:
            return await picker_metric(stack, "picks_obeyed_total") == picked

        await eventually(told, what="every pick in brackets obeyed")
        assert await picker_metric(stack, "picks_not_obeyed_total") == 0
        for endpoint in await endpoints(stack):
            assert endpoint["address"].startswith("[::1]:")
            assert endpoint["picks"] > 0
        stats = await stack.envoy_stats(r"^cluster\.engines\.(membership_total|upstream_rq_retry)$")
        assert stats == {"cluster.engines.membership_total": 2, "cluster.engines.upstream_rq_retry": 0}

        for host in ("[::1]", "127.0.0.1"):
            assert await serving(f"{host}:{grpc_port.number}"), host
            assert await serving(f"{host}:{stack.ports.health.number}"), host
            for port, path in (
                (stack.ports.gateway, "/v1/models"),
                (stack.ports.ready, "/ready"),
                (stack.ports.ready, "/stats/prometheus"),
                (stack.ports.metrics, "/metrics"),
                (stack.ports.metrics, "/status"),
                (stack.ports.metrics, "/status.json"),
            ):
                assert await status_of(f"http://{host}:{port.number}", path) == 200, (host, path)
