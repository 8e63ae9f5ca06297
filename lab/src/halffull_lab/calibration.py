"""Fits the latency model of a step to what was measured of an engine, and says how far off it is. Pure.

What can be told apart from outside, and what cannot:

- The constants `floor`, `base`, `fixed` and `host` of the model appear in sums only. A fit puts what every step costs
  into `floor` and `base`, leaves `fixed` at 0, and takes for `host` the time between two steps that the engine itself
  does not count as busy, if it tells.
- The floor shows where steps are on both sides of its end (a few hundred tokens on a GPU). On the floor only decodes
  and short prefills tell `per_token` from `per_decode`; beyond it only `matmul_per_token + per_token` counts.
- A coefficient that the measurements do not vary independently of the others is an error, not a guess.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from halffull_lab.latency import LatencyModel

Floats = NDArray[np.float64]
Region = Literal["prefill", "decode", "mixed"]
REGIONS: Final[tuple[Region, ...]] = ("prefill", "decode", "mixed")

LARGE_ERROR: Final = 0.2
"""A relative error that is worth a warning."""

_INDEPENDENT: Final = 0.01
"""Share of a column that the others must leave unexplained."""
_REWEIGHTED: Final = 4
_HUBER: Final = 1.345
_COSTS: Final = (
    ("a step", "steps of several sizes are needed"),
    ("a token", "prompts of several lengths below and above a step's budget are needed"),
    ("a decoding sequence", "several numbers of decoding sequences are needed"),
    ("the context of the decodes", "several context lengths at the same number of sequences are needed"),
    ("attention within a prompt", "prompts several times as long as others are needed"),
)
"""By column of the design without a floor: what it prices, and what tells it from the rest."""


class CalibrationError(Exception):
    """What was measured does not determine the model, or could not be measured; says what is missing."""


class Steps(NamedTuple):
    """Consecutive steps of one composition."""

    times: int
    prefill_tokens: int
    decodes: int
    decode_context: float
    """Σ of the decodes' contexts, mean over the steps."""
    prefill_pairs: float
    """Σ s·(p + s/2) over the chunks s at offsets p, of one step."""


class Mark(NamedTuple):
    """The engine's cumulative counters at one moment."""

    steps: int
    seconds: float
    """Time in the steps."""
    computed: int | None = None
    """Tokens; None where the engine does not tell."""
    taken: float | None = None
    """s, of one clock for all marks: when this was so; None where `seconds` is such a clock itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The time that some steps of known composition took together.

    `setting` is what was set up, the same for repetitions; `held_out` keeps it from the fit, for judging it.
    """

    region: Region
    setting: str
    held_out: bool
    steps: tuple[Steps, ...]
    seconds: float

    @property
    def measured(self) -> float:
        """Mean time of a step, s."""
        return self.seconds / sum(steps.times for steps in self.steps)


class RegionError(NamedTuple):
    """How far off a model is on the held-out settings of a region; nan without any."""

    region: Region
    settings: int
    shortest: float
    """Measured step time, s."""
    longest: float
    median: float
    """Relative error of a setting: of the median of its repetitions."""
    p95: float
    scatter: float
    """Relative standard deviation of a setting's repetitions, median of the settings: what no model could predict."""


# What was measured.


def chunks(prompt: int, budget: int) -> list[tuple[int, float]]:
    """Tokens and pairs s·(p + s/2) of each step that computes a prompt, `budget` tokens a step at most."""
    sizes = [min(budget, prompt - done) for done in range(0, prompt, budget)]
    return [(size, size * (index * budget + size / 2)) for index, size in enumerate(sizes)]


def composition(
    before: Mark, after: Mark, *, decodes: int, context: float, prompt: int = 0, budget: int
) -> tuple[Steps, ...] | None:
    """What the steps between two marks computed; None when it was not, or not only, what is asked for.

    Args:
        before: while all the sequences decode.
        after: as well, with the prompt's prefill over.
        decodes: sequences that decode all the time.
        context: Σ of theirs at `before`.
        prompt: tokens of one more sequence that produces a single token; 0: there was none.
        budget: tokens of a step.
    """
    count = after.steps - before.steps
    parts = chunks(prompt, budget - decodes) if prompt else []
    if count < max(1, len(parts)) or (not decodes and count != len(parts)):
        return None
    if before.computed is not None and after.computed is not None:
        computed = after.computed - before.computed
        if computed != count * decodes + prompt:
            return None
    mean = context + decodes * (count - 1) / 2
    steps = [Steps(1, size, decodes, mean, pairs) for size, pairs in parts]
    if count > len(parts):
        steps.append(Steps(count - len(parts), 0, decodes, mean, 0.0))
    return tuple(steps)


def idle_share(gaps: Sequence[float]) -> float:
    """The time between two steps, s, from noisy readings of it (s); 0 unless they agree that there is one."""
    if len(gaps) < 4:
        return 0.0
    values = np.asarray(gaps)
    median = float(np.median(values))
    noise = 1.4826 * float(np.median(np.abs(values - median))) * 1.2533 / np.sqrt(len(values))
    return median if median > 2 * noise else 0.0


# The fit.


def fit(samples: Sequence[Sample]) -> LatencyModel:
    """The model, with `host` 0, that fits the samples which are not held out.

    Least squares of the relative error (Huber's weights: a machine that stumbles is not the engine), coefficients ≥ 0
    (Lawson–Hanson). The floor is T = … + c·max(n, κ): for a given κ the model is linear, and κ is searched for.

    Raises:
        CalibrationError: the samples do not determine it.
    """
    used = [sample for sample in samples if not sample.held_out]
    if not used:
        raise CalibrationError("nothing was measured")
    rows = _Rows(used)
    _check_independent(rows.matrix(0.0))
    weights = np.ones(len(used))
    knee, coefficients = 0.0, np.zeros(6)
    for _ in range(_REWEIGHTED):
        knee, coefficients = _fit_knee(rows, weights)
        residual = np.abs(rows.matrix(knee) @ coefficients - 1)
        scale = _HUBER * 1.4826 * float(np.median(residual))
        weights = np.minimum(1.0, scale / np.maximum(residual, 1e-12)) if scale > 1e-9 else weights
    constant, slope, per_token, per_decode, per_kv_token, per_prefill_pair = (float(value) for value in coefficients)
    return LatencyModel(
        floor=constant + slope * knee,
        base=constant,
        matmul_per_token=slope,
        fixed=0.0,
        per_token=per_token,
        per_decode=per_decode,
        per_kv_token=per_kv_token,
        per_prefill_pair=per_prefill_pair,
        host=0.0,
    )


class _Rows:
    """The design: a row per sample, each divided by its measured ms, so that 1 is what they should come to."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        steps = np.array([tuple(step) for sample in samples for step in sample.steps], dtype=np.float64)
        count, prefill, decodes, context, pairs = steps.T
        self._owner = np.repeat(np.arange(len(samples)), [len(sample.steps) for sample in samples])
        self._measured = np.array([1000 * sample.seconds for sample in samples])
        self._count = count
        self.tokens = prefill + decodes
        """Of a step, for each of `Sample.steps` of all samples."""
        self._fixed = [self._sum(column) for column in (np.ones_like(count), self.tokens, decodes, context, pairs)]

    def _sum(self, column: Floats) -> Floats:
        total: Floats = np.bincount(self._owner, weights=self._count * column) / self._measured
        return total

    def matrix(self, knee: float) -> Floats:
        """float64[samples, 6]: 1, max(n, κ), n, B, KV, pairs. Without a knee the second and third are one: zeros."""
        one, tokens, *rest = self._fixed
        first = tokens if not knee else self._sum(np.maximum(self.tokens, knee))
        second = tokens if knee else np.zeros_like(tokens)
        return np.column_stack([one, first, second, *rest])


def _fit_knee(rows: _Rows, weights: Floats) -> tuple[float, Floats]:
    """κ and the coefficients of least weighted squares; κ = 0 (no floor) unless one fits better."""
    root = np.sqrt(weights)

    def solve(knee: float) -> tuple[float, float, Floats]:
        matrix = rows.matrix(knee) * root[:, None]
        found = nonnegative_least_squares(matrix, root)
        return float(np.sum((matrix @ found - root) ** 2)), knee, found

    best = solve(0.0)
    sizes = np.unique(rows.tokens)
    # Two sizes on either side: one alone would make its own end of the line exact, whatever the knee.
    if len(sizes) >= 4:
        low, high = sizes[1], sizes[-2]
        for _ in range(4):
            found = min((solve(float(knee)) for knee in np.geomspace(low, high, 17)), key=lambda each: each[0])
            best = min(best, found, key=lambda each: each[0] * (1 + 1e-9 * bool(each[1])))
            ratio = (high / low) ** (1 / 8)
            low, high = max(sizes[1], found[1] / ratio), min(sizes[-2], found[1] * ratio)
    return best[1], best[2]


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """Find x ≥ 0 that minimises |matrix · x − target|, by Lawson and Hanson's active sets (1974, chapter 23).

    Args:
        matrix: float64[rows, columns]; a column of zeros gets 0.
        target: float64[rows].
    """
    norms = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(norms > 0, norms, 1.0)
    count = scaled.shape[1]
    x, free = np.zeros(count), np.zeros(count, dtype=bool)
    tolerance = 1e-10 * float(np.linalg.norm(target) or 1.0)
    for _ in range(10 * count):  # it ends long before; rounding could make it cycle
        gradient = np.where(free, -np.inf, scaled.T @ (target - scaled @ x))
        entering = int(np.argmax(gradient))
        if gradient[entering] <= tolerance:
            break
        free[entering] = True
        while True:
            inner = np.zeros(count)
            inner[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            negative = free & (inner <= 0)
            if not negative.any():
                break
            x += float(np.min(x[negative] / (x[negative] - inner[negative]))) * (inner - x)
            free &= x > 1e-14
            x[~free] = 0.0
        x = inner
    return np.asarray(x / np.where(norms > 0, norms, 1.0))


def _check_independent(matrix: Floats) -> None:
    """No column of the design without a floor may follow from the others."""
    columns = np.delete(matrix, 2, axis=1)
    for index, (price, needed) in enumerate(_COSTS):
        column, others = columns[:, index], np.delete(columns, index, axis=1)
        norm = np.linalg.norm(column)
        others = others / np.maximum(np.linalg.norm(others, axis=0), 1e-300)
        left = column - others @ np.linalg.lstsq(others, column, rcond=None)[0]
        if norm == 0 or np.linalg.norm(left) < _INDEPENDENT * norm:
            raise CalibrationError(f"the {len(matrix)} measurements do not tell what {price} costs: {needed}")


# How good it is.


def predicted(model: LatencyModel, sample: Sample) -> float:
    """The model's mean time of the sample's steps, s."""
    total = sum(
        steps.times
        * model.step_seconds(
            prefill_tokens=steps.prefill_tokens,
            decodes=steps.decodes,
            decode_context=round(steps.decode_context),
            prefill_pairs=steps.prefill_pairs,
        )
        for steps in sample.steps
    )
    return total / sum(steps.times for steps in sample.steps)


def errors(model: LatencyModel, samples: Sequence[Sample]) -> list[RegionError]:
    """How far off the model is on the held-out samples, by region."""
    found = []
    for region in REGIONS:
        own = [sample for sample in samples if sample.held_out and sample.region == region]
        if not own:
            found.append(RegionError(region, 0, *[float("nan")] * 5))
            continue
        ratios: dict[str, list[float]] = {}
        for sample in own:
            ratios.setdefault(sample.setting, []).append(predicted(model, sample) / sample.measured)
        middles = {setting: float(np.median(values)) for setting, values in ratios.items()}
        off = [abs(middle - 1) for middle in middles.values()]
        spread = [float(np.std(values, ddof=1)) / np.mean(values) for values in ratios.values() if len(values) > 1]
        scatter = float(np.median(spread)) if spread else float("nan")
        measured = [sample.measured for sample in own]
        median, p95 = (float(value) for value in np.percentile(off, [50, 95]))
        found.append(RegionError(region, len(off), min(measured), max(measured), median, p95, scatter))
    return found


def warnings(found: Sequence[RegionError]) -> list[str]:
    """What a person must know of the errors, in words."""
    lines = []
    for error in found:
        if not error.settings:
            lines.append(f"{error.region}: no held-out measurement, so nothing is known of the error")
        elif error.median > LARGE_ERROR:
            lines.append(f"{error.region}: half of the predicted step times are off by more than {error.median:.0%}")
        elif error.p95 > LARGE_ERROR:
            lines.append(f"{error.region}: one in twenty predicted step times is off by more than {error.p95:.0%}")
    return lines
