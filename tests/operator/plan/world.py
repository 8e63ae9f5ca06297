"""An LLMServing, its children and what a cluster makes of them, small enough to read."""

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from halffull_operator.labels import COMPONENT, ENGINE_INPUTS, SERVING, TEMPLATE_HASH
from halffull_operator.observed import Observed, key_of
from halffull_operator.spec import LLMServing, parse
from tests.operator.compare.manifests import OWNER, defaulted_statefulset, service, statefulset
from tests.operator.compare.server import stored

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def body(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.halffull.dev/v1alpha1",
        "kind": "LLMServing",
        "metadata": {"name": "llama", "namespace": "team", "uid": "cr-1", "generation": 1, "creationTimestamp": at(0)},
        "spec": {"model": {"uri": "hf://meta/llama@abc"}, "replicas": 2, **spec},
    }


def engine_set(*, inputs: str = "in-1", template: str = "t-1", **spec: Any) -> dict[str, Any]:
    manifest = statefulset()
    manifest["metadata"]["labels"] |= {COMPONENT: "engine"}
    manifest["metadata"]["annotations"] = {ENGINE_INPUTS: inputs, TEMPLATE_HASH: template}
    manifest["spec"] |= spec
    manifest["spec"]["template"]["spec"]["containers"][0]["name"] = "engine"
    return manifest


def gateway() -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "llama-gateway",
            "namespace": "team",
            "labels": {COMPONENT: "gateway"},
            "ownerReferences": [OWNER],
        },
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "gw"}},
            "template": {"spec": {"containers": [{"name": "envoy"}]}},
        },
    }


def gateway_service() -> dict[str, Any]:
    manifest = service()
    manifest["metadata"]["labels"] = {COMPONENT: "gateway"}
    return manifest


def template_container(manifest: dict[str, Any]) -> dict[str, Any]:
    return manifest["spec"]["template"]["spec"]["containers"][0]


def engine_pod(
    number: int, *, ready: bool = True, revision: str = "r-1", age: float = 0.0, **status: Any
) -> dict[str, Any]:
    return pod(
        f"llama-engine-{number}", "engine", {"controller-revision-hash": revision}, ready=ready, age=age, **status
    )


def gateway_pod(number: int, *, ready: bool = True, **status: Any) -> dict[str, Any]:
    return pod(f"llama-gateway-{number}", "gateway", {"pod-template-hash": "g"}, ready=ready, age=0.0, **status)


def pod(name: str, component: str, labels: dict[str, str], *, ready: bool, age: float, **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {COMPONENT: component, SERVING: "llama", **labels},
            "creationTimestamp": at(age),
        },
        "spec": {"nodeName": "node-1"},
        "status": {
            "phase": "Running",
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(age)},
                {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": at(age)},
            ],
            "containerStatuses": [
                {"name": component, "ready": ready, "started": ready, "state": {"running": {"startedAt": at(age)}}}
            ],
            **status,
        },
    }


def container(name: str = "engine", **rest: Any) -> dict[str, Any]:
    return {"name": name, "ready": False, "started": False, "image": "vllm:1", "restartCount": 0, **rest}


@dataclass
class World:
    """Desired manifests, and the cluster as it is after all of them were applied and settled."""

    manifests: list[dict[str, Any]] = field(default_factory=lambda: [engine_set(), gateway(), gateway_service()])
    missing: tuple[Any, ...] = ()
    live: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(
        default_factory=lambda: [engine_pod(0), engine_pod(1), gateway_pod(0), gateway_pod(1)]
    )
    claims: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=body)
    settled: dict[tuple[str, str], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for manifest in self.manifests:
            self.apply(manifest)

    def apply(self, manifest: dict[str, Any]) -> None:
        """As after a server-side apply on an empty name, its controller having looked."""
        live = stored(manifest, creationTimestamp=at(0))
        if manifest["kind"] == "StatefulSet":
            live = defaulted_statefulset(live)
            live["status"] = {"observedGeneration": 1, "updateRevision": "r-1", "currentRevision": "r-1"}
        elif manifest["kind"] == "Deployment":
            live["status"] = {"observedGeneration": 1, "updatedReplicas": manifest["spec"]["replicas"]}
        self.live[key_of(manifest)] = live

    @property
    def serving(self) -> LLMServing:
        return parse(self.body)

    @property
    def children(self) -> Any:
        return SimpleNamespace(
            manifests=tuple(copy.deepcopy(self.manifests)), missing=self.missing, engine_inputs="in-1"
        )

    @property
    def observed(self) -> Observed:
        return Observed(
            children=copy.deepcopy(self.live),
            pods=tuple(copy.deepcopy(self.pods)),
            claims=tuple(self.claims),
            pod_events=tuple(self.events),
            body=self.body,
            settled=self.settled,
        )

    @property
    def engines(self) -> dict[str, Any]:
        return self.live["StatefulSet", "llama-engine"]

    def engine_fields(self) -> dict[str, Any]:
        """managedFields of the StatefulSet that are ours."""
        return self.engines["metadata"]["managedFields"][0]["fieldsV1"]
