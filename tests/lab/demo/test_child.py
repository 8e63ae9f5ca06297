"""Children end when they are told to, and whenever their parent ends."""

import os
import signal
import socket
import sys
from pathlib import Path

import psutil
import pytest

from halffull_lab.child import Child, ChildError, Port, free_port
from tests.lab.waiting import until

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
FORKS = [
    sys.executable,
    "-c",
    """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("grandchild", child.pid, flush=True)
time.sleep(600)
""",
]


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def gone(pid: int) -> None:
    await until(lambda: not alive(pid))


async def test_ready_by_line_then_stopped_by_sigterm(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "a.log").start()
    await child.ready(line="up")
    assert child.pid is not None
    assert child.cpu_seconds() > 0
    with pytest.raises(ChildError, match="already runs"):
        child.start()
    assert await child.stop() == -signal.SIGTERM
    assert (child.pid, child.cpu_seconds()) == (None, 0.0)
    assert await child.stop() == -signal.SIGTERM  # again: no harm


async def test_ready_by_url(tmp_path: Path) -> None:
    port = Port()
    argv = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port.number)]
    child = Child(argv, log=tmp_path / "http.log", cwd=tmp_path).start()
    try:
        await child.ready(url=f"http://{port.address}/", within=20)
    finally:
        await child.stop()
    child.start()  # on the same port, at once
    try:
        await child.ready(url=f"http://{port.address}/", within=20)
    finally:
        child.kill()
        port.close()


async def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    child = Child(STUBBORN, log=tmp_path / "a.log").start()
    await child.ready(line="up")
    assert await child.stop(grace=0.1) == -signal.SIGKILL


async def test_a_frozen_child_still_stops(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "a.log").start()
    await child.ready(line="up")
    child.suspend()
    assert child.pid is not None
    assert await child.stop(grace=5) == -signal.SIGTERM


async def test_suspend_and_resume(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "a.log").start()
    await child.ready(line="up")
    assert child.pid is not None
    process = psutil.Process(child.pid)
    for act, status in ((child.suspend, psutil.STATUS_STOPPED), (child.resume, psutil.STATUS_SLEEPING)):
        act()
        await until(lambda wanted=status: process.status() == wanted)  # type: ignore[misc]
    child.kill()


async def test_grandchildren_end_with_the_group(tmp_path: Path) -> None:
    child = Child(FORKS, log=tmp_path / "a.log").start()
    await child.ready(line="grandchild")
    grandchild = int(child.output().split()[1])
    assert alive(grandchild)
    await child.stop()
    await gone(grandchild)


async def test_grandchildren_end_even_when_their_parent_has_gone_first(tmp_path: Path) -> None:
    child = Child(FORKS, log=tmp_path / "a.log").start()
    await child.ready(line="grandchild")
    grandchild = int(child.output().split()[1])
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    await until(lambda: child.returncode is not None)
    assert alive(grandchild)
    await child.stop()
    await gone(grandchild)


async def test_dying_at_start_is_an_error_with_the_tail_of_the_log(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; print('x' * 5000); sys.exit('no such flag')"]
    child = Child(argv, log=tmp_path / "engine-0.log").start()
    with pytest.raises(
        ChildError, match=r"engine-0 ended with 1 at its start; its log ends:\n(?s:.*)no such flag"
    ) as error:
        await child.ready(line="up", within=20)
    assert len(str(error.value)) < 2200
    child.kill()


async def test_a_command_that_does_not_exist_says_so(tmp_path: Path) -> None:
    child = Child([str(tmp_path / "nothing")], log=tmp_path / "a.log").start()
    with pytest.raises(ChildError, match="No such file"):
        await child.ready(line="up", within=20)
    child.kill()


async def test_not_ready_in_time_is_an_error(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "a.log").start()
    try:
        with pytest.raises(ChildError, match=r"not ready after 0.1 s \('never'\)"):
            await child.ready(line="never", within=0.1)
    finally:
        child.kill()


async def test_a_restart_keeps_the_log_and_reads_only_its_own_part(tmp_path: Path) -> None:
    child = Child(SLEEP, log=tmp_path / "a.log").start()
    await child.ready(line="up")
    child.kill()
    child.start()
    await child.ready(line="up")
    assert child.output() == "up\n"
    child.kill()
    assert (tmp_path / "a.log").read_text() == "up\nup\n"


PARENT = """
import asyncio, sys
from pathlib import Path
from halffull_lab.child import Child
async def main():
    sleep = "import time; print('up', flush=True); time.sleep(600)"
    child = Child([sys.executable, "-c", sleep], log=Path(sys.argv[1])).start()
    await child.ready(line="up")
    print(child.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
async def test_the_parents_death_is_the_childs(tmp_path: Path, number: signal.Signals) -> None:
    parent = Child([sys.executable, "-c", PARENT, str(tmp_path / "child.log")], log=tmp_path / "parent.log").start()
    try:
        await parent.ready(line="\n")
        child = int(parent.output())
        assert alive(child)
        assert parent.pid is not None
        os.kill(parent.pid, number)
        await gone(child)
    finally:
        parent.kill()


def test_a_port_is_nobody_elses_until_it_is_closed() -> None:
    ports = [Port() for _ in range(50)]
    assert len({port.number for port in ports}) == 50
    taken = {port.number for port in ports}
    assert not taken & {free_port() for _ in range(200)}
    with socket.socket() as server:  # what asyncio, uvicorn and Envoy do
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports[0].number))
        server.listen()
    for port in ports:
        port.close()
        port.close()


def test_ports_on_ipv6_carry_brackets() -> None:
    port = Port("::1")
    assert port.address == f"[::1]:{port.number}"
    port.close()
