"""`halffull plan`: how many engines one's traffic needs under each policy, by simulation."""

import argparse
import json
import math
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich import box
from rich.table import Table

from halffull_lab.arguments import positive, positive_int
from halffull_lab.figures import finite_or_none, percentile
from halffull_lab.latency import Profile
from halffull_lab.profiles import load_profile
from halffull_lab.replay_command import TRACE_HELP
from halffull_lab.simulate import add_case_arguments, add_run_arguments, names, plain_console, scheduler
from halffull_lab.simulation.campaign import Schedule, processes, run_case, schedule
from halffull_lab.simulation.cluster import Run
from halffull_lab.simulation.experiment import Case, ExperimentError
from halffull_lab.simulation.planning import MEASURES, Objective, ObjectiveError, meets, smallest
from halffull_lab.table import seconds

_SETUPS = ("FCFS+LeastRequest", "FCFS+SAL", "LARRY+LeastRequest", "LARRY+SAL")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `halffull plan`."""
    parser.add_argument("--trace", required=True, help=TRACE_HELP)
    parser.add_argument(
        "--slo",
        type=_objective,
        action="append",
        required=True,
        metavar="ttft_p95=1s",
        help="what must be met; ttft, normalized_ttft, tgt or tpot, p50, p95 or p99; several are allowed",
    )
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--rate", type=positive, help="arrivals per second, of all engines together")
    rate.add_argument("--factor", type=positive, help="times as fast as recorded (default: 1)")
    parser.add_argument(
        "--setups",
        type=names,
        default=list(_SETUPS),
        metavar="POLICY+BALANCER,…",
        help="engine policy and balancer of each; the first is what others are set against "
        f"(default: {','.join(_SETUPS)})",
    )
    parser.add_argument(
        "--most", type=positive_int, default=64, help="engines that are tried at the most (default: %(default)s)"
    )
    add_case_arguments(parser)
    parser.add_argument("--seeds", type=positive_int, default=3, help="runs of each number (default: %(default)s)")
    add_run_arguments(parser)
    parser.add_argument("--out", type=Path, help="write the figures here, as JSON")


def _objective(text: str) -> Objective:
    try:
        return Objective.parse(text)
    except ObjectiveError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@dataclass(slots=True)
class _Search:
    """The search for one setup's number."""

    name: str
    case: Case
    steps: Generator[int, bool, int | None]
    trial: int = 0
    tried: dict[int, dict[str, float]] = field(default_factory=dict)
    """Engines → figures, s."""
    found: int | None = None
    over: bool = False

    def advance(self, *, met: bool | None) -> None:
        """Hear of the last trial (None: there was none), and set the next, or the end."""
        try:
            self.trial = next(self.steps) if met is None else self.steps.send(met)
        except StopIteration as end:
            self.found, self.over = end.value, True


def main(args: argparse.Namespace) -> int:
    """Search, print and write; 0 when the objective can be met under some policy, else 1."""
    console = plain_console()
    objectives = tuple(args.slo)
    within = scheduler(args)
    base = _case(args)
    cases = {setup: _with_setup(base, setup) for setup in args.setups}
    if not cases:
        raise ExperimentError("--setups: none is given")
    with processes(args.workers) as pool, console.status("measuring saturation") as status:

        def say(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text, soft_wrap=True)

        planned = pool.submit(schedule, base).result()
        for note in (*planned.notes, *_impossible(objectives, load_profile(base.gpu))):
            console.print(f"! {note}", style="yellow", soft_wrap=True)
        one = planned.saturation / base.engines
        start = min(args.most, max(1, math.ceil(planned.rate / one)))
        searches = [_Search(setup, case, smallest(start=start, most=args.most)) for setup, case in cases.items()]
        _search(searches, objectives, pool, planned, args, say=say)
    console.print(
        f"{planned.rate:.3g} requests/s; one {base.gpu} engine can finish {one:.3g} of them; "
        f"{', '.join(map(str, objectives))}"
    )
    console.print(_table(searches, objectives, most=args.most))
    for search in searches:
        if search.found is None:
            console.print(f"! {search.name}: {_told(search, args.most, objectives)}", style="yellow", soft_wrap=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        found = {"scheduler": within} | _json(searches, objectives, planned, args)
        args.out.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return 0 if any(search.found for search in searches) else 1


def _case(args: argparse.Namespace) -> Case:
    fields = {"trace": args.trace, "rate": args.rate, "factor": args.factor, "arrivals": "recorded"}
    if args.rate is None and args.factor is None:
        fields["factor"] = 1.0
    given = {name: getattr(args, name) for name in ("gpu", "arrivals", "minutes") if getattr(args, name) is not None}
    try:
        return Case().changed({name: value for name, value in fields.items() if value is not None} | given)
    except ValueError as error:
        raise ExperimentError(str(error)) from None


def _with_setup(base: Case, setup: str) -> Case:
    policy, plus, balancer = setup.partition("+")
    if not plus:
        raise ExperimentError(f"--setups: {setup!r} is not an engine policy and a balancer, such as LARRY+SAL")
    try:
        return base.changed({"policy": policy, "balancer": balancer})
    except ValueError as error:
        raise ExperimentError(f"--setups: {setup}: {error}") from None


def _search(
    searches: list[_Search],
    objectives: tuple[Objective, ...],
    pool: ProcessPoolExecutor,
    planned: Schedule,
    args: argparse.Namespace,
    *,
    say: Callable[[str], None],
) -> None:
    """Try, of every search that is not over, one number at a time; all runs of a round together."""
    for search in searches:
        search.advance(met=None)
    while left := [search for search in searches if not search.over]:
        say(f"trying {', '.join(f'{search.trial} × {search.name}' for search in left)}")
        runs: list[list[Future[Run]]] = [
            [
                pool.submit(
                    run_case,
                    search.case.changed({"engines": search.trial}),
                    planned.rate,
                    seed,
                    real=args.real_scheduler,
                )
                for seed in range(args.seeds)
            ]
            for search in left
        ]
        for search, of_search in zip(left, runs, strict=True):
            figures = _figures([future.result() for future in of_search])
            search.tried[search.trial] = figures
            say(f"{search.name}: {_told(search, search.trial, objectives)}")
            search.advance(met=meets(figures, objectives))


def _told(search: _Search, engines: int, objectives: tuple[Objective, ...]) -> str:
    """`not met by 3 engines: ttft_p95 is 0.021 s`."""
    figures = search.tried[engines]
    met = "met" if meets(figures, objectives) else "not met"
    values = (f"{objective.figure} is {seconds(figures[objective.figure])} s" for objective in objectives)
    return f"{met} by {engines} engine{'s' if engines > 1 else ''}: {', '.join(values)}"


def _impossible(objectives: tuple[Objective, ...], profile: Profile) -> list[str]:
    """Objectives that no number of engines meets: a first token takes one step at least."""
    shortest = profile.latency.step_seconds(prefill_tokens=1, decodes=0, decode_context=0)
    return [
        f"{objective} is below the TTFT of an idle engine, {seconds(shortest)} s at least: no number of them meets it"
        for objective in objectives
        if objective.figure.startswith("ttft_") and objective.seconds < shortest
    ]


def _figures(runs: list[Run]) -> dict[str, float]:
    found: dict[str, float] = {}
    for measure in MEASURES:
        values = np.concatenate([getattr(run.outcomes, measure) for run in runs])
        found |= {f"{measure}_p{q}": percentile(values, q) for q in (50, 95, 99)}
    return found


def _table(searches: list[_Search], objectives: tuple[Objective, ...], *, most: int) -> Table:
    grid = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    grid.add_column("setup", no_wrap=True)
    for heading in ("engines", "saved", *(objective.figure for objective in objectives), "with one engine less"):
        grid.add_column(heading, justify="right")
    first = searches[0].found
    for search in searches:
        if search.found is None:
            grid.add_row(search.name, f"> {most}")
            continue
        saved = "–" if first is None else f"{first - search.found} of {first}"
        less = search.tried.get(search.found - 1)
        grid.add_row(
            search.name,
            str(search.found),
            saved if search is not searches[0] else "",
            *(seconds(search.tried[search.found][objective.figure]) for objective in objectives),
            ", ".join(seconds(less[objective.figure]) for objective in objectives) if less else "–",
        )
    return grid


def _json(
    searches: list[_Search], objectives: tuple[Objective, ...], planned: Schedule, args: argparse.Namespace
) -> dict[str, Any]:
    return {
        "version": version("halffull-lab"),
        "rate": planned.rate,
        "seeds": list(range(args.seeds)),
        "notes": list(planned.notes),
        "objectives": [str(objective) for objective in objectives],
        "most": args.most,
        "setups": {
            search.name: {
                "case": msgspec.to_builtins(search.case),
                "engines": search.found,
                "tried": {
                    str(engines): {name: finite_or_none(value) for name, value in figures.items()}
                    for engines, figures in sorted(search.tried.items())
                },
            }
            for search in searches
        },
    }
