"""PodMonitor, InferencePool and HTTPRoute."""

from typing import Any

import pytest

from tests.operator.children.family import children, containers, engine_pod, gateway_pod, one

ROUTE = {"parentRefs": [{"name": "gw", "namespace": "infra", "sectionName": "https", "port": 443}]}


def route(mode: str = "Managed", **more: Any) -> dict[str, Any]:
    gateway: dict[str, Any] = {"mode": mode, "route": {**ROUTE, **more}}
    found: dict[str, Any] = one(children({"gateway": gateway}), "HTTPRoute")["spec"]
    return found


def paths(spec: dict[str, Any]) -> list[tuple[str, str, str | None]]:
    """(kind of match, path, path that it becomes) of rules without a header."""
    found = []
    for rule in spec["rules"]:
        for match in rule["matches"]:
            if "headers" in match:
                continue
            rewrite = rule["filters"][0]["urlRewrite"]["path"] if "filters" in rule else {}
            to = rewrite.get("replacePrefixMatch", rewrite.get("replaceFullPath"))
            found.append((match["path"]["type"], match["path"]["value"], to))
    return found


def test_the_route_goes_to_the_gateway() -> None:
    spec = route()
    assert spec["parentRefs"] == ROUTE["parentRefs"]
    assert "hostnames" not in spec
    for rule in spec["rules"]:
        assert rule["backendRefs"] == [{"name": "llama-gateway", "port": 80}]
        assert rule["timeouts"] == {"request": "0s"}, "an answer may take minutes"


def test_with_tls_it_goes_to_its_port() -> None:
    gateway = {"route": ROUTE, "managed": {"tls": {"secretName": "x"}}}
    spec = one(children({"gateway": gateway}), "HTTPRoute")["spec"]
    assert {rule["backendRefs"][0]["port"] for rule in spec["rules"]} == {443}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [("PathPrefix", "/ml/llama", "/")]),
        ({"pathPrefix": "/x"}, [("PathPrefix", "/ml/llama", "/"), ("PathPrefix", "/x", "/")]),
        ({"pathPrefix": "/"}, [("PathPrefix", "/ml/llama", "/"), ("PathPrefix", "/", None)]),
        ({"hostnames": ["a.b"]}, [("PathPrefix", "/ml/llama", "/"), ("PathPrefix", "/", None)]),
        ({"hostnames": ["a.b"], "pathPrefix": "/x"}, [("PathPrefix", "/ml/llama", "/"), ("PathPrefix", "/x", "/")]),
    ],
)
def test_paths(more: dict[str, Any], expected: list[tuple[str, str, str | None]]) -> None:
    assert paths(route(**more)) == expected


def test_without_our_envoy_only_the_api_is_let_in() -> None:
    assert paths(route("InferencePool", pathPrefix="/x")) == [
        ("PathPrefix", "/ml/llama/v1", "/v1"),
        ("Exact", "/ml/llama/health", "/health"),
        ("PathPrefix", "/x/v1", "/v1"),
        ("Exact", "/x/health", "/health"),
    ]
    assert paths(route("InferencePool", hostnames=["a.b"]))[2:] == [
        ("PathPrefix", "/v1", None),
        ("Exact", "/health", None),
    ]
    backends = [rule["backendRefs"] for rule in route("InferencePool")["rules"]]
    assert backends == [
        [{"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llama-pool"}]
    ] * len(backends)


def test_by_the_models_name_in_a_header() -> None:
    gateway = {"route": ROUTE}
    spec = one(children({"model": {"uri": "hf://a/b", "servedNames": ["x", "y"]}, "gateway": gateway}), "HTTPRoute")[
        "spec"
    ]
    matches = spec["rules"][-1]["matches"]
    assert [match["headers"][0]["value"] for match in matches] == ["x", "y"]
    assert {match["headers"][0]["name"] for match in matches} == {"X-Gateway-Model-Name"}
    assert {match["path"]["value"] for match in matches} == {"/v1"}


def test_the_pool_is_of_the_engines_and_names_the_picker() -> None:
    spec = {"gateway": {"mode": "InferencePool"}, "routing": {"failureMode": "FailClose"}}
    built = children(spec)
    pool = one(built, "InferencePool")["spec"]
    assert pool["selector"]["matchLabels"] == one(built, "StatefulSet")["spec"]["selector"]["matchLabels"]
    picker = one(built, "Service", "-gateway")
    assert pool["endpointPickerRef"]["name"] == picker["metadata"]["name"]
    assert pool["endpointPickerRef"]["port"]["number"] == picker["spec"]["ports"][0]["port"]
    assert pool["endpointPickerRef"]["failureMode"] == "FailClose"
    assert pool["targetPorts"] == [{"number": 8000}]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, ["http", "load", "metrics", "envoy"]),
        ({"engine": {"parallelism": {"data": 2}}}, ["http", "load", "load-1", "metrics", "envoy"]),
        ({"scheduler": {"policy": "Stock"}}, ["http", "metrics", "envoy"]),
        ({"gateway": {"mode": "InferencePool"}}, ["http", "load", "metrics"]),
        ({"gateway": {"mode": "None"}}, ["http", "load"]),
    ],
)
def test_the_monitor_names_ports_that_pods_have(spec: dict[str, Any], expected: list[str]) -> None:
    built = children({**spec, "monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "prom"}}}})
    monitor = one(built, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prom"
    endpoints = monitor["spec"]["podMetricsEndpoints"]
    found = [endpoint["port"] for endpoint in endpoints]
    assert [one["port"] for one in endpoints if one.get("honorLabels")] == [n for n in found if n == "metrics"]
    assert found == expected
    pods = [engine_pod(built)] + ([gateway_pod(built)] if "None" not in repr(spec) else [])
    have = {port["name"] for pod in pods for of in containers(pod) for port in of.get("ports", [])}
    assert set(found) <= have
