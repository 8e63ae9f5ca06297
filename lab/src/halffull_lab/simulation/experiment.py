"""An experiment as data: one case, and the axes along which it is varied. Pure, but for reading a file.

A file is TOML: `[case]` sets fields of `Case`, and each of `[axes]` is a list of values of a field, or a table of
labels with the fields that they stand for; the experiment is their product. Along one axis, `compare`, the values are
compared with each other on the same arrivals.
"""

import itertools
import math
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from halffull_lab.engine_policies import ENGINE_POLICIES
from halffull_lab.simulation.balancers import BALANCERS, KNOWN

_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e6)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Axis = list[int | float | str] | dict[str, dict[str, Any]]
MOST_CASES: Final = 2_000
"""More is a slip of an axis."""
_FOLDER: Final = "experiments"


class ExperimentError(ValueError):
    """An experiment that cannot be; the message names the file and the key."""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides a run but the seed."""

    # Traffic
    trace: str = "azure-conv"
    """A bundled trace or a file: whose lengths, and whose arrivals if they are `recorded`."""
    rows: tuple[_Share, _Share] = (0.0, 1.0)
    """Which part of the trace's rows."""
    arrivals: Literal["recorded", "poisson", "bursts"] = "poisson"
    """`poisson`, `bursts` (Gamma, coefficient of variation 3): the trace's rows, drawn with replacement by the seed."""
    load: _Positive | None = None
    """Arrival rate as a share of what the engines can finish, which is measured first; .8 unless a rate is given."""
    rate: _Positive | None = None
    """Requests/s, of all engines together; instead of `load`."""
    factor: _Positive | None = None
    """Times as fast as recorded; instead of `load`."""
    minutes: _Positive = 15.0
    """Of arrivals; a shorter recorded trace ends earlier."""
    output_times: _Positive = 1.0
    """Every output is this many times as long: output-dominated work."""
    # Engines
    gpu: str = "70b-2xh100"
    """A built-in profile or a file of `halffull calibrate`."""
    engines: _Count = 4
    policy: str = "FCFS"
    """Of the engines: a name, `LARRY:500` with its α."""
    slow: _Positive = 1.0
    """The first engine's steps take this many times as long."""
    small: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    """The first engine has this share of the others' KV cache."""
    fresh: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """Minute at which the last engine joins; 0: from the start."""
    # Routing
    balancer: str = "SAL"
    source: Literal["report", "metrics"] = "report"
    """What the pickers poll: the plugin's load report, or the metrics of stock vLLM."""
    pickers: _Count = 1
    poll_interval: _Positive = 0.1
    """s."""
    beta_times: _Positive = 1.0
    """SAL's β as a multiple of the right one, (μ_in + μ_out) / μ_out; 1: as the picker learns it."""
    size_error: Annotated[float, msgspec.Meta(ge=0, le=3)] = 0.4
    """σ of the logarithm of a body's bytes per token."""

    def __post_init__(self) -> None:
        engine_policy(self.policy)
        if self.balancer not in BALANCERS:
            raise ValueError(f"balancer: {self.balancer!r} is unknown; known are {KNOWN}")
        if not self.rows[0] < self.rows[1]:
            raise ValueError("rows: the first must be below the second")
        if sum(value is not None for value in (self.load, self.rate, self.factor)) > 1:
            raise ValueError("load, rate and factor: give one of them")
        if self.fresh and self.engines == 1:
            raise ValueError("fresh: the only engine cannot join later")

    def changed(self, *fields: dict[str, Any]) -> "Case":
        """Another case; of `load`, `rate` and `factor` the last one given holds.

        Raises:
            ValueError: no such field, or a value that it does not take.
        """
        given = msgspec.to_builtins(self)
        for some in fields:
            if RATES & some.keys():
                given |= dict.fromkeys(RATES)
            given |= some
        try:
            return msgspec.convert(given, Case)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None


RATES: Final = frozenset(("load", "rate", "factor"))
"""Fields that say how many requests arrive; one of them holds."""
FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(Case))
_SAME_ARRIVALS: Final = frozenset(
    ("policy", "balancer", "source", "pickers", "poll_interval", "beta_times", "size_error")
)


def engine_policy(text: str) -> tuple[str, float]:
    """Name and α of `LARRY:500`; α is 1 unless given.

    Raises:
        ValueError: an unknown name, or an α where there is none.
    """
    name, colon, number = text.partition(":")
    if name not in ENGINE_POLICIES:
        raise ValueError(f"policy: {name!r} is unknown; known are {', '.join(ENGINE_POLICIES)}, and LARRY:α")
    try:
        alpha = float(number) if colon else 1.0
    except ValueError:
        alpha = math.nan
    if not (math.isfinite(alpha) and alpha > 0) or (colon and name != "LARRY"):
        raise ValueError(f"policy: {text!r} must be a name, or LARRY:α with an α above 0")
    return name, alpha


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cases to run and how to look at them."""

    title: str
    claim: str = ""
    """What somebody says the result is, and where; for people."""
    compare: str = "balancer"
    """The axis whose values are compared, on the same arrivals."""
    baseline: str = ""
    """The value of it, as text, that others are set against; none: the first."""
    rivals: tuple[str, ...] = ()
    """Values of it, as text: the others are set against the best of these in each figure, too ("the next best")."""
    x: str = ""
    """The axis of numbers that plots have on their x-axis; none: distributions instead."""
    seeds: _Count = 5
    first_seed: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Of `seeds` that follow each other: a judge takes ones on which nothing was chosen."""
    case: Case = Case()
    axes: dict[str, _Axis]
    """By name: values of the field of that name, or label → fields."""

    def __post_init__(self) -> None:
        self._check_axes()
        if self.compare not in self.axes:
            raise ValueError(f"compare: {self.compare!r} is not among the axes")
        for name, values in {"baseline": {self.reference}, "rivals": set(self.rivals)}.items():
            if unknown := values - self.points(self.compare).keys():
                raise ValueError(f"{name}: {min(unknown)!r} is not among the values of {self.compare}")
        unpaired = {field for fields in self.points(self.compare).values() for field in fields} - _SAME_ARRIVALS
        if unpaired:
            raise ValueError(f"compare: {', '.join(sorted(unpaired))} would change the arrivals; make it another axis")
        numbers = self.axes.get(self.x, [])
        if self.x and (self.x == self.compare or not _are_numbers(numbers)):
            raise ValueError(f"x: {self.x!r} is not another axis with a list of numbers")
        for _ in self.cells():
            pass

    def _check_axes(self) -> None:
        for name, axis in self.axes.items():
            if isinstance(axis, list) and name not in FIELDS:
                raise ValueError(f"axes: {name!r} is no field of a case; fields are {', '.join(FIELDS)}")
            if not axis or len(self.points(name)) < len(axis):
                raise ValueError(f"axes.{name}: values are needed, each once")
        if math.prod(len(values) for values in self.axes.values()) > MOST_CASES:
            raise ValueError(f"axes: more than {MOST_CASES} combinations")

    @property
    def reference(self) -> str:
        """The variant that others are set against."""
        return self.baseline or next(iter(self.points(self.compare)))

    def changed(self, *, case: dict[str, Any], seeds: int | None = None) -> "Experiment":
        """The same with other fields of the case it starts from, and another number of seeds.

        Cases with minutes of their own have at most the ones given.

        Raises:
            ValueError: no such field, or a value that it does not take.
        """
        given = {"case": msgspec.to_builtins(self.case.changed(case)), "seeds": seeds or self.seeds}
        if "minutes" in case:
            given["axes"] = {name: _shortened(axis, case["minutes"]) for name, axis in self.axes.items()}
        return msgspec.convert(msgspec.to_builtins(self) | given, Experiment)

    @property
    def all_seeds(self) -> range:
        """Every case runs with each of them."""
        return range(self.first_seed, self.first_seed + self.seeds)

    @property
    def varied(self) -> set[str]:
        """Fields that an axis sets."""
        return {field for axis in self.axes for fields in self.points(axis).values() for field in fields}

    def points(self, axis: str) -> dict[str, dict[str, Any]]:
        """Label → fields, along one axis."""
        values = self.axes[axis]
        if isinstance(values, dict):
            return values
        return {str(value): {axis: value} for value in values}

    def cells(self) -> Iterator["Cell"]:
        """Every combination of the other axes, in the order of the file, the last axis fastest.

        Raises:
            ValueError: a value that its field does not take.
        """
        others = [name for name in self.axes if name != self.compare]
        for labels in itertools.product(*(self.points(name) for name in others)):
            point = dict(zip(others, labels, strict=True))
            fields = [self.points(name)[label] for name, label in point.items()]
            yield Cell(
                point=point,
                cases={
                    label: self.case.changed(*fields, compared) for label, compared in self.points(self.compare).items()
                },
            )


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared with each other."""

    point: dict[str, str]
    """Axis → label, of those that are not compared."""
    cases: dict[str, Case]
    """By the compared axis' label."""

    @property
    def name(self) -> str:
        """`gpu 70b-2xh100, load 0.8`; empty when there is one cell only."""
        return ", ".join(f"{axis.replace('_', ' ')} {label}" for axis, label in self.point.items())


def _shortened(axis: _Axis, minutes: float) -> _Axis:
    if isinstance(axis, list):
        return axis
    return {
        label: fields | {"minutes": min(minutes, fields["minutes"])} if "minutes" in fields else fields
        for label, fields in axis.items()
    }


def _are_numbers(values: _Axis) -> bool:
    return isinstance(values, list) and len(values) > 1 and not any(isinstance(value, str) for value in values)


def bundled() -> dict[str, str]:
    """Name → title of the experiments that come with the lab."""
    files = sorted(resources.files("halffull_lab").joinpath(_FOLDER).iterdir(), key=lambda file: file.name)
    return {
        file.name.removesuffix(".toml"): str(tomllib.loads(file.read_text("utf-8")).get("title", ""))
        for file in files
        if file.name.endswith(".toml")
    }


def load_experiment(name: str) -> tuple[Experiment, bytes]:
    """An experiment that comes with the lab, by its name, or one's own file; and the file's bytes.

    Raises:
        ExperimentError: there is none, or it cannot be; one line that names the file and the key.
    """
    try:
        inside = resources.files("halffull_lab").joinpath(_FOLDER, f"{name}.toml")
        data = inside.read_bytes() if name.isidentifier() and inside.is_file() else Path(name).read_bytes()
        experiment = msgspec.convert(tomllib.loads(data.decode()), Experiment)
    except OSError as error:
        raise ExperimentError(f"{name}: {error.strerror or error} (or one of: {', '.join(bundled())})") from error
    except ValueError as error:  # tomllib's, msgspec's, ours, and a wrong encoding
        raise ExperimentError(f"{name}: {error}") from error
    return experiment, data
