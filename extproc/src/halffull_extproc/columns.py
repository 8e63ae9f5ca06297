"""The pool's figures as columns, one row per endpoint: what the policies read at every pick.

They are written when something happens to an endpoint and never rebuilt for a pick.
"""

_FLOATS = ("budget", "capacity", "free", "kv", "limit", "open", "pace", "queued", "requests", "speed", "total", "work")
_MASKS = ("fresh", "last", "normal")


class Columns:
    """Lists of equal length."""

    __slots__ = (*_FLOATS, *_MASKS)

    budget: list[float]
    """max_tokens_per_batch, tokens per step."""
    capacity: list[float]
    """Longest prompt that the endpoint can hold, tokens."""
    free: list[float]
    kv: list[float]
    limit: list[float]
    """The prompt up to which the policy's straight line holds, tokens (`policies.scores`, as pace and work)."""
    open: list[float]
    """Own unfinished picks."""
    pace: list[float]
    queued: list[float]
    requests: list[float]
    speed: list[float]
    total: list[float]
    work: list[float]
    fresh: list[bool]
    """Q comes from a fresh answer of a healthy endpoint."""
    last: list[bool]
    """May be picked, but only after all the normal ones."""
    normal: list[bool]
    """May be picked."""

    def __init__(self) -> None:
        for name in (*_FLOATS, *_MASKS):
            setattr(self, name, [])

    def __len__(self) -> int:
        return len(self.queued)

    def keep(self, rows: list[int], *, added: int) -> None:
        """Keep these rows, in this order, and append `added` rows of zeros."""
        for name in _FLOATS:
            old = getattr(self, name)
            setattr(self, name, [old[row] for row in rows] + [0.0] * added)
        for name in _MASKS:
            old = getattr(self, name)
            setattr(self, name, [old[row] for row in rows] + [False] * added)
