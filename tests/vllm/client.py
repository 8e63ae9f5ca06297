"""What a user of the server sees, with times."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from halffull_lab.unanswered import KEEP_ALIVE

from .serving import MODEL, Server
from .tiny_model import VOCABULARY


@dataclass
class Answer:
    """One request as its client saw it. Times are time.monotonic(), seconds.

    Attributes:
        request_id: as given in the body; vLLM's own id begins with `cmpl-` and it.
        sent, first, done: when it was sent, when its first token came (without streaming: the body; None: never), when
            it ended.
        status: HTTP status; 0 when there was none.
        texts, finish_reasons: by choice index (n > 1 has several).
        usage: prompt_tokens, completion_tokens, … when the server told.
        error: what went wrong, as the server or the client library said it; None if nothing.
    """

    sent: float
    request_id: str = ""
    first: float | None = None
    done: float = 0.0
    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    finish_reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether it is whole: 200, no error, every choice finished."""
        return (
            self.status == 200
            and self.error is None
            and bool(self.texts)
            and self.texts.keys() == self.finish_reasons.keys()
        )

    @property
    def ttft(self) -> float:
        """Seconds to the first token; infinite when there was none."""
        return float("inf") if self.first is None else self.first - self.sent

    @property
    def text(self) -> str:
        """The first choice."""
        return self.texts.get(0, "")

    @property
    def finish_reason(self) -> str | None:
        """Of the first choice."""
        return self.finish_reasons.get(0)


def prompt(tokens: int, seed: int = 0) -> list[int]:
    """A prompt of exactly so many tokens; equal seeds give equal beginnings (prefix-cache hits)."""
    rng = random.Random(seed)
    return [rng.randrange(3, VOCABULARY) for _ in range(tokens)]


class Client:
    """Requests to one server, any number at once. An async context manager."""

    def __init__(self, server: Server) -> None:
        """For `server`."""
        self.server = server
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Itself, with no limit of connections (a queue in the client would look like one in the server)."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
            timeout=aiohttp.ClientTimeout(total=None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close every connection."""
        await self._open.close()

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def complete(
        self, prompt: str | list[int], max_tokens: int = 16, *, stream: bool = True, **body: Any
    ) -> Answer:
        """`POST /v1/completions`; exactly `max_tokens` tokens come unless `ignore_eos=False`. Cancelling aborts it."""
        return await self._post("/v1/completions", {"prompt": prompt}, max_tokens, stream=stream, body=body)

    async def chat(self, content: str, max_tokens: int = 16, *, stream: bool = True, **body: Any) -> Answer:
        """`POST /v1/chat/completions` with one user message; else as `complete`."""
        messages = [{"role": "user", "content": content}]
        return await self._post("/v1/chat/completions", {"messages": messages}, max_tokens, stream=stream, body=body)

    async def load(self, rank: int = 0) -> dict[str, Any]:
        """The load report of a rank."""
        async with self._open.get(f"http://127.0.0.1:{self.server.load_ports[rank]}/load") as answer:
            answer.raise_for_status()
            return await answer.json()  # type: ignore[no-any-return]  # an object

    async def load_until(self, condition: Callable[[dict[str, Any]], bool], rank: int = 0) -> dict[str, Any]:
        """The first load report that satisfies `condition`, which must last: a busy machine polls seldom.

        AssertionError with the last report after half a minute.
        """
        until, polls = time.monotonic() + 30, 1
        while not condition(report := await self.load(rank)):
            assert time.monotonic() < until, f"not within 30 s and {polls} polls; the last report: {report}"
            await asyncio.sleep(0.005)
            polls += 1
        return report

    def fill(self, requests: int, max_tokens: int) -> list[asyncio.Task[Answer]]:
        """Requests that occupy the engine until they are cancelled, or for `max_tokens` steps.

        Not streamed: a fast engine's events would keep this process from looking. Make it long: on a busy machine this
        process has been seen to wait 2 s for a core.
        """
        return [
            asyncio.create_task(
                self.complete(prompt(40, seed=-1 - index), max_tokens, stream=False, request_id=f"full{index}")
            )
            for index in range(requests)
        ]

    async def load_metrics(self, rank: int = 0) -> dict[str, float]:
        """`/metrics` of a rank's load port: sample, labels included as `name{a="b"}`, → value."""
        return await self._metrics(f"http://127.0.0.1:{self.server.load_ports[rank]}/metrics")

    async def metrics(self) -> dict[str, float]:
        """VLLM's own `/metrics`, in the same form."""
        return await self._metrics(f"{self.server.url}/metrics")

    async def get(self, url: str) -> tuple[int, str]:
        """Status and body of any URL."""
        async with self._open.get(url) as answer:
            return answer.status, await answer.text()

    async def _metrics(self, url: str) -> dict[str, float]:
        status, text = await self.get(url)
        assert status == 200, text
        return {
            _series(sample.name, sample.labels): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    async def _post(
        self, path: str, what: dict[str, Any], max_tokens: int, *, stream: bool, body: dict[str, Any]
    ) -> Answer:
        asked = {"model": MODEL, **what, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream, **body}
        if stream:
            asked.setdefault("stream_options", {"include_usage": True})
        answer = Answer(sent=time.monotonic(), request_id=str(body.get("request_id", "")))
        try:
            async with self._open.post(self.server.url + path, json=asked) as response:
                answer.status = response.status
                if response.status != 200:
                    answer.error = await response.text()
                elif stream:
                    await _read_events(response, answer)
                else:
                    _take(answer, await response.json())
        except (aiohttp.ClientError, asyncio.IncompleteReadError, ConnectionError) as problem:
            answer.error = repr(problem)
        answer.done = time.monotonic()
        return answer


def _series(name: str, labels: dict[str, str]) -> str:
    return name + ("{" + ",".join(f'{label}="{labels[label]}"' for label in sorted(labels)) + "}" if labels else "")


async def _read_events(response: aiohttp.ClientResponse, answer: Answer) -> None:
    async for line in response.content:
        if not line.startswith(b"data: "):
            continue
        data = line[len(b"data: ") :].strip()
        if data == b"[DONE]":
            return
        _take(answer, json.loads(data))
    answer.error = answer.error or "the stream ended without [DONE]"


def _take(answer: Answer, event: dict[str, Any]) -> None:
    if "error" in event:
        answer.error = json.dumps(event["error"])
    if event.get("choices") and answer.first is None:
        answer.first = time.monotonic()
    answer.usage = event.get("usage") or answer.usage
    for choice in event.get("choices", ()):
        said = choice.get("text")
        if said is None:
            said = (choice.get("delta") or choice.get("message") or {}).get("content") or ""
        index = choice["index"]
        answer.texts[index] = answer.texts.get(index, "") + said
        if choice.get("finish_reason"):
            answer.finish_reasons[index] = choice["finish_reason"]
