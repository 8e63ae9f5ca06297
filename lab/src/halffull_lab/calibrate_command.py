"""`halffull calibrate`: measures an engine through its API, and writes a profile for the simulator."""

import argparse
import asyncio
import math
import os
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from halffull_lab.arguments import http_url, positive, positive_int
from halffull_lab.calibration import CalibrationError, RegionError, errors, fit, predicted, warnings
from halffull_lab.calibration_design import ROUNDS
from halffull_lab.figures import finite_or_none
from halffull_lab.latency import Profile
from halffull_lab.measured_engine import MeasuredEngine
from halffull_lab.measuring import Measured, find_limits, measure
from halffull_lab.profiles import render_profile
from halffull_lab.progress import ProgressLine
from halffull_lab.unanswered import KEEP_ALIVE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `halffull calibrate`."""
    parser.add_argument("--url", required=True, type=http_url, help="of the engine's OpenAI API; not of a gateway")
    parser.add_argument(
        "--load-url",
        type=http_url,
        help="of its load report (http://ENGINE:9400): exact times and counts; without it they are read off streams",
    )
    parser.add_argument("--model", default="", help="served name (default: the first that the engine names)")
    parser.add_argument("--api-key", help="default: $OPENAI_API_KEY")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("profile.toml"),
        help="the profile, TOML, or JSON with every measurement in it if it ends in .json (default: %(default)s)",
    )
    parser.add_argument("--minutes", type=positive, default=4.0, help="at most, about (default: %(default)g)")
    parser.add_argument(
        "--rounds", type=positive_int, default=ROUNDS, help="of every measurement; fewer if time is short (default: 3)"
    )
    parser.add_argument(
        "--max-tokens-per-batch", type=positive_int, help="the engine's max_num_batched_tokens, without a load report"
    )
    parser.add_argument(
        "--max-num-seqs", type=positive_int, default=256, help="the engine's, which no engine tells (default: 256)"
    )
    parser.add_argument("--anyway", action="store_true", help="measure even if the engine serves others")


def main(args: argparse.Namespace) -> int:
    """Measure, fit, print and write; 0 when a profile was written, however large its error is."""
    console = Console()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        name, measured = runner.run(_measure(args, console))
    latency = fit(measured.samples)
    found = errors(latency, measured.samples)
    profile = Profile(latency=replace(latency, host=1000 * measured.host), **asdict(measured.limits))
    record = _record(args, name, measured, found)
    points = [
        {
            "region": sample.region,
            "setting": sample.setting,
            "held_out": sample.held_out,
            "steps": sum(steps.times for steps in sample.steps),
            "measured": sample.measured,
            "predicted": predicted(latency, sample),
        }
        for sample in measured.samples
    ]
    text = render_profile(profile, calibration=record | {"points": points}, suffix=args.out.suffix)
    args.out.write_text(text, encoding="utf-8")
    _print(console, profile, measured, found)
    console.print(f"written to {args.out}", highlight=False)
    return 0


async def _measure(args: argparse.Namespace, console: Console) -> tuple[str, Measured]:
    key = args.api_key or os.environ.get("OPENAI_API_KEY")
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )
    async with session:
        engine = MeasuredEngine(session, url=args.url, load_url=args.load_url, model=args.model)
        limits, notes = await find_limits(
            engine, max_tokens_per_batch=args.max_tokens_per_batch, max_num_seqs=args.max_num_seqs
        )
        engine.others = sum(await engine.requests())
        if engine.others and not args.anyway:
            raise CalibrationError(
                f"{engine.url} has {engine.others} requests of others: steps would be theirs, too, and they would "
                "wait for ours. Take it out of traffic, or give --anyway"
            )
        seconds = 60 * args.minutes
        with ProgressLine(console, total=seconds) as progress:
            progress.stage(f"measuring {engine.model} for at most {args.minutes:g} minutes")
            measured = await measure(engine, limits, seconds=seconds, rounds=args.rounds, told=progress.update)
        measured.notes[:0] = notes
        return engine.model, measured


def _record(args: argparse.Namespace, name: str, measured: Measured, found: list[RegionError]) -> dict[str, Any]:
    """How the profile came about, for its file."""
    return {
        "version": version("halffull-lab"),
        "model": name,
        "times_from": "load report" if args.load_url else "streams",
        "seconds": round(measured.seconds, 1),
        "measurements": len(measured.samples),
        "lost": measured.lost,
        "notes": measured.notes,
        "error": {
            error.region: {
                "settings": error.settings,
                **{key: finite_or_none(value) for key, value in error._asdict().items() if isinstance(value, float)},
            }
            for error in found
        },
    }


def _print(console: Console, profile: Profile, measured: Measured, found: list[RegionError]) -> None:
    costs = Table("ms", "per", title="The model", title_justify="left")
    latency = profile.latency
    for value, what in (
        (latency.floor, "step, at least: small batches"),
        (latency.base, "step, beyond the floor"),
        (latency.matmul_per_token, "token, beyond the floor"),
        (latency.per_token, "token, always"),
        (latency.per_decode, "decoding sequence"),
        (latency.per_kv_token, "token of the decodes' context"),
        (latency.per_prefill_pair, "pair of a prompt's tokens"),
        (latency.host, "step, between two steps"),
    ):
        costs.add_row(f"{value:.3g}", what)
    console.print(costs)
    table = Table(title="Step times that the fit has not seen: predicted against measured", title_justify="left")
    for heading in ("steps", "held out", "measured, ms", "error, median", "p95", "scatter"):
        table.add_column(heading, justify="left" if heading == "steps" else "right")
    for error in found:
        if error.settings:
            times = f"{1000 * error.shortest:.3g} to {1000 * error.longest:.3g}"
            shares = (_share(value) for value in (error.median, error.p95, error.scatter))
            table.add_row(error.region, str(error.settings), times, *shares)
        else:
            table.add_row(error.region, "0", *"––––")
    console.print(table)
    console.print(
        f"{len(measured.samples)} measurements in {measured.seconds:.0f} s, {measured.lost} more were lost",
        highlight=False,
    )
    for note in measured.notes:
        console.print(note, style="dim", highlight=False)
    for warning in warnings(found):
        console.print(f"! {warning}", style="red", highlight=False)


def _share(value: float) -> str:
    return f"{value:.1%}" if math.isfinite(value) else "–"
