"""Figures of a replay, pure: percentiles that keep failures in the tail, bands, and ratios with their uncertainty.

All times run from the *scheduled* arrival and are in trace seconds. A failed request has infinite times: it stays in
every percentile, and a percentile that falls on it is infinite (None once it goes to JSON).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Prompt tokens, lower bound included; the last band is open.
BANDS: tuple[tuple[int, int | None], ...] = ((1, 256), (256, 1024), (1024, 4096), (4096, None))
_CONFIDENCE = (2.5, 97.5)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcomes:
    """One run, a value per request, by index of the trace.

    Attributes:
        prompt_tokens: int64[n]
        output_tokens: int64[n], as asked for; a request that got another number has failed.
        ttft, tgt: float64[n], seconds from the scheduled arrival to the first and the last token; +∞ when failed.
    """

    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft: NDArray[np.float64]
    tgt: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.ttft)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Which failed: bool[n]."""
        return np.isinf(self.tgt)

    @property
    def errors(self) -> int:
        """How many failed."""
        return int(self.failed.sum())

    @property
    def normalized_ttft(self) -> NDArray[np.float64]:
        """TTFT ÷ prompt tokens, s per token."""
        return self.ttft / self.prompt_tokens

    @property
    def tpot(self) -> NDArray[np.float64]:
        """(TGT − TTFT) ÷ (tokens − 1), s, of the requests for more than one token; +∞ when failed."""
        several = self.output_tokens > 1
        times = np.full(int(several.sum()), np.inf)
        answered = ~self.failed[several]
        span = self.tgt[several][answered] - self.ttft[several][answered]
        times[answered] = span / (self.output_tokens[several][answered] - 1)
        return times

    def head(self, count: int) -> "Outcomes":
        """The first `count` requests."""
        return Outcomes(
            prompt_tokens=self.prompt_tokens[:count],
            output_tokens=self.output_tokens[:count],
            ttft=self.ttft[:count],
            tgt=self.tgt[:count],
        )


def percentile(values: NDArray[np.float64], q: float) -> float:
    """The q-th percentile (0–100), linear between neighbours as numpy's default; +∞ once it leans on an infinite one.

    numpy's own gives nan there (∞ − ∞, 0·∞). nan for no values.
    """
    return quantiles(values, (q,))[0]


def quantiles(values: NDArray[np.float64], qs: Sequence[float]) -> list[float]:
    """`percentile` for several `qs` at the price of one."""
    if len(values) == 0:
        return [math.nan] * len(qs)
    places = [(len(values) - 1) * q / 100 for q in qs]
    pairs = [(math.floor(place), min(math.floor(place) + 1, len(values) - 1)) for place in places]
    ordered = np.partition(values, sorted({place for pair in pairs for place in pair}))
    found = []
    for place, (lower, upper) in zip(places, pairs, strict=True):
        below, above, weight = float(ordered[lower]), float(ordered[upper]), place - lower
        # ∞ − ∞ and 0 · ∞ are nan.
        found.append(below if weight == 0 or below == above else below + weight * (above - below))
    return found


def percentiles(values: NDArray[np.float64], qs: Sequence[float] = (50, 95, 99, 100)) -> dict[str, float]:
    """`{"p50": …, "p95": …, "p99": …, "max": …}`."""
    found = quantiles(values, qs)
    return {"max" if q == 100 else f"p{q:g}": value for q, value in zip(qs, found, strict=True)}


def in_band(prompt_tokens: NDArray[np.int64], band: tuple[int, int | None]) -> NDArray[np.bool_]:
    """bool[n]: whose prompt length lies in the band."""
    low, high = band
    return (prompt_tokens >= low) & (prompt_tokens < (np.inf if high is None else high))


def band_name(band: tuple[int, int | None]) -> str:
    """`1–255`, `≥ 4096`."""
    low, high = band
    return f"≥ {low}" if high is None else f"{low}–{high - 1}"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two runs' percentiles with its bootstrap 95% interval; nan where failures leave no figure."""

    value: float
    low: float
    high: float


def paired_ratios(
    numerator: NDArray[np.float64],
    denominator: NDArray[np.float64],
    qs: Sequence[float],
    *,
    seed: int,
    resamples: int = 500,
) -> tuple[Ratio, ...]:
    """percentile(numerator) ÷ percentile(denominator) for each of `qs`, for two runs of the same arrivals.

    The interval is a bootstrap's over requests, drawn by index so that both runs are seen on the same ones, and in
    circular blocks of about √n neighbours (Politis and Romano 1992): waiting times of neighbours hang together, and
    drawing them one by one would claim a precision that is not there.

    Args:
        numerator: float64[n].
        denominator: float64[n], same request at the same index.
        qs: percentiles, 0–100.
        seed: of the drawing.
        resamples: bootstrap draws.

    Raises:
        ValueError: the runs do not have the same number of requests.
    """
    count = len(numerator)
    if count != len(denominator):
        raise ValueError(f"runs of {count} and {len(denominator)} requests are not paired")
    values = [_ratio(above, below) for above, below in _both(numerator, denominator, qs)]
    rng = np.random.default_rng(seed)
    block = max(1, round(math.sqrt(count)))
    draws = np.empty((resamples, len(qs)))
    for draw in range(resamples if count else 0):
        starts = rng.integers(0, count, size=math.ceil(count / block))
        chosen = ((starts[:, None] + np.arange(block)) % count).ravel()[:count]
        draws[draw] = [_ratio(above, below) for above, below in _both(numerator[chosen], denominator[chosen], qs)]
    draws.sort(axis=0)  # nan last: a draw without a figure widens the interval upwards, never narrows it
    low, high = (draws[round((resamples - 1) * q / 100)] for q in _CONFIDENCE)
    return tuple(
        Ratio(value, float(low[place]), float(high[place]))
        if math.isfinite(value)
        else Ratio(math.nan, math.nan, math.nan)
        for place, value in enumerate(values)
    )


def unequal_failures(errors: Mapping[str, int]) -> str:
    """A warning when the runs of a comparison failed differently, "" otherwise: whoever fails more looks faster."""
    if len(set(errors.values())) <= 1:
        return ""
    counts = ", ".join(f"{name} {count}" for name, count in errors.items())
    return f"failures are unequal ({counts}): compare with care"


def finite_or_none(value: float) -> float | None:
    """For JSON, which has neither infinity nor nan."""
    return value if math.isfinite(value) else None


def _both(
    numerator: NDArray[np.float64], denominator: NDArray[np.float64], qs: Sequence[float]
) -> list[tuple[float, float]]:
    return list(zip(quantiles(numerator, qs), quantiles(denominator, qs), strict=True))


def _ratio(numerator: float, denominator: float) -> float:
    if not (math.isfinite(numerator) and math.isfinite(denominator)) or denominator == 0:
        return math.nan
    return numerator / denominator
