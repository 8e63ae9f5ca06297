import asyncio
import socket
import time
from itertools import pairwise
from typing import Any

import pytest
import structlog

from halffull_extproc import poll_target
from halffull_extproc.endpoint import Health
from halffull_extproc.poll import PollConfig, Poller
from halffull_extproc.pool import Source

from .engines import Engine, abort, always, engine, http, never, reset
from .polling import METRICS, REPORTS, Pool, at, polling
from .ports import free_port, free_ports
from .reports import metrics_text, report
from .waiting import until


@pytest.fixture
def logged() -> Any:
    with structlog.testing.capture_logs() as lines:
        yield lines


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
    if not socket.has_ipv6:
        pytest.skip("this host has no IPv6")
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
        assert any("cannot connect" in reason for reason in pool.reasons)


async def test_ranks_that_disagree_are_said_to() -> None:
    first = free_ports(2)
    async with (
        engine(always(http(report())), port=first),
        engine(always(http(report(scheduler="FCFS"))), port=first + 1),
        polling(at(first), config=PollConfig(source=Source.REPORT, interval=0.02, ranks=2)) as (_, pool),
    ):
        await until(lambda: any("ranks disagree" in reason for reason in pool.reasons))
        assert pool.reports == []


async def test_a_hung_engine_delays_nobody_and_is_not_asked_twice() -> None:
    async with engine(never) as (hung, port), engine(always(http(report()))) as (_, good_port):
        endpoints = (at(port, address="127.0.0.1:1"), at(good_port, address="127.0.0.1:2"))
        async with polling(*endpoints) as (poller, pool):
            began = time.monotonic()
            await until(lambda: len(pool.reports) >= 20)
            assert time.monotonic() - began < 5
            assert len(hung.requests) == 1
            assert {address for address, *_ in pool.reports} == {"127.0.0.1:2"}
            assert any(reason.startswith("no answer for") for _, reason in pool.silences)
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
        assert pool.reports[1][3] - pool.reports[0][3] < 1.6  # not one interval later
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
        assert {text for _, text in pool.broken} == {reason}
        assert pool.reports == []
        assert served.connections == 1


async def test_a_version_that_is_not_ours_is_said() -> None:
    async with engine(always(http(report(version=2)))) as (_, port), polling(at(port)) as (poller, pool):
        await until(lambda: pool.broken)
        assert {text.partition(",")[0] for _, text in pool.broken} == {"load report version 2 is not supported"}
        assert set(poller.status()["127.0.0.1:8000"].failures) - {"timeout"} == {"invalid"}


async def test_metrics_come_from_the_engines_own_port_and_path_and_the_length_from_its_models() -> None:
    models = b'{"object":"list","data":[{"id":"m","max_model_len":4096},{"id":"lora","max_model_len":null},{"id":"x"}]}'

    async def answer(_: Engine, __: Any, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(http(models if b"/v1/models" in request else metrics_text()))

    config = PollConfig(source=Source.METRICS, interval=0.02, metrics_path="/stats/vllm?x=1")
    async with (
        engine(answer) as (served, port),
        polling(at(1, address=f"127.0.0.1:{port}"), config=config) as (_, pool),
    ):
        await until(lambda: len(pool.samples) >= 5)
        assert pool.samples[0][1].max_model_len is None
        assert pool.samples[-1][1].max_model_len == 4096
        assert pool.samples[-1][1].waiting == 4
        assert served.connections == 1
        assert sum(b"GET /v1/models " in request for request in served.requests) == 1
        assert b"GET /stats/vllm?x=1 HTTP/1.1" in served.requests[0]
        assert pool.broken == []


async def test_the_models_are_asked_again_after_a_restart_of_the_engine() -> None:
    lengths = iter([4096, 2048])
    low = metrics_text(without="vllm:prompt_tokens_total", extra="vllm:prompt_tokens_total 3\n")
    text = metrics_text()

    async def answer(_: Engine, __: Any, writer: asyncio.StreamWriter, request: bytes) -> None:
        if b"/v1/models" in request:
            writer.write(http(b'{"data":[{"max_model_len":%d}]}' % next(lengths)))
        else:
            writer.write(http(text))

    async with (
        engine(answer) as (_, port),
        polling(at(1, address=f"127.0.0.1:{port}"), config=METRICS) as (_, pool),
    ):
        await until(lambda: pool.samples and pool.samples[-1][1].max_model_len == 4096)
        text = low
        await until(lambda: pool.samples[-1][1].max_model_len == 2048)


@pytest.mark.parametrize("models", [http(b"{}"), http(b"\xff"), http(b"", status="401 Unauthorized")])
async def test_models_that_cannot_be_read_leave_the_length_unknown_and_the_samples_coming(models: bytes) -> None:
    async def answer(_: Engine, __: Any, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(models if b"/v1/models" in request else http(metrics_text()))

    async with (
        engine(answer) as (served, port),
        polling(at(1, address=f"127.0.0.1:{port}"), config=METRICS) as (_, pool),
    ):
        await until(lambda: len(pool.samples) >= 5)
        assert pool.samples[-1][1].max_model_len is None
        assert pool.broken == []
        assert sum(b"/v1/models" in request for request in served.requests) == 1


# Which engines, and how often


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
            while time.monotonic() - began < 1.0:
                poller.update(endpoints)
                await asyncio.sleep(0.003)
            assert 8 <= len(pool.reports) <= 24


# When nobody can be reached


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


async def test_stopping_twice_and_stopping_before_the_start_are_harmless() -> None:
    poller = Poller(Pool(), REPORTS)
    await poller.stop()
    poller.update([at(free_port())])
    poller.start()
    poller.start()
    await asyncio.sleep(0)
    await poller.stop()
    await poller.stop()
