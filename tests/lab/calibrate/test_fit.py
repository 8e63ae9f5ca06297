"""The fit: a known model is found again from its own step times, and too little to go by is an error."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_lab.calibration import (
    REGIONS,
    CalibrationError,
    Mark,
    Sample,
    Steps,
    chunks,
    composition,
    errors,
    fit,
    idle_share,
    nonnegative_least_squares,
    predicted,
    warnings,
)
from halffull_lab.calibration_design import Limits, Load, interruptions, lengths, loads
from halffull_lab.latency import PROFILES, LatencyModel

LIMITS = Limits(kv_tokens=200_000, block_size=16, max_tokens_per_batch=1_024, max_num_seqs=256, max_model_len=16_384)
MODELS = st.builds(
    LatencyModel,
    floor=st.floats(5, 30),
    base=st.floats(0.5, 5),
    matmul_per_token=st.floats(0.02, 0.2),
    fixed=st.floats(0, 5),
    per_token=st.floats(0, 0.03),
    per_decode=st.floats(0, 0.05),
    per_kv_token=st.floats(1e-5, 3e-4),
    per_prefill_pair=st.floats(1e-7, 1e-5),
    host=st.floats(0, 3),
)


def designed(limits: Limits) -> Iterator[Sample]:
    """What calibrate measures, one second each."""
    budget = limits.max_tokens_per_batch
    for length in lengths(limits, budget=budget):
        after = Mark(len(chunks(length.tokens, budget)), 0.0, length.tokens)
        steps = composition(Mark(0, 0.0, 0), after, decodes=0, context=0, prompt=length.tokens, budget=budget)
        yield _sample("prefill", f"{length.tokens}", steps, held_out=length.held_out)
    for load in loads(limits, tokens=1e9):
        context = load.decodes * load.context
        after = Mark(20, 0.0, 20 * load.decodes)
        steps = composition(Mark(0, 0.0, 0), after, decodes=load.decodes, context=context, budget=budget)
        yield _sample("decode", f"{load}", steps, held_out=load.held_out)
        for length in interruptions(limits, load):
            count = len(chunks(length.tokens, budget - load.decodes)) + 2
            steps = composition(
                Mark(0, 0.0, 0),
                Mark(count, 0.0, count * load.decodes + length.tokens),
                decodes=load.decodes,
                context=context,
                prompt=length.tokens,
                budget=budget,
            )
            yield _sample("mixed", f"{load} {length}", steps, held_out=load.held_out)


def _sample(region: str, setting: str, steps: tuple[Steps, ...] | None, *, held_out: bool) -> Sample:
    assert steps is not None
    return Sample(region=region, setting=setting, held_out=held_out, steps=steps, seconds=1.0)  # type: ignore[arg-type]


def timed(model: LatencyModel, *, noise: float = 0.0, seed: int = 0, repeats: int = 3) -> list[Sample]:
    """The design, as long as the model says, with lognormal noise."""
    random = np.random.default_rng(seed)
    return [
        replace(
            sample,
            seconds=predicted(model, sample)
            * sum(steps.times for steps in sample.steps)
            * float(np.exp(noise * random.standard_normal())),
        )
        for sample in designed(LIMITS)
        for _ in range(repeats)
    ]


def worst(model: LatencyModel, truth: LatencyModel) -> float:
    return max(error.p95 for error in errors(model, timed(truth, repeats=1)))


@settings(max_examples=10)
@given(MODELS)
def test_without_noise_the_step_times_are_found_again(truth: LatencyModel) -> None:
    assert worst(fit(timed(truth, repeats=1)), truth) < 0.01


@settings(max_examples=5)
@given(MODELS, st.integers(0, 2**32 - 1))
def test_noise_costs_less_than_it_is(truth: LatencyModel, seed: int) -> None:
    assert worst(fit(timed(truth, noise=0.05, seed=seed)), truth) < 0.1


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_coefficients(name: str) -> None:
    truth = PROFILES[name].latency
    found = fit(timed(truth, repeats=1))
    sums = truth.fixed + truth.host
    assert (found.fixed, found.host) == (0.0, 0.0)  # they cannot be told from what they are added to
    assert found.floor == pytest.approx(truth.floor + sums, rel=1e-3)
    assert found.base == pytest.approx(truth.base + sums, rel=0.01)
    assert found.matmul_per_token == pytest.approx(truth.matmul_per_token, rel=0.01)
    assert found.per_token == pytest.approx(truth.per_token, rel=0.05)
    assert found.per_decode == pytest.approx(truth.per_decode, rel=0.05)
    assert found.per_kv_token == pytest.approx(truth.per_kv_token, rel=0.01)
    assert found.per_prefill_pair == pytest.approx(truth.per_prefill_pair, rel=0.01)


def test_an_engine_without_a_floor() -> None:
    truth = replace(PROFILES["70b-2xh100"].latency, floor=0.0)
    found = fit(timed(truth, repeats=1))
    assert worst(found, truth) < 0.002
    assert found.floor < found.base + 100 * found.matmul_per_token


def test_a_machine_that_stumbles_is_not_the_engine() -> None:
    truth = PROFILES["8b-a100"].latency
    stumbling = [
        replace(sample, seconds=2 * sample.seconds) if index % 4 == 1 else sample
        for index, sample in enumerate(timed(truth, noise=0.01))
    ]
    assert worst(fit(stumbling), truth) < 0.04


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (lambda _: False, "nothing was measured"),
        (lambda sample: sample.region == "prefill", "what a decoding sequence costs"),
        (lambda sample: sample.region == "decode", "what a token costs: prompts of several lengths"),
        (lambda sample: sample.setting.startswith("1024"), "measurements do not tell what a step costs"),
    ],
)
def test_what_the_measurements_do_not_tell_is_an_error(kept: object, reason: str) -> None:
    samples = [sample for sample in timed(PROFILES["8b-a100"].latency) if kept(sample)]  # type: ignore[operator]
    with pytest.raises(CalibrationError, match=reason):
        fit(samples)


def test_contexts_that_follow_from_the_batch_are_an_error() -> None:
    samples = [sample for sample in timed(PROFILES["8b-a100"].latency) if "context=16," in sample.setting]
    samples += [sample for sample in timed(PROFILES["8b-a100"].latency) if sample.region == "prefill"]
    flat = [
        replace(sample, steps=tuple(step._replace(decode_context=16.0 * step.decodes) for step in sample.steps))
        for sample in samples
    ]
    with pytest.raises(CalibrationError, match="measurements do not tell what a decoding sequence costs"):
        fit(flat)


@settings(max_examples=50)
@given(st.integers(0, 2**32 - 1), st.integers(1, 6))
def test_least_squares_meets_its_conditions_of_optimality(seed: int, columns: int) -> None:
    random = np.random.default_rng(seed)
    # Columns that compete, so that one which came in early has to go again.
    matrix = random.standard_normal((12, 3)) @ random.standard_normal((3, columns))
    matrix += 0.1 * random.standard_normal((12, columns))
    target = matrix @ np.abs(random.standard_normal(columns)) + random.standard_normal(12)
    found = nonnegative_least_squares(matrix, target)
    gradient = matrix.T @ (target - matrix @ found)
    assert (found >= 0).all()
    assert (gradient <= 1e-7).all()
    assert np.abs(gradient[found > 0]).max(initial=0) < 1e-7


def test_what_is_held_out_is_not_fitted() -> None:
    truth = PROFILES["8b-a100"].latency
    samples = timed(truth, repeats=1)
    spoilt = [replace(sample, seconds=2 * sample.seconds) if sample.held_out else sample for sample in samples]
    assert fit(spoilt) == fit(samples)
    found = errors(fit(spoilt), spoilt)
    assert [error.region for error in found] == list(REGIONS)
    assert all(error.median == pytest.approx(0.5, abs=0.01) for error in found)
    assert len(warnings(found)) == 3
    assert "half of the predicted step times are off by more than 50%" in warnings(found)[0]
    assert warnings(errors(fit(samples), samples)) == []


def test_a_region_without_held_out_measurements_says_so() -> None:
    samples = [sample for sample in timed(PROFILES["8b-a100"].latency) if sample.region != "mixed"]
    assert warnings(errors(fit(samples), samples)) == [
        "mixed: no held-out measurement, so nothing is known of the error"
    ]


def test_scatter_is_no_error_of_the_model() -> None:
    truth = PROFILES["8b-a100"].latency
    samples = [
        replace(sample, seconds=sample.seconds * (0.9, 1.0, 1.1)[index % 3])
        for index, sample in enumerate(timed(truth, repeats=3))
    ]
    for error in errors(truth, samples):
        assert error.median < 1e-6
        assert error.scatter == pytest.approx(0.1, abs=0.02)


def test_time_between_steps_must_be_beyond_its_noise() -> None:
    assert idle_share([0.002, 0.0021, 0.0019, 0.002]) == pytest.approx(0.002)
    assert idle_share([0.01, -0.011, 0.008, -0.009, 0.001]) == 0.0
    assert idle_share([-0.002] * 9) == 0.0
    assert idle_share([0.002] * 3) == 0.0


def test_the_chunks_of_a_prompt() -> None:
    assert chunks(10, 4) == [(4, 8.0), (4, 24.0), (2, 18.0)]
    assert sum(pairs for _, pairs in chunks(1_000, 7)) == 1_000**2 / 2


@pytest.mark.parametrize(
    ("count", "computed", "decodes", "prompt"),
    [
        (5, 21, 4, 0),  # somebody else decoded
        (3, 12 + 19, 4, 20),  # a prefix cache knew one token
        (2, 8 + 20, 4, 20),  # 3 steps are needed at 8 free tokens a step
        (4, 20, 0, 20),  # alone, it takes 2
        (0, 0, 4, 0),
    ],
)
def test_steps_of_another_composition_are_no_measurement(count: int, computed: int, decodes: int, prompt: int) -> None:
    before, after = Mark(7, 1.0, 100), Mark(7 + count, 2.0, 100 + computed)
    assert composition(before, after, decodes=decodes, context=50, prompt=prompt, budget=12) is None


def test_steps_are_split_by_what_they_compute() -> None:
    after = Mark(5, 1.0, 5 * 4 + 20)
    assert composition(Mark(0, 0.0, 0), after, decodes=4, context=50, prompt=20, budget=12) == (
        Steps(1, 8, 4, 58.0, 32.0),
        Steps(1, 8, 4, 58.0, 96.0),
        Steps(1, 4, 4, 58.0, 72.0),
        Steps(2, 0, 4, 58.0, 0.0),
    )


LIMITS_OF_ENGINES = st.builds(
    lambda kv, budget, seqs, longest: Limits(
        kv_tokens=kv, block_size=16, max_tokens_per_batch=budget, max_num_seqs=min(seqs, budget), max_model_len=longest
    ),
    st.integers(1_000, 2_000_000),
    st.integers(64, 32_768),
    st.integers(1, 1_024),
    st.integers(128, 200_000),
)


@given(LIMITS_OF_ENGINES, st.floats(0, 1e7))
def test_the_design_fits_the_engine(limits: Limits, tokens: float) -> None:
    sizes = lengths(limits, budget=limits.max_tokens_per_batch)
    assert all(0 < length.tokens < min(limits.max_model_len, limits.kv_tokens) for length in sizes)
    assert len({length.tokens for length in sizes}) == len(sizes)
    assert not sizes[0].held_out
    assert not sizes[-1].held_out
    planned = loads(limits, tokens=tokens)
    assert len({(load.decodes, load.context) for load in planned}) == len(planned)
    for load in planned:
        assert load.decodes < max(2, limits.max_num_seqs)
        assert load.context < limits.max_model_len
        assert all(length.tokens < limits.max_model_len for length in interruptions(limits, load))


def test_loads_cost_what_there_is_time_for() -> None:
    few = loads(LIMITS, tokens=20_000)
    assert sum(load.decodes * load.context for load in few) < 20_000 + 16 * sum(load.decodes for load in few)
    assert max(load.context for load in loads(LIMITS, tokens=1e9)) == 8_192


def test_a_single_sequence_leaves_no_room_to_vary() -> None:
    assert {load.decodes for load in loads(replace(LIMITS, max_num_seqs=1), tokens=1e9)} == {1}
    assert interruptions(replace(LIMITS, max_tokens_per_batch=300), Load(299, 16, held_out=False)) == []
