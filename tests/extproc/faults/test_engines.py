"""Engines killed, hung, wedged, failing and silent under load: avoided within seconds, back when healed."""

import time

import pytest

from halffull_lab.stack import Stack
from tests.extproc.faults.load import Load
from tests.extproc.faults.watching import endpoint, fault, in_state, logged, metric, picked_again, picks

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(120)]


async def test_killed_engine_takes_only_its_own_streams_with_it(stack: Stack) -> None:
    victim = stack.engines[1]
    async with Load(stack.gateway) as load:
        for _ in range(12):  # long enough to be under way when it dies
            load.send(output_tokens=8_000)
        await load.more(30)
        victim.child.kill()
        killed = time.monotonic()
        await load.more(50)
        dead = await in_state(stack, victim, "stale", "failing")
        assert dead["reason"]
        await in_state(stack, victim, "failing")
        during = (await endpoint(stack, victim))["picks"]
        began = time.monotonic()
        await load.more(100)
        probes = (await endpoint(stack, victim))["picks"] - during
        assert probes <= 2 + (time.monotonic() - began) / 2, "a failing engine gets one request every 2 s"

        victim.child.start()
        await victim.child.ready(url=f"{victim.url}/health", within=60)
        await picked_again(stack, victim)
    assert load.failed, "nothing was under way on the engine that was killed"
    assert [one for one in load.failed if one.began > killed] == []
    entries = await logged(stack, load.sent)
    assert {entries[one.request_id]["served"] for one in load.failed} == {victim.http.address}
    retried = [entry for entry in entries.values() if entry["attempts"] > 1]
    assert retried
    assert {entry["served"] == entry["picked"].split(",")[1] for entry in retried if entry["picked"]} == {True}


async def test_hung_engine_is_avoided_until_it_goes_on(stack: Stack) -> None:
    victim = stack.engines[2]
    async with Load(stack.gateway) as load:
        await load.more(30)
        began = (await endpoint(stack, victim))["picks"]
        victim.child.suspend()
        seen = await in_state(stack, victim, "stale", within=5)
        assert seen["reason"].startswith("no answer for")
        stale = (await endpoint(stack, victim))["picks"]
        await load.more(150)
        assert stale - began <= 40, "it takes the second until it is stale, at most"
        assert (await endpoint(stack, victim))["picks"] - stale <= 20, "1/4 of the load would be 37"
        resumed = time.monotonic()
        victim.child.resume()
        await picked_again(stack, victim)
    # uvicorn wakes to connections idle for more than 5 s, and closes them with what waits in them unread
    entries = await logged(stack, load.failed)
    assert {entry["served"] for entry in entries.values()} <= {victim.http.address}
    assert [one for one in load.failed if one.began > resumed] == []


async def test_wedged_core_is_avoided_until_it_steps(stack: Stack) -> None:
    victim = stack.engines[3]
    await fault(victim, "slow", factor=10)  # its part of what follows takes 30 s: a test held up finds it at work
    async with Load(stack.gateway) as load:
        for _ in range(8):  # so that it has work when it wedges, and says so
            load.send(output_tokens=3_000)
        await load.more(20)
        await fault(victim, "wedge")
        seen = await in_state(stack, victim, "not-progressing", within=5)
        assert "running" in seen["reason"]
        assert "no step for" in seen["reason"]
        before = (await endpoint(stack, victim))["picks"]
        await load.more(150)
        assert (await endpoint(stack, victim))["picks"] == before
        await fault(victim, "none")
        await picked_again(stack, victim)
    assert load.failed == []


async def test_core_that_wedges_while_idle_is_no_black_hole(stack: Stack) -> None:
    """Its report says idle for ever: what it never takes in stays charged to it."""
    victim = stack.engines[0]
    await fault(victim, "wedge")
    before = (await endpoint(stack, victim))["picks"]
    async with Load(stack.gateway) as load:
        await load.more(150)
        assert (await endpoint(stack, victim))["picks"] - before <= 15, "1/4 of the load would be 37"
        await fault(victim, "none")
        await picked_again(stack, victim)
    assert load.failed == []


async def test_engine_that_fails_at_once_is_no_black_hole(stack: Stack) -> None:
    victim = stack.engines[0]
    async with Load(stack.gateway) as load:
        await load.more(30)
        await fault(victim, "fail")
        failing = await in_state(stack, victim, "failing", within=10)
        known = time.monotonic()
        assert "requests failed; one is tried every 2 s" in failing["reason"]
        assert failing["failures"] >= 5
        before = (await endpoint(stack, victim))["picks"]
        while time.monotonic() - known < 5:
            await load.more(20)
        probes = (await endpoint(stack, victim))["picks"] - before
        watched = time.monotonic() - known
        assert 1 <= probes <= 1 + watched / 2
        assert await metric(stack, "halffull_picker_probes_total") >= probes
        await fault(victim, "none")
        await picked_again(stack, victim)
    first = [one for one in load.failed if one.began < known]
    assert 5 <= len(first) <= 60
    entries = await logged(stack, load.failed)
    # Without those that Envoy gave it for want of a pick in time: it has the fewest in flight
    later = [one for one in load.failed if one.began >= known and entries[one.request_id]["picked"]]
    assert len(later) <= probes + 2  # those, and what was picked since it was last looked at
    assert {(entry["served"], entry["status"]) for entry in entries.values()} == {(victim.http.address, 500)}


async def test_dead_load_endpoint_leaves_a_fair_share(stack: Stack) -> None:
    victim = stack.engines[1]
    async with Load(stack.gateway) as load:
        await load.more(30)
        await fault(victim, "hang_load")
        seen = await in_state(stack, victim, "stale", within=5)
        assert "no answer for" in seen["reason"]
        assert await metric(stack, f'halffull_picker_endpoint_state{{endpoint="{victim.http.address}",state="stale"}}')
        before = await picks(stack)
        await load.more(200)
        after = await picks(stack)
        gained = {address: after[address] - before[address] for address in before}
        share = gained[victim.http.address] / sum(gained.values())
        assert 0.1 <= share <= 0.5
        assert (await endpoint(stack, victim))["state"] == "stale"
        await fault(victim, "none")
        await picked_again(stack, victim)
    assert load.failed == []
