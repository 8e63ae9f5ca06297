"""Play a slice of traffic through one engine under a virtual clock, and the arrivals that the studies are made on."""

import re
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from halffull_lab.engine import Engine
from halffull_lab.engine_requests import EngineLimits, Prompt, Request
from halffull_lab.figures import Outcomes
from halffull_lab.latency import PROFILES
from halffull_lab.traces import Trace, load_trace
from halffull_larry.ordering import make_ordering

_SLICE = re.compile(
    r"(?P<name>conv|code):(?P<low>\d+)-(?P<high>\d+)@(?P<rate>[\d.]+)(?::(?P<kind>poisson|burst|documents)(?P<seed>\d+))?"
)
_BURST_CV = 3.0
"""Of the times between arrivals; BurstGPT (arXiv 2401.17644) models them as Gamma."""
_DOCUMENTS = (0.01, 20_000, 60_000)
"""Which share of the requests, and their prompt tokens from and to."""


@dataclass(frozen=True)
class Run:
    """What one run gave."""

    outcomes: Outcomes
    preemptions: int
    busy: float
    """s in steps."""
    cpu: float
    """s that the simulation took."""


def traffic(text: str) -> Trace:
    """`code:0-50@1.5`: rows 0–50% of the trace at 1.5 requests/s, its own arrivals stretched.

    With `:poisson7` the arrivals are Poisson instead and the requests drawn from those rows with replacement, seed 7;
    with `:burst7` the times between arrivals are Gamma with a coefficient of variation of 3; with `:documents7` they
    are Poisson, and one request in a hundred has a prompt of 20,000 to 60,000 tokens.
    """
    found = _SLICE.fullmatch(text)
    if found is None:
        raise SystemExit(f"not a slice: {text!r}; for example code:0-50@1.5 or conv:50-75@6:poisson1")
    rows = load_trace(f"azure-{found['name']}").share(int(found["low"]) / 100, int(found["high"]) / 100)
    rate = float(found["rate"])
    if found["kind"] is None:
        return rows.at(rate=rate)
    rng = np.random.default_rng(int(found["seed"]))
    shape = 1 / _BURST_CV**2 if found["kind"] == "burst" else 1.0
    gaps = rng.gamma(shape, 1 / (shape * rate), size=len(rows))
    drawn = rng.integers(0, len(rows), size=len(rows))
    prompts = rows.prompt_tokens[drawn]
    if found["kind"] == "documents":
        share, low, high = _DOCUMENTS
        chosen = rng.random(len(rows)) < share
        prompts[chosen] = rng.integers(low, high, size=int(chosen.sum()))
    return replace(
        rows,
        name=text,
        arrival=np.cumsum(gaps) - gaps[0],
        prompt_tokens=prompts,
        output_tokens=rows.output_tokens[drawn],
    )


def limits_of(profile: str, **changes: int) -> EngineLimits:
    """A profile's, changed; its sequences may be as long as those of any traffic here."""
    return replace(EngineLimits.of(PROFILES[profile]), **({"max_model_len": 65_536} | changes))


def emulated(profile: str, limits: EngineLimits, policy: str, alpha: float = 1.0) -> Engine:
    """The fast core."""
    return Engine(latency=PROFILES[profile].latency, limits=limits, ordering=make_ordering(policy, alpha=alpha))


def play(engine: Any, trace: Trace) -> Run:
    """Every request to its end; a request joins at the first step that begins after it arrived."""
    began = time.process_time()
    arrivals, prompts, outputs = (
        values.tolist() for values in (trace.arrival, trace.prompt_tokens, trace.output_tokens)
    )
    requests: list[Request] = []
    count, now = len(trace), 0.0
    while len(requests) < count or engine.requests:
        if not engine.requests:
            now = max(now, arrivals[len(requests)])
        while (index := len(requests)) < count and arrivals[index] <= now:
            prompt = Prompt(prompts[index])
            requests.append(
                engine.add(str(index), prompt=prompt, output_tokens=outputs[index], arrival=arrivals[index])
            )
        plan = engine.step_begin(now)
        assert plan is not None, "requests, and nothing to run"
        now += plan.duration
        engine.step_end(now)
    first = np.array([request.first_token_at for request in requests], dtype=np.float64)
    last = np.array([request.finished_at for request in requests], dtype=np.float64)
    return Run(
        Outcomes(
            prompt_tokens=trace.prompt_tokens,
            output_tokens=trace.output_tokens,
            ttft=first - trace.arrival,
            tgt=last - trace.arrival,
        ),
        engine.totals.preemptions,
        engine.snapshot.busy_seconds,
        time.process_time() - began,
    )


def capacity(engine: Any, trace: Trace, *, waiting: int = 1_000) -> float:
    """Requests/s that the engine finishes of the trace when it is never idle (as `halffull_lab.saturation`)."""
    todo = enumerate(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    now = 0.0
    while True:
        while len(engine.requests) < waiting and (row := next(todo, None)) is not None:
            index, (prompt, output) = row
            engine.add(str(index), prompt=Prompt(prompt), output_tokens=output, arrival=now)
        plan = engine.step_begin(now)
        if plan is None:
            return len(trace) / now
        now += plan.duration
        engine.step_end(now)
