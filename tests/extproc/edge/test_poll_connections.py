"""Engines that are slow, hang, reset, close, or are gone."""

import asyncio
import time
from typing import Any

import pytest

from halffull_extproc import poll_target
from halffull_extproc.poll import PollConfig
from halffull_extproc.pool import Source
from tests.ports import free_port

from .engines import Engine, abort, always, engine, http, never
from .polling import at, polling
from .reports import report
from .waiting import until


async def test_a_hung_engine_delays_nobody_and_is_not_asked_twice() -> None:
    async with engine(never) as (hung, port), engine(always(http(report()))) as (_, good_port):
        endpoints = (at(port, address="127.0.0.1:1"), at(good_port, address="127.0.0.1:2"))
        async with polling(*endpoints) as (poller, pool):
            began = time.monotonic()
            await until(lambda: len(pool.reports) >= 20)
            assert time.monotonic() - began < 5
            assert len(hung.requests) == 1
            assert {address for address, *_ in pool.reports} == {"127.0.0.1:2"}
            assert any(": no answer for" in reason for _, reason in pool.silences)
            assert poller.status()["127.0.0.1:1"].failures["timeout"] >= 10


async def test_a_slow_answer_counts_from_when_its_poll_left() -> None:
    async def slow(_: Engine, __: Any, writer: asyncio.StreamWriter, ___: bytes) -> None:
        await asyncio.sleep(0.07)
        writer.write(http(report()))

    async with engine(slow) as (served, port), polling(at(port)) as (_, pool):
        await until(lambda: len(pool.reports) >= 2)
        assert all(now - sent >= 0.06 for _, _, sent, now in pool.reports)
        assert served.connections == 1


async def test_an_engine_that_hangs_for_long_is_asked_again_on_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(poll_target, "GIVE_UP", 0.1)
    async with engine(never) as (served, port), polling(at(port)) as (_, pool):
        await until(lambda: served.connections >= 2)
        served.answer = always(http(report()))
        await until(lambda: pool.reports)


async def test_a_reset_of_a_kept_alive_connection_is_no_failure() -> None:
    async def after_reset(engine: Engine, reader: Any, writer: asyncio.StreamWriter, request: bytes) -> None:
        fresh = len(engine.requests) == 1 or engine.fresh  # type: ignore[attr-defined]
        engine.fresh = False  # type: ignore[attr-defined]
        if fresh:
            writer.write(http(report()))
        else:
            engine.fresh = True  # type: ignore[attr-defined]
            abort(writer)

    async with engine(after_reset) as (served, port):
        served.fresh = True  # type: ignore[attr-defined]
        async with polling(at(port)) as (poller, pool):
            await until(lambda: served.connections >= 5)
            await until(lambda: len(pool.reports) >= 8)
            assert pool.broken == []
            assert set(poller.status()["127.0.0.1:8000"].failures) <= {"timeout"}


async def test_the_retry_after_a_reset_is_at_once() -> None:
    async def answer(engine: Engine, _: Any, writer: asyncio.StreamWriter, __: bytes) -> None:
        if len(engine.requests) == 2:
            abort(writer)
        else:
            writer.write(http(report()))

    config = PollConfig(source=Source.REPORT, interval=1.0)
    async with engine(answer) as (_, port), polling(at(port), config=config) as (_, pool):
        await until(lambda: len(pool.reports) >= 2)
        assert pool.reports[1][3] - pool.reports[0][3] < 1.9  # not one interval later, which is at 2
        assert pool.broken == []


async def test_an_idle_connection_that_the_engine_closed_is_replaced_in_silence() -> None:
    async with engine(always(http(report()))) as (served, port), polling(at(port)) as (_, pool):
        for count in range(1, 4):
            pool.reports.clear()
            await until(lambda count=count: served.connections == count and pool.reports)  # type: ignore[misc]
            for writer in list(served.open):
                writer.close()
        await until(lambda: served.connections >= 4)
        assert pool.broken == []


async def test_an_engine_that_closes_after_each_answer_is_polled_all_the_same() -> None:
    answer = always(http(report(), headers="Connection: close\r\n"))
    async with engine(answer) as (served, port), polling(at(port)) as (_, pool):
        await until(lambda: len(pool.reports) >= 4)
        assert served.connections >= 4
        assert pool.broken == []


async def test_a_dead_engine_is_tried_less_often_and_found_again_within_a_second() -> None:
    port = free_port()
    async with polling(at(port)) as (poller, pool):
        await until(lambda: len(pool.silences) >= 25)
        assert poller.status()["127.0.0.1:8000"].failures["connect"] < 15
        async with engine(always(http(report())), port=port):
            began = time.monotonic()
            await until(lambda: pool.reports)
            assert time.monotonic() - began < poll_target.SLOWEST_RETRY + 1.0
