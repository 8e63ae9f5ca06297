"""What to do about one LLMServing: desired and observed → actions. Pure.

Everything is derived from what is there now, so that a pass that was interrupted anywhere is simply planned again.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from halffull_operator import claims
from halffull_operator.clashes import Operation, asides
from halffull_operator.compare import Difference, differences
from halffull_operator.observed import Manifest, Observed, controller_uid, key_of, terminating
from halffull_operator.ownership import changed_by
from halffull_operator.rolling import BECAUSE, RECREATED, annotated, because, with_template

if TYPE_CHECKING:
    from halffull_operator.children import Children
    from halffull_operator.spec import LLMServing

__all__ = [
    "FULL",
    "IN_THE_WAY",
    "MISSING",
    "Action",
    "Apply",
    "Delete",
    "GrowClaim",
    "OrphanAndRecreate",
    "after_apply",
    "plan",
]

MISSING: Final = "missing"
"""`Apply.why` of a child that is not there. What has its name nevertheless is not ours: it must not be overwritten."""
FULL: Final = "full pass"
IN_THE_WAY: Final = "in the way"
"""`Apply.why` of a child whose name is taken by something that is being deleted, or another owner's: it has to wait."""

_MUTABLE: Final = frozenset(
    {
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
        "revisionHistoryLimit",
    }
)
"""Of a StatefulSet's spec. Everything else is refused by the API server once it exists."""

_FIXED: Final[Mapping[str, tuple[str, ...]]] = {
    "Deployment": ("spec", "selector"),
    "RoleBinding": ("roleRef",),
    "Service": ("spec", "clusterIP"),
}
"""Immutable in the other kinds: deleted, and made anew by the pass that follows."""

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply, with force."""

    manifest: Manifest
    why: str
    """MISSING, FULL, IN_THE_WAY, or the fields that differ and who changed them."""
    aside: tuple[Operation, ...] = ()
    """A JSON patch that has to come first (clashes.py)."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a child in the background."""

    kind: str
    api_version: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class OrphanAndRecreate:
    """Delete a StatefulSet, leave its pods, and create it anew: they are adopted with their uid."""

    manifest: Manifest
    fields: tuple[str, ...]
    """The immutable fields that differ, such as spec.volumeClaimTemplates."""


@dataclass(frozen=True, slots=True)
class GrowClaim:
    """Raise what a claim asks for."""

    name: str
    size: str


Action = Apply | Delete | OrphanAndRecreate | GrowClaim


def plan(serving: "LLMServing", children: "Children", observed: Observed, *, full: bool) -> tuple[Action, ...]:
    """What is to be done now, in this order; nothing while it is paused or being deleted.

    Args:
        serving: What a person asked for.
        children: What that means, and which optional APIs for it are missing.
        observed: What is there.
        full: Apply every child, whether it differs or not.
    """
    if serving.paused or terminating(observed.body):
        return ()
    refused = claims.unshareable(serving.spec.model, serving.spec.replicas, observed.claims)
    actions: list[Action] = []
    for manifest in children.manifests:
        if manifest["kind"] == "StatefulSet" and refused is not None and refused[0]:
            continue
        actions.extend(_child(manifest, serving, observed, full=full))
    actions.extend(_unwanted(serving, children, observed))
    return tuple(actions)


def after_apply(manifest: Manifest, answer: Mapping[str, Any]) -> frozenset[Difference]:
    """What still differs in the API server's answer to an apply: `Observed.settled` of that child from now on.

    It is rewritten or dropped by the server or by a webhook of the cluster. Any other value later, here or there, is
    another difference, and is acted on.
    """
    return frozenset(differences(manifest, answer))


def _child(manifest: Manifest, serving: "LLMServing", observed: Observed, *, full: bool) -> Iterator[Action]:
    live = observed.children.get(key_of(manifest))
    if live is None:
        yield Apply(manifest, MISSING)
        return
    if terminating(live) or controller_uid(live) not in {None, serving.uid}:
        yield Apply(manifest, IN_THE_WAY)
        return
    rolls = manifest["kind"] == "StatefulSet"
    wanted = with_template(manifest, live, observed.pods) if rolls else manifest
    found = differences(wanted, live, settled=observed.settled.get(key_of(manifest), frozenset()))
    fixed = _immutable(manifest["kind"], found)
    if fixed and not rolls:
        yield Delete(
            manifest["kind"], manifest["apiVersion"], manifest["metadata"]["name"], f"{fixed[0]} cannot be changed"
        )
        return
    if rolls and (reason := because(found)) is not None:
        wanted = annotated(wanted, {BECAUSE: reason})
    recreated = _recreated(wanted, fixed, serving.generation) if fixed else ""
    if fixed and (live["metadata"].get("annotations") or {}).get(RECREATED) != recreated:
        yield OrphanAndRecreate(annotated(wanted, {RECREATED: recreated}), fixed)
    elif full or any(".".join(difference.path[:2]) not in fixed for difference in found):
        yield Apply(wanted, _why(found, live) if found else FULL, aside=asides(wanted, live))
    if rolls:
        yield from (GrowClaim(name, size) for name, size in claims.growing(manifest, observed.claims))


def _immutable(kind: str, found: tuple[Difference, ...]) -> tuple[str, ...]:
    if kind == "StatefulSet":
        names = (d.path[1] for d in found if len(d.path) > 1 and d.path[0] == "spec" and d.path[1] not in _MUTABLE)
        return tuple(f"spec.{name}" for name in dict.fromkeys(names))
    fixed = _FIXED.get(kind)
    return (".".join(fixed),) if fixed and any(d.path[: len(fixed)] == fixed for d in found) else ()


def _recreated(manifest: Manifest, fixed: tuple[str, ...], generation: int) -> str:
    """What a StatefulSet is created anew for, once: where the server makes something else of it, again is no use."""
    values = [manifest["spec"].get(name.removeprefix("spec.")) for name in fixed]
    digest = hashlib.sha256(json.dumps(values, sort_keys=True, default=str).encode()).hexdigest()[:8]
    return f"{generation}:{','.join(fixed)}:{digest}"


def _why(found: tuple[Difference, ...], live: Mapping[str, Any]) -> str:
    parts = []
    for difference in found[:_SHOWN]:
        manager = changed_by(live, difference.path)
        parts.append(difference.where + (f" (set by {manager})" if manager else ""))
    more = len(found) - _SHOWN
    return ", ".join(parts) + (f" and {more} more" if more > 0 else "")


def _unwanted(serving: "LLMServing", children: "Children", observed: Observed) -> Iterator[Action]:
    wanted = {key_of(manifest) for manifest in children.manifests}
    # A kind that the cluster does not serve at this moment is not asked for; that is no reason to delete its objects.
    unknown = {missing.api.rpartition(" ")[2] for missing in children.missing}
    for (kind, name), live in observed.children.items():
        if (kind, name) in wanted or kind in unknown or terminating(live) or controller_uid(live) != serving.uid:
            continue
        yield Delete(kind, live["apiVersion"], name, "no longer asked for")
