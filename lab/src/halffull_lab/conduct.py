"""Conducts a comparison: one stack, one replay for each balancer and engine policy, the same arrivals for all."""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from halffull_lab.progress import ProgressLine
from halffull_lab.replay import Replay, Run, Target, bottlenecks
from halffull_lab.results import FaultResult, LoadSample, Result
from halffull_lab.stack import Stack, get_text
from halffull_lab.traces import Trace

ENGINE_LATE = 0.02
"""Trace seconds: a run is invalid when ends of engine steps were handled later than this in the mean of an engine."""
_SAMPLE_EVERY = 1.0  # trace s between two looks at the queues
_SAMPLE_FASTEST = 0.2  # wall s, whatever the speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One run: which balancer before which engines ("" for engines that are not ours to restart)."""

    policy: str
    engine: str = ""

    @property
    def name(self) -> str:
        """`SAL, FCFS engines`."""
        return f"{self.policy}, {self.engine} engines" if self.engine else self.policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What is to be run, and how long it should take.

    Attributes:
        fault_trace: of the last, short run, in which the picker is killed and restarted: the beginning of `trace`.
        fault: what runs then; one of `legs`, so that there is an undisturbed run to compare with.
        drain: wall seconds that the last answers of a run are expected to take, for the progress bar alone.
    """

    legs: tuple[Leg, ...]
    trace: Trace
    target: Target
    speed: float
    timeout: float
    fault: Leg | None
    fault_trace: Trace
    drain: float

    @property
    def wall(self) -> float:
        """Expected wall seconds of all runs."""
        runs = sum(self.trace.duration / self.speed + self.drain for _ in self.legs)
        return runs + (self.fault_trace.duration / self.speed + self.drain if self.fault else 0.0)


@dataclass(slots=True)
class Conductor:
    """Runs a score on a stack and says how far it is."""

    stack: Stack
    score: Score
    progress: ProgressLine
    done: float = 0.0
    results: list[Result] = field(default_factory=list)

    async def run(self) -> FaultResult | None:
        """All legs, in order, into `results`; then the run with the fault."""
        for place, leg in enumerate(self.score.legs):
            await self._prepare(leg)
            self.progress.stage(f"run {place + 1} of {len(self.score.legs)}: {leg.name}")
            run, load, cpu, late = await self._replay(self.score.trace)
            self.results.append(_result(run, leg, load=load, cpu=cpu, late=late))
        return await self._fault(self.score.fault) if self.score.fault else None

    async def _prepare(self, leg: Leg) -> None:
        if leg.engine and leg.engine != self.stack.options.policy:
            self.progress.stage(f"restarting the engines with {leg.engine}")
            await self.stack.restart_engines(policy=leg.engine)
        await self.stack.set_policy(leg.policy)

    async def _fault(self, leg: Leg) -> FaultResult:
        await self._prepare(leg)
        trace = self.score.fault_trace
        self.progress.stage(f"the picker is killed and restarted: {leg.name}")
        killing = asyncio.create_task(self._kill_picker(after=trace.duration / self.score.speed / 3))
        try:
            run, load, cpu, late = await self._replay(trace)
            killed, back = await killing
        finally:
            killing.cancel()
            await asyncio.gather(killing, return_exceptions=True)
        result = _result(run, leg, load=load, cpu=cpu, late=late)
        undisturbed = self.results[self.score.legs.index(leg)]
        killed_at, back_at = killed - run.started, back - run.started
        meanwhile = [
            record for record in run.records if record.sent is not None and killed_at <= record.sent <= back_at
        ]
        return FaultResult(
            result=result,
            without=replace(undisturbed, outcomes=undisturbed.outcomes.head(len(trace))),
            killed_at=killed_at * run.speed,
            back_at=back_at * run.speed,
            sent_meanwhile=len(meanwhile),
            failed_meanwhile=sum(record.failure is not None for record in meanwhile),
        )

    async def _kill_picker(self, *, after: float) -> tuple[float, float]:
        """Kill it after `after` wall seconds, start it as long after that; the moments of kill and return."""
        await asyncio.sleep(after)
        self.stack.picker.kill()
        killed = time.monotonic()
        await asyncio.sleep(after)
        await self.stack.start_picker()
        return killed, time.monotonic()

    async def _replay(self, trace: Trace) -> tuple[Run, tuple[LoadSample, ...], dict[str, float], float]:
        """The run, the queues over time, CPU seconds by process, and the engines' worst mean lateness in trace s."""
        stack, score = self.stack, self.score
        replay = Replay(trace, score.target, speed=score.speed, timeout=score.timeout)
        before, late_before = self._cpu(), await self._lateness()
        samples: list[LoadSample] = []
        watching = asyncio.create_task(self._watch(replay, samples))
        try:
            run = await replay.run()
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        cpu = {name: after - before.get(name, 0.0) for name, after in self._cpu().items()}
        cpu = {
            name: seconds if seconds >= 0 else self._cpu()[name] for name, seconds in cpu.items()
        }  # it was restarted
        late_after = await self._lateness()
        late = max(
            (
                (total - old[0]) / max(steps - old[1], 1)
                for (total, steps), old in zip(late_after, late_before, strict=True)
            ),
            default=0.0,
        )
        self.done += trace.duration / score.speed + score.drain
        for engine in stack.engines:
            if engine.child.returncode is not None:
                raise RuntimeError(f"{engine.name} ended with {engine.child.returncode} in the middle of a run")
        return run, tuple(samples), cpu, late

    async def _watch(self, replay: Replay, samples: list[LoadSample]) -> None:
        every = max(_SAMPLE_FASTEST, _SAMPLE_EVERY / self.score.speed)
        began = time.monotonic()
        while True:
            at = (time.monotonic() - began) * self.score.speed
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):  # the picker may be dead on purpose
                endpoints = (await self.stack.status())["pool"]["endpoints"]
                samples.append(LoadSample(at, {endpoint["address"]: endpoint["queued"] for endpoint in endpoints}))
            failed = f", {replay.failed} failed" if replay.failed else ""
            wall = time.monotonic() - began
            expected = replay.trace.duration / self.score.speed + self.score.drain
            self.progress.update(
                self.done + min(wall, expected), f"{replay.finished} of {len(replay.trace)} requests{failed}"
            )
            await asyncio.sleep(every)

    def _cpu(self) -> dict[str, float]:
        used = {"picker": self.stack.picker.cpu_seconds(), "envoy": self.stack.envoy.cpu_seconds()}
        return used | {engine.name: engine.child.cpu_seconds() for engine in self.stack.engines}

    async def _lateness(self) -> list[tuple[float, float]]:
        """Each engine's sum of lateness (trace s) and steps so far."""
        pages = await asyncio.gather(*(get_text(f"{engine.url}/metrics") for engine in self.stack.engines))
        return [
            (_sample(page, "halffull_engine_late_seconds_total"), _sample(page, "halffull_engine_steps_total"))
            for page in pages
        ]


def _result(run: Run, leg: Leg, *, load: Sequence[LoadSample], cpu: dict[str, float], late: float) -> Result:
    invalid = bottlenecks(run.client, speed=run.speed)
    if late > ENGINE_LATE:
        invalid.append(
            f"machine-bound: an engine's steps were {1000 * late:.0f} ms late in the mean "
            f"(limit {1000 * ENGINE_LATE:.0f})"
        )
    return Result.of(
        run, policy=leg.policy, engine=leg.engine, invalid=tuple(invalid), load=tuple(load), cpu=cpu, engine_late=late
    )


def _sample(page: str, name: str) -> float:
    """A sample of a Prometheus page; 0 when it is not there."""
    for line in page.splitlines():
        if line.startswith(name) and line[len(name) : len(name) + 1] in " {":
            return float(line.rpartition(" ")[2])
    return 0.0
