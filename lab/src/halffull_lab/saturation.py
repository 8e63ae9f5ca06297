"""How many requests per second one emulated engine can bear of a given trace. Pure, under a virtual clock."""

from halffull_lab.engine import Engine
from halffull_lab.engine_requests import EngineLimits, Prompt
from halffull_lab.latency import Profile
from halffull_lab.traces import Trace
from halffull_larry.ordering import make_ordering

_QUEUE = 1_000
"""Requests that always wait: the engine is never short of work, and no memory is needed for the whole trace."""


def saturation(trace: Trace, profile: Profile) -> float:
    """Requests per second that an engine finishes when it is never idle (first come, first served).

    At a higher arrival rate its backlog grows for as long as the trace lasts; that is what "load" is a share of.
    Start and end, while the batch fills and drains, count too: less than 2% for a trace of 2,000 requests.

    Args:
        trace: its prompts and outputs, in its order; the arrival times do not matter.
        profile: the engine.

    Raises:
        PromptRefusedError: a request that such an engine could never run.
    """
    engine = Engine(latency=profile.latency, limits=EngineLimits.of(profile), ordering=make_ordering("FCFS"))
    todo = enumerate(zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    now = 0.0
    while True:
        while len(engine.requests) < _QUEUE and (request := next(todo, None)) is not None:
            index, (prompt, output) = request
            engine.check(prompt_tokens=prompt, output_tokens=output)
            engine.add(str(index), prompt=Prompt(prompt), output_tokens=output, arrival=now)
        plan = engine.step_begin(now)
        if plan is None:
            return len(trace) / now
        now += plan.duration
        engine.step_end(now)
