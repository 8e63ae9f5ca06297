"""The arrivals of a run. Pure, but for reading a trace."""

import functools
from dataclasses import replace
from typing import Final

import numpy as np

from halffull_lab.engine_requests import EngineLimits, PromptRefusedError
from halffull_lab.simulation.experiment import Case
from halffull_lab.traces import Trace, TraceError, load_trace

BURST_CV: Final = 3.0
"""Coefficient of variation of the times between arrivals; BurstGPT (arXiv 2401.17644) models them as Gamma."""
MOST_REQUESTS: Final = 5_000_000
"""Of one run."""


@functools.lru_cache(maxsize=8)
def lengths(trace: str, rows: tuple[float, float], output_times: float, limits: EngineLimits) -> Trace:
    """The trace's rows, outputs stretched, without those that an engine of these limits refuses (said in its notes).

    Raises:
        TraceError: it cannot be read, or nothing is left.
    """
    chosen = load_trace(trace).share(*rows)
    outputs = np.maximum(1, np.rint(chosen.output_tokens * output_times)).astype(np.int64)
    fit = fitting(replace(chosen, output_tokens=outputs), limits)
    if not len(fit):
        raise TraceError(f"{trace}: no request fits into the engine (max_model_len {limits.max_model_len})")
    notes = fit.notes
    if left_out := len(chosen) - len(fit):
        notes = (*notes, f"{left_out} of {len(chosen)} requests left out: longer than the engine takes")
    return replace(fit, arrival=fit.arrival - fit.arrival[0], notes=notes)


def fitting(rows: Trace, limits: EngineLimits) -> Trace:
    """The rows that an engine of these limits does not refuse, perhaps none, at their times."""
    each = zip(rows.prompt_tokens.tolist(), rows.output_tokens.tolist(), strict=True)
    fits = np.array([_fits(limits, *row) for row in each], dtype=bool)
    return replace(
        rows,
        arrival=rows.arrival[fits],
        prompt_tokens=rows.prompt_tokens[fits],
        output_tokens=rows.output_tokens[fits],
    )


def arrivals(rows: Trace, case: Case, *, rate: float, seed: int) -> Trace:
    """The requests of one run at a mean of `rate` per second; the seed decides all that is not recorded.

    Args:
        rows: the lengths, and the recorded times.
        case: the kind of arrivals and the minutes.
        rate: requests/s.
        seed: equal seeds give equal arrivals, whatever engines or balancers the case has.

    Raises:
        TraceError: too many requests, or recorded arrivals that all happen at once.
    """
    seconds = 60.0 * case.minutes
    if case.arrivals == "recorded":
        return rows.at(rate=rate).head(seconds=seconds)
    if rate * seconds > MOST_REQUESTS:
        raise TraceError(f"{rate:g} requests/s for {case.minutes:g} minutes are more than {MOST_REQUESTS:,} requests")
    rng = np.random.default_rng(seed)
    shape = 1.0 if case.arrivals == "poisson" else 1 / BURST_CV**2
    count = max(1, round(rate * seconds))
    gaps = rng.gamma(shape, 1 / (shape * rate), size=count)
    drawn = rng.integers(0, len(rows), size=count)
    return replace(
        rows,
        arrival=np.cumsum(gaps) - gaps[0],
        prompt_tokens=rows.prompt_tokens[drawn],
        output_tokens=rows.output_tokens[drawn],
    )


def _fits(limits: EngineLimits, prompt_tokens: int, output_tokens: int) -> bool:
    try:
        limits.check(prompt_tokens=prompt_tokens, output_tokens=output_tokens)
    except PromptRefusedError:
        return False
    return True
