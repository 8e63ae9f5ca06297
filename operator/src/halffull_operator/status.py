"""The status of an LLMServing: what a person sees, and what a person can do. Pure.

Nothing in it changes while nothing happens, times apart, which are told in coarse steps: equal ones are not written.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from halffull_operator import claims
from halffull_operator.children.optional import INFERENCE_POOL
from halffull_operator.conditions import PASSING, Clock, Event, condition, events, trim
from halffull_operator.labels import PAUSED, RESTARTED_AT
from halffull_operator.look import Look
from halffull_operator.observed import Observed
from halffull_operator.plan import Action, Apply, Delete, GrowClaim, OrphanAndRecreate
from halffull_operator.pods import Health
from halffull_operator.rolling import BECAUSE, RECREATED, is_held
from halffull_operator.spec_model import source_of
from halffull_operator.spec_types import seconds

if TYPE_CHECKING:
    from halffull_operator.children import Children, MissingApi
    from halffull_operator.spec import LLMServing

__all__ = ["Event", "Failure", "Outcome", "events", "invalid", "status_of"]

MAX_UNHEALTHY: Final = 16
_OF_PODS: Final = ("Ready", "EnginesReady", "GatewayReady")
_COUNTED: Final = ("replicas", "readyReplicas", "updatedReplicas", "unhealthy")
_REASON: Final = 400
_SHOWN: Final = 3
_TEMPLATES: Final = {"StatefulSet": "engine.podTemplate", "Deployment": "gateway.managed.podTemplate"}
"""Where a person writes a part of a child as it stands."""

Verdict = tuple[str, str, str]
"""Status, reason, message of a condition."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An action that the API server refused."""

    action: Action
    reason: str
    """QuotaExceeded, Forbidden, Invalid, CacheResizeUnsupported, NameTaken, …"""
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the plan."""

    failures: tuple[Failure, ...] = ()


def status_of(
    serving: "LLMServing",
    children: "Children",
    observed: Observed,
    outcome: Outcome,
    *,
    now: datetime,
    pending: tuple[Action, ...] | None = None,
) -> tuple[dict[str, Any], float | None]:
    """(the whole status, seconds until it changes though nothing happens: a deadline, or the next step of a time).

    Args:
        serving: What a person asked for.
        children: What that means.
        observed: What is there, after the plan was carried out; its body holds the status before.
        outcome: What could not be done.
        now: The time (aware).
        pending: What `plan` makes of the same, without `full`; None: it is asked.
    """
    look = Look(serving, children, observed, Clock(now), planned=pending, unwritten=_unwritten(outcome))
    found = _status(look, outcome)
    return found, look.clock.next


def invalid(
    body: Mapping[str, Any], *, field: str, message: str, now: datetime, found: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The status of an LLMServing whose spec cannot be used: all stays as it was, and Applied says why.

    Args:
        body: The LLMServing.
        field: What cannot be used.
        message: What to write instead.
        now: The time (aware).
        found: The status of what was applied before (`status_of`), whose word about pods is taken; None: nothing was.
    """
    old: Mapping[str, Any] = body.get("status") or {}
    generation = body["metadata"].get("generation") or 0
    before = found is not None or any(one.get("type") == "Progressing" for one in old.get("conditions") or ())
    text = f"{field}: {message}" + ("; what was applied before goes on unchanged" if before else "")
    applied = condition("Applied", "False", "InvalidSpec", text, old=old, generation=generation, now=now)
    others = [one for one in old.get("conditions") or () if one.get("type") != "Applied"]
    if found is not None:
        told = [one for one in found["conditions"] if one["type"] in (*_OF_PODS, "Progressing")]
        others = [*told, *(one for one in others if one.get("type") == "UpdateAvailable")]
        old = {name: value for name, value in old.items() if name != "unhealthy"} | {
            name: found[name] for name in _COUNTED if name in found
        }
    if not others:
        others = [
            condition(kind, "False", "InvalidSpec", f"{field}: {message}", old=old, generation=generation, now=now)
            for kind in _OF_PODS
        ]
    return {**old, "observedGeneration": generation, "conditions": [*others, applied]}


def _status(look: Look, outcome: Outcome) -> dict[str, Any]:
    old: Mapping[str, Any] = look.observed.body.get("status") or {}
    verdicts = {
        "Ready": _ready(look),
        "EnginesReady": _engines(look),
        "GatewayReady": _gateway(look),
        "Progressing": _progressing(look, outcome),
        "Applied": _applied(look, outcome),
        "UpdateAvailable": _update(look),
    }
    found: dict[str, Any] = {
        "replicas": len(look.staying),
        "readyReplicas": look.ready,
        "updatedReplicas": look.updated,
        "selector": look.selector,
        "url": look.url,
        "image": look.image,
        "modelRevision": source_of(look.serving.spec.model).revision,
        "observedGeneration": look.serving.generation,
        "unhealthy": [
            {"name": pod.name, "reason": trim(f"{pod.reason}: {pod.message}", _REASON), "since": pod.since}
            for pod in look.unwell[:MAX_UNHEALTHY]
        ],
        "conditions": [
            condition(kind, *verdict, old=old, generation=look.serving.generation, now=look.clock.now)
            for kind, verdict in verdicts.items()
        ],
    }
    # An empty list is left out: the API server stores what remains of one in other words, and it would be written anew.
    return {name: value for name, value in found.items() if value not in (None, [])}


def _ready(look: Look) -> Verdict:
    """Whether a client gets an answer now."""
    if look.serving.spec.replicas == 0 and not look.ready:
        return "False", "ScaledToZero", f"replicas is 0: {_command(look, 'scale')} --replicas=1 starts an engine"
    if not look.ready:
        replaced = look.rolls or look.engines
        waits = ("RollingOut", "it is being replaced") if replaced else ("Starting", "engines are being made")
        reason, message = _engine_trouble(look) or waits
        return "False", reason, f"no engine is ready: {message}"
    lacking = next((one for one in look.children.missing if one.api == INFERENCE_POOL), None)
    if lacking is not None:
        return "False", "OptionalApiMissing", _lacks(lacking)
    if _needs_gateway(look) and not any(pod.ready for pod in look.gateways):
        reason, message = _gateway_trouble(look)
        # A usual start warns nobody.
        return "False", reason if reason == "Starting" else "GatewayNotReady", f"no gateway pod is ready: {message}"
    return "True", "Serving", "requests are answered"


def _engines(look: Look) -> Verdict:
    """Whether every engine is ready, at the newest revision."""
    wanted = look.serving.spec.replicas
    if not look.serving.paused and not look.seen:
        return "False", *(_engine_trouble(look) or look.unwritten or ("Applying", "the StatefulSet is being written"))
    if (trouble := _engine_trouble(look)) is not None:
        return "False", trouble[0], f"{look.ready} of {wanted} engines are ready; {trouble[1]}"
    if look.rolls:
        return "False", "RollingOut", _rolling(look)
    if len(look.staying) != wanted:
        return "False", "Scaling", f"{len(look.staying)} of {wanted} engines exist"
    if wanted == 0:
        return "True", "ScaledToZero", "replicas is 0"
    return "True", "AllReady", f"{wanted} of {wanted} engines are ready"


def _engine_trouble(look: Look) -> tuple[str, str] | None:
    """The worst that is wrong with engines."""
    bad = next((pod for pod in look.unwell if pod in look.engines), None)
    if look.refused is not None and (bad is None or bad.reason in {"ModelLoading", "Starting", "NotReady"}):
        return look.refused
    return None if bad is None else (bad.reason, _said(bad))


def _said(pod: Health) -> str:
    return f"{pod.name}: {pod.message}" if pod.message else pod.name


def _rolling(look: Look) -> str:
    because = _annotation(look.live_stateful_set, BECAUSE)
    text = f"{look.updated} of {look.serving.spec.replicas} engines are at the newest revision"
    return text + (f"; changed: {because}" if because else "")


def _needs_gateway(look: Look) -> bool:
    gateway = look.serving.spec.gateway.mode
    # A gateway of one's own goes on without its endpoint picker, unless told to close.
    return gateway == "Managed" or (
        gateway == "InferencePool" and look.serving.spec.routing.failure_mode == "FailClose"
    )


def _gateway(look: Look) -> Verdict:
    if look.deployment is None:
        return "True", "NoGateway", "gateway.mode is None"
    ready = sum(pod.ready for pod in look.gateways)
    if not ready:
        return "False", *_gateway_trouble(look)
    if (refused := _route_refused(look)) is not None:
        return "False", "RouteNotAccepted", refused
    bad = next((pod for pod in look.unwell if pod in look.gateways), None)
    if bad is not None:
        return "True", bad.reason if bad.reason in PASSING else "Degraded", _said(bad)
    return "True", "AllReady", "the gateway is ready"


def _gateway_trouble(look: Look) -> tuple[str, str]:
    bad = next((pod for pod in look.unwell if pod in look.gateways), None)
    if bad is not None and not (look.gateway_refused and bad.reason == "Starting"):
        return bad.reason, _said(bad)
    return look.gateway_refused or ("Starting", "the gateway's pods are being made")


def _route_refused(look: Look) -> str | None:
    for (kind, name), live in look.observed.children.items():
        if kind != "HTTPRoute":
            continue
        for parent in (live.get("status") or {}).get("parents") or ():
            for one in parent.get("conditions") or ():
                if one.get("type") in {"Accepted", "ResolvedRefs"} and one.get("status") == "False":
                    gateway = (parent.get("parentRef") or {}).get("name")
                    return f"Gateway {gateway} refuses HTTPRoute {name}: {one.get('reason')}: {one.get('message')}"
    return None


def _progressing(look: Look, outcome: Outcome) -> Verdict:
    """What goes on, why and for how long; False: it is stuck."""
    if look.serving.paused:
        return (
            "Unknown",
            "Paused",
            f"reconciling is stopped: {_command(look, 'annotate')} {PAUSED}-",
        )
    engines = _engines(look)
    if engines[0] == "True" and not look.gateway_moves and not look.pending:
        return "True", "Complete", "all is as asked"
    age = look.clock.elapsed(look.progressed)
    detail = next((message for _, message in _problems(look, outcome)), "children are being written")
    if engines[0] == "False":
        detail = engines[2]
    elif look.gateway_moves:
        detail = f"gateway: {_gateway(look)[2]}"
    if look.clock.passed(look.progressed, seconds(look.serving.spec.rollout.progress_deadline)):
        return "False", "ProgressDeadlineExceeded", f"nothing has gone forward {age}: {detail}{_advice(look)}"
    if look.rolls:
        reason, detail = "RollingOut", _rolling(look) + (f"; {detail}" if detail not in _rolling(look) else "")
    elif look.seen and len(look.staying) != look.serving.spec.replicas:
        reason = "Scaling"
    else:
        reason = "Applying" if look.pending else "Starting"
    return "True", reason, f"{detail} (last step {_ago(age)})"


def _ago(age: str) -> str:
    return age.removeprefix("for ") + " ago"


def _advice(look: Look) -> str:
    """What to undo when a roll halts."""
    because = _annotation(look.live_stateful_set, BECAUSE)
    if not look.rolls or not because:
        return ""
    still = sum(pod.ready for pod in look.outdated)
    undo = f". To go back, undo the last change of the LLMServing ({because})"
    return undo + (
        f"; {still} of {look.serving.spec.replicas} engines still serve with what was before" if still else ""
    )


def _applied(look: Look, outcome: Outcome) -> Verdict:
    """Whether the whole spec could be applied."""
    if look.serving.paused:
        return "Unknown", "Paused", f"generation {look.serving.generation} waits: annotation {PAUSED} is set"
    problems = list(_problems(look, outcome))
    if problems:
        text = "; ".join(dict.fromkeys(message for _, message in problems[:_SHOWN]))
        more = len(problems) - _SHOWN
        return "False", problems[0][0], text + (f"; and {more} more" if more > 0 else "")
    if look.pending:
        return "Unknown", "Applying", "children are being written"
    remarks = list(_remarks(look))
    if remarks:
        return "True", remarks[0][0], ". ".join(text for _, text in remarks)
    return "True", "Applied", "every field is in force"


def _remarks(look: Look) -> Iterator[tuple[str, str]]:
    """What a person should know though all is applied: (reason, message)."""
    if (done := _recreated(look)) is not None:
        yield "ImmutableFieldChanged", done
    if (kept := _left_over(look)) is not None:
        yield "ClaimLeftOver", kept
    shared = claims.unshareable(look.serving.spec.model, look.serving.spec.replicas, look.observed.claims)
    if shared is not None:
        yield "ClaimMayNotBeShared", shared[1]


def _problems(look: Look, outcome: Outcome) -> Iterator[tuple[str, str]]:
    shared = claims.unshareable(look.serving.spec.model, look.serving.spec.replicas, look.observed.claims)
    if shared is not None and shared[0]:
        yield "ClaimNotShareable", shared[1]
    for failure in outcome.failures:
        yield _told(failure)
    for missing in look.children.missing:
        yield "OptionalApiMissing", _lacks(missing)
    if look.serving.unknown:
        yield (
            "UnknownField",
            f"this operator does not know {', '.join(look.serving.unknown)}: upgrade it, or remove them",
        )


def _lacks(missing: "MissingApi") -> str:
    return f"{missing.field} needs {missing.api}, which this cluster does not serve: install it, or remove the field"


def _told(failure: Failure) -> tuple[str, str]:
    recreating = isinstance(failure.action, OrphanAndRecreate)
    reason = "ImmutableFieldChanged" if recreating and failure.reason == "Invalid" else failure.reason
    # What a person wrote as it stands is there; what the operator writes by itself fits.
    field = _TEMPLATES.get(_kind(failure.action)) if reason == "Invalid" else None
    return reason, f"{_about(failure.action)}: {failure.message}" + (f" (see {field})" if field else "")


def _unwritten(outcome: Outcome) -> tuple[str, str] | None:
    """Why the engines' StatefulSet could not be written."""
    return next((_told(one) for one in outcome.failures if _kind(one.action) == "StatefulSet"), None)


def _kind(action: Action) -> str:
    return str(action.manifest["kind"]) if isinstance(action, Apply | OrphanAndRecreate) else ""


def _about(action: Action) -> str:
    match action:
        case Apply(manifest=manifest):
            return f"{manifest['kind']} {manifest['metadata']['name']}"
        case OrphanAndRecreate(manifest=manifest, fields=fields):
            return (
                f"{', '.join(fields)} of {manifest['kind']} {manifest['metadata']['name']} cannot be changed in place"
            )
        case Delete(kind=kind, name=name):
            return f"{kind} {name} cannot be deleted"
        case GrowClaim(name=name, size=size):
            return f"model.cache.size: claim {name} cannot grow to {size}"


def _recreated(look: Look) -> str | None:
    """What was done about immutable fields for this generation."""
    generation, _, rest = (_annotation(look.live_stateful_set, RECREATED) or "").partition(":")
    fields = rest.partition(":")[0]
    if generation != str(look.serving.generation):
        return None
    return (
        f"{fields.replace(',', ', ')} of the StatefulSet cannot be changed in place: it was created anew, and kept its "
        "pods; claims that exist grow where their StorageClass lets them"
    )


def _left_over(look: Look) -> str | None:
    """Claims that stay though they are to go."""
    pods = {pod.name for pod in look.engines}
    found = () if look.stateful_set is None else claims.left_over(look.stateful_set, look.observed.claims, pods)
    if not found:
        return None
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"{', '.join(found[:_SHOWN])}{more} of engines that were scaled away will outlive the LLMServing, "
        "model.cache.retention.whenDeleted: Delete notwithstanding: kubectl delete pvc, or scale up once more, which "
        "makes them the StatefulSet's again"
    )


def _update(look: Look) -> Verdict:
    if look.stateful_set is not None and is_held(look.stateful_set, look.live_stateful_set):
        how = f"{_command(look, 'annotate')} --overwrite {RESTARTED_AT}=$(date -u +%FT%TZ)"
        when = "when model, engine, scheduler or profile is edited"
        text = f"this operator or chart makes another pod template; engines get it {when}, or by"
        return "True", "NewerTemplate", f"{text}: {how}"
    return "False", "UpToDate", "engines are made as this operator makes them"


def _command(look: Look, verb: str) -> str:
    return f"kubectl -n {look.serving.namespace} {verb} llms {look.serving.name}"


def _annotation(live: Mapping[str, Any] | None, name: str) -> str | None:
    annotations: Mapping[str, str] = {} if live is None else live["metadata"].get("annotations") or {}
    return annotations.get(name)
