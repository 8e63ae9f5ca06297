"""A steady open-loop client: requests leave at their times whatever becomes of those before, and every end is recorded.

Every other request is a stream. Only an answer with all the tokens that were asked for is no failure.
"""

import asyncio
import contextlib
import json
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp

from halffull_lab.completion import CompletionStream
from halffull_lab.replay import prompt_text


@dataclass(slots=True, kw_only=True)
class Sent:
    """One request; times of time.monotonic(). `failure` is empty for a whole answer, and while it is under way."""

    request_id: str
    output_tokens: int
    stream: bool
    began: float
    status: int | None = None
    first_byte: float | None = None
    ended: float | None = None
    failure: str = ""


_RELAYED, _EVERY = 8_000, 2.0
"""Tokens of a stream of `Load.relay`, 8 s on an idle machine and more on any other, and s from one to the next."""


class Load:
    """`async with Load(url) as load:` sends while the block lasts and then waits for every answer.

    Args:
        url: of the gateway.
        rate: requests per second; 0 sends none but those of `send`.
        prompt_tokens, output_tokens: of each request.
    """

    def __init__(self, url: str, *, rate: float = 50.0, prompt_tokens: int = 300, output_tokens: int = 40) -> None:
        self.sent: list[Sent] = []
        self._url = f"{url}/v1/completions"
        self._rate = rate
        self._prompt_tokens = prompt_tokens
        self._output_tokens = output_tokens
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60), read_bufsize=2**20
        )
        self._sender = asyncio.create_task(self._send_steadily())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sender.cancel()
        await asyncio.gather(self._sender, return_exceptions=True)
        if error is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    @property
    def ended(self) -> list[Sent]:
        """Those that are over, in the order in which they left."""
        return [one for one in self.sent if one.ended is not None]

    @property
    def failed(self) -> list[Sent]:
        """Those without a whole answer."""
        return [one for one in self.sent if one.failure]

    def since(self, moment: float) -> list[Sent]:
        """Those that left after `moment`."""
        return [one for one in self.sent if one.began > moment]

    def spanning(self, moment: float) -> list[Sent]:
        """Streams of `relay` that were open at `moment`, and are over."""
        return [
            one
            for one in self.ended
            if one.output_tokens == _RELAYED and one.first_byte is not None and one.first_byte < moment < one.ended
        ]

    @contextlib.asynccontextmanager
    async def relay(self) -> AsyncIterator[None]:
        """Some long streams are open at any moment of the block, however long a busy machine takes for it."""

        async def runners() -> None:
            while True:
                self.send(output_tokens=_RELAYED)
                await asyncio.sleep(_EVERY)

        running = asyncio.create_task(runners())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def more(self, number: int, *, within: float = 30.0) -> list[Sent]:
        """Wait until `number` requests that leave from now on are over; all that left from now on."""
        start = len(self.sent)
        async with asyncio.timeout(within):
            # A counter that other tasks move: there is no event for it
            while sum(one.ended is not None for one in self.sent[start:]) < number:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self.sent[start:]

    async def answered(self) -> None:
        """Wait for the answers to all that was sent so far."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def send(self, *, output_tokens: int, stream: bool = True, prompt_tokens: int | None = None) -> Sent:
        """Send one request beside the steady ones."""
        one = Sent(request_id=str(uuid.uuid4()), output_tokens=output_tokens, stream=stream, began=time.monotonic())
        self.sent.append(one)
        task = asyncio.create_task(self._request(one, prompt_tokens or self._prompt_tokens))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return one

    async def _send_steadily(self) -> None:
        if not self._rate:
            return
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.send(output_tokens=self._output_tokens, stream=len(self.sent) % 2 == 0)
            due = max(due + 1 / self._rate, loop.time() - 1)  # a client held up for long does not send a burst
            await asyncio.sleep(max(0.0, due - loop.time()))

    async def _request(self, one: Sent, prompt_tokens: int) -> None:
        body = {
            "model": "emulated",
            "prompt": prompt_text(prompt_tokens, index=len(self.sent)),
            "max_tokens": one.output_tokens,
            "ignore_eos": True,
            "stream": one.stream,
        }
        if one.stream:
            body["stream_options"] = {"include_usage": True}
        try:
            async with self._session.post(self._url, json=body, headers={"x-request-id": one.request_id}) as response:
                one.status = response.status
                one.first_byte = time.monotonic()
                if response.status != 200:
                    one.failure = f"{response.status} {await response.text()}"
                elif one.stream:
                    one.failure = await _streamed(response, one.output_tokens)
                else:
                    one.failure = _whole(await response.read(), one.output_tokens)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            one.failure = f"{type(error).__name__}: {error}"
        one.ended = time.monotonic()


async def _streamed(response: aiohttp.ClientResponse, tokens: int) -> str:
    stream = CompletionStream()
    async for chunk in response.content.iter_any():
        stream.feed(chunk, time.monotonic())
    verdict = stream.end(expected_tokens=tokens)
    return "" if verdict is None else f"{verdict.kind}: {verdict.detail}"


def _whole(body: bytes, tokens: int) -> str:
    got = json.loads(body)["usage"]["completion_tokens"]
    return "" if got == tokens else f"{got} of {tokens} tokens"
