"""The whole stack of processes: it comes up, obeys, and never outlives its block."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from halffull_lab.child import Child, ChildError
from halffull_lab.replay import Replay, Target
from halffull_lab.stack import EngineOptions, Stack, get_text
from halffull_lab.traces import load_trace
from tests.lab.waiting import until


def processes(folder: Path) -> list[psutil.Process]:
    """Those that name the stack's folder or descend from this process as its engines."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if any(str(folder) in part for part in process.info["cmdline"] or [])
    ]


async def test_a_stack_serves_switches_grows_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with Stack(engines=2, options=EngineOptions(speed=20), logs=tmp_path) as stack:
        folder, pids = stack.folder, [engine.child.pid for engine in stack.engines]
        pids += [stack.picker.pid, stack.envoy.pid]
        assert None not in pids
        assert processes(folder)
        trace = load_trace("azure-conv").at(rate=20).head(seconds=10)

        for policy in ("SAL", "SALPlus", "LeastRequest", "RoundRobin", "Random", "SAL"):
            await stack.set_policy(policy)
            run = await Replay(trace, Target(url=stack.gateway), speed=20).run()
            assert [record.failure for record in run.records if record.failure] == []

        engine = await stack.add_engine()
        await until(lambda: reports(stack, engine.http.address))
        await stack.remove_engine(engine)
        assert engine.child.returncode is not None

        await stack.restart_engines(policy="LARRY")
        assert '"LARRY"' in await get_text(stack.engines[0].load_url)
        assert set(pids).isdisjoint(one.child.pid for one in stack.engines)

        stack.picker.kill()
        run = await Replay(trace, Target(url=stack.gateway), speed=20).run()
        assert [record.failure for record in run.records if record.failure] == []
        await stack.start_picker()
        pids += [one.child.pid for one in stack.engines] + [stack.picker.pid]
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)
    assert processes(folder) == []
    assert not folder.exists()
    assert (tmp_path / "picker.log").stat().st_size > 0


async def reports(stack: Stack, address: str) -> bool:
    endpoints = (await stack.status())["pool"]["endpoints"]
    return any(endpoint["address"] == address and endpoint["report_age"] is not None for endpoint in endpoints)


async def test_an_exception_in_the_block_leaves_nothing_behind() -> None:
    stack = Stack(engines=1)
    pids: list[int | None] = []

    async def block() -> None:
        async with stack:
            pids.extend([stack.engines[0].child.pid, stack.picker.pid, stack.envoy.pid])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    assert None not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids if pid is not None)
    assert not stack.folder.exists()


async def test_an_engine_that_cannot_start_is_an_error_with_its_log() -> None:
    stack = Stack(engines=2, options=EngineOptions(profile="nonsense"))
    with pytest.raises(ChildError, match=r"engine-\d ended with 2 at its start(?s:.*)nonsense"):
        await stack.__aenter__()
    assert stack.picker.pid is None
    assert stack.envoy.pid is None
    assert not stack.folder.exists()


PARENT = """
import asyncio, sys
from halffull_lab.stack import Stack
async def main():
    async with Stack(engines=1) as stack:
        print('up', stack.engines[0].child.pid, stack.picker.pid, stack.envoy.pid, flush=True)
        await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
async def test_the_parents_sigkill_leaves_no_process_behind(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = Child([sys.executable, str(script)], log=tmp_path / "parent.log", env={"TMPDIR": str(tmp_path)}).start()
    try:
        await parent.ready(line="\n", within=60)
        _, *pids = parent.output().split()
        assert parent.pid is not None
        os.kill(parent.pid, signal.SIGKILL)
        await until(lambda: parent.returncode is not None and not any(psutil.pid_exists(int(pid)) for pid in pids))
    finally:
        parent.kill()


def test_picker_settings_are_laid_over_the_stacks_own(tmp_path: Path) -> None:
    stack = Stack(
        engines=0,
        options=EngineOptions(speed=4),
        picker={
            "policy": "Random",
            "load": {"metrics": {"path": "/m"}},
            "poll": {"staleAfter": "2s"},
            "failureMode": None,
        },
        endpoints=[{"address": "127.0.0.1:9"}],
    )
    try:
        stack.write_files()
        written = yaml.safe_load(stack.picker_file.read_text())
        assert written["policy"] == "Random"
        assert written["load"] == {"metrics": {"path": "/m"}}
        assert written["poll"] == {"interval": "25ms", "staleAfter": "2s"}  # the virtual 100 ms
        assert "failureMode" not in written
        assert yaml.safe_load(stack.endpoints_file.read_text()) == {"endpoints": [{"address": "127.0.0.1:9"}]}
        assert len(os.fsencode(f"{stack.folder}/picker.sock")) < 108
    finally:
        asyncio.run(stack.close())
