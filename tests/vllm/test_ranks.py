"""Two data-parallel ranks: a load report each, on neighbouring ports."""

import asyncio

from . import serving
from .client import Client, prompt

SERVER = serving.larry("--max-num-seqs=4", "--max-num-batched-tokens=512", ranks=2, name="two ranks")


async def test_each_rank_reports_for_itself(client: Client) -> None:
    answers = await asyncio.gather(*(client.complete(prompt(50 + 20 * index, seed=index), 10) for index in range(24)))
    assert all(answer.ok for answer in answers), [answer.error for answer in answers]
    reports = [await client.load(rank) for rank in (0, 1)]
    assert [report["rank"] for report in reports] == [0, 1]
    assert reports[0]["boot_id"] != reports[1]["boot_id"]
    assert all(report["requests"] > 0 for report in reports)
    assert sum(report["requests"] for report in reports) == 24
    assert sum(report["generation_tokens"] for report in reports) == 240
    assert sum(report["prompt_tokens"] for report in reports) == sum(50 + 20 * index for index in range(24))
    assert all((report["waiting"], report["running"], report["queued_tokens"]) == (0, 0, 0) for report in reports)


async def test_the_children_of_n_count_once_on_whichever_ranks_they_run(client: Client) -> None:
    before = [await client.load(rank) for rank in (0, 1)]
    answer = await client.complete(prompt(40, seed=1), 6, n=4, temperature=1.0)
    assert answer.ok
    after = [await client.load(rank) for rank in (0, 1)]
    delta = {
        name: sum(report[name] for report in after) - sum(report[name] for report in before)
        for name in ("requests", "prompt_tokens", "generation_tokens")
    }
    assert delta == {"requests": 1, "prompt_tokens": 40, "generation_tokens": 24}
