"""Strict checks of Kubernetes manifests without a cluster: an unknown field is an error, not a warning.

Custom resources against crds/ (its README says what these schemas are), core kinds against the models of the
`kubernetes` package, which are generated from the API's own description.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes.client
import yaml
from jsonschema import Draft202012Validator

CRDS = Path(__file__).parent / "crds"
_NAME = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
_METADATA = {
    "type": "object",
    "required": ["name", "namespace"],
    "properties": {
        "name": {"type": "string", "pattern": _NAME},
        "namespace": {"type": "string", "pattern": _NAME},
    },
}
_GROUPS = {"Deployment": "apps/v1"} | dict.fromkeys(("Role", "RoleBinding"), "rbac.authorization.k8s.io/v1")
_SCALARS: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object}


def strict(schema: Any) -> Any:
    """The schema with every listed object closed, as the API server closes it under strict field validation."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: part if key in ("if", "then") else strict(part) for key, part in schema.items()}
    if (
        schema.get("type") == "object"
        and "properties" in schema
        and "x-kubernetes-preserve-unknown-fields" not in schema
    ):
        closed.setdefault("additionalProperties", False)
    return closed


def problems(manifest: dict[str, Any]) -> list[str]:
    """What is wrong with one manifest; empty when nothing is."""
    path = CRDS / f"{manifest['kind']}.yaml"
    return list(_custom(manifest, path) if path.exists() else _core(manifest))


def _custom(manifest: dict[str, Any], path: Path) -> Iterator[str]:
    known = yaml.safe_load(path.read_text())
    schema = strict(
        {
            "type": "object",
            "required": ["apiVersion", "kind", "metadata", "spec"],
            "properties": {
                "apiVersion": {"const": known["apiVersion"]},
                "kind": {"const": path.stem},
                "metadata": _METADATA,
                "spec": known["spec"],
            },
        }
    )
    Draft202012Validator.check_schema(schema)
    for error in Draft202012Validator(schema).iter_errors(manifest):
        yield f"{error.json_path}: {error.message}"


def _core(manifest: dict[str, Any]) -> Iterator[str]:
    groups = {
        "Deployment": "apps/v1",
        "Role": "rbac.authorization.k8s.io/v1",
        "RoleBinding": "rbac.authorization.k8s.io/v1",
    }
    if manifest["apiVersion"] != groups.get(manifest["kind"], "v1"):
        yield f"$.apiVersion: {manifest['apiVersion']} has no {manifest['kind']}"
    yield from _model(manifest, f"V1{manifest['kind']}", "$")


def _model(value: Any, kind: str, path: str) -> Iterator[str]:
    if items := re.fullmatch(r"List\[(.+)\]", kind):
        if not isinstance(value, list):
            yield f"{path}: not a list"
            return
        for number, item in enumerate(value):
            yield from _model(item, items[1], f"{path}[{number}]")
    elif values := re.fullmatch(r"Dict\[str, (.+)\]", kind):
        for key, item in value.items():
            yield from _model(item, values[1], f"{path}.{key}")
    elif kind in _SCALARS:
        if not isinstance(value, _SCALARS[kind]) or (kind == "int" and isinstance(value, bool)):
            yield f"{path}: {value!r} is no {kind}"
    elif not isinstance(value, dict):
        yield f"{path}: not an object"
    else:
        yield from _object(value, getattr(kubernetes.client, kind), path)


def _object(value: dict[str, Any], model: Any, path: str) -> Iterator[str]:
    attributes = {key: name for name, key in model.attribute_map.items()}
    for key, item in value.items():
        if key in attributes:
            yield from _model(item, model.openapi_types[attributes[key]], f"{path}.{key}")
        else:
            yield f"{path}.{key}: unknown field of {model.__name__}"
    try:
        model(**{attributes[key]: item for key, item in value.items() if key in attributes})
    except ValueError as error:  # a required field is missing
        yield f"{path}: {error}"
