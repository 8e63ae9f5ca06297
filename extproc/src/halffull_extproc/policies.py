"""The balancing policies: pure functions over columns, one entry per endpoint, called a row.

Functions that choose take sequences of equal length and answer with rows; a mask says which may be chosen (None: all).
Equal scores are broken by the fewest requests, then at random, never by position: at low load most picks are ties, and
breaking them by position costs up to 30% of mean TGT (Halffull design notes). Scores are compared exactly; they tie as
they should because charges are whole tokens, so that sums of them are exact however they came about.

Columns are lists, not arrays: a pool has a few endpoints, and between two requests the caches go cold, so that ten
calls into numpy cost several times what a short loop does. At 1,000 endpoints the loop still takes under 0.3 ms.
"""

import enum
import math
import random
from collections.abc import Callable, Sequence

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


def sal(tokens: float, *, queued: float, free: float, max_tokens_per_batch: float, beta: float) -> float:
    """Score of one endpoint by SAL: max(β·(n − F), (Q + n) / max_tokens_per_batch) (arXiv 2410.17840).

    Args:
        tokens: n, the estimated prompt tokens of the request.
        queued: Q, tokens.
        free: F, tokens.
        max_tokens_per_batch: tokens per step.
        beta: (μ_in + μ_out) / μ_out.
    """
    return max(beta * (tokens - free), (queued + tokens) / max_tokens_per_batch)


def sal_plus(
    tokens: float,
    *,
    queued: float,
    free: float,
    total: float,
    kv: float,
    speed: float,
    max_tokens_per_batch: float,
    kv_weight: float,
    knee: float,
) -> float:
    """Score of one endpoint by SALPlus, in steps (Halffull design notes).

    κ·(Q + n + w·KV + max(0, n − F)) / max_tokens_per_batch + knee·max(0, k − .7)/(1 − k),
    k = min(.95, (total − F + n)/total).

    Args:
        tokens: n, the estimated prompt tokens of the request.
        queued: Q, tokens.
        free: F, tokens.
        total: KV cache, tokens, above 0.
        kv: KV, tokens in the cache or to come into it.
        speed: κ, 1 for the fastest of the pool.
        max_tokens_per_batch: tokens per step.
        kv_weight: w, what a token in the KV cache costs beside a queued one.
        knee: weight of the memory knee, in steps.
    """
    used = min(KNEE_LIMIT, (total - free + tokens) / total)
    work = queued + tokens + kv_weight * kv + max(0.0, tokens - free)
    return speed * work / max_tokens_per_batch + knee * max(0.0, used - KNEE_FROM) / (1.0 - used)


def scores(tokens: float, *, work: Floats, pace: Floats, limit: Floats, exact: Callable[[int], float]) -> list[float]:
    """Scores of all endpoints, lower is better.

    While memory is ample both formulas are a straight line in n, (work + n)·pace, whose columns change with the
    endpoint and not with the request; only rows beyond it are worked out whole.

    Args:
        tokens: n.
        work: tokens before this request, weighted.
        pace: steps per token.
        limit: the largest n for which the line holds.
        exact: the formula for a row.
    """
    return [
        (before + tokens) * each if tokens <= most else exact(row)
        for row, before, each, most in zip(range(len(work)), work, pace, limit, strict=True)
    ]


def sal_line(*, queued: float, free: float, max_tokens_per_batch: float) -> tuple[float, float, float]:
    """(work, pace, limit) of SAL: to n = F nothing is missing, and the queue is the greater term."""
    return queued, 1.0 / max_tokens_per_batch, free


def sal_plus_line(
    *,
    queued: float,
    free: float,
    total: float,
    kv: float,
    speed: float,
    max_tokens_per_batch: float,
    kv_weight: float,
) -> tuple[float, float, float]:
    """(work, pace, limit) of SALPlus: to n = F − .3·total the knee does not bend yet."""
    return queued + kv_weight * kv, speed / max_tokens_per_batch, free - (1.0 - KNEE_FROM) * total


def lowest(
    scores: Floats, *, requests: Floats, rng: random.Random, mask: Mask | None = None, count: int = 2
) -> list[int]:
    """Up to `count` distinct rows in ascending order of score; ties by fewest requests, then at random."""
    left = list(scores) if mask is None else [s if m else math.inf for s, m in zip(scores, mask, strict=True)]
    rows: list[int] = []
    while len(rows) < count and (best := min(left, default=math.inf)) < math.inf:
        if left.count(best) == 1:
            rows.append(left.index(best))
        else:
            ties = [row for row, score in enumerate(left) if score == best]
            rows += _fewest(ties, requests, rng=rng, count=count - len(rows))
        for row in rows:
            left[row] = math.inf
    return rows


def _fewest(ties: list[int], requests: Floats, *, rng: random.Random, count: int) -> list[int]:
    """Up to `count` of the rows in ascending order of requests; equal ones at random."""
    loads = [requests[row] for row in ties]
    chosen: list[int] = []
    while len(chosen) < count and (fewest := min(loads)) < math.inf:
        among = [place for place, load in enumerate(loads) if load == fewest]
        for place in rng.sample(among, min(count - len(chosen), len(among))):
            chosen.append(ties[place])
            loads[place] = math.inf
    return chosen


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
