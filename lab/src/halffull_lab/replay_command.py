"""`halffull replay`: one replay against one server, its figures on the terminal and as JSON."""

import argparse
import asyncio
import json
import os
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from halffull_lab.arguments import http_url, positive
from halffull_lab.figures import percentiles
from halffull_lab.replay import Replay, Run, Target, bottlenecks
from halffull_lab.results import Result, measure, run_json
from halffull_lab.stack import first_model
from halffull_lab.table import seconds
from halffull_lab.traces import BUNDLED, Trace, load_trace

TRACE_HELP = (
    f"{', '.join(BUNDLED)}, or a file: Azure CSV, BurstGPT CSV, Mooncake JSONL, or CSV with the columns "
    "arrival,prompt_tokens,output_tokens; gzip is fine"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `halffull replay`."""
    parser.add_argument(
        "--url", required=True, type=http_url, help="base URL of an OpenAI-compatible server or gateway"
    )
    parser.add_argument(
        "--trace",
        required=True,
        help=TRACE_HELP,
    )
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument(
        "--rate",
        type=positive,
        help="rescale to so many requests/s in the mean of the whole slice; its beginning may be quieter, or busier",
    )
    speed.add_argument("--factor", type=positive, help="replay so many times as fast")
    parser.add_argument(
        "--slice", default="0-100", metavar="A-B", help="rows from A%% to B%% of the trace (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=positive, help="only what arrives within so many seconds")
    parser.add_argument(
        "--speed",
        type=positive,
        default=1.0,
        help="trace seconds per wall second, for engines that run dilated as well (default: %(default)s)",
    )
    parser.add_argument("--model", help="model name (default: the first that the server lists)")
    parser.add_argument("--api-key", help="default: $OPENAI_API_KEY")
    parser.add_argument(
        "--timeout", type=positive, default=600.0, help="wall seconds for one request (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="write results.json here")


def main(args: argparse.Namespace) -> int:
    """Replay and print; 0 when every request was answered, else 1."""
    console = Console()
    trace = arrivals(args)
    console.print(f"{len(trace)} requests in {trace.duration / args.speed:.0f} s", highlight=False)
    for note in trace.notes:
        console.print(note, style="dim", highlight=False)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run = runner.run(_replay(trace, args))
    result = Result.of(run, policy="", engine="", invalid=tuple(bottlenecks(run.client, speed=run.speed)))
    _print(console, run, result)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"runs": [run_json(result, {})]}, indent=1) + "\n")
    return 1 if result.outcomes.errors else 0


async def _replay(trace: Trace, args: argparse.Namespace) -> Run:
    key = args.api_key or os.environ.get("OPENAI_API_KEY")
    target = Target(url=args.url, model=args.model or await first_model(args.url, api_key=key), api_key=key)
    return await Replay(trace, target, speed=args.speed, timeout=args.timeout).run()


def arrivals(args: argparse.Namespace) -> Trace:
    """The part of the trace that the options name."""
    start, _, stop = args.slice.partition("-")
    try:
        share = float(start) / 100, float(stop) / 100
    except ValueError:
        raise ReplayError(f"--slice {args.slice}: two percentages such as 25-50 are needed") from None
    trace = load_trace(args.trace).share(*share).at(rate=args.rate, factor=args.factor)
    return trace.head(seconds=args.seconds) if args.seconds is not None else trace


class ReplayError(Exception):
    """Wrong usage, in one line."""


def _print(console: Console, run: Run, result: Result) -> None:
    grid = Table(
        "seconds",
        "p50",
        "p95",
        "p99",
        "max",
        title=f"{result.outcomes.errors} errors in {len(result.outcomes)} requests",
    )
    for name, label, times in (
        ("ttft", "TTFT", 1),
        ("normalized_ttft", "TTFT per token, ms", 1000),
        ("tgt", "TGT", 1),
        ("tpot", "TPOT", 1),
    ):
        grid.add_row(label, *(seconds(times * value) for value in percentiles(measure(result, name)).values()))
    console.print(grid)
    for kind, count in result.failures.items():
        console.print(f"! {kind}: {count}", style="red", highlight=False)
    for failure in result.first_failures:
        console.print(f"  {failure}", highlight=False)
    for reason in result.invalid:
        console.print(f"! invalid: {reason}", style="red", highlight=False)
    client = run.client
    console.print(
        f"client: lateness p99 {1000 * client.lateness_p99:.1f} ms, loop lag p99 {1000 * client.loop_lag_p99:.1f} ms, "
        f"{client.client_cores:.2f} cores, {client.us_per_event:.0f} µs per event; "
        f"machine {client.machine_busy:.0%} busy",
        highlight=False,
    )
