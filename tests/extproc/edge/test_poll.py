"""What becomes of an answer to a poll: one report for each engine, in whatever form it comes, or a reason."""

import asyncio
import time
from typing import Any

import pytest

from halffull_extproc.poll import PollConfig
from halffull_extproc.pool import Source
from tests.ports import free_ports

from .engines import Engine, always, engine, http
from .polling import at, polling
from .reports import report
from .waiting import until


async def test_one_kept_alive_connection_brings_every_report() -> None:
    async with engine(always(http(report()))) as (served, port), polling(at(port)) as (_, pool):
        await until(lambda: len(pool.reports) >= 10)
        address, read, sent, now = pool.reports[0]
        assert (address, read.queued_tokens, served.connections) == ("127.0.0.1:8000", 100, 1)
        assert 0 <= now - sent < 1
        assert pool.broken == []
        assert served.requests[0].startswith(b"GET /load HTTP/1.1\r\nHost: 127.0.0.1:" + str(port).encode())


async def test_an_answer_in_pieces_and_in_chunks_is_an_answer() -> None:
    body = report()
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

    async def answer(engine: Engine, _: Any, writer: asyncio.StreamWriter, __: bytes) -> None:
        data = chunked if len(engine.requests) % 2 else http(body)
        for start in range(0, len(data), 100):
            writer.write(data[start : start + 100])
            await writer.drain()
            await asyncio.sleep(0)

    async with engine(answer) as (served, port), polling(at(port)) as (_, pool):
        await until(lambda: len(pool.reports) >= 4)
        assert served.connections == 1
        assert pool.broken == []


async def test_ipv6_engines_are_polled_with_brackets_in_the_host() -> None:
    async with engine(always(http(report())), host="::1") as (served, port):
        async with polling(at(port, address="[::1]:8000")) as (_, pool):
            await until(lambda: pool.reports)
        assert f"Host: [::1]:{port}\r\n".encode() in served.requests[0]


async def test_the_ranks_of_an_engine_are_merged_and_the_slowest_counts() -> None:
    arrived: list[float] = []

    async def late(_: Engine, __: Any, writer: asyncio.StreamWriter, ___: bytes) -> None:
        arrived.append(time.monotonic())
        before = len(quick.requests)
        await until(lambda: len(quick.requests) >= before + 3)  # the other rank has been polled again meanwhile
        writer.write(http(report(rank=1, boot_id="b")))

    first = free_ports(2)
    config = PollConfig(source=Source.REPORT, interval=0.02, ranks=2)
    async with (
        engine(always(http(report(rank=0, boot_id="a"))), port=first) as (quick, _),
        engine(late, port=first + 1),
        polling(at(first), config=config) as (_, pool),
    ):
        await until(lambda: len(pool.reports) >= 3)
    for (_, merged, sent, _), reached in zip(pool.reports, arrived, strict=False):
        assert (merged.boot_id, merged.queued_tokens, merged.total_tokens) == ("a,b", 200, 16000)
        assert sent <= reached, "a merged report is as old as the poll that left first"


async def test_one_silent_rank_is_silence_of_the_engine() -> None:
    first = free_ports(2)
    async with (
        engine(always(http(report())), port=first),
        polling(at(first), config=PollConfig(source=Source.REPORT, interval=0.02, ranks=2)) as (_, pool),
    ):
        await until(lambda: len(pool.silences) >= 3)
        assert pool.reports == []
        missing = f"http://127.0.0.1:{first + 1}/load: cannot connect: "  # which of the two, as curl takes it
        assert any(reason.startswith(missing) for reason in pool.reasons)


async def test_ranks_that_disagree_are_said_to() -> None:
    first = free_ports(2)
    async with (
        engine(always(http(report())), port=first),
        engine(always(http(report(scheduler="FCFS"))), port=first + 1),
        polling(at(first), config=PollConfig(source=Source.REPORT, interval=0.02, ranks=2)) as (_, pool),
    ):
        await until(lambda: any("ranks disagree" in reason for reason in pool.reasons))
        assert pool.reports == []


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("503 Service Unavailable", "HTTP status 503"),
        ("404 Not Found", "HTTP status 404"),
        ("302 Found", "HTTP status 302 (redirects are not followed)"),
        ("204 No Content", "HTTP status 204"),
    ],
)
async def test_any_status_but_200_is_a_failure_that_names_it(status: str, reason: str) -> None:
    body = b"" if status.startswith("204") else report()
    headers = "Location: http://127.0.0.1:1/load\r\n"
    data = http(body, status=status, headers=headers)
    if status.startswith("204"):
        data = f"HTTP/1.1 {status}\r\n\r\n".encode()
    async with engine(always(data)) as (served, port), polling(at(port)) as (_, pool):
        await until(lambda: len(pool.silences) >= 3)
        assert {text for _, text in pool.broken} == {f"http://127.0.0.1:{port}/load: {reason}"}
        assert pool.reports == []
        assert served.connections == 1


async def test_a_version_that_is_not_ours_is_said() -> None:
    async with engine(always(http(report(version=2)))) as (_, port), polling(at(port)) as (poller, pool):
        await until(lambda: pool.broken)
        said = f"http://127.0.0.1:{port}/load: load report version 2 is not supported"
        assert {text.partition(",")[0] for _, text in pool.broken} == {said}
        assert set(poller.status()["127.0.0.1:8000"].failures) - {"timeout"} == {"invalid"}
