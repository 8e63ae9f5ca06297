"""Children of APIs that a cluster may not have: PodMonitor, InferencePool, HTTPRoute. Pure."""

from typing import Any, Final

from halffull_operator.children.engine import load_port_names
from halffull_operator.children.manifest import Family, Manifest
from halffull_operator.children.picker_config import GRPC_PORT
from halffull_operator.engine_settings import HTTP_PORT
from halffull_operator.labels import ENGINE, GATEWAY, SERVING
from halffull_operator.spec_model import served_names
from halffull_operator.spec_types import written

POD_MONITOR: Final = "monitoring.coreos.com/v1 PodMonitor"
INFERENCE_POOL: Final = "inference.networking.k8s.io/v1 InferencePool"
HTTP_ROUTE: Final = "gateway.networking.k8s.io/v1 HTTPRoute"
_MODEL_HEADER: Final = "X-Gateway-Model-Name"
_POOL_PATHS: Final = (("PathPrefix", "/v1"), ("Exact", "/health"))
"""Without an Envoy of ours the route lets these through alone: vLLM's control endpoints ignore API keys."""


def pod_monitor(family: Family) -> Manifest:
    """Metrics of engines, load reports, picker and Envoy."""
    ports = [("http", "/metrics"), *((name, "/metrics") for name, _ in load_port_names(family.serving))]
    mode = family.serving.spec.gateway.mode
    if mode != "None":
        ports.append(("metrics", "/metrics"))
    if mode == "Managed":
        ports.append(("envoy", "/stats/prometheus"))
    return family.child(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        family.names.monitor,
        labels=family.serving.spec.monitoring.pod_monitor.labels,
        spec={
            "selector": {"matchLabels": {SERVING: family.names.base}},
            "podMetricsEndpoints": [
                # The picker says by a label `endpoint` which engine it speaks of; the Prometheus Operator has its own.
                {"port": name, "path": path, **({"honorLabels": True} if name == "metrics" else {})}
                for name, path in ports
            ],
        },
    )


def inference_pool(family: Family) -> Manifest:
    """The engines as a pool whose endpoint picker is ours."""
    return family.child(
        "inference.networking.k8s.io/v1",
        "InferencePool",
        family.names.pool,
        ENGINE,
        spec={
            "selector": {"matchLabels": family.engines},
            "targetPorts": [{"number": HTTP_PORT}],
            "endpointPickerRef": {
                "name": family.names.gateway,
                "port": {"number": GRPC_PORT},
                "failureMode": family.serving.spec.routing.failure_mode,
            },
        },
    )


def http_route(family: Family) -> Manifest:
    """On a gateway of one's own: below /NAMESPACE/NAME, by the model's name in a header, by host, below a prefix."""
    route = family.serving.spec.gateway.route
    assert route is not None  # noqa: S101  asked for only then
    serving = family.serving
    pooled = serving.spec.gateway.mode == "InferencePool"
    rules = [rule for prefix in _prefixes(family) for rule in _below(prefix, family, pooled=pooled)]
    names = served_names(serving.spec.model, serving_name=serving.name)
    by_header = [
        {
            "path": {"type": "PathPrefix", "value": "/v1"},
            "headers": [{"type": "Exact", "name": _MODEL_HEADER, "value": name}],
        }
        for name in names
    ]
    rules.append(_rule(family, by_header, pooled=pooled))
    return family.child(
        "gateway.networking.k8s.io/v1",
        "HTTPRoute",
        family.names.route,
        GATEWAY,
        spec={
            "parentRefs": [written(parent) for parent in route.parent_refs],
            **({"hostnames": list(route.hostnames)} if route.hostnames else {}),
            "rules": rules,
        },
    )


def _prefixes(family: Family) -> list[str]:
    """Paths below which the whole API is offered; "" is the root."""
    serving = family.serving
    route = serving.spec.gateway.route
    prefixes = [f"/{serving.namespace}/{serving.name}"]
    if route is not None and route.path_prefix is not None:
        prefixes.append(route.path_prefix.rstrip("/"))
    elif route is not None and route.hostnames:
        prefixes.append("")
    return list(dict.fromkeys(prefixes))


def _below(prefix: str, family: Family, *, pooled: bool) -> list[Manifest]:
    if pooled:
        return [
            _rule(
                family,
                [{"path": {"type": kind, "value": prefix + path}}],
                rewrite=(kind, path) if prefix else None,
                pooled=True,
            )
            for kind, path in _POOL_PATHS
        ]
    match = [{"path": {"type": "PathPrefix", "value": prefix or "/"}}]
    return [_rule(family, match, rewrite=("PathPrefix", "/") if prefix else None, pooled=False)]


def _rule(family: Family, matches: list[Manifest], *, pooled: bool, rewrite: tuple[str, str] | None = None) -> Manifest:
    """A rule without a time limit: an answer may take minutes."""
    names = family.names
    backend: dict[str, Any]
    if pooled:
        backend = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": names.pool}
    else:
        secure = family.serving.spec.gateway.effective.tls is not None
        backend = {"name": names.gateway, "port": 443 if secure else 80}
    rule: Manifest = {"matches": matches}
    if rewrite is not None:
        kind, path = rewrite
        how = (
            {"type": "ReplacePrefixMatch", "replacePrefixMatch": path}
            if kind == "PathPrefix"
            else {"type": "ReplaceFullPath", "replaceFullPath": path}
        )
        rule["filters"] = [{"type": "URLRewrite", "urlRewrite": {"path": how}}]
    return {**rule, "backendRefs": [backend], "timeouts": {"request": "0s"}}
