"""The CustomResourceDefinition, generated from the types: `python -m halffull_operator.crd` prints it. Pure."""

import sys
from collections.abc import Callable
from typing import Any, Final

import msgspec
import yaml

from halffull_operator.labels import GROUP, KIND, PLURAL, SCHEMA_REVISION, VERSION
from halffull_operator.mistakes import allowed
from halffull_operator.shape import Field, Kind, Shape, shape_of
from halffull_operator.spec import MAX_NAME, NAME_PATTERN, NAME_WORDS, LLMServingSpec
from halffull_operator.spec_status import LLMServingStatus

Manifest = dict[str, Any]

REVISION: Final = 1
"""Raised with every change of the schema: an operator raises the CRD of its cluster to its own, never lowers it."""
NAME: Final = f"{PLURAL}.{GROUP}"
_HEADER: Final = "# Generated from the operator's types: make crd. Do not edit.\n"
_COLUMNS: Final = (
    ("Model", "string", ".spec.model.uri", 0),
    ("Desired", "integer", ".spec.replicas", 0),
    ("Ready", "integer", ".status.readyReplicas", 0),
    ("Updated", "integer", ".status.updatedReplicas", 0),
    ("Applied", "string", '.status.conditions[?(@.type=="Applied")].status', 0),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 0),
    ("URL", "string", ".status.url", 0),
    ("Scheduler", "string", ".spec.scheduler.policy", 1),
    ("Routing", "string", ".spec.routing.policy", 1),
    ("Image", "string", ".status.image", 1),
    ("Age", "date", ".metadata.creationTimestamp", 0),
)


def build() -> Manifest:
    """The CRD."""
    columns = [
        {"name": name, "type": type_, "jsonPath": path, **({"priority": priority} if priority else {})}
        for name, type_, path, priority in _COLUMNS
    ]
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": columns,
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": _root()},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": NAME, "annotations": {SCHEMA_REVISION: str(REVISION)}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["llms"],
                "categories": ["halffull"],
            },
            "versions": [version],
        },
    }


def text() -> str:
    """The CRD as the file in `crds/`."""
    return _HEADER + yaml.safe_dump(build(), sort_keys=False, width=120, allow_unicode=True)


def _root() -> Manifest:
    return {
        "description": "A model served by vLLM engines with LARRY inside and a gateway with SAL in front.",
        "type": "object",
        "required": ["spec"],
        "x-kubernetes-validations": [
            {
                "rule": f"self.metadata.name.matches(r'{NAME_PATTERN}')",
                "message": NAME_WORDS,
            }
        ],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": {"type": "string", "maxLength": MAX_NAME}}},
            "spec": {
                "description": "What is wanted: a model, its engines, the order inside each, the choice among them.",
                **schema(shape_of(LLMServingSpec)),
            },
            "status": {
                "description": "What is: engines that answer, the address for clients, and conditions that say why.",
                **schema(shape_of(LLMServingStatus)),
            },
        },
    }


def schema(shape: Shape) -> Manifest:
    """A type as a structural schema."""
    described = {"description": shape.description} if shape.description else {}
    return {**described, **_WRITERS.get(shape.kind, _scalar)(shape)}


def _map(shape: Shape) -> Manifest:
    assert shape.item is not None  # noqa: S101  every map says its values
    return {"type": "object", "additionalProperties": schema(shape.item), **_given(maxProperties=shape.max_length)}


def _any(_shape: Shape) -> Manifest:
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def _quantity(shape: Shape) -> Manifest:
    """CEL would take its text for unbounded, so it has a pattern and no rule."""
    bounds = _given(pattern=shape.cel_pattern, maxLength=shape.max_length)
    return {"x-kubernetes-int-or-string": True, "minimum": 0, **bounds}


def _scalar(shape: Shape) -> Manifest:
    wide = shape.kind is Kind.INTEGER and (shape.maximum is None or shape.maximum >= 2**31)
    return {
        "type": shape.kind.value,
        **({"format": "int64"} if wide else {}),
        **_given(minimum=shape.minimum, maximum=shape.maximum),
    }


def _object(shape: Shape) -> Manifest:
    required = [member.name for member in shape.fields if member.required]
    rules = [{"rule": rule.cel, "message": rule.message} for rule in shape.rules]
    return {
        "type": "object",
        **({"required": required} if required else {}),
        **({"x-kubernetes-validations": rules} if rules else {}),
        "properties": {member.name: {**schema(member.shape), **_default(member)} for member in shape.fields},
    }


def _default(member: Field) -> Manifest:
    """An empty list or mapping is as good as none, and stays out of stored objects."""
    default = plain(member)
    if default is None or (default in ({}, []) and member.shape.kind is not Kind.OBJECT):
        return {}
    return {"default": default}


def plain(member: Field) -> Any:
    """A field's default as it is written; None where there is none."""
    return None if member.required else _plain(member.default)


def _plain(value: Any) -> Any:
    """All of it: the API server checks the rules of a default before it fills in the defaults inside."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, msgspec.Struct):
        return value
    names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
    members = {encoded: _plain(getattr(value, name)) for encoded, name in names}
    return {name: inner for name, inner in members.items() if inner not in (None, {}, [])}


def _list(shape: Shape) -> Manifest:
    assert shape.item is not None  # noqa: S101  every list says its items
    keys = {"x-kubernetes-list-map-keys": list(shape.list_of.keys)} if shape.list_of.keys else {}
    return {
        "type": "array",
        **_given(minItems=shape.min_length, maxItems=shape.max_length),
        "x-kubernetes-list-type": shape.list_of.type,
        **keys,
        "items": schema(shape.item),
    }


def _string(shape: Shape) -> Manifest:
    bounds = _given(minLength=shape.min_length, maxLength=shape.max_length)
    if shape.enum:
        return {"type": "string", "enum": list(shape.enum)}
    rule = shape.words.cel if shape.words is not None else None
    if rule is None and shape.words is not None and shape.pattern is not None:
        rule = f"self.matches(r'{shape.cel_pattern}')"
    if rule is not None:
        bounds["x-kubernetes-validations"] = [{"rule": rule, "message": f"write {allowed(shape)}"}]
    elif shape.pattern is not None:
        bounds["pattern"] = shape.cel_pattern
    return {"type": "string", **bounds}


def _given(**values: Any) -> Manifest:
    return {name: value for name, value in values.items() if value is not None}


_WRITERS: Final[dict[Kind, Callable[[Shape], Manifest]]] = {
    Kind.OBJECT: _object,
    Kind.MAP: _map,
    Kind.LIST: _list,
    Kind.ANY: _any,
    Kind.QUANTITY: _quantity,
    Kind.STRING: _string,
}

if __name__ == "__main__":
    sys.stdout.write(text())
