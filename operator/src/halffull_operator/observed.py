"""What the cluster's watch cache holds for one LLMServing: the input of `plan` and `status`. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from halffull_operator.compare import Difference

__all__ = ["Manifest", "Observed", "controller_uid", "key_of", "terminating"]

Manifest = dict[str, Any]

_NOTHING: Final[Mapping[tuple[str, str], frozenset[Difference]]] = {}


@dataclass(frozen=True, slots=True)
class Observed:
    """One look at the cache. Objects are as the API server sent them, children with metadata.managedFields."""

    children: Mapping[tuple[str, str], Manifest]
    """(kind, name) → object, for the children's kinds, found by label."""
    pods: tuple[Manifest, ...] = ()
    """Pods of engines and gateway."""
    claims: tuple[Manifest, ...] = ()
    """PersistentVolumeClaims of the engines, and the one that a model.uri of pvc:// names, when there is one."""
    pod_events: tuple[Manifest, ...] = ()
    """Warning events about those pods and about the StatefulSet (refused pods are told there only)."""
    body: Manifest = field(default_factory=dict)
    """The LLMServing itself, as stored: its old status, and whether it is being deleted."""
    settled: Mapping[tuple[str, str], frozenset[Difference]] = field(default_factory=lambda: _NOTHING)
    """(kind, name) → what still differed in the API server's answer to our last apply (`plan.after_apply`): the server
    or a webhook of the cluster rewrites or drops it, so that applying again would change nothing."""


def key_of(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """(kind, name)."""
    return manifest["kind"], manifest["metadata"]["name"]


def terminating(live: Mapping[str, Any]) -> bool:
    """Whether the API server only waits for finalizers or a grace period."""
    return bool(live.get("metadata", {}).get("deletionTimestamp"))


def controller_uid(live: Mapping[str, Any]) -> str | None:
    """The uid of the owner that controls it; None: nobody does."""
    for reference in live.get("metadata", {}).get("ownerReferences") or ():
        if reference.get("controller"):
            return str(reference.get("uid"))
    return None
