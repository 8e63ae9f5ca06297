"""A steady load of streamed requests, and what became of each."""

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import aiohttp

from halffull_lab.completion import CompletionStream, Failure, Verdict
from halffull_lab.replay import prompt_text

_PATIENCE: Final = 120
"""s after which a request counts as failed."""


@dataclass(slots=True)
class Outcome:
    """One request; times are of `time.monotonic()`."""

    request_id: str
    """Its x-request-id, by which gateways log it."""
    sent: float
    ended: float = float("inf")
    failure: Verdict | None = None

    def under_way(self, at: float) -> bool:
        """Whether it had been sent by then and had not ended."""
        return self.sent <= at < self.ended


@dataclass
class SteadyLoad:
    """Sends streamed completions at an even rate from a thread of its own, from `with` to its end.

    At the end nothing more is sent, and what is under way may finish. Whatever was not answered whole (status, tokens,
    finish_reason, [DONE]) has a `failure`.
    """

    url: str
    """Such as http://10.202.0.7/v1."""
    model: str
    rate: float = 5.0
    """Requests per second."""
    prompt_tokens: int = 100
    output_tokens: int = 40
    outcomes: list[Outcome] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(lambda: self.succeeded() > 0)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_PATIENCE + 10)
        assert not self._thread.is_alive()

    def succeeded(self) -> int:
        """Requests answered whole, so far."""
        return sum(one.failure is None and one.ended < float("inf") for one in list(self.outcomes))

    def failed(self) -> list[Outcome]:
        """Requests that were not, so far."""
        return [one for one in list(self.outcomes) if one.failure is not None]

    def more(self, count: int = 20) -> list[Outcome]:
        """Wait until as many more requests have been sent and have ended: the state of now has served them."""
        first = len(self.outcomes)
        self.wait_for(lambda: len(self.outcomes) >= first + count)
        checked = self.outcomes[first : first + count]
        self.wait_for(lambda: all(one.ended < float("inf") for one in checked))
        return checked

    @staticmethod
    def wait_for(look: Callable[[], bool], *, within: float = 2 * _PATIENCE) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: it never was.
        """
        end = time.monotonic() + within
        while not look():
            assert time.monotonic() < end, "the load does not flow"
            time.sleep(0.05)

    async def _run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=_PATIENCE)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session, asyncio.TaskGroup() as tasks:
            began = time.monotonic()
            for number in itertools.count():
                await asyncio.sleep(max(0.0, began + number / self.rate - time.monotonic()))
                if self._stop.is_set():
                    return
                outcome = Outcome(str(uuid.uuid4()), time.monotonic())
                self.outcomes.append(outcome)
                tasks.create_task(self._send(outcome, session, number=number))

    async def _send(self, outcome: Outcome, session: aiohttp.ClientSession, *, number: int) -> None:
        body = {
            "model": self.model,
            "prompt": prompt_text(self.prompt_tokens, index=number),
            "max_tokens": self.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        stream, headers = CompletionStream(), {"x-request-id": outcome.request_id}
        try:
            async with session.post(f"{self.url}/completions", json=body, headers=headers) as response:
                if response.status != 200:
                    outcome.failure = Verdict(Failure.STATUS, f"{response.status} {await response.text()}"[:300])
                else:
                    async for chunk in response.content.iter_any():
                        stream.feed(chunk, time.monotonic())
                    outcome.failure = stream.end(expected_tokens=self.output_tokens)
        except TimeoutError:
            outcome.failure = Verdict(Failure.TIMEOUT, f"{_PATIENCE} s")
        except (aiohttp.ClientError, OSError) as error:
            outcome.failure = Verdict(Failure.RESET, f"{type(error).__name__}: {error}")
        outcome.ended = time.monotonic()
