"""The simulator against the real thing: the same requests in real time and in virtual time.

Real: Envoy, the picker and emulated engines as processes, as in `halffull demo`. Simulated: `halffull simulate`'s.

    .venv/bin/python hack/reality [--quick]

Prints a table, and writes build/reality/emulated.json and .md. A quiet machine is needed: a run in which client or
machine was the bottleneck is named, and counts all the same.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
import yaml
from compare import FIGURES, Compared, compare, table
from rich.console import Console

from halffull_extproc.settings import load_settings
from halffull_lab.conduct import Conductor, Leg, Score
from halffull_lab.demo import ENGINES, LOAD, PROFILE, STREAM_INTERVAL
from halffull_lab.engine_policies import make_engine
from halffull_lab.engine_requests import EngineLimits
from halffull_lab.figures import Outcomes
from halffull_lab.latency import PROFILES
from halffull_lab.progress import ProgressLine
from halffull_lab.replay import Record, Target, request_body
from halffull_lab.results import Result
from halffull_lab.saturation import saturation
from halffull_lab.simulation.balancers import make_balancer
from halffull_lab.simulation.cluster import Member, simulate
from halffull_lab.stack import EngineOptions, Stack
from halffull_lab.traces import Trace, load_trace

OUT = Path(__file__).parents[2] / "build/reality"
LEGS = tuple(Leg(policy=policy, engine=engine) for engine in ("FCFS", "LARRY") for policy in ("LeastRequest", "SAL"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of it."""

    legs: tuple[Leg, ...] = LEGS
    runs: int = 3
    seconds: float = 80.0
    """Of arrivals, virtual."""
    speed: float = 1.0
    """Virtual seconds per second: what a request spends on the wire counts so many times."""


QUICK = Size(legs=LEGS[-1:], runs=1, seconds=40.0)


def arrivals(size: Size) -> Trace:
    """The beginning of the chat trace, at the demo's load."""
    trace = load_trace("azure-conv")
    rate = LOAD * ENGINES * saturation(trace, PROFILES[PROFILE])
    part = trace.share(0, rate * size.seconds / len(trace))
    return part.at(rate=LOAD * ENGINES * saturation(part, PROFILES[PROFILE]))


async def play_real(trace: Trace, size: Size) -> tuple[list[Result], dict[str, Any]]:
    """Every leg, `size.runs` times over, and the picker's configuration."""
    options = EngineOptions(profile=PROFILE, speed=size.speed, stream_interval=STREAM_INTERVAL)
    stack = Stack(engines=ENGINES, options=options, logs=OUT / "logs")
    score = Score(
        legs=size.legs * size.runs,
        trace=trace,
        target=Target(url=stack.gateway),
        speed=size.speed,
        timeout=600.0,
        fault=None,
        fault_trace=trace,
        drain=36 / size.speed,
    )
    with ProgressLine(Console(), total=score.wall) as progress:
        async with stack:
            conductor = Conductor(stack, score, progress)
            await conductor.run()
    return conductor.results, stack.config


def play_simulated(trace: Trace, leg: Leg, size: Size, config: dict[str, Any], *, seed: int) -> Outcomes:
    """The same requests, the same bodies, the same picker's settings; its polls in virtual seconds."""
    pool = load_settings(yaml.safe_dump(config), source="picker.yaml").pool_config()
    interval = pool.poll_interval * size.speed
    pool = replace(pool, poll_interval=interval, stale_after=pool.stale_after * size.speed)
    profile = PROFILES[PROFILE]
    limits = EngineLimits.of(profile)
    engines = [
        make_engine(latency=profile.latency, limits=limits, policy=leg.engine, alpha=1.0) for _ in range(ENGINES)
    ]
    return simulate(
        trace,
        members=[Member(engine=engine, name=leg.engine) for engine in engines],
        balancers=[make_balancer(leg.policy, pool, rng=random.Random(seed))],
        seed=seed,
        poll_interval=interval,
        body_bytes=sizes(trace),
    ).outcomes


def sizes(trace: Trace) -> np.typing.NDArray[np.int64]:
    """Bytes of the bodies that the replay sends: int64[n]."""
    pairs = zip(trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True)
    records = (Record(index=i, scheduled=0.0, prompt_tokens=p, output_tokens=o) for i, (p, o) in enumerate(pairs))
    return np.array([len(request_body(record, model=Target(url="").model)) for record in records], dtype=np.int64)


def figures(compared: Compared) -> dict[str, dict[str, list[float]]]:
    """For JSON: value, low, high."""
    kinds = ("real", "simulated", "simulated / real")
    return {
        name: {kind: [each.value, each.low, each.high] for kind, each in zip(kinds, compared[name], strict=True)}
        for name in FIGURES
    }


def write(size: Size, trace: Trace, results: Sequence[Result], compared: dict[str, Compared], took: float) -> str:
    """Both files; the text of the page."""
    invalid = [f"{each.policy}, {each.engine}: {why}" for each in results for why in each.invalid]
    failed = sum(each.outcomes.errors for each in results)
    came = (
        f"{size.runs} real runs and as many simulated of {len(trace):,} requests each, at speed {size.speed:g}; "
        f"{took / 60:.0f} minutes. Failed requests: {failed or 'none'}. "
        f"Runs in which the machine was the bottleneck: {len({why.partition(':')[0] for why in invalid}) or 'none'}."
    )
    text = f"{table(compared)}\n\n{came}\n"
    found = {
        "requests": len(trace),
        "rate": trace.rate,
        "speed": size.speed,
        "runs": size.runs,
        "seconds": round(took),
        "failed": failed,
        "invalid": invalid,
        "setups": {name: figures(each) for name, each in compared.items()},
    }
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "emulated.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (OUT / "emulated.md").write_text(text, encoding="utf-8")
    return "\n".join([text, *(f"! {why}" for why in invalid)])


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one setup, one short run")
    size = QUICK if parser.parse_args().quick else Size()
    began = time.monotonic()
    trace = arrivals(size)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        results, config = runner.run(play_real(trace, size))
    compared = {
        leg.name: compare(
            [each.outcomes for each in results if (each.policy, each.engine) == (leg.policy, leg.engine)],
            [play_simulated(trace, leg, size, config, seed=seed) for seed in range(size.runs)],
        )
        for leg in size.legs
    }
    print(write(size, trace, results, compared, time.monotonic() - began))


if __name__ == "__main__":
    main()
