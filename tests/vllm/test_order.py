"""Under a full engine, clients see first tokens in the order that the score gives, evaluated here from logged input."""

import asyncio
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from . import serving
from .client import Answer, Client, prompt
from .serving import Launcher

SEQUENCES = 3
BUDGET = 512
ALPHA = 150
ARGS = (
    f"--max-num-seqs={SEQUENCES}",
    f"--max-num-batched-tokens={BUDGET}",
    "--num-gpu-blocks-override=130",
    serving.LONG_STEPS,
)


@pytest.mark.parametrize("caching", ["--no-enable-prefix-caching", "--enable-prefix-caching"])
async def test_first_tokens_come_in_the_order_of_the_score(launcher: Launcher, tmp_path: Path, caching: str) -> None:
    record = tmp_path / "record.jsonl"
    setup = serving.larry(
        *ARGS,
        caching,
        scheduler="recording.SyncScheduler",
        options={"alpha": ALPHA},
        env={"RECORD_TO": str(record)},
    )
    with serving.running(setup, launcher, tmp_path) as server:
        async with Client(server) as client:
            answers = await _crowd(client)
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    arrivals, steps = _read(record)
    admitted = _check_every_step(arrivals, steps)
    order = [name for step in admitted for name in step]
    assert order != sorted(order, key=lambda name: arrivals[name]["at"]), "FCFS would pass too"
    assert any(step["admitted"] != _shortest(arrivals, step) for step in steps), "shortest first would pass too"
    if caching == "--enable-prefix-caching":
        assert any(arrival["cached"] for arrival in arrivals.values()), "nothing was cached"
    _check_clients(admitted, answers)


async def _crowd(client: Client) -> list[Answer]:
    """Three fill the engine and leave one by one, while 30 of all sizes arrive behind them."""
    sizes = [(37 * i * i) % 1400 + 3 for i in range(30)]
    warm = await client.complete(prompt(1400, seed=2000), 1, request_id="warm")
    full = client.fill(SEQUENCES, 1200)
    await client.load_until(lambda report: report["running"] == SEQUENCES)
    tasks = []
    for index, size in enumerate(sizes):
        # Every third begins like the prompt that the prefix cache holds.
        seed = 2000 if index % 3 == 0 else index
        tasks.append(asyncio.create_task(client.complete(prompt(size, seed=seed), 6, request_id=f"crowd{index}")))
        await asyncio.sleep(0.02)
        if index in (19, 24, 29):
            full.pop().cancel()
    return [warm, *await asyncio.gather(*tasks)]


def _read(record: Path) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    arrivals = {line["arrived"]: line for line in lines if "arrived" in line}
    return arrivals, [line["step"] for line in lines if "step" in line]


def _check_every_step(arrivals: dict[str, dict[str, Any]], steps: list[dict[str, Any]]) -> list[list[str]]:
    """Each step admits a prefix of the order that the score gives, and stops only where the rule says so."""
    admitted = []
    for step in steps:
        waiting = [request["id"] for request in step["waiting"]]
        memory = {name: math.ceil((arrivals[name]["tokens"] - arrivals[name]["cached"]) / 16) for name in waiting}
        # score = α·wait − queue_len·memory; the time of the step is the same for all.
        score = {name: -ALPHA * arrivals[name]["at"] - len(waiting) * memory[name] for name in waiting}
        expected = sorted(waiting, key=lambda name: (-score[name], arrivals[name]["at"]))
        assert step["admitted"] == expected[: len(step["admitted"])], (step, score)
        if step["admitted"]:
            admitted.append(step["admitted"])
        if len(step["admitted"]) == len(waiting) or step["running"] == SEQUENCES or step["scheduled"] == BUDGET:
            continue
        head = expected[len(step["admitted"])]
        needed = math.ceil(arrivals[head]["tokens"] / step["block"])
        assert needed > step["free_blocks"] - step["promised_blocks"], (head, step)
    return admitted


def _shortest(arrivals: dict[str, dict[str, Any]], step: dict[str, Any]) -> list[str]:
    """Whom the step would have admitted by what is to be computed alone."""
    waiting = [arrivals[request["id"]] for request in step["waiting"]]
    waiting.sort(key=lambda arrival: (math.ceil((arrival["tokens"] - arrival["cached"]) / 16), arrival["at"]))
    return [arrival["arrived"] for arrival in waiting[: len(step["admitted"])]]


def _check_clients(admitted: list[list[str]], answers: list[Answer]) -> None:
    """No request shows its first token before one whose whole prompt fitted into an earlier step."""
    first = {answer.request_id: answer.first or math.inf for answer in answers}
    tokens = {answer.request_id: answer.usage["prompt_tokens"] for answer in answers}
    whole = [
        [name for name in map(_client_name, step) if tokens.get(name, math.inf) <= BUDGET - SEQUENCES]
        for step in admitted
    ]
    for earlier, later in itertools.pairwise([step for step in whole if step]):
        assert max(first[name] for name in earlier) <= min(first[name] for name in later) + 0.005, (earlier, later)


def _client_name(engine_id: str) -> str:
    return engine_id.removeprefix("cmpl-").split("-")[0]
