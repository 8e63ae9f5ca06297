"""What an engine has done so far: the cumulative half of the load report, and the totals beside it. Pure."""

from halffull_lab.engine_requests import Request, Totals
from halffull_larry.snapshot import Snapshot


class Accounts:
    """Of one engine. Times are seconds of its caller's clock."""

    __slots__ = (
        "_first_tokens",
        "_generation_tokens",
        "_prompt_tokens",
        "_requests",
        "_ttft_seconds",
        "busy_seconds",
        "computed_tokens",
        "totals",
    )

    def __init__(self) -> None:
        self.totals = Totals()
        self.busy_seconds = 0.0
        """Time in steps; who runs them adds it."""
        self.computed_tokens = 0
        """Prefill and decode; likewise."""
        self._first_tokens = 0
        self._ttft_seconds = 0.0
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._requests = 0

    def token(self, request: Request, now: float) -> None:
        """A request got one token, which may be its first."""
        totals = self.totals
        request.generated += 1
        totals.generation_tokens += 1
        if request.first_token_at is None:
            request.first_token_at = now
            self._first_tokens += 1
            self._ttft_seconds += now - request.arrival
            totals.prompt_tokens += request.prompt.tokens
        else:
            totals.itl_seconds += now - request.last_token_at
            totals.itl_count += 1
        request.last_token_at = now

    def finished(self, request: Request, now: float) -> None:
        """A request got its last token."""
        request.finished_at = now
        prompt = request.prompt
        prompt.unfinished -= 1
        self._generation_tokens += request.generated
        if not prompt.unfinished:
            self._prompt_tokens += prompt.tokens
            self._requests += 1
        totals = self.totals
        totals.finished += 1
        totals.finished_prompt_tokens += prompt.tokens
        totals.e2e_seconds += now - request.arrival

    def snapshot(  # noqa: PLR0917  by position, as it is called twice per step
        self,
        now: float,
        queued_tokens: int,
        free_tokens: int,
        total_tokens: int,
        running: int,
        waiting: int,
        steps: int,
    ) -> Snapshot:
        """The load report's part that changes, at `now`; for the arguments, in its order, see `Snapshot`."""
        return Snapshot(
            now,
            queued_tokens,
            free_tokens,
            total_tokens,
            running,
            waiting,
            steps,
            self.busy_seconds,
            self.computed_tokens,
            self._first_tokens,
            self._ttft_seconds,
            self._prompt_tokens,
            self._generation_tokens,
            self._requests,
        )
