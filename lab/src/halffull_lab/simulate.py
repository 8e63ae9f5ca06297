"""`halffull simulate`: an experiment, or one's own traffic, under a virtual clock with the code that ships."""

import argparse
import hashlib
import importlib.util
import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from halffull_lab.arguments import positive, positive_int
from halffull_lab.profiles import NAMES
from halffull_lab.replay_command import TRACE_HELP
from halffull_lab.simulation.campaign import CellRuns, run_experiment
from halffull_lab.simulation.experiment import RATES, Experiment, ExperimentError, bundled, load_experiment
from halffull_lab.simulation.report import schedule_text, tables, warnings, write_html
from halffull_lab.simulation.summary import results_json, summarize

EMULATED = "an emulated copy of vLLM's scheduler, equal to it step for step,"
REAL = "vLLM's own scheduler"
_POLICIES = ("FCFS", "LARRY")
_BALANCERS = ("LeastRequest", "SAL")
_LINES = 10
"""Of progress in all, where there is no terminal."""
_QUICK = {"minutes": 3.0}
_CASE_OPTIONS = ("trace", "gpu", "engines", "load", "rate", "factor", "minutes", "arrivals")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `halffull simulate`."""
    parser.add_argument("experiment", nargs="?", help="one that comes with the lab (see --list), or a TOML file")
    parser.add_argument("--list", action="store_true", help="the experiments that come with the lab")
    traffic = parser.add_argument_group("one's own traffic, instead of an experiment or in its place")
    traffic.add_argument("--trace", help=TRACE_HELP)
    traffic.add_argument("--engines", type=positive_int, help="how many (default: 4)")
    add_case_arguments(traffic)
    rate = traffic.add_mutually_exclusive_group()
    rate.add_argument("--load", type=positive, help="arrivals as a share of what the engines can finish (default: 0.8)")
    rate.add_argument("--rate", type=positive, help="arrivals per second, of all engines together")
    rate.add_argument("--factor", type=positive, help="times as fast as recorded")
    traffic.add_argument(
        "--policies",
        type=names,
        metavar="A,B",
        help="of the engines: FCFS, LARRY, LARRY:α, LARRYPlus, NoPreempt, TRAILPlus (default: FCFS,LARRY)",
    )
    traffic.add_argument(
        "--balancers",
        type=names,
        metavar="A,B",
        help="LeastRequest (Envoy's P2C), SAL, SALPlus, RoundRobin, Random, LeastOutstanding, LeastTokens, Llumnix "
        "(default: LeastRequest,SAL)",
    )
    parser.add_argument("--seeds", type=positive_int, help="runs of each case (default: the experiment's, else 5)")
    add_run_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="2 seeds of 3 minutes each: wide intervals")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/simulate"),
        help="folder for report.html and results.json (default: %(default)s)",
    )


def add_case_arguments(group: Any) -> None:
    """What traffic and engines are, for every command that simulates."""
    group.add_argument(
        "--gpu",
        help=f"{NAMES}, one of them with another step budget as 70b-2xh100:8192, or a file of "
        "`halffull calibrate` (default: 70b-2xh100)",
    )
    group.add_argument(
        "--arrivals",
        choices=("recorded", "poisson", "bursts"),
        help="as recorded, or drawn anew by each seed (default: recorded with a trace of one's own, else poisson)",
    )
    group.add_argument(
        "--minutes", type=positive, help="of arrivals in each run, at most, where a case has its own (default: 15)"
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """How it is run, for every command that simulates."""
    parser.add_argument(
        "--workers", type=positive_int, default=os.cpu_count() or 1, help="processes (default: %(default)s)"
    )
    parser.add_argument(
        "--real-scheduler",
        action="store_true",
        help="vLLM's own scheduler classes in the engines, which needs vLLM installed; 10 to 20 times slower",
    )


def scheduler(args: argparse.Namespace) -> str:
    """What runs inside the engines, for people.

    Raises:
        ExperimentError: vLLM is asked for and not there.
    """
    if not args.real_scheduler:
        return EMULATED
    if importlib.util.find_spec("vllm") is None:
        raise ExperimentError("--real-scheduler: vLLM is not installed beside this command")
    return REAL


def names(text: str) -> list[str]:
    """A list with commas."""
    return [name for part in text.split(",") if (name := part.strip())]


def main(args: argparse.Namespace) -> int:
    """Run, print and write; 0 even if policies differ in failures, which is said."""
    console = plain_console()
    if args.list:
        for name, title in bundled().items():
            console.print(Text.assemble((name, "bold"), "  ", title), soft_wrap=True)
        return 0
    experiment, source = _experiment(args)
    within = scheduler(args)
    began = time.monotonic()
    cells = [
        summarize(found, reference=experiment.reference, rivals=experiment.rivals)
        for found in run(experiment, args, console)
    ]
    for cell in cells:
        for table in tables(experiment, cell):
            console.print(table)
        console.print(schedule_text(cell), style="dim")
    for warning in warnings(cells):
        console.print(f"! {warning}", style="yellow")
    args.out.mkdir(parents=True, exist_ok=True)
    page, results = args.out / "report.html", args.out / "results.json"
    setting = {
        "experiment": source or "options of the command line",
        "seeds": str(experiment.seeds),
        "version": version("halffull-lab"),
        "wall time": f"{time.monotonic() - began:.0f} s with {args.workers} processes",
    }
    write_html(experiment, cells, page, setting=setting, scheduler=within)
    found = results_json(experiment, cells, source=source, scheduler=within)
    results.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"{page}\n{results}", soft_wrap=True)
    return 0


def plain_console() -> Console:
    """A terminal that prints names of files and labels as they are: no `[bold]`, no `:smile:`."""
    return Console(markup=False, emoji=False, highlight=False)


def run(experiment: Experiment, args: argparse.Namespace, console: Console) -> list[CellRuns]:
    """All runs, with a progress bar on a terminal and a line now and then elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("measuring saturation", total=None)

        def done(over: int, total: int) -> None:
            progress.update(task, completed=over, total=total, description="runs" if over else "measuring saturation")
            if over and not console.is_terminal and over * _LINES // total > (over - 1) * _LINES // total:
                console.print(f"{over} of {total} runs")

        return run_experiment(experiment, workers=args.workers, real_scheduler=args.real_scheduler, done=done)


def _experiment(args: argparse.Namespace) -> tuple[Experiment, str]:
    """What the options ask for, and which file it is from."""
    given = {name: getattr(args, name) for name in _CASE_OPTIONS if getattr(args, name) is not None}
    seeds = 2 if args.quick else None
    if args.seeds is not None:
        seeds = args.seeds
    if args.quick:
        given = _QUICK | given
    if args.experiment is not None:
        if args.policies is not None or args.balancers is not None:
            raise ExperimentError("--policies and --balancers: an experiment has its own; they are for --trace alone")
        experiment, data = load_experiment(args.experiment)
        source = f"{args.experiment}, sha256 {hashlib.sha256(data).hexdigest()}"
    elif args.trace is not None:
        given = {"arrivals": "recorded"} | given
        experiment = _own_traffic(args)
        source = ""
    else:
        raise ExperimentError(f"name an experiment ({', '.join(bundled())}) or a --trace")
    try:
        varied = experiment.varied
        if varied & RATES:  # the last one given holds, which would be the axis'
            varied |= RATES
        varied -= {"minutes"} - experiment.axes.keys()  # of single cases, which are shortened
        if fixed := given.keys() & varied:
            raise ExperimentError(f"--{min(fixed)}: the experiment varies it")
        return experiment.changed(case=given, seeds=seeds), source
    except ValueError as error:
        raise ExperimentError(str(error)) from None


def _own_traffic(args: argparse.Namespace) -> Experiment:
    policies = _POLICIES if args.policies is None else args.policies
    balancers = _BALANCERS if args.balancers is None else args.balancers
    setups = {
        f"{policy}, {balancer}": {"policy": policy, "balancer": balancer}
        for policy in policies
        for balancer in balancers
    }
    try:
        return Experiment(title=f"Traffic of {args.trace}", compare="setup", axes={"setup": setups})
    except ValueError as error:
        raise ExperimentError(str(error)) from None
