"""The watchdog; where it ends a process, in one of its own."""

import asyncio
import faulthandler
import subprocess
import sys

import pytest

from halffull_extproc.watchdog import watch

PROGRAM = """
import asyncio, time
from halffull_extproc.watchdog import watch

turns = iter([True])

def works():
    if next(turns, False):
        return True
    {broken}

async def main():
    task = asyncio.create_task(watch(works, stuck={stuck}))
    await asyncio.sleep(0)
    {then}

asyncio.run(main())
"""


async def test_it_is_put_off_while_all_is_well_and_called_off_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    thrice = asyncio.Event()

    def put_off(*seconds: float, **how: bool) -> None:
        said.append((*seconds, how))
        if len(said) == 3:
            thrice.set()

    monkeypatch.setattr(faulthandler, "dump_traceback_later", put_off)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: said.append("called off"))
    task = asyncio.create_task(watch(lambda: True, stuck=0.004))
    await thrice.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert said[:3] == [(0.004, {"exit": True})] * 3
    assert said[-1] == "called off"


@pytest.mark.parametrize(
    ("broken", "then", "stuck", "told"),
    [
        ("return True", "time.sleep(60)", 0.4, "in main"),
        ("return False", "await asyncio.sleep(60)", 0.4, "asyncio"),
        # It has three quarters of the time to write its log: a process here has waited 2.2 s for a core.
        ("raise ValueError('no pool')", "await asyncio.sleep(60)", 4, "no pool"),
    ],
    ids=["stands-still", "does-not-work", "raises"],
)
def test_it_ends_the_process_and_says_where_it_stood(broken: str, then: str, stuck: float, told: str) -> None:
    program = PROGRAM.format(broken=broken, then=then, stuck=stuck)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert told in done.stdout + done.stderr
