"""Policy and failure mode change by the route alone: nothing drains, nothing warms, nothing fails."""

import asyncio
from collections import Counter

import pytest

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.policies import Policy
from tests.extproc.envoy.conftest import StartGateway
from tests.extproc.envoy.stack import Gateway, eventually, lines


class Traffic:
    """Requests without a pause over kept-alive connections until told to stop; counts what came back."""

    def __init__(self, running: Gateway, *, clients: int = 4) -> None:
        self.answers: Counter[object] = Counter()
        self.reconnected = 0
        self._running = running
        self._stop = asyncio.Event()
        self._clients = [asyncio.create_task(self._client()) for _ in range(clients)]

    async def _client(self) -> None:
        while not self._stop.is_set():
            async with self._running.session.post(self._running.url + "/v1/completions", data=b"{}") as response:
                await response.read()
                self.answers[response.status] += 1
                self.reconnected += response.headers.get("connection") == "close"

    async def more(self, number: int = 10) -> None:
        aim = sum(self.answers.values()) + number
        await eventually(lambda: sum(self.answers.values()) >= aim, what="traffic")

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._clients)


async def _route_updates(running: Gateway) -> int:
    return await running.envoy.stat("http.ingress.rds.ingress.update_success")


async def _asked(running: Gateway) -> int:
    """Requests about which Envoy asked the picker, whether in time or not."""
    return await running.envoy.stat("http.ingress.ext_proc.streams_started")


async def swap(running: Gateway, policy: Policy, *, fail_open: bool = True) -> None:
    before = await _route_updates(running)
    running.picker.set_route(policy, fail_open=fail_open)

    async def applied() -> bool:
        return await _route_updates(running) > before

    await eventually(applied, what="the route")


async def test_20_swaps_under_traffic_with_a_long_stream(gateway: StartGateway) -> None:
    running = await gateway(engines=3)
    async with running.session.post(running.url + "/v1/stream", data=b"{}") as response:
        stream = lines(response)
        assert await anext(stream) == b"data: first"
        traffic = Traffic(running)
        await traffic.more()
        await running.settled()
        before = await running.envoy.stats(r"(cds|eds|lds).*update_attempt|update_success$")
        policies = [Policy.LeastRequest, Policy.SAL, Policy.RoundRobin, Policy.SALPlus, Policy.Random]
        for number in range(20):
            policy = policies[number % 5]
            await swap(running, policy)
            before_more = await _asked(running)
            await traffic.more(20)
            picked = await _asked(running) - before_more
            assert (picked >= 12) if policy in (Policy.SAL, Policy.SALPlus) else (picked <= 8), (
                policy
            )  # 4 were on their way
        await traffic.stop()
        after = await running.envoy.stats(r"(cds|eds|lds).*update_attempt|update_success$")
        for engine in running.engines:
            engine.finish.set()
        assert [line async for line in stream][-1] == b"data: [DONE]"
    assert set(traffic.answers) == {200}
    assert traffic.reconnected == 0  # a drained listener says Connection: close
    assert await running.listener_changes() == {}
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"http.ingress.rds.ingress.update_success"}  # no cluster, no endpoint, no listener was sent


async def test_a_swap_to_the_same_policy_sends_nothing(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    assert running.picker.ads is not None
    await running.settled()
    sent = dict(running.picker.ads.counts)
    running.picker.set_route(Policy.SAL)
    running.picker.set_endpoints([Endpoint(running.engines[0].address)])
    await running.ask()
    assert dict(running.picker.ads.counts) == sent


@pytest.mark.parametrize(
    ("policy", "cluster"),
    [
        (Policy.SAL, "engines"),
        (Policy.SALPlus, "engines"),
        (Policy.LeastRequest, "engines"),
        (Policy.RoundRobin, "engines-round-robin"),
        (Policy.Random, "engines-random"),
    ],
)
async def test_each_policy_is_envoy_s_own_cluster_or_the_pick(
    gateway: StartGateway, policy: Policy, cluster: str
) -> None:
    running = await gateway(engines=2, policy=policy)
    for _ in range(20):
        assert (await running.ask())[0] == 200
    assert await running.envoy.stat(f"cluster.{cluster}.upstream_rq_completed") == 20
    asked = policy in (Policy.SAL, Policy.SALPlus)
    assert len(running.picker.pool.picks) == (20 if asked else 0)
    assert await running.envoy.stat("http.ingress.ext_proc.streams_started") == (20 if asked else 0)
    served = [len(engine.requests) for engine in running.engines]
    if policy is Policy.RoundRobin:
        assert served == [10, 10]
    elif not asked:
        assert min(served) > 0


async def test_engines_come_and_go_under_traffic(gateway: StartGateway) -> None:
    running = await gateway(engines=4)
    addresses = [engine.address for engine in running.engines]
    traffic = Traffic(running)
    for number in range(12):
        running.picker.set_endpoints([Endpoint(address) for address in addresses if address != addresses[number % 4]])
        await traffic.more(20)
    await traffic.stop()
    assert set(traffic.answers) == {200}
    assert await running.listener_changes() == {}
