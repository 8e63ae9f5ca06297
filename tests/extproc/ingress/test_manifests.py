"""docs/examples/envoy-gateway.yaml and istio-inferencepool.yaml against the APIs that they are written for."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from halffull_extproc.settings import Settings, load_settings
from tests.extproc.ingress.manifests import CRDS, problems
from tests.extproc.ingress.running import DESTINATION, EXAMPLES

ENVOY_GATEWAY, ISTIO = "envoy-gateway.yaml", "istio-inferencepool.yaml"
BOTH = pytest.mark.parametrize("example", [ENVOY_GATEWAY, ISTIO])
Manifest = dict[str, Any]


def manifests(example: str) -> dict[str, Manifest]:
    """By kind: each example has one of a kind."""
    loaded = list(yaml.safe_load_all((EXAMPLES / example).read_text()))
    by_kind = {manifest["kind"]: manifest for manifest in loaded}
    assert len(by_kind) == len(loaded)
    return by_kind


@BOTH
def test_every_manifest_is_valid(example: str) -> None:
    assert {kind: problems(manifest) for kind, manifest in manifests(example).items() if problems(manifest)} == {}


@BOTH
def test_an_unknown_field_anywhere_is_an_error(example: str) -> None:
    """Else "valid" above would mean little."""
    for kind, manifest in manifests(example).items():
        for path, put in _places(manifest):
            broken = copy.deepcopy(manifest)
            put(broken)
            assert problems(broken), f"{kind}{path}"


def _places(manifest: Manifest) -> list[tuple[str, Callable[[Manifest], None]]]:
    """Every object of the manifest whose keys are the API's, not the user's, and how to put an unknown field there."""
    found: list[tuple[str, Callable[[Manifest], None]]] = []
    the_user_s = {"labels", "matchLabels", "data", "requests", "limits"}
    if manifest["kind"] == "Service":
        the_user_s.add("selector")

    def visit(value: Any, steps: tuple[str | int, ...]) -> None:
        if isinstance(value, list):
            for number, item in enumerate(value):
                visit(item, (*steps, number))
        elif isinstance(value, dict):
            if not steps or steps[-1] not in the_user_s:
                found.append((str(steps), lambda root: _at(root, steps).update(halffull="?")))
            for key, item in value.items():
                visit(item, (*steps, key))

    visit(manifest, ())
    return found


def _at(root: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        root = root[step]
    return root


@pytest.mark.parametrize(
    ("example", "kind", "break_it"),
    [
        (ENVOY_GATEWAY, "HTTPRoute", lambda spec: spec["rules"][0]["backendRefs"][0].pop("port")),
        (ENVOY_GATEWAY, "BackendTrafficPolicy", lambda spec: spec["loadBalancer"].update(type="EndpointOverride")),
        (
            ENVOY_GATEWAY,
            "BackendTrafficPolicy",
            lambda spec: spec["loadBalancer"]["endpointOverride"]["extractFrom"].append({}),
        ),
        (ENVOY_GATEWAY, "EnvoyExtensionPolicy", lambda spec: spec["extProc"][0]["processingMode"].pop("response")),
        (
            ENVOY_GATEWAY,
            "EnvoyExtensionPolicy",
            lambda spec: spec["extProc"][0]["processingMode"]["request"].update(body="FullDuplexStreamed"),
        ),
        (ENVOY_GATEWAY, "EnvoyExtensionPolicy", lambda spec: spec["extProc"][0].update(messageTimeout="0.1s")),
        (ENVOY_GATEWAY, "ClientTrafficPolicy", lambda spec: spec["targetRefs"][0].update(kind="HTTPRoute")),
        (ISTIO, "InferencePool", lambda spec: spec["endpointPickerRef"].pop("port")),
        (ISTIO, "InferencePool", lambda spec: spec["endpointPickerRef"].update(failureMode="failOpen")),
        (ISTIO, "InferencePool", lambda spec: spec["targetPorts"].append({"number": 8000})),
        (ISTIO, "DestinationRule", lambda spec: spec["trafficPolicy"]["tls"].update(mode="Simple")),
        (ISTIO, "Deployment", lambda spec: spec.pop("selector")),
    ],
)
def test_what_the_apis_refuse_is_refused(example: str, kind: str, break_it: Callable[[Manifest], object]) -> None:
    manifest = copy.deepcopy(manifests(example)[kind])
    break_it(manifest["spec"])
    assert problems(manifest)


@BOTH
def test_the_parts_refer_to_each_other(example: str) -> None:
    parts = manifests(example)
    assert {manifest["metadata"]["namespace"] for manifest in parts.values()} == {"llm"}
    route, service, deployment = parts["HTTPRoute"], parts["Service"], parts["Deployment"]
    assert route["spec"]["parentRefs"] == [{"name": parts["Gateway"]["metadata"]["name"]}]
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
    assert pod["spec"]["serviceAccountName"] == parts["ServiceAccount"]["metadata"]["name"]
    assert pod["spec"]["volumes"][0]["configMap"]["name"] == parts["ConfigMap"]["metadata"]["name"]
    assert parts["RoleBinding"]["roleRef"]["name"] == parts["Role"]["metadata"]["name"]
    assert parts["RoleBinding"]["subjects"][0]["name"] == parts["ServiceAccount"]["metadata"]["name"]
    for kind in ("BackendTrafficPolicy", "EnvoyExtensionPolicy", "ClientTrafficPolicy"):
        for target in parts.get(kind, {"spec": {"targetRefs": []}})["spec"]["targetRefs"]:
            assert target["name"] == parts[target["kind"]]["metadata"]["name"]


@BOTH
def test_the_picker_s_configuration_is_valid_and_matches_the_ports(example: str) -> None:
    parts = manifests(example)
    settings = picker_settings(parts)
    container = parts["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listening = {"grpc": settings.listen.grpc, "health": settings.listen.health, "metrics": settings.listen.metrics}
    assert {name: f"[::]:{port}" for name, port in ports.items()} == listening
    assert parts["Service"]["spec"]["ports"][0]["port"] == ports["grpc"]
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["grpc"]["port"] == ports["health"]


@BOTH
def test_the_stock_vllm_alternative_in_the_comment_is_valid_too(example: str) -> None:
    text = manifests(example)["ConfigMap"]["data"]["picker.yaml"]
    before, _, after = text.partition("load: {report: {port: 9400}} # engines with Halffull's plugin; stock vLLM: ")
    metrics = load_settings(before + after, source="picker.yaml").load.metrics
    assert metrics
    assert metrics.pickers == manifests(example)["Deployment"]["spec"]["replicas"]


@BOTH
def test_the_image_is_of_this_version_and_runs_unprivileged(example: str) -> None:
    pod = manifests(example)["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    version = (Path(__file__).parents[3] / "VERSION").read_text().strip()
    assert container["image"] == f"halffull-extproc:{version}"
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_envoy_gateway_takes_the_pick_and_never_a_client_s() -> None:
    parts = manifests(ENVOY_GATEWAY)
    sources = parts["BackendTrafficPolicy"]["spec"]["loadBalancer"]["endpointOverride"]["extractFrom"]
    assert sources == [{"header": DESTINATION}]
    assert parts["ClientTrafficPolicy"]["spec"]["headers"]["earlyRequestHeaders"]["remove"] == [DESTINATION]
    (processor,) = parts["EnvoyExtensionPolicy"]["spec"]["extProc"]
    assert processor["backendRefs"] == [{"name": parts["Service"]["metadata"]["name"], "port": 9002}]
    settings = picker_settings(parts)
    (backend,) = parts["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert settings.endpoints.service
    assert (settings.endpoints.service.name, settings.endpoints.service.port) == (backend["name"], backend["port"])


def test_istio_asks_the_picker_of_the_pool_by_tls() -> None:
    parts = manifests(ISTIO)
    pool, service = parts["InferencePool"], parts["Service"]["metadata"]["name"]
    (backend,) = parts["HTTPRoute"]["spec"]["rules"][0]["backendRefs"]
    assert backend == {
        "group": "inference.networking.k8s.io",
        "kind": "InferencePool",
        "name": pool["metadata"]["name"],
    }
    assert pool["spec"]["endpointPickerRef"]["name"] == service
    assert parts["DestinationRule"]["spec"]["host"] == f"{service}.llm.svc.cluster.local"
    settings = picker_settings(parts)
    assert settings.listen.tls == "selfSigned"
    assert settings.endpoints.inference_pool
    assert settings.endpoints.inference_pool.name == pool["metadata"]["name"]


def test_the_role_grants_what_discovery_watches_and_nothing_else() -> None:
    granted = {
        example: {
            (group, resource)
            for rule in manifests(example)["Role"]["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            if rule["verbs"] == ["get", "list", "watch"]
        }
        for example in (ENVOY_GATEWAY, ISTIO)
    }
    assert granted[ENVOY_GATEWAY] == {("discovery.k8s.io", "endpointslices")}
    assert granted[ISTIO] == {("", "pods"), ("inference.networking.k8s.io", "inferencepools")}


def test_every_schema_says_where_it_is_from() -> None:
    for path in CRDS.glob("*.yaml"):
        head = [line for line in path.read_text().splitlines() if line.startswith("#")]
        assert any("github.com/" in line for line in head), path.name
        assert any("Apache-2.0" in line for line in head), path.name


def picker_settings(parts: dict[str, Manifest]) -> Settings:
    return load_settings(parts["ConfigMap"]["data"]["picker.yaml"], source="picker.yaml")
