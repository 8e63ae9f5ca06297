"""The LLMServing as it is written: every field with its bounds, defaults and rules. The CRD is generated from it. Pure.

Defaults are stored in every object by the API server, and engines roll when a hash of these values changes: **a default
never changes within v1alpha1**, and a new field's default means what was done before it. The spec is the one place
where the default policies stand; how they were chosen: docs/results.md, `defaults`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from halffull_operator.labels import PAUSED, RESTARTED_AT
from halffull_operator.mistakes import Mistake, Path, allowed, convert, dotted, known_part, shown
from halffull_operator.pod_template import (
    ENGINE_CONTAINERS,
    ENGINE_POD_FIELDS,
    GATEWAY_CONTAINERS,
    GATEWAY_POD_FIELDS,
    refused,
)
from halffull_operator.shape import END, Kind, ListOf, Rule, Shape, shape_of
from halffull_operator.spec_engine import Engine
from halffull_operator.spec_gateway import Gateway, Routing
from halffull_operator.spec_model import Model
from halffull_operator.spec_types import DNSLabel, LabelKey, LabelValue, LongDuration, Peer, Strict
from halffull_operator.vllm_args import refused_args, refused_env

NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
MAX_NAME: Final = 63
NAME_WORDS: Final = (
    "metadata.name also names Services: write a-z, 0-9 and '-', beginning with a letter, at most 63 characters"
)
MAX_REPLICAS: Final = 1000


class SpecError(ValueError):
    """An LLMServing that cannot be served as it is written. `field`: which field; `message`: what to write instead."""

    def __init__(self, field: str, message: str) -> None:
        """Keep both."""
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Larry(Strict, frozen=True, kw_only=True):
    """Settings of LARRY."""

    alpha: Annotated[
        float,
        Meta(
            ge=0,
            le=1_000_000,
            description="α: memory units × waiting requests that one second of waiting outweighs. 1 is the paper's; "
            "500 and 1000 trade the median for the tail; far above it the order is FCFS.",
        ),
    ] = 1.0


class Scheduler(Strict, frozen=True, kw_only=True):
    """The order of each engine's waiting queue. A change restarts the engines, one at a time."""

    policy: Annotated[
        Literal["LARRY", "LARRYPlus", "FCFS", "Stock"],
        Meta(
            description="LARRY: short requests are not stuck behind long ones; the default, as on simulated "
            "traffic that no policy was tuned on it had the best TTFT p50 and p95, and none was better on the whole by "
            "more than 2%. Its price is the longest wait in an overload. LARRYPlus: the same with FCFS's tail. "
            "FCFS: vLLM's order, with a load report. Stock: no plugin at all, the picker reads vLLM's own metrics.",
        ),
    ] = "LARRY"
    larry: Annotated[Larry | None, Meta(description="Settings of LARRY; only with policy LARRY.")] = None
    RULES = (
        Rule(
            "!has(self.larry) || self.policy == 'LARRY'",
            "scheduler.larry belongs to policy LARRY: remove scheduler.larry, or write policy: LARRY",
            lambda self: self.larry is None or self.policy == "LARRY",
        ),
    )


class Rollout(Strict, frozen=True, kw_only=True):
    """How a roll is watched."""

    progress_deadline: Annotated[
        LongDuration,
        Meta(description="A roll without progress for so long is reported as stuck (ProgressDeadlineExceeded)."),
    ] = "1h"


class NetworkPolicy(Strict, frozen=True, kw_only=True):
    """Who may reach the engines' pods."""

    enabled: Annotated[
        bool,
        Meta(description="Let only this LLMServing's gateway and `allowFrom` reach the engines (and the load port)."),
    ] = False
    allow_from: Annotated[
        tuple[Peer, ...],
        Meta(max_length=16, description="Who else may: Prometheus, a gateway of one's own, … NetworkPolicyPeers."),
    ] = ()


class PodMonitor(Strict, frozen=True, kw_only=True):
    """Prometheus Operator's PodMonitor."""

    enabled: Annotated[bool, Meta(description="Create a PodMonitor of engines, load reports, picker and Envoy.")] = (
        False
    )
    labels: Annotated[
        dict[LabelKey, LabelValue], Meta(max_length=16, description="Labels by which a Prometheus selects it.")
    ] = msgspec.field(default_factory=dict)


class Monitoring(Strict, frozen=True, kw_only=True):
    """Metrics."""

    pod_monitor: Annotated[PodMonitor, Meta(description="A PodMonitor; needs the Prometheus Operator.")] = PodMonitor()


class LLMServingSpec(Strict, frozen=True, kw_only=True):
    """What is wanted."""

    profile: Annotated[
        DNSLabel | None,
        Meta(description="Defaults for `engine` that the cluster's administrator named in the operator's chart."),
    ] = None
    model: Annotated[Model, Meta(description="What is served.")]
    replicas: Annotated[
        int,
        Meta(ge=0, le=MAX_REPLICAS, description="Number of engines; 0 is allowed. The scale subresource writes it."),
    ] = 1
    engine: Annotated[Engine, Meta(description="The vLLM engines.")] = Engine()
    scheduler: Annotated[Scheduler, Meta(description="The order inside each engine.")] = Scheduler()
    routing: Annotated[
        Routing, Meta(description="The choice among the engines. Applied while running, without a restart.")
    ] = Routing()
    gateway: Annotated[Gateway, Meta(description="What stands in front of the engines.")] = Gateway()
    rollout: Annotated[Rollout, Meta(description="How a roll is watched.")] = Rollout()
    network_policy: Annotated[NetworkPolicy, Meta(description="Who may reach the engines.")] = NetworkPolicy()
    monitoring: Annotated[Monitoring, Meta(description="Metrics.")] = Monitoring()
    RULES = (
        Rule(
            "self.routing.failureMode != 'FailClose' || self.gateway.mode != 'Managed'"
            " || self.routing.policy in ['SAL', 'SALPlus']",
            "routing.failureMode FailClose has no meaning under LeastRequest, RoundRobin and Random, which Envoy "
            "carries out without a picker: write FailOpen, or policy SAL or SALPlus",
            lambda self: (
                self.routing.failure_mode != "FailClose"
                or self.gateway.mode != "Managed"
                or self.routing.policy in ("SAL", "SALPlus")
            ),
        ),
        Rule(
            "self.routing.failureMode != 'FailClose' || self.gateway.mode != 'None'",
            "routing.failureMode FailClose has no meaning with gateway.mode None, which has no picker: write FailOpen",
            lambda self: self.routing.failure_mode != "FailClose" or self.gateway.mode != "None",
        ),
        # A StatefulSet's controller cannot give a claim to a pod that is there, and does not replace it either.
        Rule(
            "!has(self.model.cache) || has(oldSelf.model.cache) || self.replicas == 0",
            "model.cache cannot be added while there are engines, because a pod cannot be given a claim: write "
            "replicas: 0 until it is added, or make a new LLMServing with a cache beside this one",
        ),
    )


_SHAPE: Final = shape_of(LLMServingSpec)


class LLMServing(msgspec.Struct, frozen=True, kw_only=True):
    """One LLMServing, checked."""

    name: str
    namespace: str
    uid: str
    generation: int
    annotations: dict[str, str]
    labels: dict[str, str]
    spec: LLMServingSpec
    unknown: tuple[str, ...] = ()
    """Fields that a newer CRD knows and this operator does not; they have no effect here."""

    @property
    def paused(self) -> bool:
        """Whether reconciling is stopped by annotation."""
        return self.annotations.get(PAUSED, "").lower() == "true"

    @property
    def restarted_at(self) -> str | None:
        """The annotation whose change rolls the engines."""
        return self.annotations.get(RESTARTED_AT) or None


def parse(body: Mapping[str, Any]) -> LLMServing:
    """Read an LLMServing as the API gives it. Nulls mean "not given"; unknown fields are listed, not refused.

    After a roll-back of the operator the CRD is newer than it, and the API server puts the new fields' defaults into
    every object: refusing what is unknown would stop all servings.

    Raises:
        SpecError: at the first field that cannot be used.
    """
    metadata = body.get("metadata") or {}
    name = _text(metadata, "name")
    if len(name) > MAX_NAME or re.search(NAME_PATTERN.replace("$", END), name) is None:
        raise SpecError("metadata.name", NAME_WORDS)
    given, unknown = known_part(body.get("spec") or {}, _SHAPE, ("spec",))
    try:
        spec = convert(given, LLMServingSpec)
    except Mistake as mistake:
        raise SpecError(dotted(("spec", *mistake.path)), mistake.message) from None
    for path, message in _problems(spec):
        raise SpecError(dotted(path), message)
    return LLMServing(
        name=name,
        namespace=_text(metadata, "namespace"),
        uid=_text(metadata, "uid"),
        generation=metadata.get("generation") or 0,
        annotations=dict(metadata.get("annotations") or {}),
        labels=dict(metadata.get("labels") or {}),
        spec=spec,
        unknown=tuple(dotted(path) for path in unknown),
    )


def outline(body: Mapping[str, Any], *, replicas: int, gateway: str) -> LLMServing:
    """An LLMServing with no more than a look at its pods needs, which the CRD has checked: whatever else stands there.

    Args:
        body: as the API gives it.
        replicas: of what was applied last.
        gateway: mode of the gateway that was applied last.

    Raises:
        SpecError: it cannot be used even so.
    """
    spec = _part(body.get("spec"), "model", "routing", "rollout", "gateway")
    tls = _part(_part(spec.pop("gateway", None), "managed").get("managed"), "tls")
    managed = {"managed": tls} if gateway == "Managed" else {}
    return parse({**body, "spec": {**spec, "replicas": replicas, "gateway": {"mode": gateway, **managed}}})


def _part(given: Any, *names: str) -> dict[str, Any]:
    """Some fields of a mapping, where it is one."""
    return {name: given[name] for name in names if name in given} if isinstance(given, Mapping) else {}


def _text(metadata: Mapping[str, Any], key: str) -> str:
    value = metadata.get(key)
    if not isinstance(value, str) or not value:
        raise SpecError(f"metadata.{key}", "is missing")
    return value


def _problems(spec: LLMServingSpec) -> Iterator[tuple[Path, str]]:
    """What no type says: the same rules as the CRD's, and those that CEL would be too dear for."""
    yield from broken(spec, _SHAPE, ("spec",))
    engine: Path = ("spec", "engine")
    stock = spec.scheduler.policy == "Stock"
    for index, message in refused_args(spec.engine.args, stock=stock):
        yield (*engine, "args", index), message
    for index, message in refused_env((variable.name for variable in spec.engine.env), stock=stock):
        yield (*engine, "env", index, "name"), message
    for path, message in refused(spec.engine.pod_template, pod_fields=ENGINE_POD_FIELDS, containers=ENGINE_CONTAINERS):
        yield (*engine, "podTemplate", *path), message
    gateway = spec.gateway.effective.pod_template
    for path, message in refused(gateway, pod_fields=GATEWAY_POD_FIELDS, containers=GATEWAY_CONTAINERS):
        yield ("spec", "gateway", "managed", "podTemplate", *path), message


def broken(value: Any, shape: Shape, path: Path) -> Iterator[tuple[Path, str]]:
    """Rules that a value and what is in it break."""
    if value is None:
        return
    if shape.words is not None and shape.words.holds is not None and not shape.words.holds(value):
        yield path, f"{shown(value)} does not fit: write {allowed(shape)}"
    if shape.kind is Kind.OBJECT:
        for member in shape.fields:
            yield from broken(_member(value, member.name), member.shape, (*path, member.name))
        yield from ((path, rule.message) for rule in shape.rules if rule.holds is not None and not rule.holds(value))
    elif shape.kind is Kind.LIST and shape.item is not None:
        for index, item in enumerate(value):
            yield from broken(item, shape.item, (*path, index))
        if index_of_double := _double(value, shape.list_of):
            yield (*path, index_of_double), "is there twice: remove one"
    elif shape.kind is Kind.MAP and shape.item is not None:
        for key, item in value.items():
            yield from broken(item, shape.item, (*path, key))


def _member(value: msgspec.Struct, encoded: str) -> Any:
    names = dict(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
    return getattr(value, names[encoded])


def _double(items: tuple[Any, ...], list_of: ListOf) -> int:
    """Place of the first item that was there before (never 0), or 0."""
    if list_of.type == "atomic":
        return 0
    seen = set()
    for index, item in enumerate(items):
        key = tuple(_member(item, name) for name in list_of.keys) if list_of.type == "map" else item
        if key in seen:
            return index
        seen.add(key)
    return 0
