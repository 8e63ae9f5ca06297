"""The table of edits: routing, gateway, networkPolicy, monitoring."""

from typing import Any, Final

from tests.operator.real.fields import ANY, CONFIG, ENGINES, GATEWAYS, GONE, PICKER, POD, Edit, Row, Spec

_SERVICE: Final = "Service/gateway"
_ROUTE: Final = "HTTPRoute/route"
_POLICY: Final = "NetworkPolicy/engine"
_MONITOR: Final = "PodMonitor/monitor"
_ROLLS: Final = frozenset({GATEWAYS})
_CERTIFICATE: Final = f"{POD}.volumes[tls].secret.secretName"
_IN_POOL: Final[Spec] = {"gateway": {"mode": "InferencePool", "managed": None}}


def _parent(field: str, value: Any) -> Row:
    return Row(f"gateway.route.parentRefs[].{field}", _ROUTE, f"spec.parentRefs[b].{field}", value)


def _peer(field: str, path: str, value: Any) -> Row:
    return Row(f"networkPolicy.allowFrom[].{field}", _POLICY, f"spec.ingress[0].from{path}", value)


def _peers(value: str, operator: str, values: list[str], cidr: str, left_out: str) -> list[Spec]:
    chosen = {
        "matchLabels": {"app": value},
        "matchExpressions": [{"key": value, "operator": operator, **({"values": values} if values else {})}],
    }
    return [{"podSelector": chosen, "namespaceSelector": chosen}, {"ipBlock": {"cidr": cidr, "except": [left_out]}}]


def _selected(kind: str) -> tuple[Row, ...]:
    base = f"[1].{kind}."
    return (
        _peer(f"{kind}.matchLabels", f"{base}matchLabels.app", "b"),
        _peer(f"{kind}.matchExpressions[].key", f"{base}matchExpressions[0].key", "b"),
        _peer(f"{kind}.matchExpressions[].operator", f"{base}matchExpressions[0].operator", "NotIn"),
        _peer(f"{kind}.matchExpressions[].values", f"{base}matchExpressions[0].values[0]", "y"),
    )


_ROUTING: Final = {
    "routing": Edit(
        before={},
        after={"routing": {"policy": "SALPlus", "failureMode": "FailClose"}},
        rows=(
            Row("routing.policy", PICKER, f"{CONFIG}.policy", "SALPlus"),
            Row("routing.failureMode", PICKER, f"{CONFIG}.failureMode", "FailClose"),
        ),
    ),
    "routing-pool": Edit(
        before=_IN_POOL,
        after={"routing": {"failureMode": "FailClose"}},
        rows=(
            Row("routing.failureMode", PICKER, f"{CONFIG}.failureMode", "FailClose"),
            Row("routing.failureMode", "InferencePool/pool", "spec.endpointPickerRef.failureMode", "FailClose"),
        ),
    ),
    "mode-none": Edit(
        before={},
        after={"gateway": {"mode": "None", "managed": None}},
        rows=tuple(
            Row("gateway.mode", child, "", GONE)
            for child in (
                GATEWAYS,
                PICKER,
                _SERVICE,
                "ServiceAccount/gateway",
                "Role/picker",
                "RoleBinding/picker",
                "PodDisruptionBudget/gateway",
            )
        ),
    ),
    "mode-pool": Edit(
        before={},
        after=_IN_POOL,
        rows=(
            Row("gateway.mode", "InferencePool/pool", "", ANY),
            Row("gateway.mode", GATEWAYS, f"{POD}.containers[envoy].name", GONE),
            Row("gateway.mode", GATEWAYS, f"{POD}.containers[picker].name", "picker"),
            Row("gateway.mode", _SERVICE, "spec.ports[grpc].port", 9002),
            Row("gateway.mode", _SERVICE, "spec.ports[http].port", GONE),
            Row("gateway.mode", PICKER, f"{CONFIG}.listen.tls", "selfSigned"),
            Row("gateway.mode", "Role/picker", "rules[1].resources[0]", "pods"),
        ),
        rolls=_ROLLS,
        exact=False,
    ),
    "mode-managed": Edit(
        before={"gateway": {"mode": "None", "managed": None}},
        after={"gateway": {"mode": "Managed"}},
        rows=(Row("gateway.mode", GATEWAYS, "", ANY), Row("gateway.mode", _SERVICE, "", ANY)),
        exact=False,
    ),
}

_MANAGED: Final = {
    "managed": Edit(
        before={
            "gateway": {
                "managed": {
                    "service": {"annotations": {"example.test/old": "1", "example.test/kept": "1"}},
                    "paths": ["/v1/*", "/health"],
                    "podTemplate": {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
                }
            }
        },
        after={
            "gateway": {
                "managed": {
                    "replicas": 2,
                    "service": {"annotations": {"example.test/old": None, "example.test/kept": "2"}},
                    "paths": ["/v1/chat/*", "/health"],
                    "podTemplate": {
                        "spec": {
                            "tolerations": None,
                            "containers": [{"name": "envoy", "env": [{"name": "A", "value": "1"}]}],
                        }
                    },
                }
            }
        },
        rows=(
            Row("gateway.managed.replicas", GATEWAYS, "spec.replicas", 2),
            Row("gateway.managed.service.annotations", _SERVICE, "metadata.annotations[example.test/old]", GONE),
            Row("gateway.managed.service.annotations", _SERVICE, "metadata.annotations[example.test/kept]", "2"),
            Row("gateway.managed.paths", PICKER, f"{CONFIG}.gateway.paths[0]", "/v1/chat/*"),
            Row("gateway.managed.podTemplate", GATEWAYS, f"{POD}.tolerations[0].key", GONE),
            Row("gateway.managed.podTemplate", GATEWAYS, f"{POD}.tolerations[0].operator", GONE),
            Row("gateway.managed.podTemplate", GATEWAYS, f"{POD}.containers[envoy].env[A].name", "A"),
            Row("gateway.managed.podTemplate", GATEWAYS, f"{POD}.containers[envoy].env[A].value", "1"),
        ),
        rolls=_ROLLS,
    ),
    "node-port": Edit(
        before={},
        after={"gateway": {"managed": {"service": {"type": "NodePort"}}}},
        rows=(
            Row("gateway.managed.service.type", _SERVICE, "spec.type", "NodePort"),
            Row("gateway.managed.service.type", _SERVICE, "spec.ports[http].nodePort", ANY),
            Row("gateway.managed.service.type", _SERVICE, "spec.externalTrafficPolicy", "Cluster"),
        ),
    ),
    "cluster-ip": Edit(
        before={"gateway": {"managed": {"service": {"type": "LoadBalancer"}}}},
        after={"gateway": {"managed": {"service": {"type": "ClusterIP"}}}},
        rows=(
            Row("gateway.managed.service.type", _SERVICE, "spec.type", "ClusterIP"),
            Row("gateway.managed.service.type", _SERVICE, "spec.ports[http].nodePort", GONE),
            Row("gateway.managed.service.type", _SERVICE, "spec.externalTrafficPolicy", GONE),
            Row("gateway.managed.service.type", _SERVICE, "spec.allocateLoadBalancerNodePorts", GONE),
        ),
    ),
    "tls": Edit(
        before={"gateway": {"managed": {"tls": {"secretName": "a"}}}},
        after={"gateway": {"managed": {"tls": {"secretName": "b"}}}},
        rows=(Row("gateway.managed.tls.secretName", GATEWAYS, _CERTIFICATE, "b"),),
        rolls=_ROLLS,
    ),
    "tls-new": Edit(
        before={},
        after={"gateway": {"managed": {"tls": {"secretName": "b"}}}},
        rows=(
            Row("gateway.managed.tls.secretName", GATEWAYS, _CERTIFICATE, "b"),
            Row("gateway.managed.tls.secretName", _SERVICE, "spec.ports[http].port", GONE),
            Row("gateway.managed.tls.secretName", _SERVICE, "spec.ports[https].port", 443),
            Row("gateway.managed.tls.secretName", PICKER, f"{CONFIG}.gateway.tls.keyFile", "/etc/halffull/tls/tls.key"),
        ),
        rolls=_ROLLS,
        exact=False,
    ),
    "route-parents": Edit(
        before={"gateway": {"route": {"parentRefs": [{"name": "a"}]}}},
        after={
            "gateway": {
                "route": {
                    "parentRefs": [
                        {
                            "name": "b",
                            "namespace": "elsewhere",
                            "group": "mesh.example.test",
                            "kind": "Mesh",
                            "sectionName": "public",
                            "port": 443,
                        }
                    ]
                }
            }
        },
        rows=(
            Row("gateway.route.parentRefs[].name", _ROUTE, "spec.parentRefs[a].name", GONE),
            Row("gateway.route.parentRefs[].group", _ROUTE, "spec.parentRefs[a].group", GONE),
            Row("gateway.route.parentRefs[].kind", _ROUTE, "spec.parentRefs[a].kind", GONE),
            _parent("name", "b"),
            _parent("namespace", "elsewhere"),
            _parent("group", "mesh.example.test"),
            _parent("kind", "Mesh"),
            _parent("sectionName", "public"),
            _parent("port", 443),
        ),
    ),
    "route": Edit(
        before={
            "model": {"servedNames": ["one"]},
            "gateway": {"route": {"parentRefs": [{"name": "a"}], "hostnames": ["a.test"], "pathPrefix": "/a"}},
        },
        after={
            "model": {"servedNames": ["two"]},
            "gateway": {"route": {"hostnames": ["b.test"], "pathPrefix": "/b"}},
        },
        rows=(
            Row("gateway.route.hostnames", _ROUTE, "spec.hostnames[0]", "b.test"),
            Row("gateway.route.pathPrefix", _ROUTE, "spec.rules[1].matches[0].path.value", "/b"),
            Row("model.servedNames", _ROUTE, "spec.rules[2].matches[0].headers[X-Gateway-Model-Name].value", "two"),
            Row("model.servedNames", ENGINES, f"{POD}.containers[engine].args.--served-model-name", "two"),
        ),
        rolls=frozenset({ENGINES}),
    ),
    "route-gone": Edit(
        before={"gateway": {"route": {"parentRefs": [{"name": "a"}]}}},
        after={"gateway": {"route": None}},
        rows=(Row("gateway.route.parentRefs[].name", _ROUTE, "", GONE),),
    ),
}

_AROUND: Final = {
    "network": Edit(
        before={},
        after={"networkPolicy": {"enabled": True}},
        rows=(Row("networkPolicy.enabled", _POLICY, "", ANY),),
    ),
    "network-gone": Edit(
        before={"networkPolicy": {"enabled": True}},
        after={"networkPolicy": {"enabled": False}},
        rows=(Row("networkPolicy.enabled", _POLICY, "", GONE),),
    ),
    "network-peers": Edit(
        before={"networkPolicy": {"enabled": True, "allowFrom": _peers("a", "In", ["x"], "10.0.0.0/8", "10.1.0.0/16")}},
        after={"networkPolicy": {"allowFrom": _peers("b", "NotIn", ["y"], "11.0.0.0/8", "11.1.0.0/16")}},
        rows=(
            *_selected("podSelector"),
            *_selected("namespaceSelector"),
            _peer("ipBlock.cidr", "[2].ipBlock.cidr", "11.0.0.0/8"),
            _peer("ipBlock.except", "[2].ipBlock.except[0]", "11.1.0.0/16"),
        ),
    ),
    "monitor": Edit(
        before={},
        after={"monitoring": {"podMonitor": {"enabled": True}}},
        rows=(Row("monitoring.podMonitor.enabled", _MONITOR, "", ANY),),
    ),
    "monitor-labels": Edit(
        before={"monitoring": {"podMonitor": {"enabled": True, "labels": {"old": "1", "release": "a"}}}},
        after={"monitoring": {"podMonitor": {"labels": {"old": None, "release": "b"}}}},
        rows=(
            Row("monitoring.podMonitor.labels", _MONITOR, "metadata.labels.old", GONE),
            Row("monitoring.podMonitor.labels", _MONITOR, "metadata.labels.release", "b"),
        ),
    ),
}

EDITS: Final = {**_ROUTING, **_MANAGED, **_AROUND}
