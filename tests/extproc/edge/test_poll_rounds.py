"""Which engines are polled, and how often."""

import asyncio
import time
from itertools import pairwise
from typing import Any

from halffull_extproc.endpoint import Health
from halffull_extproc.poll import PollConfig, Poller
from halffull_extproc.pool import Source
from tests.ports import free_port

from .engines import Engine, always, engine, http
from .polling import REPORTS, Pool, at, polling
from .reports import report
from .waiting import until


async def test_phases_are_spread_over_the_interval() -> None:
    moments: list[float] = []

    async def answer(_: Engine, __: Any, writer: asyncio.StreamWriter, ___: bytes) -> None:
        moments.append(time.monotonic())
        writer.write(http(report()))

    async with engine(answer) as (_, port):
        endpoints = [at(port, address=f"127.0.0.1:{number}") for number in range(1, 21)]
        config = PollConfig(source=Source.REPORT, interval=0.4)
        async with polling(*endpoints, config=config) as (_, pool):
            await until(lambda: len(pool.reports) >= 60)
    phases = sorted(moment % 0.4 for moment in moments[40:60])
    # Around the clock: the gap from the last phase to the first counts, or one burst would look spread.
    gaps = [after - before for before, after in pairwise([*phases, phases[0] + 0.4])]
    assert max(gaps) < 0.25, "all in one burst would leave a gap of 0.4 s"


def test_every_number_of_engines_is_spread_evenly() -> None:
    for number in (2, 5, 20, 100, 1000):
        poller = Poller(Pool(), PollConfig(source=Source.REPORT, interval=0.1))
        poller.update([at(9400, address=f"10.0.{n // 250}.{n % 250 + 1}:80") for n in range(number)])
        taken = [len(slot) for slot in poller._slots]
        assert sum(taken) == number
        assert max(taken) <= number / len(taken) + 2, (number, taken)


async def test_removed_endpoints_are_left_and_kept_ones_keep_their_connection() -> None:
    async with engine(always(http(report()))) as (first, one), engine(always(http(report()))) as (second, two):
        stays, goes = at(one, address="127.0.0.1:1"), at(two, address="127.0.0.1:2")
        async with polling(stays, goes) as (poller, pool):
            await until(lambda: len({address for address, *_ in pool.reports}) == 2)
            poller.update([stays])
            await until(lambda: not second.open)
            pool.reports.clear()
            await until(lambda: len(pool.reports) >= 5)
            assert {address for address, *_ in pool.reports} == {"127.0.0.1:1"}
            assert first.connections == 1
            assert set(poller.status()) == {"127.0.0.1:1"}
            poller.update([at(one, address="127.0.0.1:1", health=Health.DRAINING)])
            pool.reports.clear()
            await until(lambda: len(pool.reports) >= 3)
            assert first.connections == 1


async def test_an_endpoint_that_is_removed_while_it_is_being_connected_to_says_nothing_more() -> None:
    async with polling(at(free_port())) as (poller, pool):
        await until(lambda: pool.silences)
        poller.update([])
        pool.silences.clear()
        poller.update([])
        await asyncio.sleep(0.06)
        assert pool.broken == []


async def test_the_interval_changes_while_running() -> None:
    async with engine(always(http(report()))) as (served, port):
        config = PollConfig(source=Source.REPORT, interval=30.0)
        async with polling(at(port), config=config) as (poller, pool):
            poller.set_interval(0.01)
            await until(lambda: len(pool.reports) >= 10)
            poller.set_interval(30.0)
            await until(lambda: len(served.requests) == len(pool.reports))
            assert served.connections == 1


async def test_constant_updates_make_polls_neither_rarer_nor_more_frequent() -> None:
    async with engine(always(http(report()))) as (_, port):
        endpoints = [at(port, address=f"127.0.0.1:{number}") for number in (1, 2)]
        config = PollConfig(source=Source.REPORT, interval=0.1)
        async with polling(*endpoints, config=config) as (poller, pool):
            began = time.monotonic()
            while len(pool.reports) < 20 and time.monotonic() - began < 5:
                poller.update(endpoints)
                await asyncio.sleep(0.003)
            # Ten rounds and so nine intervals, and more where the machine stands still.
            assert 0.8 < time.monotonic() - began < 5


async def test_stopping_twice_and_stopping_before_the_start_are_harmless() -> None:
    poller = Poller(Pool(), REPORTS)
    await poller.stop()
    poller.update([at(free_port())])
    poller.start()
    poller.start()
    await asyncio.sleep(0)
    await poller.stop()
    await poller.stop()
