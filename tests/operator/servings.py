"""LLMServings for tests, and how to look at them and their children."""

from typing import Any

from halffull_operator import kinds, labels
from halffull_operator.kinds import Manifest
from halffull_operator.names import base_name
from tests.operator.kube import Api, wait_until

ALWAYS = frozenset(
    {
        "StatefulSet",
        "Deployment",
        "Service",
        "ConfigMap",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "PodDisruptionBudget",
    }
)
"""Kinds of the children that a managed gateway brings."""


def serving(name: str, namespace: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Manifest:
    """A small LLMServing; `spec` replaces what is given."""
    return {
        "apiVersion": kinds.SERVING.api_version,
        "kind": kinds.SERVING.kind,
        "metadata": {"name": name, "namespace": namespace, **({"annotations": annotations} if annotations else {})},
        "spec": {
            "model": {"uri": "hf://org/model"},
            "replicas": 2,
            "engine": {"gpuResource": "none", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}},
            **spec,
        },
    }


def children(admin: Api, namespace: str, name: str, *, optional: bool = False) -> dict[tuple[str, str], Manifest]:
    """(kind, name) → child, of all kinds that a child can be."""
    selector = f"{labels.SERVING}={base_name(name)}"
    found = {}
    for kind in kinds.CHILDREN:
        if kind.optional and not optional:
            continue
        for item in admin.list(kind, namespace, selector=selector):
            found[kind.kind, item["metadata"]["name"]] = {"apiVersion": kind.api_version, "kind": kind.kind, **item}
    return found


def pods(admin: Api, namespace: str, name: str) -> list[Manifest]:
    return admin.list(kinds.POD, namespace, selector=f"{labels.SERVING}={base_name(name)}")


def versions(found: dict[tuple[str, str], Manifest]) -> dict[tuple[str, str], tuple[str, str, int]]:
    """(kind, name) → what changes when anybody writes to it, leaving the status alone."""
    return {
        key: (one["metadata"]["uid"], one["metadata"]["resourceVersion"], one["metadata"].get("generation", 0))
        for key, one in found.items()
    }


def condition(body: Manifest, kind: str) -> Manifest:
    """A condition of an LLMServing; {} without."""
    return next((one for one in body.get("status", {}).get("conditions") or () if one["type"] == kind), {})


def says(body: Manifest, **wanted: str) -> bool:
    """Whether each condition named has that status, and speaks of the newest generation."""
    generation = body["metadata"]["generation"]
    for kind, status in wanted.items():
        found = condition(body, kind)
        told = f"{kind}={found.get('status')} {found.get('reason')}: {found.get('message')}"
        assert found.get("status") == status, told
        assert found.get("observedGeneration") == generation, (
            f"{told} (of generation {found.get('observedGeneration')})"
        )
    return True


def wait_ready(admin: Api, namespace: str, *names: str, within: float = 90.0) -> list[Manifest]:
    """Wait until each of these LLMServings is all that it is to be; their bodies."""

    def look() -> list[Manifest]:
        bodies = [admin.must_get(kinds.SERVING, name, namespace) for name in names]
        for body in bodies:
            says(body, Ready="True", EnginesReady="True", GatewayReady="True", Progressing="True", Applied="True")
            assert condition(body, "Progressing")["reason"] == "Complete", condition(body, "Progressing")
        return bodies

    return wait_until(f"{', '.join(names)} is ready", look, within=within)


def engines(admin: Api, namespace: str, name: str) -> dict[str, Manifest]:
    """The engines' pods by name."""
    selector = f"{labels.SERVING}={base_name(name)},{labels.COMPONENT}={labels.ENGINE}"
    return {pod["metadata"]["name"]: pod for pod in admin.list(kinds.POD, namespace, selector=selector)}


def uids(found: dict[str, Manifest]) -> dict[str, str]:
    """Name → uid."""
    return {name: one["metadata"]["uid"] for name, one in found.items()}


def is_ready(pod: Manifest) -> bool:
    """Whether a pod is ready and stays."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
