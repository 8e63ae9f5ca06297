"""The pool's figures as columns, one row per endpoint: what the policies read at every pick.

They are written when something happens to an endpoint and never rebuilt for a pick.
"""

import numpy as np

from halffull_extproc.policies import Floats, Mask

_FLOATS = ("budget", "capacity", "fresh", "free", "kv", "open", "queued", "requests", "speed", "total")
_MASKS = ("last", "normal")


class Columns:
    """Arrays of equal length, shape (endpoints,)."""

    __slots__ = (*_FLOATS, *_MASKS)

    budget: Floats
    """max_tokens_per_batch, tokens per step."""
    capacity: Floats
    """Longest prompt that the endpoint can hold, tokens."""
    fresh: Floats
    """1 where Q comes from a fresh answer of a healthy endpoint, else 0."""
    free: Floats
    kv: Floats
    open: Floats
    """Own unfinished picks."""
    queued: Floats
    requests: Floats
    speed: Floats
    total: Floats
    last: Mask
    """May be picked, but only after all the normal ones."""
    normal: Mask
    """May be picked."""

    def __init__(self) -> None:
        for name in _FLOATS:
            setattr(self, name, np.zeros(0))
        for name in _MASKS:
            setattr(self, name, np.zeros(0, dtype=np.bool_))

    def __len__(self) -> int:
        return len(self.queued)

    def keep(self, rows: list[int], *, added: int) -> None:
        """Keep these rows, in this order, and append `added` rows of zeros."""
        for name in (*_FLOATS, *_MASKS):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old[rows], np.zeros(added, dtype=old.dtype)]))
