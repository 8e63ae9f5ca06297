"""Saturation is where the backlog stops being bounded."""

import itertools

import numpy as np
import pytest

from halffull_lab.engine_requests import PromptRefusedError
from halffull_lab.latency import PROFILES
from halffull_lab.saturation import saturation
from halffull_lab.traces import Trace
from tests.lab.engine.virtual import Arrival, make_engine, run

PROFILE = PROFILES["70b-2xh100"]


def trace(requests: int, *, longest: int = 3000) -> Trace:
    rng = np.random.default_rng(1)
    return Trace(
        name="drawn",
        arrival=np.arange(requests, dtype=float),
        prompt_tokens=rng.integers(10, longest, requests),
        output_tokens=rng.integers(10, 300, requests),
    )


def longest_wait(of: Trace, *, rate: float) -> float:
    arrivals = [
        Arrival(index / rate, int(prompt), int(output))
        for index, prompt, output in zip(itertools.count(), of.prompt_tokens, of.output_tokens, strict=False)
    ]
    requests = run(make_engine(), arrivals)
    return max(request.first_token_at - request.arrival for request in requests)


def test_below_it_waits_are_bounded_and_above_it_they_grow_with_the_trace() -> None:
    short, long = trace(1000), trace(4000)
    limit = saturation(long, PROFILE)
    assert longest_wait(long, rate=0.85 * limit) < 5.0
    waits = [longest_wait(each, rate=1.25 * limit) for each in (short, long)]
    assert waits[1] > 3 * waits[0] > 10.0


def test_it_does_not_depend_on_length_or_arrivals_of_the_trace() -> None:
    whole = trace(4000)
    assert saturation(whole.share(0, 0.5), PROFILE) == pytest.approx(saturation(whole, PROFILE), rel=0.04)
    assert saturation(whole.at(factor=7.0), PROFILE) == saturation(whole, PROFILE)


def test_a_request_that_can_never_run_is_said() -> None:
    with pytest.raises(PromptRefusedError):
        saturation(trace(100, longest=100_000), PROFILE)
