"""A tiny KV cache, priorities and more decodes than fit: preemption all the time, and every request comes out whole."""

import asyncio
import random

from . import serving
from .client import Client, prompt

ARGS = (
    "--num-gpu-blocks-override=66",
    "--max-num-seqs=16",
    "--max-num-batched-tokens=512",
    "--scheduling-policy=priority",
)
SERVERS = [
    serving.larry(*ARGS, name="sync"),
    serving.larry(*ARGS[:-1], policy="LARRYPlus", name="sync-LARRYPlus-no-priorities"),
    *serving.asynchronous(*ARGS, name="async"),
    *serving.asynchronous(*ARGS[:-1], policy="LARRYPlus", name="async-LARRYPlus-no-priorities"),
]


async def test_preempted_requests_finish_with_exact_lengths(client: Client) -> None:
    rng = random.Random(3)
    by_priority = "--scheduling-policy=priority" in client.server.setup.args
    asked = [(rng.randint(100, 400), rng.randint(60, 140), rng.randint(-5, 5) if by_priority else 0) for _ in range(60)]
    answers = await asyncio.gather(
        *(
            client.complete(prompt(tokens, seed=index), output, priority=priority)
            for index, (tokens, output, priority) in enumerate(asked)
        )
    )
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    assert [answer.usage["completion_tokens"] for answer in answers] == [output for _, output, _ in asked]
    preemptions = sum(
        value for name, value in (await client.metrics()).items() if name.startswith("vllm:num_preemptions_total")
    )
    assert preemptions > 0, "the cache was not tight enough to show anything"
    report = await client.load()
    assert (report["running"], report["waiting"], report["queued_tokens"]) == (0, 0, 0)
    assert report["free_tokens"] == report["total_tokens"]
    assert report["requests"] == report["first_tokens"] == 60
    assert report["prompt_tokens"] == sum(tokens for tokens, _, _ in asked)
    assert report["generation_tokens"] == sum(output for _, output, _ in asked)
