"""Polling stock vLLM: metrics from the engine's own port, the longest sequence from its models."""

import asyncio
from typing import Any

import pytest

from halffull_extproc.poll import PollConfig
from halffull_extproc.pool import Source

from .engines import Engine, always, engine, http
from .polling import METRICS, at, polling
from .reports import metrics_text
from .waiting import until


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


async def test_a_failure_names_the_url_of_the_metrics() -> None:
    config = PollConfig(source=Source.METRICS, interval=0.02, metrics_path="/stats")
    async with engine(always(http(b"", status="404 Not Found"))) as (_, port):
        async with polling(at(1, address=f"127.0.0.1:{port}"), config=config) as (_, pool):
            await until(lambda: pool.broken)
        assert {text for _, text in pool.broken} == {f"http://127.0.0.1:{port}/stats: HTTP status 404"}


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
