"""Requests of every shape through `vllm serve` with LARRY: streams, n > 1, aborts, prefix cache, JSON schemas, LoRA."""

import asyncio
import json

from . import serving
from .client import Client, prompt

ARGS = (
    "--max-num-seqs=4",
    "--max-num-batched-tokens=512",
    "--num-gpu-blocks-override=320",
    "--enable-prefix-caching",
    "--max-loras=1",
    "--max-lora-rank=8",
    serving.LONG_STEPS,
)
SERVERS = [
    serving.larry(*ARGS, loras=("red", "blue"), name="sync"),
    *serving.asynchronous(*ARGS, loras=("red", "blue"), name="async"),
]
SCHEMA = {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"], "additionalProperties": False}
CUMULATIVE = ("steps", "computed_tokens", "first_tokens", "prompt_tokens", "generation_tokens", "requests")


async def _idle(client: Client) -> dict[str, object]:
    """The report once nothing runs or waits."""
    report = await client.load_until(lambda report: not report["running"] and not report["waiting"])
    assert report["queued_tokens"] == 0
    assert report["free_tokens"] == report["total_tokens"]
    return report


async def test_streams_and_whole_answers_and_chat_together(client: Client) -> None:
    before = await _idle(client)
    answers = await asyncio.gather(
        *(
            client.complete(prompt(10 + 40 * index, seed=100 + index), 3 + index, stream=index % 2 == 0)
            for index in range(24)
        ),
        *(client.chat(f"hello {index}", 5, stream=index % 2 == 0) for index in range(6)),
    )
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    assert [answer.usage["completion_tokens"] for answer in answers] == [3 + index for index in range(24)] + [5] * 6
    after = await _idle(client)
    delta = {name: after[name] - before[name] for name in CUMULATIVE}  # type: ignore[operator]
    assert delta["requests"] == delta["first_tokens"] == 30
    assert delta["generation_tokens"] == sum(answer.usage["completion_tokens"] for answer in answers)
    assert delta["prompt_tokens"] == sum(answer.usage["prompt_tokens"] for answer in answers)
    assert after["boot_id"] == before["boot_id"]


async def test_the_children_of_n_share_one_prompt_in_the_report(client: Client) -> None:
    before = await _idle(client)
    answer = await client.complete(prompt(50, seed=7), 8, n=3, temperature=1.0)
    assert answer.ok
    assert sorted(answer.texts) == [0, 1, 2]
    after = await _idle(client)
    assert after["requests"] - before["requests"] == 1  # type: ignore[operator]
    assert after["prompt_tokens"] - before["prompt_tokens"] == 50  # type: ignore[operator]
    assert after["generation_tokens"] - before["generation_tokens"] == 24  # type: ignore[operator]


async def test_clients_that_leave_take_everything_with_them(client: Client) -> None:
    before = await _idle(client)
    full = client.fill(4, 1900)
    await client.load_until(lambda report: report["running"] == 4)
    tasks = [
        asyncio.create_task(client.complete(prompt(300, seed=500 + index), 20, stream=index % 2 == 0))
        for index in range(12)
    ]
    report = await client.load_until(lambda report: report["running"] == 4 and report["waiting"] == 12)
    assert report["queued_tokens"] == 12 * 300
    for task in tasks[::3]:  # waiting ones
        task.cancel()
    await client.load_until(lambda report: report["running"] == 4 and report["waiting"] == 8)
    for task in full:  # running ones, whose places would be taken by those that are not yet known to have left
        task.cancel()
    answers = [
        answer
        for answer in await asyncio.gather(*tasks, return_exceptions=True)
        if not isinstance(answer, asyncio.CancelledError)
    ]
    assert len(answers) == 8
    assert all(answer.ok for answer in answers), answers  # type: ignore[union-attr]
    after = await _idle(client)
    assert after["requests"] - before["requests"] == 8  # type: ignore[operator]


async def test_what_the_prefix_cache_holds_is_not_queued(client: Client) -> None:
    assert (await client.complete(prompt(1600, seed=42), 1)).ok
    # Four fill the engine, so that the next must wait.
    full = client.fill(4, 1900)
    await client.load_until(lambda report: report["running"] == 4)
    cached = asyncio.create_task(client.complete(prompt(1600, seed=42), 1))
    report = await client.load_until(lambda report: report["waiting"] > 0)
    assert report["queued_tokens"] <= 64
    for task in full:
        task.cancel()
    assert (await cached).ok
    await _idle(client)


async def test_requests_that_wait_for_a_grammar_hold_up_nobody(client: Client) -> None:
    answers = await asyncio.gather(
        *(
            client.complete(
                prompt(20 + index, seed=index),
                24,
                ignore_eos=False,
                response_format={
                    "type": "json_schema",
                    "json_schema": {"name": f"s{index}", "schema": {**SCHEMA, "title": f"s{index}"}},
                },
            )
            for index in range(20)
        ),
        *(client.complete(prompt(20 + index, seed=50 + index), 10) for index in range(20)),
    )
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    for answer in answers[:20]:
        # vLLM repeats a prompt that ends within a character; dummy weights may write white space until the limit.
        said = answer.text[answer.text.find("{") :] if "{" in answer.text else answer.text.strip()
        if answer.finish_reason == "stop":
            assert isinstance(json.loads(said)["x"], bool)
        else:
            assert said.removeprefix("{").strip()[:3] in ("", '"', '"x', '"x"')
    assert (await _idle(client))["waiting"] == 0


async def test_adapters_beyond_the_limit_are_passed_over_and_served_in_turn(client: Client) -> None:
    models = ["red", "blue", "tiny"] * 8
    answers = await asyncio.gather(
        *(client.complete(prompt(30 + 10 * index, seed=index), 12, model=model) for index, model in enumerate(models))
    )
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    assert all(answer.usage["completion_tokens"] == 12 for answer in answers)
    await _idle(client)


async def test_the_metrics_beside_the_report(client: Client) -> None:
    assert (await client.complete(prompt(10), 2)).ok
    await _idle(client)
    metrics = await client.load_metrics()
    assert metrics["halffull_larry_active"] == 1
    assert metrics["halffull_larry_waiting_requests"] == 0
    bands = [value for name, value in metrics.items() if name.startswith("halffull_larry_waiting_seconds_count")]
    assert sum(bands) >= (await client.load())["first_tokens"] > 0
    assert await client.get(f"http://127.0.0.1:{client.server.load_ports[0]}/nowhere") == (
        404,
        '{"error":"the load report is at /load"}',
    )
