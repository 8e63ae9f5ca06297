"""What one streamed completion amounts to: when its tokens came, how many, and whether it may count as answered."""

import enum
import json
from collections import deque
from dataclasses import dataclass

from halffull_lab.sse import EventParser

# Events kept to be read at the end: the last tokens, the usage, and one to spare. Reading every event would cost more
# than receiving it.
_KEPT = 3


class Failure(enum.StrEnum):
    """Why a request does not count as answered."""

    STATUS = "status"  # not 2xx
    EMPTY = "empty answer"  # 200 without a single token
    ERROR_EVENT = "error event"  # the server said so within the stream
    MALFORMED = "malformed event"
    NO_FINISH_REASON = "no finish_reason"  # the stream was cut, though it closed in good order
    NO_DONE = "no [DONE]"
    TOKEN_COUNT = "wrong token count"  # noqa: S105 - a kind of failure, no secret
    TIMEOUT = "timeout"
    RESET = "connection lost"
    CONNECT = "not connected"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A failure with what a person needs to look into it."""

    kind: Failure
    detail: str = ""


class CompletionStream:
    """Reads the body of a `/v1/completions` answer with `stream` and `include_usage`.

    Attributes:
        first_token, last_token: the times given to `feed` with the chunks that completed those events, or None.
        tokens: as the usage says; without usage, the number of events with a choice (one token each, unless the
            server bundles them: then the count is wrong, and so is the request).
        events: events so far, `[DONE]` included.
    """

    __slots__ = ("_done", "_parser", "_recent", "events", "first_token", "last_token", "tokens")

    def __init__(self) -> None:
        self._parser = EventParser()
        self._recent: deque[tuple[bytes, float]] = deque(maxlen=_KEPT)
        self._done = False
        self.events = 0
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.tokens = 0

    def feed(self, chunk: bytes, now: float) -> None:
        """Take the next bytes of the body, received at `now`."""
        for event in self._parser.feed(chunk):
            self.events += 1
            if event == b"[DONE]":
                self._done = True
                continue
            self._recent.append((event, now))
            if self.first_token is None and (parsed := _parse(event)) is not None and parsed.has_token:
                self.first_token = now

    def end(self, *, expected_tokens: int) -> Verdict | None:
        """The body ended in good order: None when the answer is whole, else what it lacks."""
        finished, usage = False, None
        for event, at in self._recent:
            parsed = _parse(event)
            if parsed is None:
                return Verdict(Failure.MALFORMED, repr(event[:100]))
            if parsed.error:
                return Verdict(Failure.ERROR_EVENT, parsed.error)
            usage = parsed.completion_tokens if parsed.completion_tokens is not None else usage
            if parsed.has_choice:
                self.last_token = at
                finished = finished or parsed.finished
        self.tokens = self.events - 1 if usage is None else usage
        return self._verdict(finished=finished, expected_tokens=expected_tokens)

    def _verdict(self, *, finished: bool, expected_tokens: int) -> Verdict | None:
        events = f"{self.events} events"
        if self.first_token is None:
            return Verdict(Failure.EMPTY, events)
        if not finished:
            return Verdict(Failure.NO_FINISH_REASON, events)
        if not self._done:
            return Verdict(Failure.NO_DONE, events)
        if self.tokens != expected_tokens:
            return Verdict(Failure.TOKEN_COUNT, f"{self.tokens} of {expected_tokens}")
        return None


@dataclass(frozen=True, slots=True)
class _Event:
    has_choice: bool
    has_token: bool  # text, or the end of a choice: an empty piece sent ahead of the prefill is no token
    finished: bool
    completion_tokens: int | None
    error: str


def _parse(event: bytes) -> _Event | None:
    """What a completions event says; None when it is not one."""
    try:
        parsed = json.loads(event)
        choices = parsed.get("choices") or []
        usage = parsed.get("usage")
        finished = any(choice.get("finish_reason") is not None for choice in choices)
        return _Event(
            has_choice=bool(choices),
            has_token=finished or any(choice.get("text") for choice in choices),
            finished=finished,
            completion_tokens=int(usage["completion_tokens"]) if usage else None,
            error=str(parsed["error"])[:200] if parsed.get("error") else "",
        )
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
