"""Images come as text, two bytes of which in a thousand are a token: no charge of theirs may bend anything."""

import asyncio
import json
import random

import pytest

from halffull_lab.openai_api import BYTES_PER_TOKEN, TOKENS_PER_IMAGE
from halffull_lab.stack import EngineOptions, Stack
from tests.extproc.scale.client import Client, post
from tests.extproc.scale.figures import endpoints, eventually, ok, picked, picker_metric, total

REQUESTS = 2_000
IMAGES = REQUESTS // 10
AT_ONCE = 32
POLLS = "250ms"  # seldom, so that a dozen requests end between two of them, hardly ever without an image
MAX_MODEL_LEN = 16_384  # of the profile
TEXT_BYTES = 4_000
# Most of a text is a letter of 2 bytes, half a token, that JSON spells with 6: more than twice the bytes per token that
# the picker begins with, so that it has to learn.
LETTERS = (550, 650)


def chat(content: object, *, tokens: int, stream: bool = False) -> bytes:
    fields = {
        "model": "emulated",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }
    return post("/v1/chat/completions", json.dumps(fields).encode())


def text(letters: int, *, tokens: int, stream: bool = False) -> bytes:
    return chat("\u00e9" * letters + "x" * (TEXT_BYTES - 6 * letters), tokens=tokens, stream=stream)


def truth(letters: int) -> float:
    """Tokens of `text`."""
    return (2 * letters + TEXT_BYTES - 6 * letters) / BYTES_PER_TOKEN


def image(*, tokens: int, stream: bool = False) -> bytes:
    url = "data:image/png;base64," + "A" * 2_000_000
    return chat([{"type": "image_url", "image_url": {"url": url}}], tokens=tokens, stream=stream)


class Watch:
    """Looks at the picker's figures while requests run."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.shares: list[float] = []
        """The least share of an engine in each lot of picks."""

    async def look(self) -> None:
        last: dict[str, float] = {}
        while True:
            now = await endpoints(self._stack)
            for endpoint in now:
                assert endpoint["state"] == "ok", endpoint
                assert endpoint["charged_tokens"] <= endpoint["charged_requests"] * MAX_MODEL_LEN
            picks = {endpoint["address"]: endpoint["picks"] for endpoint in now}
            lot = {address: count - last.get(address, 0) for address, count in picks.items()}
            if sum(lot.values()) >= REQUESTS / 10:
                self.shares.append(min(lot.values()) / sum(lot.values()))
                last = picks
            await asyncio.sleep(0.1)


async def ask_all(stack: Stack, requests: list[bytes]) -> None:
    """Send all, so many at once, each on a connection that is kept alive."""
    left = iter(requests)

    async def work() -> None:
        client = await Client.connect(stack.gateway)
        try:
            for request in left:
                assert (await client.ask(request)).status == 200
        finally:
            client.abort()

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())


async def charge_of(stack: Stack, request: bytes, clients: list[Client]) -> float:
    """What the picker charges for a request, while no report can take the charge back."""
    requests, tokens = await total(stack, "charged_requests"), await total(stack, "charged_tokens")
    client = await picked(stack, request)
    clients.append(client)
    assert await asyncio.wait_for(client.answered, 60) == 200
    assert await total(stack, "charged_requests") == requests + 1
    return await total(stack, "charged_tokens") - tokens


async def silence_reports(stack: Stack) -> None:
    for engine in stack.engines:
        client = await Client.connect(engine.url)
        assert (await client.ask(post("/fault", b'{"kind": "hang_load"}'))).status == 200
        client.close()

    async def old() -> bool:
        return all(endpoint["report_age"] > 0.5 for endpoint in await endpoints(stack))

    await eventually(old, what="no more reports")


@pytest.mark.timeout(300)
async def test_images_count_as_what_an_engine_can_hold_and_do_not_bend_the_estimates_of_text() -> None:
    rng = random.Random(5)
    requests = [image(tokens=4)] * IMAGES
    requests += [text(rng.randint(*LETTERS), tokens=4) for _ in range(REQUESTS - IMAGES)]
    rng.shuffle(requests)
    clients: list[Client] = []
    options = EngineOptions(speed=8, flags=("--allow-faults",))
    # Engines that parse bodies of 2 MB may be silent for a second.
    polls = {"interval": POLLS, "staleAfter": "30s"}
    async with Stack(engines=3, options=options, picker={"poll": polls}) as stack:
        await eventually(lambda: ok(stack), what="all engines reported")
        watch = Watch(stack)
        watching = asyncio.create_task(watch.look())
        asking = asyncio.create_task(ask_all(stack, requests))
        try:
            await asyncio.wait((watching, asking), return_when=asyncio.FIRST_COMPLETED, timeout=200)
            if watching.done():
                watching.result()  # what it found wrong
            assert asking.done(), "not within 200 s"
            asking.result()
        finally:
            watching.cancel()
            asking.cancel()
            await asyncio.gather(watching, asking, return_exceptions=True)

        assert len(watch.shares) >= 5
        assert min(watch.shares) > 0.1, watch.shares  # nobody is shunned for an image, not for a moment
        for endpoint in await endpoints(stack):
            assert 0.2 < endpoint["share"] < 0.5
            assert endpoint["failures"] == 0
        error = await picker_metric(stack, "estimate_error")
        assert 0 < error < 0.5

        await silence_reports(stack)
        try:
            for letters in (*LETTERS, 600):
                charge = await charge_of(stack, text(letters, tokens=9_000, stream=True), clients)
                assert truth(letters) / 2 <= charge <= truth(letters) * 2
            charge = await charge_of(stack, image(tokens=9_000, stream=True), clients)
            assert TOKENS_PER_IMAGE <= charge <= MAX_MODEL_LEN
        finally:
            for client in clients:
                client.abort()
