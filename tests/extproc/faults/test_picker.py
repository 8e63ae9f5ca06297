"""The picker killed, hung and restarted under load: no request fails, no stream ends, and Envoy drains nothing."""

import math
import statistics
import time

import pytest

from halffull_lab.stack import Stack
from tests.extproc.faults.load import Load
from tests.extproc.faults.watching import eventually, ext_proc, listener_changes, logged, picks, served

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.timeout(90)]


async def picks_go_on(stack: Stack, *, more: int = 30) -> None:
    """Wait until the picker that runs now has made that many more picks."""
    before = sum((await picks(stack)).values())

    async def made() -> bool:
        return sum((await picks(stack)).values()) >= before + more

    await eventually(made, within=30, what="picks resume")


async def test_killed_and_restarted_under_load(stack: Stack) -> None:
    async with Load(stack.gateway) as load, load.relay():
        await load.more(50)
        passed, allowed = await served(stack), await ext_proc(stack, "failure_mode_allowed")

        stack.picker.kill()
        killed = time.monotonic()
        unpicked = await load.more(60)
        on_p2c = await served(stack) - passed
        assert await ext_proc(stack, "failure_mode_allowed") >= allowed + 60
        assert len(on_p2c) == 4, "P2C sends to every engine"
        assert sum(on_p2c.values()) >= 60

        await stack.start_picker()
        restarted = time.monotonic()
        await picks_go_on(stack)
        picked = await load.more(30)
    assert [one.failure for one in load.failed] == []
    assert load.spanning(killed)
    assert load.spanning(restarted)
    entries = await logged(stack, unpicked[:60])
    assert {entry["picked"] for entry in entries.values()} == {None}
    entries = await logged(stack, picked)
    obeyed = [entry["served"] == entry["picked"].split(",")[0] for entry in entries.values() if entry["picked"]]
    assert obeyed  # not all of them: on a busy machine a pick that comes after 100 ms is none
    assert all(obeyed)
    assert await listener_changes(stack) == {}


async def test_hung_and_resumed_under_load(stack: Stack) -> None:
    async with Load(stack.gateway) as load:
        await load.more(30)
        passed, timeouts = await served(stack), await ext_proc(stack, "message_timeouts")
        stack.picker.suspend()
        hung = await load.more(100)
        assert await ext_proc(stack, "message_timeouts") >= timeouts + 50
        assert len(await served(stack) - passed) == 4

        stack.picker.resume()
        await picks_go_on(stack)
    assert [one.failure for one in load.failed] == []
    # Each waits for the message timeout of 100 ms and no longer
    assert statistics.median((one.ended or math.inf) - one.began for one in hung) < 2
    entries = await logged(stack, hung)
    assert sum(entry["picked"] is None for entry in entries.values()) >= 50
    assert await listener_changes(stack) == {}

    async def forgotten() -> bool:
        return not any(one["open_picks"] for one in (await stack.status())["pool"]["endpoints"])

    await eventually(forgotten, what="every charge is closed")
