"""The policy changed 20 times by editing picker.yaml, under load and over a picker restart: routes change, no more."""

import time

import pytest

from halffull_lab.stack import Stack
from tests.extproc.faults.load import Load
from tests.extproc.faults.watching import eventually, ext_proc, listener_changes, settled

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(150)]

PICKED = {"SAL", "SALPlus"}
# Every policy, and SAL ↔ LeastRequest, which share a cluster, again and again
SWAPS = (
    *("LeastRequest", "SAL", "LeastRequest", "SAL", "RoundRobin"),
    *("SALPlus", "Random", "LeastRequest", "SAL", "Random"),
)


async def pushed(stack: Stack) -> dict[str, int]:
    """Updates that Envoy has taken, other than of routes."""
    return await stack.envoy_stats(
        r"^(cluster_manager\.(cds\.update_success|cluster_modified|cluster_added|cluster_removed)"
        r"|listener_manager\.(lds\.update_success|listener_added)|cluster\..*\.update_success)$"
    )


async def warming(stack: Stack) -> int:
    stats = await stack.envoy_stats(r"^cluster_manager\.warming_clusters$")
    return stats["cluster_manager.warming_clusters"]


async def swap_all(stack: Stack, load: Load) -> None:
    await settled(stack)
    before, reloads = await pushed(stack), await stack.route_reloads()
    for policy in SWAPS:
        await stack.set_policy(policy)
        streams = await ext_proc(stack, "streams_started")
        await load.more(10)
        asked = await ext_proc(stack, "streams_started") - streams
        if policy in PICKED:
            assert asked >= 8, policy
        else:
            assert asked <= 2, policy  # on their way when the route came
        assert await warming(stack) == 0
    assert await pushed(stack) == before
    assert await stack.route_reloads() >= reloads + len(SWAPS) - 1


async def test_20_swaps_under_load_with_a_restart_between(stack: Stack) -> None:
    async with Load(stack.gateway) as load, load.relay():
        await load.more(20)
        swapping = time.monotonic()
        await swap_all(stack, load)
        assert stack.config["policy"] == "Random"  # the new picker must not push SAL first
        streams = await ext_proc(stack, "streams_started")
        stack.picker.kill()
        await load.more(20)
        attempts = (await stack.envoy_stats(r"^cluster_manager\.cds\.update_success$")).values()
        await stack.start_picker()

        async def told() -> bool:
            return sum((await stack.envoy_stats(r"^cluster_manager\.cds\.update_success$")).values()) > sum(attempts)

        async def none_warms() -> bool:
            return await warming(stack) == 0

        await eventually(told, within=30, what="the new picker's clusters")
        await eventually(none_warms, within=1, what="no cluster warms")
        restarted = time.monotonic()
        assert await ext_proc(stack, "streams_started") <= streams + 2  # Random all along
        await swap_all(stack, load)
    assert [one.failure for one in load.failed] == []
    assert load.spanning(swapping)
    assert load.spanning(restarted)
    assert await listener_changes(stack) == {}
