"""Picks, and what they charge to an endpoint until its report can contain them.

A ledger belongs to one stay of one endpoint in the pool. An endpoint that leaves and comes back gets a new ledger, and
picks of its earlier stay no longer count for anything. Tokens are whole numbers kept in floats: their sums are exact
below 2⁵³ in whatever order picks come and go, so that nothing drifts and an empty ledger holds exactly 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True, eq=False)
class Pick:
    """The answer to one request, and what has to be known when its stream ends."""

    addresses: tuple[str, ...]
    """First and second choice; only one when there is no other."""
    tokens: float
    """Estimated prompt tokens that were charged to the first choice; a whole number."""
    at: float = field(repr=False)
    """When it was picked, seconds."""
    body_bytes: int | None = field(repr=False)
    """Content-Length; None for a chunked request."""
    ledger: "Ledger" = field(repr=False)
    """Whom it was charged to."""


class Ledger:
    """The unfinished picks of one endpoint, and those of them that its report can not contain yet."""

    __slots__ = ("_charged", "_open", "charged_tokens", "open_tokens")

    def __init__(self) -> None:
        # Dictionaries, for they keep the order of the picks and forget one of them in a step.
        self._open: dict[Pick, None] = {}
        self._charged: dict[Pick, None] = {}
        self.open_tokens = 0.0
        """n of all unfinished picks."""
        self.charged_tokens = 0.0
        """n of the picks that no report can contain yet."""

    @property
    def open_count(self) -> int:
        """Unfinished picks."""
        return len(self._open)

    @property
    def charged_count(self) -> int:
        """Picks that no report can contain yet."""
        return len(self._charged)

    def add(self, pick: Pick) -> None:
        """A new pick; they come in the order of their time."""
        self._open[pick] = None
        self._charged[pick] = None
        self.open_tokens += pick.tokens
        self.charged_tokens += pick.tokens

    def contain(self, *, before: float) -> None:
        """A report arrived that contains whatever was picked before this time."""
        contained: list[Pick] = []
        for pick in self._charged:
            if pick.at >= before:
                break
            contained.append(pick)
        for pick in contained:
            del self._charged[pick]
            self.charged_tokens -= pick.tokens

    def close(self, pick: Pick) -> bool:
        """The pick's stream ended. False, and nothing happens, when it had ended before or the endpoint has left."""
        if pick not in self._open:
            return False
        del self._open[pick]
        self.open_tokens -= pick.tokens
        if pick in self._charged:
            del self._charged[pick]
            self.charged_tokens -= pick.tokens
        return True

    def abandon(self) -> None:
        """The endpoint left the pool: nothing is owed any more."""
        self._open.clear()
        self._charged.clear()
        self.open_tokens = self.charged_tokens = 0.0

    def newest(self) -> Iterator[Pick]:
        """Unfinished picks, newest first."""
        return reversed(self._open)

    def newest_tokens(self, count: int) -> float:
        """The n of the newest `count` unfinished picks."""
        if count >= len(self._open):
            return self.open_tokens
        if count == len(self._charged):  # the usual case: the charged ones are the newest
            return self.charged_tokens
        return sum(pick.tokens for pick in islice(reversed(self._open), count))

    def tokens_since(self, start: float) -> float:
        """The n of the unfinished picks made at `start` or later."""
        tokens = 0.0
        for pick in reversed(self._open):
            if pick.at < start:
                break
            tokens += pick.tokens
        return tokens
