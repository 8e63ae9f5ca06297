"""What people are told when engines do not answer."""

import asyncio
from typing import Any

import pytest
import structlog

from halffull_extproc import poll_target
from halffull_extproc.endpoint import Health
from tests.ports import free_port

from .engines import Engine, abort, always, engine, http, never, reset
from .polling import at, polling
from .reports import report
from .waiting import until


@pytest.fixture
def logged() -> Any:
    with structlog.testing.capture_logs() as lines:
        yield lines


async def test_a_blockade_of_all_engines_is_one_line_that_says_what_to_check(
    logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("halffull_extproc.poll.BLOCKED_FOR", 0.2)
    async with engine(reset) as (served, port):
        endpoints = [at(port, address=f"127.0.0.1:{number}") for number in range(1, 6)]
        async with polling(*endpoints) as (poller, pool):
            await until(lambda: poller.problem)
            for word in ("NetworkPolicy", "mTLS", "load.report.port", "all 5"):
                assert word in poller.problem
            await until(lambda: len(pool.silences) > 200)
            assert [line["log_level"] for line in logged] == ["error"]
            served.answer = always(http(report()))
            await until(lambda: not poller.problem)


async def test_resets_that_come_late_are_a_blockade_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that takes the connection and gives up after a while; or a machine that is busy."""
    monkeypatch.setattr("halffull_extproc.poll.BLOCKED_FOR", 0.2)

    async def late(_: Engine, __: Any, writer: asyncio.StreamWriter, ___: bytes) -> None:
        await asyncio.sleep(0.05)  # more than two intervals
        abort(writer)

    async with engine(late) as (_, port), polling(at(port)) as (poller, pool):
        await until(lambda: poller.problem)
        assert any("no answer for" in reason for reason in pool.reasons)


async def test_an_engine_that_hangs_is_no_blockade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halffull_extproc.poll.BLOCKED_FOR", 0.05)
    monkeypatch.setattr(poll_target, "GIVE_UP", 0.1)
    async with engine(reset) as (served, port), polling(at(port)) as (poller, _):
        await until(lambda: poller.problem)
        served.answer = never  # it can be reached now
        await until(lambda: not poller.problem)


async def test_one_engine_that_answers_is_no_blockade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halffull_extproc.poll.BLOCKED_FOR", 0.1)
    async with engine(reset) as (_, bad), engine(always(http(report()))) as (_, good):
        endpoints = [at(bad, address="127.0.0.1:1"), at(good, address="127.0.0.1:2")]
        async with polling(*endpoints) as (poller, pool):
            await until(lambda: len(pool.silences) > 20)
            assert not poller.problem


async def test_an_engine_in_trouble_is_told_once_and_so_is_its_return(
    logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_target, "LOG_PATIENCE", 0.05)
    async with engine(always(http(b"no"))) as (bad, port), engine(always(http(report()))) as (_, good):
        endpoints = [at(port, address="127.0.0.1:1"), at(good, address="127.0.0.1:2")]
        async with polling(*endpoints) as (_, pool):
            await until(lambda: len(pool.silences) > 20)
            bad.answer = always(http(report()))
            await until(lambda: any(address == "127.0.0.1:1" for address, *_ in pool.reports))
    assert [(line["log_level"], line["endpoint"]) for line in logged] == [
        ("warning", "127.0.0.1:1"),
        ("info", "127.0.0.1:1"),
    ]


async def test_an_engine_that_is_not_expected_to_answer_is_not_told_of(
    logged: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll_target, "LOG_PATIENCE", 0.02)
    monkeypatch.setattr("halffull_extproc.poll.BLOCKED_FOR", 0.02)
    async with polling(at(free_port(), health=Health.UNHEALTHY)) as (poller, pool):
        await until(lambda: len(pool.silences) > 10)
        assert logged == []
        assert not poller.problem
