"""Conditions of an LLMServing: how they are written, how they tell time, and the Events of their transitions. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

__all__ = ["Clock", "Event", "condition", "events", "find", "one_line", "parse_time", "trim"]

_STEPS: Final = (
    (60, "1 minute"),
    (120, "2 minutes"),
    (300, "5 minutes"),
    (600, "10 minutes"),
    (900, "15 minutes"),
    (1800, "30 minutes"),
    (3600, "1 hour"),
    (7200, "2 hours"),
    (4 * 3600, "4 hours"),
    (8 * 3600, "8 hours"),
    (24 * 3600, "1 day"),
    (2 * 24 * 3600, "2 days"),
    (7 * 24 * 3600, "1 week"),
)
"""A message that told every second would be written, and read by every watcher, every second."""

_LONGEST: Final = 1000

GOOD: Final = frozenset(
    {"Serving", "AllReady", "ScaledToZero", "Complete", "Applied", "UpToDate", "NoGateway", "Paused", "NewerTemplate"}
)
"""Reasons that worry nobody."""
PASSING: Final = frozenset({"RollingOut", "Scaling", "Starting", "Applying", "ModelLoading"})
"""Reasons that go by themselves."""


class Clock:
    """Tells time coarsely, and remembers when it will tell something else."""

    def __init__(self, now: datetime) -> None:
        """A clock that stands at `now` (aware)."""
        self.now = now
        self.next: float | None = None
        """Seconds until a text or a deadline changes with nothing but time; None: never."""

    def age(self, since: datetime) -> float:
        """Seconds; never negative, whatever other clocks say."""
        return max(0.0, (self.now - since).total_seconds())

    def elapsed(self, since: datetime | None) -> str:
        """For how long: 'for over 5 minutes'; empty when that is unknown."""
        if since is None:
            return ""
        age, text = self.age(since), "for less than a minute"
        for seconds, words in _STEPS:
            if age < seconds:
                self.look_in(seconds - age)
                return text
            text = f"for over {words}"
        return text

    def passed(self, since: datetime, seconds: float) -> bool:
        """Whether a deadline has passed."""
        if (left := seconds - self.age(since)) > 0:
            self.look_in(left)
        return left <= 0

    def look_in(self, seconds: float) -> None:
        """Something changes then."""
        self.next = seconds if self.next is None else min(self.next, seconds)


def parse_time(text: object) -> datetime | None:
    """A time of the API server's; None: there is none."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def format_time(time: datetime) -> str:
    """As the API server writes it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def find(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """A condition by type."""
    return next((one for one in status.get("conditions") or () if one.get("type") == type_), None)


def one_line(text: str, longest: int) -> str:
    """Printable, on one line, not longer: without its middle, as errors begin with what was tried and end with why."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    head = longest // 2
    return line if len(line) <= longest else f"{line[:head]}…{line[head + 1 - longest :]}"


def trim(text: str, longest: int) -> str:
    """Not longer."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def condition(
    type_: str, status: str, reason: str, message: str, *, old: Mapping[str, Any], generation: int, now: datetime
) -> dict[str, Any]:
    """One condition; its transition time is the old one's unless the status changes.

    Args:
        type_: Its type.
        status: True, False or Unknown.
        reason: One word in CamelCase.
        message: For a person.
        old: The whole status before.
        generation: Of the spec that it speaks of.
        now: Time of this look.
    """
    before = find(old, type_)
    kept = before.get("lastTransitionTime") if before is not None and before.get("status") == status else None
    return {
        "type": type_,
        "status": status,
        "observedGeneration": generation,
        "lastTransitionTime": kept or format_time(now),
        "reason": reason,
        "message": trim(message, _LONGEST),
    }


@dataclass(frozen=True, slots=True)
class Event:
    """To be written about the LLMServing."""

    type: str
    """Normal or Warning."""
    reason: str
    message: str


def events(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Event, ...]:
    """What is worth telling of a change of status: transitions, and new trouble. Equal statuses tell nothing."""
    return tuple(_events(old, new.get("conditions") or ()))


def _events(old: Mapping[str, Any], conditions: Iterable[Mapping[str, Any]]) -> Iterable[Event]:
    told = set()
    for one in conditions:
        before = find(old, one["type"])
        reason, bad = one["reason"], one["reason"] not in GOOD | PASSING
        if before is None:
            worth = bad
        elif before.get("status") != one["status"]:
            worth = bad or one["type"] in {"Ready", "UpdateAvailable"} or reason in {"Complete", "Paused"}
        else:
            worth = bad and before.get("reason") != reason
        # The same trouble is often the reason of several conditions; the first one tells it.
        if worth and reason not in told:
            told.add(reason)
            yield Event("Warning" if bad else "Normal", reason, f"{one['type']} is {one['status']}: {one['message']}")
