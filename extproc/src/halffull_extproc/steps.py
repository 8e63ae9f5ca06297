"""How long a step of the pool's engines takes, and κ: how much slower than that each of them is.

One least-squares fit for the pool explains the seconds of a step by (1, prefill tokens, running requests, KV tokens).
κ of an engine: EWMA of what its steps took over EWMA of what the fit predicts (Halffull design notes, SALPlus).
"""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

FORGETTING = 0.9995
"""Weight that the fit keeps per sample."""
PRIOR_COEFFICIENTS = (0.015, 5e-5, 1e-5, 5e-8)
"""Seconds per step, per prefill token, per running request, per token of KV cache: a large model on a GPU or two."""
_PRIOR_SCALES = np.array([1.0, 500.0, 50.0, 1e5])  # typical sizes of the four; the prior weighs like one step of each
_SLOWER = 1.1  # below this κ is 1: noise, not a slower engine
_OUTLIER = 4.0
_OUTLIERS_IN_A_ROW = 5
_BATCH = 256

# All 16 choices of which coefficients may differ from 0, for the exact solution with coefficients ≥ 0.
_ACTIVE = np.array([[bool(choice >> bit & 1) for bit in range(4)] for choice in range(16)])


def nonnegative_least_squares(gram: Floats, moment: Floats) -> Floats:
    """Coefficients c ≥ 0 that minimise cᵀGc − 2mᵀc, exactly, by trying all 16 sets of positive coefficients.

    Args:
        gram: G, shape (4, 4), positive definite.
        moment: m, shape (4,).
    """
    pairs = _ACTIVE[:, :, None] & _ACTIVE[:, None, :]
    systems = np.where(pairs, gram, np.eye(4))
    candidates = np.linalg.solve(systems, np.where(_ACTIVE, moment, 0.0)[:, :, None])[:, :, 0]
    costs = np.einsum("ki,ij,kj->k", candidates, gram, candidates) - 2.0 * candidates @ moment
    costs[(candidates < 0.0).any(axis=1)] = np.inf
    best: Floats = candidates[costs.argmin()]
    return best


class Pace:
    """One engine's own pace: EWMAs of what its steps took and of what the pool's fit predicted."""

    __slots__ = ("kappa", "outliers", "predicted", "taken")

    def __init__(self) -> None:
        self.taken = 0.0
        self.predicted = 0.0
        self.kappa = 1.0
        """κ, 1 for the fastest of the pool."""
        self.outliers = 0


class StepFit:
    """The pool's model of a step, fed by polls and solved about once a second."""

    __slots__ = ("_batch", "_gram", "_moment", "coefficients")

    def __init__(self) -> None:
        self._gram = np.zeros((4, 4))
        self._moment = np.zeros(4)
        # Rows of (1, prefill, running, KV, y/κ, weight) not yet in the sums: in batches they cost a fifth.
        self._batch: list[tuple[float, float, float, float, float, float]] = []
        self.coefficients: tuple[float, float, float, float] = PRIOR_COEFFICIENTS

    def sample(
        self,
        pace: Pace,
        *,
        seconds: float,
        steps: float,
        prefill: float,
        running: float,
        kv: float,
        alpha: float = 0.02,
    ) -> None:
        """One engine made `steps` steps of `seconds` on average.

        Args:
            pace: the engine's.
            seconds: y, mean seconds of a step.
            steps: weight of the sample.
            prefill: prefill tokens per step.
            running: running requests of one rank.
            kv: tokens in the KV cache of one rank.
            alpha: weight of the sample in the engine's EWMAs.
        """
        base, per_prefill, per_running, per_kv = self.coefficients
        predicted = base + per_prefill * prefill + per_running * running + per_kv * kv
        if pace.predicted:
            pace.taken += alpha * (seconds - pace.taken)
            pace.predicted += alpha * (predicted - pace.predicted)
        else:  # κ starts at 1: a first step that compiles something must not brand the engine
            pace.taken = pace.predicted = predicted
            pace.taken += alpha * (seconds - predicted)
        # Without the division a slow engine bends the coefficients, and κ reads 1.4 for 2.0.
        self._batch.append((1.0, prefill, running, kv, seconds / pace.kappa, steps))
        if len(self._batch) >= _BATCH:
            self._absorb()

    def window(self, pace: Pace, *, seconds: float, steps: float, prefill: float, running: float, kv: float) -> None:
        """The same from two seconds of a stock engine's inter-token latencies.

        A window of more than 4 times the prediction is left out, since such a latency holds a preemption or a pause. So
        as not to be deaf when the prediction is what is wrong, every fifth of them in a row counts.
        """
        base, per_prefill, per_running, per_kv = self.coefficients
        predicted = pace.kappa * (base + per_prefill * prefill + per_running * running + per_kv * kv)
        if seconds > _OUTLIER * predicted:
            pace.outliers += 1
            if pace.outliers < _OUTLIERS_IN_A_ROW:
                return
        pace.outliers = 0
        self.sample(pace, seconds=seconds, steps=steps, prefill=prefill, running=running, kv=kv, alpha=0.2)

    def solve(self, paces: list[Pace]) -> None:
        """Fit the coefficients anew and set κ of every pace of the pool."""
        self._absorb()
        gram, moment = self._gram.copy(), self._moment.copy()
        weights = _PRIOR_SCALES**2
        gram[np.diag_indices(4)] += weights
        moment += weights * PRIOR_COEFFICIENTS
        # Solved in units of typical sizes: in steps and tokens the matrix spans 10 orders of magnitude.
        scaled = nonnegative_least_squares(gram / np.outer(_PRIOR_SCALES, _PRIOR_SCALES), moment / _PRIOR_SCALES)
        base, per_prefill, per_running, per_kv = (scaled / _PRIOR_SCALES).tolist()
        self.coefficients = (base, per_prefill, per_running, per_kv)
        ratios = [pace.taken / pace.predicted for pace in paces if pace.predicted > 0.0 and pace.taken > 0.0]
        if not ratios:
            return
        fastest = min(ratios)
        for pace in paces:
            if pace.predicted > 0.0 and pace.taken > 0.0:
                kappa = pace.taken / pace.predicted / fastest
                pace.kappa = kappa if kappa >= _SLOWER else 1.0

    def _absorb(self) -> None:
        if not self._batch:
            return
        rows = np.array(self._batch)
        self._batch.clear()
        x, y, weight = rows[:, :4], rows[:, 4], rows[:, 5]
        weight = weight * FORGETTING ** np.arange(len(rows) - 1, -1, -1)
        kept = FORGETTING ** len(rows)
        weighted = x * weight[:, None]
        self._gram *= kept
        self._gram += weighted.T @ x
        self._moment *= kept
        self._moment += weighted.T @ y
