"""Run an experiment: every case with every seed, on all cores."""

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, Final

from halffull_extproc.policies import Policy
from halffull_extproc.pool import PoolConfig, Source
from halffull_lab.engine_policies import make_engine
from halffull_lab.engine_requests import EngineLimits
from halffull_lab.latency import Profile
from halffull_lab.profiles import load_profile
from halffull_lab.saturation import saturation
from halffull_lab.simulation.balancers import make_balancer
from halffull_lab.simulation.cluster import Member, Run, simulate
from halffull_lab.simulation.experiment import Case, Cell, Experiment, engine_policy
from halffull_lab.simulation.traffic import arrivals, fitting, lengths
from halffull_lab.traces import Trace

LOAD: Final = 0.8
"""Unless a case says otherwise."""
STALE_POLLS: Final = 3
"""An engine is stale when it has not been heard of for so many polls, and at least a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What the arrivals of a case really are."""

    rate: float
    """Requests/s."""
    saturation: float
    """What the engines together can finish, requests/s; see `halffull_lab.saturation`."""
    notes: tuple[str, ...]
    """Of the trace."""

    @property
    def load(self) -> float:
        """Rate ÷ saturation."""
        return self.rate / self.saturation


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRuns:
    """A cell's runs."""

    cell: Cell
    schedule: Schedule
    runs: dict[str, tuple[Run, ...]]
    """By variant, one per seed; seed k of each variant had the same arrivals."""


@contextlib.contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes for `schedule` and `run_case`; an error or Ctrl-C ends what is left to do at once."""
    # Forked from a small server: a fork of this process would share its threads' locks.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    before = multiprocessing.active_children()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_live_with_the_parent) as pool:
        try:
            yield pool
        except BaseException:
            # A run may take minutes, and nobody wants it any more.
            for child in multiprocessing.active_children():
                if child not in before:
                    child.terminate()
            pool.shutdown(cancel_futures=True)
            raise


def _live_with_the_parent() -> None:
    """In a worker: Ctrl-C is the parent's to handle, and when it dies, by whatever means, so does the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_die_after, args=(parent.sentinel,), daemon=True).start()


def _die_after(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


def run_experiment(
    experiment: Experiment, *, workers: int, real_scheduler: bool, done: Callable[[int, int], None]
) -> list[CellRuns]:
    """Every cell's runs, in the experiment's order.

    Args:
        experiment: what to run.
        workers: processes.
        real_scheduler: engines are vLLM's own scheduler, which must be installed; else its emulated equal.
        done: called with the number of runs that are over, and of all.

    Raises:
        TraceError: a trace cannot be read or used.
        ProfileError: no such GPU profile.
    """
    cells = list(experiment.cells())
    total = experiment.seeds * sum(len(cell.cases) for cell in cells)
    with processes(workers) as pool:
        done(0, total)
        schedules = list(pool.map(schedule, [next(iter(cell.cases.values())) for cell in cells]))
        futures = {
            (place, variant, seed): pool.submit(run_case, case, schedules[place].rate, seed, real=real_scheduler)
            for place, cell in enumerate(cells)
            for variant, case in cell.cases.items()
            for seed in experiment.all_seeds
        }
        for count, future in enumerate(as_completed(futures.values()), start=1):
            future.result()
            done(count, total)
    return [
        CellRuns(
            cell=cell,
            schedule=schedules[place],
            runs={
                variant: tuple(futures[place, variant, seed].result() for seed in experiment.all_seeds)
                for variant in cell.cases
            },
        )
        for place, cell in enumerate(cells)
    ]


def schedule(case: Case) -> Schedule:
    """The rate of a case's arrivals, for which its engines' saturation is measured.

    Raises:
        TraceError: the trace cannot be read or used, or has no rate to be a multiple of.
        ProfileError: no such GPU profile.
    """
    rows, profile = _rows(case), load_profile(case.gpu)
    others = _saturation(rows, profile) * (case.engines - 1)
    first = _saturation(rows, replace(profile, kv_tokens=_kv_tokens(case, profile, row=0))) / case.slow
    saturated = first + others
    if case.rate is not None:
        rate = case.rate
    elif case.factor is not None:
        rate = rows.finite_rate() * case.factor
    else:
        rate = saturated * (LOAD if case.load is None else case.load)
    return Schedule(rate=rate, saturation=saturated, notes=rows.notes)


def run_case(case: Case, rate: float, seed: int, *, real: bool) -> Run:
    """One run at `rate` requests/s; equal arguments give equal runs."""
    rows, profile = _rows(case), load_profile(case.gpu)
    config = PoolConfig(
        policy=Policy.SAL,  # the case's own is set with the balancer
        source=Source(case.source),
        beta=None if case.beta_times == 1 else case.beta_times * _beta(rows),
        poll_interval=case.poll_interval,
        stale_after=max(1.0, STALE_POLLS * case.poll_interval),
        pickers=case.pickers,
        max_tokens_per_batch=profile.max_tokens_per_batch,
    )
    return simulate(
        arrivals(rows, case, rate=rate, seed=seed),
        members=[_member(case, profile, row, real=real) for row in range(case.engines)],
        balancers=[
            make_balancer(case.balancer, config, rng=random.Random(f"{seed}/{picker}"))
            for picker in range(case.pickers)
        ],
        seed=seed,
        poll_interval=case.poll_interval,
        size_error=case.size_error,
    )


def _rows(case: Case) -> Trace:
    limits = EngineLimits.of(load_profile(case.gpu))
    return lengths(case.trace, case.rows, case.output_times, limits)


@functools.lru_cache(maxsize=8)
def _saturation(rows: Trace, profile: Profile) -> float:
    """Of the rows that fit into such an engine: a smaller one than the others may not take all."""
    fit = fitting(rows, EngineLimits.of(profile))
    return saturation(fit, profile) if len(fit) else 0.0


def _beta(rows: Trace) -> float:
    prompt, output = float(rows.prompt_tokens.mean()), float(rows.output_tokens.mean())
    return (prompt + output) / output


def _kv_tokens(case: Case, profile: Profile, *, row: int) -> int:
    return max(profile.block_size, round(profile.kv_tokens * case.small)) if row == 0 else profile.kv_tokens


def _member(case: Case, profile: Profile, row: int, *, real: bool) -> Member:
    policy, alpha = engine_policy(case.policy)
    limits = EngineLimits.of(replace(profile, kv_tokens=_kv_tokens(case, profile, row=row)))
    if real:
        from halffull_lab.vllm_engine import VLLMEngine  # noqa: PLC0415 (needs vLLM)

        engine: Any = VLLMEngine(latency=profile.latency, limits=limits, policy=policy, alpha=alpha)
    else:
        engine = make_engine(latency=profile.latency, limits=limits, policy=policy, alpha=alpha)
    if row == 0:
        engine.slowdown = case.slow
    joins = 60.0 * case.fresh if row == case.engines - 1 else 0.0
    return Member(engine=engine, name=policy, joins=joins)
