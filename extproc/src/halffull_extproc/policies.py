"""The balancing policies: pure functions over columns, one entry per endpoint, called a row.

Every function takes sequences of equal length and answers with rows. A mask says which rows may be chosen (None: all).
Equal scores are broken by the fewest requests, then at random, never by position: at low load most picks are ties, and
breaking them by position costs up to 30% of mean TGT (Halffull design notes). Scores are compared exactly; they tie as
they should because charges are whole tokens, so that sums of them are exact however they came about.

Columns are lists, not arrays: a pool has a few endpoints, and between two requests the caches go cold, so that ten
calls into numpy cost several times what a short loop does. At 1,000 endpoints the loop still takes under 0.3 ms.
"""

import enum
import math
import random
from collections.abc import Sequence

Floats = Sequence[float]
Mask = Sequence[bool]

KNEE_FROM = 0.7
"""Share of the KV cache in use at which SALPlus starts to avoid an engine."""
KNEE_LIMIT = 0.95
"""Share of the KV cache above which the knee no longer grows; it would go to infinity at 1."""


class Policy(enum.StrEnum):
    """How the next endpoint is chosen; the spelling is that of the configuration."""

    SAL = "SAL"
    SALPlus = "SALPlus"
    LeastRequest = "LeastRequest"
    RoundRobin = "RoundRobin"
    Random = "Random"


def sal(  # noqa: D417 (the columns are described together)
    tokens: float, *, queued: Floats, free: Floats, max_tokens_per_batch: Floats, beta: float
) -> list[float]:
    """Score of SAL: max(β·(n − F), (Q + n) / max_tokens_per_batch), lower is better (arXiv 2410.17840).

    Args:
        tokens: n, the estimated prompt tokens of the request.
        beta: (μ_in + μ_out) / μ_out.

    Columns: queued and free in tokens, max_tokens_per_batch in tokens per step.
    """
    return [
        (q + tokens) / budget if tokens <= f else max(beta * (tokens - f), (q + tokens) / budget)
        for q, f, budget in zip(queued, free, max_tokens_per_batch, strict=True)
    ]


def sal_plus(  # noqa: D417 (the columns are described together)
    tokens: float,
    *,
    queued: Floats,
    free: Floats,
    total: Floats,
    kv: Floats,
    speed: Floats,
    max_tokens_per_batch: Floats,
    kv_weight: float,
    knee: float,
) -> list[float]:
    """Score of SALPlus in steps, lower is better (Halffull design notes).

    κ·(Q + n + w·KV + max(0, n − F)) / max_tokens_per_batch + knee·max(0, k − .7)/(1 − k),
    k = min(.95, (total − F + n)/total).

    Args:
        tokens: n, the estimated prompt tokens of the request.
        kv_weight: w, what a token in the KV cache costs beside a queued one.
        knee: weight of the memory knee, in steps.

    Columns: queued, free, total and kv in tokens, total above 0; speed is κ.
    """
    return [
        slowness * (q + tokens + kv_weight * cached + (tokens - f if tokens > f else 0.0)) / budget
        + (0.0 if size - f + tokens <= KNEE_FROM * size else knee * _knee((size - f + tokens) / size))
        for q, f, size, cached, slowness, budget in zip(
            queued, free, total, kv, speed, max_tokens_per_batch, strict=True
        )
    ]


def _knee(used: float) -> float:
    k = min(KNEE_LIMIT, used)
    return max(0.0, k - KNEE_FROM) / (1.0 - k)


def lowest(
    scores: Floats, *, requests: Floats, rng: random.Random, mask: Mask | None = None, count: int = 2
) -> list[int]:
    """Up to `count` distinct rows in ascending order of score; ties by fewest requests, then at random."""
    left = list(scores) if mask is None else [s if m else math.inf for s, m in zip(scores, mask, strict=True)]
    rows: list[int] = []
    for _ in range(min(count, len(left))):
        best = min(left)
        if best == math.inf:
            break
        row = left.index(best)
        if left.count(best) > 1:
            ties = [tied for tied, score in enumerate(left) if score == best]
            fewest = min(requests[tied] for tied in ties)
            row = rng.choice([tied for tied in ties if requests[tied] == fewest])
        rows.append(row)
        left[row] = math.inf
    return rows


def least_request(*, in_flight: Floats, rng: random.Random, mask: Mask | None = None, count: int = 2) -> list[int]:
    """Envoy's least_request with two choices: the one with fewer own requests in flight first.

    Like Envoy, the two are drawn with replacement and the first drawn wins a tie. The second choice is the other one,
    or any other when both draws were the same.
    """
    rows = _allowed(len(in_flight), mask)
    if len(rows) <= 1:
        return rows[:count]
    first, second = rng.choice(rows), rng.choice(rows)
    if in_flight[second] < in_flight[first]:
        first, second = second, first
    if first == second:
        second = rng.choice([row for row in rows if row != first])
    return [first, second][:count]


def round_robin(*, after: int, length: int, mask: Mask | None = None, count: int = 2) -> list[int]:
    """The next rows after row `after`, in turn, of `length` rows."""
    return sorted(_allowed(length, mask), key=lambda row: (row - after - 1) % length)[:count]


def uniform(*, length: int, rng: random.Random, mask: Mask | None = None, count: int = 2) -> list[int]:
    """Distinct rows at random, of `length` rows."""
    allowed = _allowed(length, mask)
    return rng.sample(allowed, min(count, len(allowed)))


def _allowed(length: int, mask: Mask | None) -> list[int]:
    return [row for row in range(length) if mask is None or mask[row]]
