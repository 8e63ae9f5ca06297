"""The balancing policies: pure functions over columns, one row per endpoint.

Every function takes numpy arrays of equal length. A mask says which rows may be chosen (None: all). Equal scores are
broken by the fewest requests, then at random, never by position: at low load most picks are ties, and breaking them by
position costs up to 30% of mean TGT (Halffull design notes). Scores are compared exactly; they tie as they should
because charges are whole tokens, so that sums of them are exact however they came about.
"""

import enum
import random

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

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
) -> Floats:
    """Score of SAL: max(β·(n − F), (Q + n) / max_tokens_per_batch), lower is better (arXiv 2410.17840).

    Args:
        tokens: n, the estimated prompt tokens of the request.
        beta: (μ_in + μ_out) / μ_out.

    Columns, shape (endpoints,): queued and free in tokens, max_tokens_per_batch in tokens per step.
    """
    steps = (queued + tokens) / max_tokens_per_batch
    return np.maximum(steps, (tokens - free) * beta, out=steps)


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
) -> Floats:
    """Score of SALPlus in steps, lower is better (Halffull design notes).

    κ·(Q + n + w·KV + max(0, n − F)) / max_tokens_per_batch + knee·max(0, k − .7)/(1 − k),
    k = min(.95, (total − F + n)/total).

    Args:
        tokens: n, the estimated prompt tokens of the request.
        kv_weight: w, what a token in the KV cache costs beside a queued one.
        knee: weight of the memory knee, in steps.

    Columns, shape (endpoints,): queued, free, total and kv in tokens, total above 0; speed is κ.
    """
    missing = tokens - free
    work = kv * kv_weight
    work += queued
    work += tokens
    work += np.maximum(missing, 0.0)
    work *= speed
    work /= max_tokens_per_batch
    missing += total
    missing /= total
    k = np.minimum(missing, KNEE_LIMIT, out=missing)
    if k.max(initial=0.0) > KNEE_FROM:
        work += knee * np.maximum(k - KNEE_FROM, 0.0) / (1.0 - k)
    return work


def lowest(
    scores: Floats, *, requests: Floats, rng: random.Random, mask: Mask | None = None, count: int = 2
) -> list[int]:
    """Up to `count` distinct rows in ascending order of score; ties by fewest requests, then at random."""
    left = scores.copy() if mask is None else np.where(mask, scores, np.inf)
    rows: list[int] = []
    for _ in range(min(count, len(left))):
        row = int(left.argmin())
        best = left[row]
        if best == np.inf:
            break
        ties = (left == best).nonzero()[0]
        if len(ties) > 1:
            fewest = requests[ties]
            ties = ties[fewest == fewest.min()]
            row = int(ties[int(rng.random() * len(ties))])
        rows.append(row)
        left[row] = np.inf
    return rows


def least_request(*, in_flight: Floats, rng: random.Random, mask: Mask | None = None, count: int = 2) -> list[int]:
    """Envoy's least_request with two choices: the one with fewer own requests in flight first.

    Like Envoy, the two are drawn with replacement and the first drawn wins a tie. The second choice is the other one,
    or any other when both draws were the same.
    """
    rows = _rows(in_flight, mask)
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
    allowed = range(length) if mask is None else mask.nonzero()[0].tolist()
    return sorted(allowed, key=lambda row: (row - after - 1) % length)[:count]


def uniform(*, length: int, rng: random.Random, mask: Mask | None = None, count: int = 2) -> list[int]:
    """Distinct rows at random, of `length` rows."""
    allowed = range(length) if mask is None else mask.nonzero()[0].tolist()
    return rng.sample(allowed, min(count, len(allowed)))


def _rows(column: Floats, mask: Mask | None) -> list[int]:
    return list(range(len(column))) if mask is None else mask.nonzero()[0].tolist()
