"""The picker's configuration, as the picker itself reads it; and its permissions."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from halffull_extproc.settings import LIVE, Settings, load_settings
from halffull_operator.children.picker_config import _LIVE
from halffull_operator.labels import PICKER_CONFIG
from halffull_operator.spec import SpecError
from tests.operator.children.family import children, gateway_pod, one
from tests.operator.spec.samples import specs

POOL = {"gateway": {"mode": "InferencePool"}}


def settings(spec: dict[str, Any] | None = None, more: str = "") -> Settings:
    text = one(children(spec, more), "ConfigMap")["data"]["picker.yaml"]
    return load_settings(text, source="picker.yaml")


def at_start(spec: dict[str, Any]) -> str:
    found: str = one(children(spec), "Deployment")["spec"]["template"]["metadata"]["annotations"][PICKER_CONFIG]
    return found


def test_managed() -> None:
    found = settings(
        {"routing": {"policy": "SALPlus", "failureMode": "FailClose"}, "engine": {"parallelism": {"data": 2}}}
    )
    assert (found.policy.value, found.fail_open, found.ranks, found.load_port) == ("SALPlus", False, 2, 9400)
    service = found.endpoints.service
    assert service
    assert (service.namespace, service.name) == ("ml", "llama-engine")
    names = [port["name"] for port in one(children(), "Service", "-engine")["spec"]["ports"]]
    assert service.port in names, "or the picker finds no engine"
    assert found.listen.grpc == "unix:/run/halffull/picker.sock"
    assert found.gateway.paths == ("/v1/*", "/health")


def test_paths_and_tls() -> None:
    found = settings({"gateway": {"managed": {"paths": ["/v1/models"], "tls": {"secretName": "cert"}}}})
    assert found.gateway.paths == ("/v1/models",)
    assert found.gateway.tls
    pod = gateway_pod(children({"gateway": {"managed": {"tls": {"secretName": "cert"}}}}))
    (envoy,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in envoy["volumeMounts"]}
    assert found.gateway.tls.cert_file == f"{mounts['tls']}/tls.crt"
    assert {"name": "tls", "secret": {"secretName": "cert"}} in pod["volumes"]


def test_stock_engines_are_read_by_their_metrics() -> None:
    stock = {"scheduler": {"policy": "Stock"}}
    metrics = settings({**stock, "gateway": {"managed": {"replicas": 3}}}).load.metrics
    assert metrics
    assert (metrics.pickers, metrics.max_tokens_per_batch) == (3, 8192)
    budget = settings({**stock, "engine": {"args": ["--max-num-batched-tokens", "2048"]}}).load.metrics
    assert budget
    assert budget.max_tokens_per_batch == 2048
    for odd in ("8k", "0", "99999999999"):
        assert settings({**stock, "engine": {"args": [f"--max-num-batched-tokens={odd}"]}}).load.metrics


def test_an_inference_pool() -> None:
    found = settings(POOL)
    pool = found.endpoints.inference_pool
    assert pool
    assert (pool.namespace, pool.name) == ("ml", one(children(POOL), "InferencePool")["metadata"]["name"])
    assert (found.listen.grpc, found.listen.tls) == ("[::]:9002", "selfSigned")


def test_where_there_is_no_ipv6() -> None:
    found = settings(POOL, "listen: 0.0.0.0\n")
    assert {found.listen.grpc, found.listen.health, found.listen.metrics} == {
        "0.0.0.0:9002",
        "0.0.0.0:9003",
        "0.0.0.0:9090",
    }
    assert settings(None, "listen: 0.0.0.0\n").gateway.listen == "0.0.0.0:8000"


@hypothesis_settings(max_examples=60, deadline=None)
@given(specs)
def test_whatever_is_asked_for_the_picker_takes_it(spec: dict[str, Any]) -> None:
    try:
        built = children(spec)
    except SpecError:
        return
    for manifest in built.manifests:
        if manifest["kind"] == "ConfigMap":
            load_settings(manifest["data"]["picker.yaml"], source="picker.yaml")


def test_what_a_running_picker_applies_does_not_roll_the_gateway() -> None:
    assert set(_LIVE) == set(LIVE)
    base = one(children(), "Deployment")
    for routing in ({"policy": "Random"}, {"policy": "SALPlus", "failureMode": "FailClose"}):
        assert one(children({"routing": routing}), "Deployment") == base


@pytest.mark.parametrize(
    "spec",
    [
        {"gateway": {"managed": {"paths": ["/v1/*"]}}},
        {"engine": {"parallelism": {"data": 2}}},
        {"scheduler": {"policy": "Stock"}},
        {"gateway": {"managed": {"tls": {"secretName": "x"}}}},
    ],
)
def test_what_it_reads_at_start_rolls_the_gateway(spec: dict[str, Any]) -> None:
    assert at_start(spec) != at_start({})


def test_another_number_of_gateways_rolls_them_only_where_pickers_must_know_it() -> None:
    more = {"gateway": {"managed": {"replicas": 5}}}
    assert at_start(more) == at_start({})
    stock = {"scheduler": {"policy": "Stock"}}
    assert at_start({**more, **stock}) != at_start(stock)


@pytest.mark.parametrize(("spec", "discovery"), [({}, "endpointslices"), (POOL, "pods")])
def test_permissions_are_those_of_contract_2(spec: dict[str, Any], discovery: str) -> None:
    built = children(spec)
    rules = {rule["resources"][0]: rule for rule in one(built, "Role")["rules"]}
    assert all(rule["verbs"] == ["get", "list", "watch"] for rule in rules.values())
    assert set(rules) == {"configmaps", discovery} | ({"inferencepools"} if spec else set())
    assert rules["configmaps"]["resourceNames"] == [one(built, "ConfigMap")["metadata"]["name"]]
    binding = one(built, "RoleBinding")
    assert binding["roleRef"]["name"] == one(built, "Role")["metadata"]["name"]
    assert binding["subjects"][0]["name"] == gateway_pod(built)["serviceAccountName"]
    assert one(built, "ServiceAccount")["metadata"]["name"] == binding["subjects"][0]["name"]


def test_the_text_is_the_same_every_time() -> None:
    texts = {one(children(), "ConfigMap")["data"]["picker.yaml"] for _ in range(3)}
    assert len(texts) == 1
    assert yaml.safe_load(texts.pop())["version"] == 1
