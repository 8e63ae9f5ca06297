"""FCFS and LARRY side by side under overload, short prompts among long ones: what the short ones wait."""

import asyncio
import json
import statistics
from pathlib import Path

from . import serving
from .client import Client, prompt
from .serving import Launcher

ARGS = ("--max-num-seqs=4", "--max-num-batched-tokens=512")
LONG, SHORT = 1200, 20  # tokens
FIGURES = Path("build/vllm/overload.json")


def test_short_prompts_wait_less_than_half_as_long_as_in_fcfs(launcher: Launcher, tmp_path: Path) -> None:
    figures = {policy: asyncio.run(_ttft(policy, launcher, tmp_path)) for policy in ("FCFS", "LARRY", "LARRYPlus")}
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    FIGURES.write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures))  # noqa: T201  the figures of the note
    assert figures["LARRY"]["short_p50"] < figures["FCFS"]["short_p50"] / 2
    assert figures["LARRYPlus"]["short_p50"] < figures["FCFS"]["short_p50"] / 2


async def _ttft(policy: str, launcher: Launcher, tmp_path: Path) -> dict[str, float]:
    """36 requests at once, a short one after two long ones; seconds."""
    folder = tmp_path / policy
    folder.mkdir()
    sizes = [SHORT if index % 3 == 2 else LONG for index in range(36)]
    with serving.running(serving.larry(*ARGS, policy=policy), launcher, folder) as server:
        async with Client(server) as client:
            await client.complete(prompt(LONG, seed=99), 4)
            answers = await asyncio.gather(
                *(client.complete(prompt(size, seed=index), 8) for index, size in enumerate(sizes))
            )
            metrics = await client.load_metrics()
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    short = [answer.ttft for answer, size in zip(answers, sizes, strict=True) if size == SHORT]
    long = [answer.ttft for answer, size in zip(answers, sizes, strict=True) if size == LONG]
    return {
        "short_p50": statistics.median(short),
        "short_max": max(short),
        "long_p50": statistics.median(long),
        "long_max": max(long),
        "reordered": metrics["halffull_larry_reordered_requests_total"],
    }
