"""The APIs that a cluster may lack: what of their schemas matters to a writer, defaults and kinds of lists among it."""

from typing import Any, Final

from halffull_operator import kinds
from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api, wait_until

_TEXT: Final[Manifest] = {"type": "string"}
_NUMBER: Final[Manifest] = {"type": "integer"}
_LABELS: Final[Manifest] = {"type": "object", "additionalProperties": _TEXT}


def _object(**properties: Manifest) -> Manifest:
    return {"type": "object", "properties": properties}


def _atomic(item: Manifest) -> Manifest:
    return {"type": "array", "items": item, "x-kubernetes-list-type": "atomic"}


def _default(value: Any, kind: str = "string") -> Manifest:
    return {"type": kind, "default": value}


_REFERENCE: Final = _object(
    group=_default("gateway.networking.k8s.io"),
    kind=_default("Gateway"),
    namespace=_TEXT,
    name=_TEXT,
    sectionName=_TEXT,
    port=_NUMBER,
)
_PATH: Final = _object(type=_default("PathPrefix"), value=_default("/"))
_MATCH: Final = _object(
    path={**_PATH, "default": {"type": "PathPrefix", "value": "/"}},
    headers={
        "type": "array",
        "items": {**_object(type=_default("Exact"), name=_TEXT, value=_TEXT), "required": ["name"]},
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    },
)
_BACKEND: Final = _object(
    group=_default(""), kind=_default("Service"), name=_TEXT, port=_NUMBER, weight=_default(1, "integer")
)
_REWRITE: Final = _object(path=_object(type=_TEXT, replacePrefixMatch=_TEXT, replaceFullPath=_TEXT))
_ROUTE: Final = _object(
    parentRefs=_atomic(_REFERENCE),
    hostnames=_atomic(_TEXT),
    rules=_atomic(
        _object(
            matches={**_atomic(_MATCH), "default": [{"path": {"type": "PathPrefix", "value": "/"}}]},
            filters=_atomic(_object(type=_TEXT, urlRewrite=_REWRITE)),
            backendRefs=_atomic(_BACKEND),
            timeouts=_object(request=_TEXT, backendRequest=_TEXT),
        )
    ),
)
_POOL: Final = _object(
    selector=_object(matchLabels=_LABELS),
    targetPorts=_atomic(_object(number=_NUMBER)),
    endpointPickerRef=_object(
        group=_default(""),
        kind=_default("Service"),
        name=_TEXT,
        port=_object(number=_NUMBER),
        failureMode=_default("FailClose"),
    ),
)
_MONITOR: Final = _object(
    selector={**_object(matchLabels=_LABELS), "x-kubernetes-map-type": "atomic"},
    podMetricsEndpoints={
        "type": "array",
        "items": _object(port=_TEXT, path=_TEXT, interval=_TEXT, honorLabels={"type": "boolean"}),
    },
)
_SPECS: Final = {"HTTPRoute": _ROUTE, "InferencePool": _POOL, "PodMonitor": _MONITOR}


def _definition(kind: Kind) -> Manifest:
    schema = _object(spec=_SPECS[kind.kind], status={"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": kinds.CRD.api_version,
        "kind": kinds.CRD.kind,
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
        },
        "spec": {
            "group": kind.group,
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "scope": "Namespaced",
            "versions": [version],
        },
    }


def install(admin: Api) -> None:
    """Let the cluster serve them."""
    for kind in kinds.OPTIONAL:
        admin.apply(_definition(kind))
    wait_until("the optional APIs are served", lambda: all(_is_served(admin, kind) for kind in kinds.OPTIONAL))


def remove(admin: Api) -> None:
    """Take them away again: other tests are about clusters that lack them."""
    for kind in kinds.OPTIONAL:
        admin.delete(kinds.CRD, f"{kind.plural}.{kind.group}")
    wait_until(
        "the optional APIs are gone",
        lambda: not any(admin.get(kinds.CRD, f"{kind.plural}.{kind.group}") for kind in kinds.OPTIONAL),
        within=60,
    )


def _is_served(admin: Api, kind: Kind) -> bool:
    found = admin.get(kinds.CRD, f"{kind.plural}.{kind.group}") or {}
    conditions = found.get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
