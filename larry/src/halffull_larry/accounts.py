"""What the load report and the metrics count, one request's life after the other. Pure, and a few integers a step.

Of vLLM's requests it reads `request_id`, `arrival_time`, `num_prompt_tokens`, `num_tokens`, `num_computed_tokens` and
`num_output_tokens`.
"""

import re
from bisect import bisect_left
from collections import deque
from typing import Any, Final

from halffull_larry.snapshot import Snapshot

__all__ = ["BANDS", "WAITING_SECONDS", "Accounts"]

BANDS: Final = (256, 1_024, 4_096, 16_384)
"""Upper bounds of the bands of prompt tokens; above the last lies one more."""
WAITING_SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper bounds of the histogram of waiting times, s; above the last lies one more bucket."""

_LATER_CHILD: Final = re.compile(r"[1-9]\d*_")
"""vLLM names the children of n > 1 `<index>_<id>`; a prompt and its request are counted with child 0."""


class Accounts:
    """The counters of one engine core. Every method is called in the scheduler's thread."""

    __slots__ = (
        "_admitted",
        "_busy",
        "_computed",
        "_first_tokens",
        "_generation_tokens",
        "_last_output",
        "_prompt_tokens",
        "_requests",
        "_started",
        "_steps",
        "_tokenless",
        "_ttft",
        "_waiting",
        "_waiting_tokens",
        "reordered",
        "unservable",
        "waited",
        "waited_seconds",
    )

    def __init__(self) -> None:
        self._waiting: dict[str, int] = {}  # tokens to compute, by id
        self._waiting_tokens = 0
        self._admitted: dict[str, tuple[Any, int]] = {}  # until the prefill is computed; with the tokens it ends at
        self._tokenless: dict[str, Any] = {}  # admitted at least once, and without a first token
        self._started: deque[float] = deque()  # non-empty steps whose output is not there yet
        self._last_output = 0.0
        self._steps = self._computed = self._first_tokens = 0
        self._prompt_tokens = self._generation_tokens = self._requests = 0
        self._busy = self._ttft = 0.0
        self.reordered = 0
        """Requests admitted before one that had stood in the queue longer."""
        self.unservable = 0
        """Prompts larger than the KV cache that came as far as the scheduler."""
        self.waited = [[0] * (len(WAITING_SECONDS) + 1) for _ in range(len(BANDS) + 1)]
        """Admitted requests by band of prompt tokens and bucket of waiting time."""
        self.waited_seconds = [0.0] * (len(BANDS) + 1)
        """Sum of their waiting times, s."""

    @property
    def prefilling(self) -> list[Any]:
        """Admitted requests whose prefill is not scheduled to its end, in the order of admission."""
        return [request for request, _ in self._admitted.values()]

    @property
    def computed_tokens(self) -> int:
        """Cumulative, prefill and decode."""
        return self._computed

    @property
    def busy_seconds(self) -> float:
        """Cumulative time in non-empty steps."""
        return self._busy

    def arrived(self, request: Any, tokens: int) -> None:
        """A request waits, at first or again; admission would have to compute `tokens`."""
        self.left(request)
        self._waiting[request.request_id] = tokens
        self._waiting_tokens += tokens

    def left(self, request: Any) -> None:
        """A request neither waits nor prefills any more, for whatever reason."""
        self._waiting_tokens -= self._waiting.pop(request.request_id, 0)
        self._admitted.pop(request.request_id, None)

    def admitted(self, request: Any, now: float) -> None:
        """A step took a waiting request on; `now` of the clock of the arrivals."""
        self.left(request)
        self._admitted[request.request_id] = (request, request.num_tokens)
        if not request.num_output_tokens and request.request_id not in self._tokenless:
            self._tokenless[request.request_id] = request
            band = bisect_left(BANDS, request.num_prompt_tokens)
            waited = max(0.0, now - request.arrival_time)
            self.waited[band][bisect_left(WAITING_SECONDS, waited)] += 1
            self.waited_seconds[band] += waited

    def step_scheduled(self, tokens: int, at: float) -> None:
        """A step of so many tokens goes to the GPU; `at` of the clock of `step_done`."""
        if tokens:
            self._started.append(at)
        for request_id, (request, target) in list(self._admitted.items()):
            if request.num_computed_tokens >= target:
                del self._admitted[request_id]

    def step_done(self, tokens: int, *, at: float, now: float) -> None:
        """The output of a step is there and applied; `now` is of the clock of the arrivals.

        Steps may overlap (async scheduling): a step lasts from the output before it, or from its own start if later.
        """
        if tokens:
            self._steps += 1
            self._computed += tokens
            started = self._started.popleft() if self._started else at
            self._busy += max(0.0, at - max(started, self._last_output))
            self._last_output = at
        for request in list(self._tokenless.values()):
            if request.num_output_tokens:
                self._first_token(request, now)

    def ended(self, request: Any, now: float, *, failed: bool) -> None:
        """A request is over; one that failed or was aborted counts nowhere."""
        self.left(request)
        if failed:
            self._tokenless.pop(request.request_id, None)
            return
        if request.request_id in self._tokenless:
            self._first_token(request, now)
        self._generation_tokens += request.num_output_tokens
        if not _LATER_CHILD.match(request.request_id):
            self._requests += 1
            self._prompt_tokens += request.num_prompt_tokens

    def _first_token(self, request: Any, now: float) -> None:
        del self._tokenless[request.request_id]
        if request.num_output_tokens:
            self._first_tokens += 1
            self._ttft += max(0.0, now - request.arrival_time)

    def snapshot(self, *, taken: float, free_tokens: int, total_tokens: int, running: int, waiting: int) -> Snapshot:
        """The engine's load; `taken` of the clock that serves its age."""
        prefilling = sum(max(0, target - request.num_computed_tokens) for request, target in self._admitted.values())
        return Snapshot(
            taken,
            self._waiting_tokens + prefilling,
            free_tokens,
            total_tokens,
            running,
            waiting,
            self._steps,
            self._busy,
            self._computed,
            self._first_tokens,
            self._ttft,
            self._prompt_tokens,
            self._generation_tokens,
            self._requests,
        )
