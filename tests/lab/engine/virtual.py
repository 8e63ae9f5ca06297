"""One emulated engine under a virtual clock."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from halffull_lab import engine_policies
from halffull_lab.engine import Engine
from halffull_lab.engine_requests import EngineLimits, Prompt, Request
from halffull_lab.latency import PROFILES


class Arrival(NamedTuple):
    at: float
    prompt_tokens: int
    output_tokens: int


def make_engine(policy: str = "FCFS", *, profile: str = "70b-2xh100", alpha: float = 1.0, **limits: int) -> Engine:
    preset = PROFILES[profile]
    values = {
        "max_tokens_per_batch": preset.max_tokens_per_batch,
        "max_num_seqs": preset.max_num_seqs,
        "max_model_len": preset.max_model_len,
        "block_size": preset.block_size,
        "total_blocks": preset.kv_tokens // preset.block_size,
    } | limits
    return engine_policies.make_engine(
        latency=preset.latency, limits=EngineLimits(**values), policy=policy, alpha=alpha
    )


def run(engine: Engine, arrivals: Iterable[Arrival]) -> Sequence[Request]:
    """Play `arrivals` (ascending) to the end; every request, in their order. A request joins at the next step."""
    todo = list(arrivals)
    requests: list[Request] = []
    now = 0.0
    while len(requests) < len(todo) or engine.requests:
        if not engine.requests:
            now = max(now, todo[len(requests)].at)
        while len(requests) < len(todo) and todo[len(requests)].at <= now:
            at, prompt, output = todo[len(requests)]
            requests.append(engine.add(str(len(requests)), prompt=Prompt(prompt), output_tokens=output, arrival=at))
        plan = engine.step_begin(now)
        assert plan is not None, "requests, and nothing to run"
        now += plan.duration
        engine.step_end(now)
    return requests
