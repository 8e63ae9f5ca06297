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
        found.append(_between(float(ordered[lower]), float(ordered[upper]), place - lower))
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


class Bootstrap:
    """Which requests are drawn, for percentiles of several figures of the same requests with their uncertainty.

    Requests are drawn by index, so that all figures and all runs of the same arrivals are seen on the same ones, and in
    circular blocks of about √n neighbours (Politis and Romano 1992): waiting times of neighbours hang together, and
    drawing them one by one would claim a precision that is not there. Of several runs, as with several seeds, runs are
    drawn first and blocks within each; runs of the same arrivals are seen on the same blocks, for five runs of one
    recording tell nothing of how another recording would have gone.
    """

    def __init__(self, counts: Sequence[int], *, seed: int, resamples: int = 500, same_arrivals: bool = False) -> None:
        """Draw.

        Args:
            counts: requests of each run.
            seed: of the drawing.
            resamples: draws.
            same_arrivals: the runs are of the same requests, and of as many.
        """
        rng = np.random.default_rng(seed)
        self._times = [_drawn(counts, rng, same=same_arrivals) for _ in range(resamples if sum(counts) else 0)]

    def percentiles(self, values: NDArray[np.float64], qs: Sequence[float]) -> NDArray[np.float64]:
        """Percentiles of every draw.

        Args:
            values: float64[Σ counts], the runs' one after the other.
            qs: percentiles, 0–100.

        Returns:
            float64[resamples, len(qs)].
        """
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        found = np.empty((len(self._times), len(qs)))
        for draw, times in enumerate(self._times):
            up_to = np.cumsum(times[order], dtype=np.int64)
            places = np.array(qs) / 100 * (up_to[-1] - 1)
            lower = np.floor(places)
            below = ordered[np.searchsorted(up_to, lower, side="right")]
            above = ordered[np.searchsorted(up_to, np.minimum(lower + 1, up_to[-1] - 1), side="right")]
            found[draw] = [_between(*row) for row in zip(below, above, places - lower, strict=True)]
        return found


def _drawn(counts: Sequence[int], rng: np.random.Generator, *, same: bool) -> NDArray[np.uint16]:
    """How many times each request is drawn: uint16[Σ counts]."""
    offsets = np.concatenate(([0], np.cumsum(counts)))
    times = np.zeros(offsets[-1], dtype=np.uint16)
    starts: NDArray[np.int64] | None = None
    for run in rng.integers(0, len(counts), size=len(counts)) if len(counts) > 1 else [0]:
        count = counts[run]
        block = max(1, round(math.sqrt(count)))
        if starts is None or not same:
            starts = rng.integers(0, count, size=math.ceil(count / block))
        lengths = np.full(len(starts), block)
        lengths[-1] = count - block * (len(starts) - 1)  # as many requests as the run has
        # Where blocks begin and end; one that runs over the end goes on at the beginning.
        edges = np.bincount(starts, minlength=2 * count) - np.bincount(starts + lengths, minlength=2 * count)
        covered = np.cumsum(edges)
        times[offsets[run] : offsets[run + 1]] += (covered[:count] + covered[count:]).astype(np.uint16)
    return times


def interval(draws: NDArray[np.float64]) -> tuple[float, float]:
    """The 95% interval of a figure's draws; nan counts as high: a draw without a figure never narrows it."""
    ordered = np.sort(draws)
    low, high = (float(ordered[round((len(ordered) - 1) * q / 100)]) for q in _CONFIDENCE)
    return low, high


def paired_ratios(
    numerator: NDArray[np.float64],
    denominator: NDArray[np.float64],
    qs: Sequence[float],
    *,
    seed: int,
    resamples: int = 500,
) -> tuple[Ratio, ...]:
    """percentile(numerator) ÷ percentile(denominator) for each of `qs`, for two runs of the same arrivals.

    Args:
        numerator: float64[n].
        denominator: float64[n], same request at the same index.
        qs: percentiles, 0–100.
        seed: of the drawing, see `Bootstrap`.
        resamples: bootstrap draws.

    Raises:
        ValueError: the runs do not have the same number of requests.
    """
    count = len(numerator)
    if count != len(denominator):
        raise ValueError(f"runs of {count} and {len(denominator)} requests are not paired")
    bootstrap = Bootstrap([count], seed=seed, resamples=resamples)
    above, below = bootstrap.percentiles(numerator, qs), bootstrap.percentiles(denominator, qs)
    values = zip(quantiles(numerator, qs), quantiles(denominator, qs), strict=True)
    return tuple(ratio(value, above[:, place], under, below[:, place]) for place, (value, under) in enumerate(values))


def ratio(numerator: float, above: NDArray[np.float64], denominator: float, below: NDArray[np.float64]) -> Ratio:
    """A ratio of two figures, and its interval from their draws: float64[resamples] each, paired."""
    value = _ratio(numerator, denominator)
    if not math.isfinite(value):
        return Ratio(math.nan, math.nan, math.nan)
    draws = np.array([_ratio(*pair) for pair in zip(above.tolist(), below.tolist(), strict=True)])
    return Ratio(value, *interval(draws))


def _between(below: float, above: float, weight: float) -> float:
    # ∞ − ∞ and 0 · ∞ are nan.
    return below if weight == 0 or below == above else below + weight * (above - below)


def unequal_failures(errors: Mapping[str, int]) -> str:
    """A warning when the runs of a comparison failed differently, "" otherwise: whoever fails more looks faster."""
    if len(set(errors.values())) <= 1:
        return ""
    counts = ", ".join(f"{name} {count}" for name, count in errors.items())
    return f"failures are unequal ({counts}): compare with care"


def finite_or_none(value: float) -> float | None:
    """For JSON, which has neither infinity nor nan."""
    return value if math.isfinite(value) else None


def _ratio(numerator: float, denominator: float) -> float:
    if not (math.isfinite(numerator) and math.isfinite(denominator)) or denominator == 0:
        return math.nan
    return numerator / denominator
