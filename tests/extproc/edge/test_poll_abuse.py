"""Engines that answer badly, on purpose or not."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from halffull_extproc.poll import PollConfig
from halffull_extproc.pool import Source

from .engines import Engine, always, engine, http, reset
from .polling import at, polling
from .reports import metrics_text, report
from .waiting import until


def stream(chunk: bytes, *, head: bytes) -> Callable[..., Any]:
    async def answer(_: Engine, __: Any, writer: asyncio.StreamWriter, ___: bytes) -> None:
        writer.write(head)
        while not writer.is_closing():
            writer.write(chunk)
            await writer.drain()

    return answer


async def slowloris(_: Engine, __: Any, writer: asyncio.StreamWriter, ___: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"{")
        await writer.drain()
        await asyncio.sleep(0.01)


async def cut_off(_: Engine, __: Any, writer: asyncio.StreamWriter, ___: bytes) -> None:
    writer.write(http(report())[:-50])
    await writer.drain()
    writer.close()


ENDLESS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (always(http(b"x" * 70_000)), "answered with more than 65536 bytes"),
        (stream(b"1000\r\n" + b"x" * 4096 + b"\r\n", head=ENDLESS), "answered with more than 65536 bytes"),
        (stream(b"X-Header: " + b"x" * 4096 + b"\r\n", head=b"HTTP/1.1 200 OK\r\n"), "answered with more than"),
        (always(b"SSH-2.0-OpenSSH_9.6\r\n"), "did not answer in HTTP/1.1"),
        (always(b"\x15\x03\x01\x00\x02\x02\x50"), "did not answer in HTTP/1.1"),
        (always(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"), "did not answer in HTTP/1.1"),
        (always(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"), "answered with"),
        (cut_off, "closed the connection in the middle of an answer"),
        (reset, "reset the connection"),
        (always(http(b"")), "not a load report"),
        (always(http(b"[" * 60_000)), "not a load report"),
        (always(http(b"\xff\x00")), "not a load report"),
        (slowloris, "no answer for"),
    ],
)  # fmt: skip
async def test_a_bad_engine_is_silent_with_a_reason_and_hurts_no_other(answer: Any, reason: str) -> None:
    async with engine(answer) as (_, port), engine(always(http(report()))) as (_, good_port):
        endpoints = (at(port, address="127.0.0.1:1"), at(good_port, address="127.0.0.1:2"))
        async with polling(*endpoints) as (_, pool):
            await until(
                lambda: any(text.startswith(f"http://127.0.0.1:{port}/load: {reason}") for text in pool.reasons)
            )
            await until(lambda: sum(address == "127.0.0.1:2" for address, *_ in pool.reports) >= 10)
            assert {address for address, _ in pool.broken} <= {"127.0.0.1:1"}


async def test_an_answer_given_twice_is_not_taken_for_the_next_poll() -> None:
    async def answer(engine: Engine, _: Any, writer: asyncio.StreamWriter, __: bytes) -> None:
        number = len(engine.requests)
        writer.write(http(report(queued_tokens=number)) + http(report(queued_tokens=666)))

    async with engine(answer) as (_, port), polling(at(port)) as (_, pool):
        await until(lambda: len(pool.reports) >= 5)
        assert 666 not in {read.queued_tokens for _, read, _, _ in pool.reports}


async def test_an_interim_answer_is_not_the_answer() -> None:
    data = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + http(report())
    async with engine(always(data)) as (_, port), polling(at(port)) as (_, pool):
        await until(lambda: len(pool.reports) >= 3)
        assert pool.broken == []


async def test_four_megabytes_of_metrics_are_read_and_no_more() -> None:
    padding = "# " + "x" * 98 + "\n"
    big = metrics_text(extra=padding * 40_000)
    too_big = metrics_text(extra=padding * 45_000)
    body = big

    async def answer(_: Engine, __: Any, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(http(b"{}" if b"models" in request else body))

    config = PollConfig(source=Source.METRICS, interval=0.1)
    async with engine(answer) as (_, port), polling(at(1, address=f"127.0.0.1:{port}"), config=config) as (_, pool):
        await until(lambda: pool.samples)
        assert pool.samples[0][1].waiting == 4
        body = too_big
        await until(lambda: any("more than 4194304 bytes" in reason for reason in pool.reasons))
