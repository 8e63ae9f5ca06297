"""Children for tests, and ways to look into them."""

from collections.abc import Iterator
from typing import Any

from halffull_operator.children import Children, Manifest, build
from halffull_operator.config import OperatorConfig, load_config
from tests.operator.spec.samples import Spec, serving

CONFIG = """\
images:
  vllm: vllm/vllm-openai:v0.32.0
  larry: halffull-larry:0.1.0
  extproc: halffull-extproc:0.1.0
  envoy: docker.io/envoyproxy/envoy:v1.40.0
"""
ALL_APIS = frozenset(
    {
        "monitoring.coreos.com/PodMonitor",
        "inference.networking.k8s.io/InferencePool",
        "gateway.networking.k8s.io/HTTPRoute",
    }
)


def config(more: str = "") -> OperatorConfig:
    return load_config(CONFIG + more, source="operator.yaml")


def children(
    spec: Spec | None = None,
    more: str = "",
    *,
    name: str = "llama",
    apis: frozenset[str] = ALL_APIS,
    annotations: dict[str, str] | None = None,
) -> Children:
    return build(serving(spec, name=name, annotations=annotations), config(more), apis)


def one(built: Children, kind: str, suffix: str = "") -> Manifest:
    (found,) = [m for m in built.manifests if m["kind"] == kind and m["metadata"]["name"].endswith(suffix)]
    return found


def kinds(built: Children) -> list[str]:
    return [f"{m['kind']}/{m['metadata']['name']}" for m in built.manifests]


def engine_pod(built: Children) -> Manifest:
    spec: Manifest = one(built, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def engine(built: Children) -> Manifest:
    return container(engine_pod(built), "engine")


def gateway_pod(built: Children) -> Manifest:
    spec: Manifest = one(built, "Deployment")["spec"]["template"]["spec"]
    return spec


def container(pod: Manifest, name: str) -> Manifest:
    (found,) = [c for c in containers(pod) if c["name"] == name]
    return found


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def templates(built: Children) -> Iterator[Manifest]:
    for manifest in built.manifests:
        if manifest["kind"] in ("StatefulSet", "Deployment"):
            yield manifest["spec"]["template"]


def environment(of: Manifest) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in of["env"]}
