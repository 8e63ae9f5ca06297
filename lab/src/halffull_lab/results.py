"""What a comparison found: runs with their figures, ratios and validity, and results.json as the lab writes it."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from halffull_lab.figures import (
    BANDS,
    Outcomes,
    Ratio,
    band_name,
    finite_or_none,
    in_band,
    paired_ratios,
    percentile,
    percentiles,
    unequal_failures,
)
from halffull_lab.replay import ClientHealth, Run

BASELINE = "LeastRequest"  # Envoy's P2C, what every ratio is against
# Figures that are compared, by their names in results.json, and at which percentiles.
COMPARED = ("ttft", "normalized_ttft", "tgt")
COMPARED_AT = (50, 95)


@dataclass(frozen=True, slots=True)
class LoadSample:
    """The picker's view of every engine at one moment: trace seconds from the run's start, queued tokens by address."""

    at: float
    queued: dict[str, float]


def outcomes(run: Run) -> Outcomes:
    """The run's figures' raw material, in trace seconds; failures become infinite."""
    answered = [record.failure is None for record in run.records]
    first = [record.first_token if ok else None for record, ok in zip(run.records, answered, strict=True)]
    last = [record.last_token if ok else None for record, ok in zip(run.records, answered, strict=True)]
    scheduled = np.array([record.scheduled for record in run.records])
    return Outcomes(
        prompt_tokens=run.trace.prompt_tokens,
        output_tokens=run.trace.output_tokens,
        ttft=(np.array([np.inf if at is None else at for at in first]) - scheduled) * run.speed,
        tgt=(np.array([np.inf if at is None else at for at in last]) - scheduled) * run.speed,
    )


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run of a comparison.

    Attributes:
        policy, engine: balancer, and the order of the engines' queues ("" when the engines are not ours to know).
        outcomes, client, failures, speed, wall: of the run.
        invalid: why it shows the machine or the client rather than the system; empty when it is valid.
        load: the picker's view over time, for the plot.
        cpu: CPU seconds by process over the run.
        engine_late: trace seconds by which ends of steps were handled late, mean of the worst engine.
    """

    policy: str
    engine: str
    outcomes: Outcomes
    client: ClientHealth
    failures: dict[str, int]
    first_failures: tuple[str, ...]
    speed: float
    wall: float
    invalid: tuple[str, ...] = ()
    load: tuple[LoadSample, ...] = field(default=(), repr=False)
    cpu: dict[str, float] = field(default_factory=dict)
    engine_late: float = 0.0

    @property
    def name(self) -> str:
        """`SAL, FCFS engines`."""
        return f"{self.policy}, {self.engine} engines" if self.engine else self.policy

    @classmethod
    def of(cls, run: Run, *, policy: str, engine: str, **more: Any) -> "Result":
        """From a replay."""
        failed = [record for record in run.records if record.failure is not None]
        kinds = Counter(str(record.failure.kind) for record in failed if record.failure)
        return cls(
            policy=policy,
            engine=engine,
            outcomes=outcomes(run),
            client=run.client,
            failures=dict(kinds),
            first_failures=tuple(
                f"request {record.index}: {record.failure.kind}: {record.failure.detail}"
                for record in failed[:5]
                if record.failure
            ),
            speed=run.speed,
            wall=run.wall,
            **more,
        )

    @cached_property
    def ttft_p95_by_band(self) -> dict[str, float]:
        """TTFT p95 by band of prompt length; nan in a band without requests."""
        prompt = self.outcomes.prompt_tokens
        return {band_name(band): percentile(self.outcomes.ttft[in_band(prompt, band)], 95) for band in BANDS}


def measure(result: Result, name: str) -> Any:
    """The values behind a figure's name in results.json: float64[n], seconds."""
    return getattr(result.outcomes, name)


def ratios(result: Result, baseline: Result, *, seed: int) -> dict[str, Ratio]:
    """Baseline ÷ this, by `ttft_p50` and so on: above 1 where this run was faster. Both saw the same arrivals."""
    found: dict[str, Ratio] = {}
    for name in COMPARED:
        pairs = paired_ratios(measure(baseline, name), measure(result, name), COMPARED_AT, seed=seed)
        found |= {f"{name}_p{q}": ratio for q, ratio in zip(COMPARED_AT, pairs, strict=True)}
    return found


@dataclass(frozen=True, kw_only=True)
class FaultResult:
    """A short run with the picker killed, beside the first requests of the same run undisturbed.

    Attributes:
        without: the undisturbed run, cut to the same requests.
        killed_at, back_at: trace seconds; from the kill until the new picker was ready.
        sent_meanwhile, failed_meanwhile: requests sent in that time, and those of them that failed.
    """

    result: Result
    without: Result
    killed_at: float
    back_at: float
    sent_meanwhile: int
    failed_meanwhile: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All runs of one demo, in the order in which they ran.

    Attributes:
        title: what ran, for people; says "emulated GPUs" where they are.
        setting: how it ran, name → value, for people and results.json.
        notes: what the reader must know (trace notes, what a quick run leaves out).
    """

    title: str
    emulated: bool
    seed: int
    setting: dict[str, str]
    results: tuple[Result, ...]
    fault: FaultResult | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def ratios(self) -> dict[int, dict[str, Ratio]]:
        """By place in `results`: P2C's figures over this run's, for runs that have a P2C run of the same engines."""
        found = {}
        for place, result in enumerate(self.results):
            baseline = self.baseline(result)
            if baseline is not None and baseline is not result:
                found[place] = ratios(result, baseline, seed=self.seed)
        return found

    @cached_property
    def fault_ratios(self) -> dict[str, Ratio]:
        """The disturbed run's TTFT over the undisturbed one's.

        Not TGT: the undisturbed run went on with arrivals, which slow the last requests' decoding.
        """
        if self.fault is None:
            return {}
        found = ratios(self.fault.without, self.fault.result, seed=self.seed)
        return {name: ratio for name, ratio in found.items() if "ttft" in name}

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the figures: invalid runs, failures, unequal failures."""
        found = [f"{name}: invalid, {reason}" for name, result in self._all() for reason in result.invalid]
        found += filter(None, [self.advice])
        for name, result in self._all():
            found += [f"{name}: {failure}" for failure in result.first_failures]
        for engine in dict.fromkeys(result.engine for result in self.results):
            errors = {result.policy: result.outcomes.errors for result in self.results if result.engine == engine}
            found += filter(None, [unequal_failures(errors)])
        return tuple(found)

    @property
    def errors(self) -> int:
        """Failed requests in all runs."""
        return sum(result.outcomes.errors for _, result in self._all())

    @property
    def failure(self) -> str:
        """Why the demo is no success, in one line: failed requests by run, and the first error; "" if there is none."""
        failed = [(name, result) for name, result in self._all() if result.outcomes.errors]
        if not failed:
            return ""
        counts = "; ".join(
            f"{result.outcomes.errors} of {len(result.outcomes)} requests failed in the run {name}"
            for name, result in failed
        )
        first = next((f"; the first: {result.first_failures[0]}" for _, result in failed if result.first_failures), "")
        return f"{counts}{first}{f'. {self.advice}' if self.advice else ''}"

    @property
    def advice(self) -> str:
        """What to do about invalid runs, in one line; "" when every run is valid."""
        invalid = [result for _, result in self._all() if result.invalid]
        if not invalid:
            return ""
        slower = min(2.0, invalid[0].speed / 2)
        how = f"--speed {slower:g}" if self.emulated else "a lower --rate"
        return f"Runs are invalid as this machine was too busy: close other programs, or give {how}"

    def baseline(self, result: Result) -> Result | None:
        """The P2C run of the same engines."""
        for other in self.results:
            if other.policy == BASELINE and other.engine == result.engine:
                return other
        return None

    def json(self) -> dict[str, Any]:
        """results.json: all times in (trace) seconds, None for what failures leave infinite."""
        content: dict[str, Any] = {
            "emulated": self.emulated,
            "title": self.title,
            "setting": self.setting,
            "seed": self.seed,
            "ratio": "figure of LeastRequest (P2C) ÷ this run's, same engines and arrivals; above 1: this was faster",
            "runs": [run_json(result, self.ratios.get(place, {})) for place, result in enumerate(self.results)],
            "warnings": list(self.warnings),
            "notes": list(self.notes),
        }
        if self.fault is not None:
            fault = self.fault
            content["picker_killed"] = {
                "killed_at": fault.killed_at,
                "back_at": fault.back_at,
                "sent_meanwhile": fault.sent_meanwhile,
                "failed_meanwhile": fault.failed_meanwhile,
                "ratio": "figure with the kill ÷ figure of the undisturbed run on the same requests",
                "run": run_json(fault.result, {}),
                "undisturbed": run_json(fault.without, {}),
                "ratios": {name: _ratio_json(ratio) for name, ratio in self.fault_ratios.items()},
            }
        return content

    def _all(self) -> list[tuple[str, Result]]:
        """Every run and its name; the one with the fault is the second of that balancer and those engines."""
        runs = [(result.name, result) for result in self.results]
        if self.fault is not None:
            runs.append((f"{self.fault.result.name}, picker killed", self.fault.result))
        return runs


def run_json(result: Result, against: dict[str, Ratio]) -> dict[str, Any]:
    """A run as it stands in results.json; `against` as from `ratios`."""
    figures = {
        name: {key: finite_or_none(value) for key, value in percentiles(measure(result, name)).items()}
        for name in ("ttft", "normalized_ttft", "tgt", "tpot")
    }
    bands = {band: finite_or_none(value) for band, value in result.ttft_p95_by_band.items()}
    return {
        "policy": result.policy,
        "engine": result.engine,
        "valid": not result.invalid,
        "requests": len(result.outcomes),
        "errors": result.outcomes.errors,
        "client_lateness_p99": result.client.lateness_p99 * result.speed,
        **figures,
        "ttft_p95_by_prompt_tokens": bands,
        "p2c_ratio": {name: _ratio_json(ratio) for name, ratio in against.items()},
        "failures": result.failures,
        "invalid": list(result.invalid),
        "speed": result.speed,
        "wall_seconds": result.wall,
        "client": asdict(result.client),
        "cpu_seconds": result.cpu,
        "engine_late_mean": result.engine_late,
    }


def _ratio_json(ratio: Ratio) -> dict[str, float | None]:
    return {key: finite_or_none(value) for key, value in asdict(ratio).items()}
