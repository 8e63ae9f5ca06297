"""With the picker dead, hung or replaced, requests flow; with FailClose they are refused in words."""

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.policies import Policy
from halffull_extproc.xds.ads import AdsServer
from tests.extproc.envoy.conftest import StartGateway
from tests.extproc.envoy.stack import Engine, Gateway, Picker, PickerProcess, eventually, lines, start_envoy
from tests.extproc.envoy.test_policy_swap import Traffic


async def test_dead_picker_costs_no_request_and_traffic_flows_by_p2c(gateway: StartGateway) -> None:
    running = await gateway(engines=4)
    traffic = Traffic(running)
    await traffic.more()
    assert {len(engine.requests) > 0 for engine in running.engines[2:]} == {False}  # the pool picks the first two
    await running.picker.stop()
    await traffic.more(100)
    await traffic.stop()
    assert set(traffic.answers) == {200}
    assert all(engine.requests for engine in running.engines)


async def test_dead_picker_leaves_draining_and_unhealthy_hosts_alone(gateway: StartGateway) -> None:
    running = await gateway(engines=4)
    addresses = [engine.address for engine in running.engines]
    healths = [Health.UNHEALTHY, Health.HEALTHY, Health.DRAINING, Health.UNHEALTHY]
    running.picker.set_endpoints([Endpoint(a, health=h) for a, h in zip(addresses, healths, strict=True)])
    expected = dict(zip(addresses, ("UNHEALTHY", "HEALTHY", "DRAINING", "UNHEALTHY"), strict=True))

    async def applied() -> bool:
        return await running.envoy.hosts() == expected

    await eventually(applied, what="health by EDS")
    for _ in range(20):
        assert (await running.ask())[1]["engine"] == addresses[1]
    await running.picker.stop()
    for _ in range(200):  # under half healthy: Envoy's panic mode would use all four
        status, told = await running.ask()
        assert (status, told["engine"]) == (200, addresses[1])
    assert [len(engine.requests) for engine in running.engines] == [0, 220, 0, 0]


async def test_fail_close_refuses_in_words_and_comes_back(gateway: StartGateway) -> None:
    running = await gateway(engines=2, fail_open=False)
    assert (await running.ask())[0] == 200
    await running.picker.stop()
    status, told = await running.ask()
    assert status == 503
    assert told["error"] == {"code": 503, "message": "The picker does not answer.", "type": "GatewayError"}
    await running.picker.start()

    async def served() -> bool:
        return (await running.ask())[0] == 200

    await eventually(served, what="the picker is back")


async def test_failure_mode_changes_live(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    for fail_open in (False, True, False):
        running.picker.set_route(Policy.SAL, fail_open=fail_open)

        async def applied(*, wanted: bool = fail_open) -> bool:
            dump = str(await running.envoy.config_dump())
            return f"'failure_mode_allow': {wanted}" in dump.partition("RoutesConfigDump")[2]

        await eventually(applied, what="the route")
    await running.picker.stop()
    assert (await running.ask())[0] == 503
    assert await running.listener_changes() == {}


@pytest.mark.parametrize("fail_open", [True, False])
async def test_stopping_picker_leaves_open_streams_intact(gateway: StartGateway, *, fail_open: bool) -> None:
    running = await gateway(engines=1, fail_open=fail_open)
    async with running.session.post(running.url + "/v1/stream", data=b"{}") as response:
        stream = lines(response)
        assert await anext(stream) == b"data: first"
        started = asyncio.get_running_loop().time()
        await running.picker.stop(grace=20)
        assert asyncio.get_running_loop().time() - started < 5  # nor does it wait for them
        assert not running.picker.pool.open
        assert await anext(stream) == b"data: more"
        running.engines[0].finish.set()
        assert [line async for line in stream][-1] == b"data: [DONE]"


async def test_restarted_picker_with_foreign_versions_is_believed(gateway: StartGateway) -> None:
    running = await gateway(engines=3)
    traffic = Traffic(running)
    await traffic.more()
    for kept in (2, 1, 3):
        await running.picker.stop()
        running.picker.pool.endpoints = [Endpoint(engine.address) for engine in running.engines[:kept]]
        await running.picker.start()

        async def reconnected(kept: int = kept) -> bool:
            return len(await running.envoy.hosts()) == kept

        await eventually(reconnected, what="the new picker's endpoints")
        await traffic.more()
    await traffic.stop()
    assert set(traffic.answers) == {200}
    assert traffic.reconnected == 0
    assert await running.listener_changes() == {}
    assert running.picker.ads is not None
    await running.settled()
    counts = running.picker.ads.counts
    for name in ("Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration"):
        assert counts[name, "accepted"] >= 1
    assert not [key for key in counts if key[1] in ("rejected", "ignored")]


async def test_restarted_picker_that_knows_no_endpoints_yet_does_not_empty_envoy(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    await running.picker.stop()
    config, running.picker.config, running.picker.ads = running.picker.config, None, None
    assert config is not None
    running.picker.ads = AdsServer(config, policy=Policy.SAL, fail_open=True)  # set_endpoints is not called
    await running.picker.start()
    ads = running.picker.ads
    await eventually(lambda: ads.counts["Cluster", "accepted"] and ads.counts["Listener", "accepted"], what="ADS")
    assert (await running.ask())[0] == 200
    assert list(await running.envoy.hosts()) == [running.engines[0].address]


async def test_sigkill_and_restart_of_the_process(tmp_path: Path, socket_folder: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = await Engine().start()
        stack.push_async_callback(engine.stop)
        listen, endpoints = f"unix:{socket_folder}/p", [Endpoint(engine.address)]
        first = await PickerProcess.start(listen=listen, endpoints=endpoints)
        stack.push_async_callback(first.stop)
        envoy, ready_port = await start_envoy(tmp_path, listen)
        stack.push_async_callback(envoy.stop)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        running = Gateway(envoy, Picker(listen), [engine], await envoy.listening(), session, ready_port)
        response = await stack.enter_async_context(session.post(running.url + "/v1/stream", data=b"{}"))
        stream = lines(response)
        assert await anext(stream) == b"data: first"
        traffic = Traffic(running)
        await traffic.more()

        async def streams() -> int:
            return await envoy.stat("http.ingress.ext_proc.streams_started")

        first.signal(signal.SIGKILL)
        await first.stop()
        await traffic.more(50)
        second = await PickerProcess.start(listen=listen, endpoints=endpoints)  # another process: other map orders, too
        stack.push_async_callback(second.stop)

        async def connected() -> bool:
            return await envoy.stat("control_plane.connected_state") == 1

        await eventually(connected, what="ADS")
        await traffic.more(20)
        second.signal(signal.SIGSTOP)  # hung: each request waits for the message timeout, and passes
        timeouts = await envoy.stat("http.ingress.ext_proc.message_timeouts")
        await traffic.more(12)
        assert await envoy.stat("http.ingress.ext_proc.message_timeouts") > timeouts
        second.signal(signal.SIGCONT)
        await traffic.more(20)
        await traffic.stop()
        engine.finish.set()
        assert [line async for line in stream][-1] == b"data: [DONE]"
        assert set(traffic.answers) == {200}
        assert traffic.reconnected == 0
        assert await running.listener_changes() == {}
