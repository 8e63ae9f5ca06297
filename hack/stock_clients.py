#!/usr/bin/env python3
"""Runs the stock `openai` SDK against a gateway: completions and chat, streaming and not.

    .venv/bin/python hack/stock_clients.py                       # starts engines, picker and Envoy for it
    .venv/bin/python hack/stock_clients.py http://HOST:8000 MODEL  # a gateway of one's own

Prints a line for each call and exits with 1 when one did not answer as asked.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

from openai import AsyncOpenAI

from halffull_lab.stack import EngineOptions, Stack

TOKENS = 24
PROMPT = "Is the GPU half empty or half full? " * 20


async def completion(client: AsyncOpenAI, model: str) -> int:
    """A completion in one piece."""
    answer = await client.completions.create(model=model, prompt=PROMPT, max_tokens=TOKENS, extra_body=EXACT)
    return answer.usage.completion_tokens if answer.usage and answer.choices[0].text else 0


async def completion_stream(client: AsyncOpenAI, model: str) -> int:
    """A completion, streamed."""
    stream = await client.completions.create(
        model=model, prompt=PROMPT, max_tokens=TOKENS, stream=True, stream_options=USAGE, extra_body=EXACT
    )
    return await tokens(stream, lambda chunk: chunk.choices[0].text)


async def chat(client: AsyncOpenAI, model: str) -> int:
    """A chat in one piece."""
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": PROMPT}], max_tokens=TOKENS, extra_body=EXACT
    )
    return answer.usage.completion_tokens if answer.usage and answer.choices[0].message.content else 0


async def chat_stream(client: AsyncOpenAI, model: str) -> int:
    """A chat, streamed."""
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=TOKENS,
        stream=True,
        stream_options=USAGE,
        extra_body=EXACT,
    )
    return await tokens(stream, lambda chunk: chunk.choices[0].delta.content)


EXACT = {"ignore_eos": True}
USAGE = {"include_usage": True}
CALLS: dict[str, Callable[[AsyncOpenAI, str], Awaitable[int]]] = {
    "completions": completion,
    "completions, streaming": completion_stream,
    "chat": chat,
    "chat, streaming": chat_stream,
}


async def tokens(stream: AsyncIterator, text: Callable) -> int:
    """The tokens that the usage names; 0 when no text came or no finish_reason."""
    came, finished, counted = "", False, 0
    async for chunk in stream:
        if chunk.choices:
            came += text(chunk) or ""
            finished = finished or chunk.choices[0].finish_reason is not None
        if chunk.usage:
            counted = chunk.usage.completion_tokens
    return counted if came and finished else 0


async def check(url: str, model: str) -> dict[str, int]:
    """Every call at once; the tokens that each answered."""
    base = f"{url.rstrip('/').removesuffix('/v1')}/v1"
    async with AsyncOpenAI(base_url=base, api_key=os.environ.get("OPENAI_API_KEY", "none"), max_retries=0) as client:
        models = [card.id async for card in client.models.list()]
        if model not in models:
            raise SystemExit(f"{url} lists {', '.join(models)}, not {model}")
        counts = await asyncio.gather(*(call(client, model) for call in CALLS.values()))
    return dict(zip(CALLS, counts, strict=True))


async def main(argv: list[str]) -> int:
    """Check the gateway that is named, or one started for it; the exit code."""
    if argv:
        url, model = argv
        counts = await check(url, model)
    else:
        async with Stack(engines=2, options=EngineOptions(speed=10)) as stack:
            counts = await check(stack.gateway, stack.options.model)
    for name, count in counts.items():
        print(f"{'ok  ' if count == TOKENS else 'FAIL'} {name}: {count} of {TOKENS} tokens")
    return 0 if set(counts.values()) == {TOKENS} else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))
