"""`halffull demo`: real Envoy, the picker and emulated GPUs (or one's own servers) under a production trace.

Runs the same arrivals under each balancer, kills the picker once, prints a table and writes report.html and
results.json.
"""

import argparse
import asyncio
import ipaddress
import json
import math
import os
import platform
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import uvloop
from rich.console import Console

from halffull_lab.arguments import port, positive
from halffull_lab.conduct import Conductor, Leg, Score
from halffull_lab.engine_requests import EngineLimits
from halffull_lab.latency import PROFILES
from halffull_lab.progress import ProgressLine
from halffull_lab.replay import Target
from halffull_lab.results import Comparison
from halffull_lab.saturation import saturation
from halffull_lab.simulation.traffic import lengths
from halffull_lab.stack import EngineOptions, Stack, first_model
from halffull_lab.table import table
from halffull_lab.traces import Trace, load_trace

ENGINES = 4
PROFILE = "70b-2xh100"
LOAD = 0.8
# Virtual seconds per wall second. At 4 the demo needs about 0.7 of the two cores that it is made for (measured: engines
# 0.2, picker 0.2, Envoy 0.15, client 0.15), so that a step is handled about 1 ms after its end; what is added to a
# request's time on its way, about 4 ms, counts four times.
SPEED = 4.0
# Tokens per event after the first: as `vllm serve --stream-interval`. The first token comes at once all the same.
STREAM_INTERVAL = 16

_FULL = (
    *(Leg(policy=policy, engine="FCFS") for policy in ("SAL", "LeastRequest", "RoundRobin", "Random")),
    *(Leg(policy=policy, engine="LARRY") for policy in ("SAL", "LeastRequest")),
)
_QUICK = tuple(Leg(policy=policy, engine=engine) for engine in ("FCFS", "LARRY") for policy in ("SAL", "LeastRequest"))


class DemoError(Exception):
    """What was asked for cannot be run; one line for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Wall seconds of arrivals in a run, in the run with the fault, and expected for the last answers (at speed 4)."""

    run: float
    fault: float
    drain: float = 9.0


_FULL_LENGTHS = Lengths(run=76, fault=30)
_QUICK_LENGTHS = Lengths(run=12, fault=8)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `halffull demo`."""
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short runs, without RoundRobin and Random: about 2 minutes in all, more on a busy machine",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        help="folder for report.html, results.json and logs (default: %(default)s)",
    )
    parser.add_argument(
        "--trace",
        default="azure-conv",
        help="azure-conv, azure-code, or a file (see halffull replay --help; default: %(default)s)",
    )
    parser.add_argument(
        "--rate", type=positive, help=f"requests/s over all engines, in trace time (default: {LOAD} × saturation)"
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        help=f"wall seconds of arrivals in each run (default: {_FULL_LENGTHS.run:g}, quick: {_QUICK_LENGTHS.run:g})",
    )
    parser.add_argument(
        "--speed", type=float, help=f"virtual seconds per wall second of the emulated engines (default: {SPEED:g})"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the bootstrap intervals (default: %(default)s)")
    own = parser.add_argument_group("servers of one's own, instead of emulated engines")
    own.add_argument("--engines", metavar="URL,URL", help="OpenAI-compatible servers, such as http://10.0.0.1:8000")
    own.add_argument(
        "--load",
        choices=("report", "metrics"),
        help="how they say their load: Halffull's report, or stock vLLM's metrics (default: metrics)",
    )
    own.add_argument("--load-port", type=port, help="port of their load reports (default: 9400)")
    own.add_argument("--model", help="model name to ask for (default: the first that the first server lists)")
    own.add_argument("--api-key", help="key that they want (default: $OPENAI_API_KEY)")


def main(args: argparse.Namespace) -> int:
    """Run it; 0 when every request of every run was answered, 1 otherwise, 2 for wrong usage."""
    console = Console(width=None if sys.stdout.isatty() else 110)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        comparison = runner.run(_until_terminated(_demo(args, console)))
    args.out.mkdir(parents=True, exist_ok=True)
    results, report = args.out / "results.json", args.out / "report.html"
    results.write_text(json.dumps(comparison.json(), indent=1) + "\n")
    from halffull_lab.report import write_html  # noqa: PLC0415 - matplotlib takes a second that an early error need not wait

    write_html(comparison, report)
    console.print(table(comparison))
    console.print(f"{report} and {results} written", highlight=False)
    if not comparison.errors:
        return 0
    sys.stderr.write(f"halffull demo: {comparison.failure}\n")
    return 1


async def _until_terminated(demo: Any) -> Comparison:
    """SIGTERM ends it as Ctrl-C does, so that every process is stopped."""
    task = asyncio.ensure_future(demo)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        comparison: Comparison = await task
    except asyncio.CancelledError as error:
        raise KeyboardInterrupt from error
    return comparison


async def _demo(args: argparse.Namespace, console: Console) -> Comparison:
    own = _own_servers(args)
    speed = _speed(args, own=bool(own))
    times = _QUICK_LENGTHS if args.quick else _FULL_LENGTHS
    target = await _own_target(args, own) if own else Target(url="")
    trace = _arrivals(args, seconds=(args.seconds or times.run) * speed, own=bool(own))
    legs = (
        tuple(dict.fromkeys(Leg(policy=leg.policy) for leg in (_QUICK if args.quick else _FULL)))
        if own
        else _QUICK
        if args.quick
        else _FULL
    )
    stack = Stack(
        engines=0 if own else ENGINES,
        options=EngineOptions(
            policy=legs[0].engine or "FCFS", profile=PROFILE, speed=speed, stream_interval=STREAM_INTERVAL
        ),
        picker={"load": _load(args)} if own else {},
        endpoints=[_endpoint(url, args.load_port) for url in own],
        logs=args.out / "logs",
    )
    target = Target(url=stack.gateway, model=target.model, api_key=target.api_key)
    share = min(1.0, (times.fault / times.run))
    score = Score(
        legs=legs,
        trace=trace,
        target=target,
        speed=speed,
        timeout=600.0,
        fault=legs[0] if own else Leg(policy="SAL", engine="LARRY"),
        fault_trace=trace.head(seconds=trace.duration * share),
        drain=times.drain * SPEED / speed,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    for log in (args.out / "logs").glob("*.log"):
        log.unlink()
    with ProgressLine(console, total=score.wall) as progress:
        progress.stage(f"starting {len(own) or ENGINES} engines, the picker and Envoy; about {_minutes(score.wall)}")
        async with stack:
            conductor = Conductor(stack, score, progress)
            fault = await conductor.run()
    return Comparison(
        title=_title(args, own=len(own)),
        emulated=not own,
        seed=args.seed,
        setting=_setting(args, score, stack, own=own),
        results=tuple(conductor.results),
        fault=fault,
        notes=(
            *trace.notes,
            *(["quick: short runs, without RoundRobin and Random; intervals are wide"] if args.quick else []),
        ),
    )


def _own_servers(args: argparse.Namespace) -> list[str]:
    """The URLs of `--engines`; fills in the defaults of the options that go with it."""
    if args.engines is None:
        for name in ("load", "load_port", "model", "api_key"):
            if getattr(args, name) is not None:
                raise DemoError(f"--{name.replace('_', '-')} goes with --engines only")
    own = [url.strip() for url in (args.engines or "").split(",")] if args.engines is not None else []
    if "" in own:
        raise DemoError(f"--engines {args.engines!r}: an empty URL")
    args.load = args.load or "metrics"
    args.load_port = args.load_port or 9400
    return own


def _speed(args: argparse.Namespace, *, own: bool) -> float:
    if own:
        if args.speed not in (None, 1.0):
            raise DemoError("--speed is for emulated engines: servers of one's own run in real time")
        return 1.0
    speed = SPEED if args.speed is None else float(args.speed)
    if not 0.05 <= speed <= 50:
        raise DemoError("--speed must lie between 0.05 and 50")
    return speed


def _minutes(wall: float) -> str:
    count = math.ceil(wall / 60)  # start and report take some seconds, too
    return f"{count} minute{'s' if count > 1 else ''}"


def _arrivals(args: argparse.Namespace, *, seconds: float, own: bool) -> Trace:
    # What servers of one's own refuse, only they know: it is sent, and counted as a failure.
    trace = load_trace(args.trace) if own else lengths(args.trace, (0.0, 1.0), 1.0, EngineLimits.of(PROFILES[PROFILE]))
    rate = args.rate
    if rate is None:
        if own:
            raise DemoError("give --rate: the saturation of servers of one's own is not known")
        rate = LOAD * ENGINES * saturation(trace, PROFILES[PROFILE])
    wanted = round(rate * seconds)
    if wanted < 20:
        raise DemoError(f"only {wanted} requests in {seconds:g} s: a longer run or a higher rate is needed")
    if wanted < len(trace):
        trace = trace.share(0, wanted / len(trace))
        if args.rate is None:  # the beginning of the trace may be heavier than the whole
            rate = LOAD * ENGINES * saturation(trace, PROFILES[PROFILE])
    return trace.at(rate=rate)


def _load(args: argparse.Namespace) -> dict[str, Any]:
    return {"report": {"port": args.load_port}} if args.load == "report" else {"metrics": {"path": "/metrics"}}


def _endpoint(url: str, load_port: int) -> dict[str, object]:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise DemoError(f"{url}: an address such as http://10.0.0.1:8000 is needed (no TLS)")
    try:
        address = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_STREAM)[0][4][0]
    except OSError as error:
        raise DemoError(f"{url}: {error.strerror}") from error
    host = f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    return {"address": f"{host}:{parts.port or 80}", "loadPort": load_port}


async def _own_target(args: argparse.Namespace, own: list[str]) -> Target:
    key = args.api_key or os.environ.get("OPENAI_API_KEY")
    first = own[0] if "//" in own[0] else f"http://{own[0]}"
    return Target(url="", model=args.model or await first_model(first, api_key=key), api_key=key)


def _title(args: argparse.Namespace, *, own: int) -> str:
    trace = {"azure-conv": "Azure conversation trace", "azure-code": "Azure code trace"}.get(
        args.trace, Path(args.trace).name
    )
    rate = f"{args.rate:g} requests/s" if args.rate else f"{LOAD} × saturation"
    engines = f"{own} servers of one's own" if own else f"{ENGINES} emulated GPUs (70B)"
    return f"Halffull demo, {engines}: {trace} at {rate}"


_VALIDITY = (
    "a run is invalid when p99 of the client's lateness or event-loop lag exceeds 25 ms of wall time or 100 ms of "
    "trace time, when the client uses more than 0.9 of a core, when the processors are busy more than 92% of the time, "
    "or when an engine's steps end more than 20 ms (virtual) late in the mean"
)


def _setting(args: argparse.Namespace, score: Score, stack: Stack, *, own: list[str]) -> dict[str, str]:
    """How it was run, for the report."""
    trace, poll = score.trace, stack.config["poll"]["interval"]
    setting = {
        "arrivals": (
            f"{len(trace)} requests of {args.trace} from its beginning, {trace.rate:.1f} per second over "
            f"{trace.duration:.0f} s; the same in every run"
        ),
        "lengths": (
            f"mean prompt {trace.prompt_tokens.mean():.0f} tokens, mean output {trace.output_tokens.mean():.0f} tokens"
        ),
    }
    if own:
        setting |= {"servers": ", ".join(own), "picker": f"polls every {poll}"}
    else:
        options = stack.options
        setting |= {
            "load": (
                f"{trace.rate / (ENGINES * saturation(trace, PROFILES[PROFILE])):.2f} of what the engines can bear of "
                "these requests, first come, first served"
            ),
            "engines": (
                f"{ENGINES} emulated, profile {options.profile}; "
                f"{options.stream_interval} tokens per event after the first"
            ),
            "time": (
                f"{score.speed:g} virtual seconds per wall second, which two cores carry; "
                "every figure is in virtual seconds"
            ),
            "picker": f"polls every {poll} of wall time, that is {stack.poll_ms * score.speed:.0f} ms of virtual time",
        }
    return setting | {
        "validity": _VALIDITY,
        "intervals": f"bootstrap over requests, paired by index, in blocks of √n neighbours, seed {args.seed}",
        "machine": f"{psutil.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}",
    }
