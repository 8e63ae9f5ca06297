import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.steps import PRIOR_COEFFICIENTS, Pace, StepFit, nonnegative_least_squares


def true_step(prefill: float, running: float, kv: float) -> float:
    """Seconds; a 70B model on two GPUs, from the latency model that the emulated engines use."""
    return max(0.014, 0.0025 + 5.2e-5 * (prefill + running)) + 0.003 + 5.5e-6 * running + 4.9e-8 * kv


def learn(slow: tuple[float, ...], *, seed: int = 1, seconds: int = 300, windows: bool = False) -> list[Pace]:
    """Paces of engines that are `slow` times slower than the model, polled at 10 Hz, loaded at random."""
    rng = random.Random(seed)
    fit, paces = StepFit(), [Pace() for _ in slow]
    load = [[0.0, 10.0, 1e4] for _ in slow]
    for _ in range(seconds):
        for _ in range(1 if windows else 10):
            for pace, factor, now in zip(paces, slow, load, strict=True):
                now[0] = max(0.0, rng.gauss(150, 250))
                now[1] = min(200.0, max(1.0, now[1] + rng.gauss(0, 4)))
                now[2] = min(2e5, max(1e3, now[1] * 1200 * rng.uniform(0.9, 1.1) * (1.3 if factor > 1 else 1.0)))
                y = factor * true_step(*now) * rng.gauss(1, 0.05)
                give = fit.window if windows else fit.sample
                give(pace, seconds=y, steps=rng.randint(2, 5), prefill=now[0], running=now[1], kv=now[2])
        fit.solve(paces)
    return paces


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_twice_slower_engine_reads_two(seed: int, windows: bool) -> None:
    paces = learn((1.0, 1.0, 1.0, 2.0), seed=seed, windows=windows)
    assert [pace.kappa for pace in paces[:3]] == [1.0, 1.0, 1.0]
    assert paces[3].kappa == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize("windows", [False, True])
def test_equal_engines_read_exactly_one(windows: bool) -> None:
    assert [pace.kappa for pace in learn((1.0, 1.0, 1.0, 1.0), windows=windows)] == [1.0] * 4


def test_one_fast_engine_makes_the_others_slow() -> None:
    """Right on average over 6 runs; a single reading scatters by .13, as one engine alone says what fast is."""
    runs = [learn((1.0, 2.0, 2.0, 2.0), seed=seed, seconds=150) for seed in range(6)]
    assert all(paces[0].kappa == 1.0 for paces in runs)
    slow = [pace.kappa for paces in runs for pace in paces[1:]]
    assert sum(slow) / len(slow) == pytest.approx(2.0, rel=0.05)
    assert all(1.5 < kappa < 2.5 for kappa in slow)


def test_two_hundred_engines_read_one_but_the_slow_one() -> None:
    paces = learn((1.0,) * 200 + (2.0,), seconds=40)
    assert paces[200].kappa == pytest.approx(2.0, rel=0.15)


def test_the_prior_holds_without_samples() -> None:
    fit = StepFit()
    fit.solve([Pace()])
    assert fit.coefficients == pytest.approx(PRIOR_COEFFICIENTS)


def test_a_first_step_of_ten_seconds_brands_nobody() -> None:
    """The first step after a start may compile kernels."""
    fit, paces = StepFit(), [Pace(), Pace()]
    fit.sample(paces[0], seconds=0.02, steps=1, prefill=0, running=1, kv=100)
    fit.sample(paces[1], seconds=10.0, steps=1, prefill=0, running=1, kv=100)
    assert paces[1].taken < 1.0
    for _ in range(600):
        for pace in paces:
            fit.sample(pace, seconds=0.02, steps=3, prefill=0, running=1, kv=100)
    fit.solve(paces)
    assert [pace.kappa for pace in paces] == [1.0, 1.0]


def test_outliers_of_latency_windows_are_skipped_but_not_for_ever() -> None:
    fit, pace = StepFit(), Pace()
    base = {"steps": 50.0, "prefill": 0.0, "running": 1.0, "kv": 0.0}
    predicted = PRIOR_COEFFICIENTS[0] + PRIOR_COEFFICIENTS[2]
    for _ in range(4):
        fit.window(pace, seconds=4.1 * predicted, **base)
    assert pace.predicted == 0.0
    fit.window(pace, seconds=3.9 * predicted, **base)
    assert pace.predicted > 0.0
    other = Pace()
    for _ in range(5):
        fit.window(other, seconds=9.0 * predicted, **base)
    assert other.predicted > 0.0


def test_samples_are_forgotten_one_by_one() -> None:
    """The batched sums equal the recursive ones: every sample is worth .9995 of the next."""
    rng = random.Random(3)
    fit, pace = StepFit(), Pace()
    gram, moment = np.zeros((4, 4)), np.zeros(4)
    for _ in range(700):
        x = np.array([1.0, rng.uniform(0, 900), rng.uniform(0, 90), rng.uniform(0, 1e5)])
        y, steps = rng.uniform(0.01, 0.1), rng.randint(1, 5)
        gram = 0.9995 * gram + steps * np.outer(x, x)
        moment = 0.9995 * moment + steps * x * y
        fit.sample(pace, seconds=y, steps=steps, prefill=x[1], running=x[2], kv=x[3])
    fit._absorb()
    assert np.allclose(fit._gram, gram)
    assert np.allclose(fit._moment, moment)


@given(data=st.lists(st.lists(st.floats(-3, 3), min_size=5, max_size=5), min_size=6, max_size=12))
def test_the_solution_with_coefficients_above_zero_is_optimal(data: list[list[float]]) -> None:
    """Karush, Kuhn and Tucker: no gradient along a positive coefficient, none that falls along a zero one."""
    rows = np.array(data)
    gram = rows[:, :4].T @ rows[:, :4] + 0.1 * np.eye(4)
    moment = rows[:, :4].T @ rows[:, 4]
    solution = nonnegative_least_squares(gram, moment)
    gradient = gram @ solution - moment
    assert (solution >= 0).all()
    assert (gradient >= -1e-6).all()
    assert np.abs(gradient * solution).max() < 1e-6
