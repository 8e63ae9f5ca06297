"""An LLMServing in which every field of the spec is set. Made from the types, so that a new field is in it at once."""

from typing import Any

from halffull_operator.kinds import Manifest
from halffull_operator.shape import Kind, Shape, shape_of
from halffull_operator.spec import LLMServingSpec
from tests.operator.servings import serving
from tests.operator.spec.samples import texts

RUNTIME_CLASS, SERVICE_ACCOUNT = "gpu", "models"
"""Must be there, or the API server takes no pod."""
_SELECTOR = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
_KEY = {"name": "some", "key": "key", "optional": True}
_SOURCES = {"fieldRef": {"fieldPath": "status.podIP"}, "secretKeyRef": _KEY, "configMapKeyRef": _KEY}
CHOSEN: dict[str, Any] = {
    ".engine.args": ["--seed=1"],
    ".engine.env": [
        {"name": "A", "value": "a"},
        *({"name": name.upper(), "valueFrom": {name: source}} for name, source in _SOURCES.items()),
    ],
    ".engine.podTemplate": {"metadata": {"labels": {"team": "a"}}},
    ".engine.runtimeClassName": RUNTIME_CLASS,
    ".engine.serviceAccountName": SERVICE_ACCOUNT,
    ".engine.resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}},
    ".engine.tolerations": [
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 1}
    ],
    ".gateway.managed.podTemplate": {"metadata": {"labels": {"team": "a"}}},
    ".networkPolicy.allowFrom": [
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
        {"podSelector": _SELECTOR, "namespaceSelector": _SELECTOR},
    ],
}
"""Where any value of the type will not do: one of several fields, or a free form."""


def spec() -> Manifest:
    """The spec alone."""
    made: Manifest = _value(shape_of(LLMServingSpec), "")
    return made


def _value(shape: Shape, path: str) -> Any:  # noqa: PLR0911  one for each kind
    if path in CHOSEN:
        return CHOSEN[path]
    match shape.kind:
        case Kind.OBJECT:
            return {member.name: _value(member.shape, f"{path}.{member.name}") for member in shape.fields}
        case Kind.LIST:
            assert shape.item is not None
            return [_value(shape.item, path + "[]")]
        case Kind.MAP:
            assert shape.item is not None
            assert shape.key is not None
            return {_value(shape.key, path + "{}"): _value(shape.item, path + "{}")}
        case Kind.ANY:
            return {}
        case Kind.QUANTITY:
            return "1"
        case Kind.BOOLEAN:
            return True
        case Kind.INTEGER | Kind.NUMBER:
            return max(1, int(shape.minimum or 0))
        case Kind.STRING:
            return texts(shape)[0]


def everything(name: str, namespace: str) -> Manifest:
    return serving(name, namespace, **spec())
