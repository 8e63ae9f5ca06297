"""metadata.managedFields: which fields of an object are ours (Kubernetes' server-side apply, format FieldsV1). Pure.

A node of FieldsV1 maps "f:NAME" (field), 'k:{"name":"x"}' (item of a list that merges by keys), "v:VALUE" (item of a
set) to nodes; "." is the thing itself; {} is owned as a whole: a scalar, an atomic list, an atomic map.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

__all__ = [
    "FIELD_MANAGER",
    "Fields",
    "changed_by",
    "child",
    "item_keys",
    "item_of",
    "item_step",
    "last_applied",
    "our_fields",
    "project",
]

FIELD_MANAGER: Final = "halffull-operator"
"""The field manager of every server-side apply of the operator."""

Fields = Mapping[str, Any]

_KEY_DEFAULTS: Final = {"protocol": "TCP"}
"""The one merge key of Kubernetes' own kinds that may be left out: the schema's default stands in managedFields."""


def _entries(live: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return live.get("metadata", {}).get("managedFields") or ()


def _ours(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for entry in _entries(live):
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            return entry
    return None


def our_fields(live: Mapping[str, Any]) -> Fields | None:
    """What our last apply set and nobody else changed since; None: never applied by us."""
    entry = _ours(live)
    return None if entry is None else entry.get("fieldsV1") or {}


def last_applied(live: Mapping[str, Any]) -> str | None:
    """When an apply of ours last changed the object (RFC 3339); None: never."""
    entry = _ours(live)
    return None if entry is None else entry.get("time")


def child(node: Fields | None, name: str) -> Fields | None:
    """The node of a field. Below what is owned as a whole everything is owned."""
    if node is None or not node:
        return node
    found: Fields | None = node.get("f:" + name)
    return found


def item_keys(node: Fields | None) -> tuple[str, ...] | None:
    """The merge keys of a list that this node is of; None: unknown, or the list is atomic or a set."""
    for step in node or ():
        if step.startswith("k:"):
            return tuple(sorted(parsed(step)))
    return None


@lru_cache(maxsize=4096)
def parsed(step: str) -> Any:
    """What follows 'k:' or 'v:'; the same few steps are asked for in every object. To be read only."""
    return json.loads(step[2:])


def item_of(items: object, step: str) -> tuple[bool, Any]:
    """(found, the item of a list that the step 'k:…' or 'v:…' names)."""
    if not isinstance(items, list):
        return False, None
    if step.startswith("v:"):
        wanted = parsed(step)
        return next(((True, item) for item in items if item == wanted), (False, None))
    pairs = _pairs(step)
    for item in items:
        if isinstance(item, dict):
            for key, value in pairs:
                if item.get(key, _KEY_DEFAULTS.get(key)) != value:
                    break
            else:
                return True, item
    return False, None


@lru_cache(maxsize=4096)
def _pairs(step: str) -> tuple[tuple[str, Any], ...]:
    return tuple(parsed(step).items())


def project(live: Any, node: Fields) -> Any:
    """The part of an object that a node names: what we applied, as the server keeps it. Applying it changes nothing.

    Fields that the server dropped are left out. What is owned as a whole is shared with the input, to be read only.
    """
    steps = [step for step in node if step != "."]
    if not steps:
        return {} if isinstance(live, dict) and "." in node else live
    if isinstance(live, dict):
        return {name: project(live[name], node["f:" + name]) for name in live if "f:" + name in node}
    if isinstance(live, list):
        return list(_projected_items(live, node, steps))
    return live


def _projected_items(live: list[Any], node: Fields, steps: Sequence[str]) -> Iterator[Any]:
    chosen = {id(item): step for step in steps for found, item in (item_of(live, step),) if found}
    for item in live:
        if id(item) in chosen:
            yield project(item, node[chosen[id(item)]])


def changed_by(live: Mapping[str, Any], path: Sequence[str]) -> str | None:
    """The other manager that owns the field at a path of `compare.Difference`, for a person; None: unknown."""
    for entry in _entries(live):
        if entry.get("manager") == FIELD_MANAGER and entry.get("operation") == "Apply":
            continue
        node: Fields | None = entry.get("fieldsV1")
        for step in path:
            if node:
                node = node.get(step if step[:2] in {"k:", "v:", "i:"} else "f:" + step)
        if node is not None:
            return str(entry.get("manager"))
    return None


def item_step(item: Mapping[str, Any], keys: Sequence[str]) -> str:
    """The step 'k:{…}' of an item, as FieldsV1 spells it."""
    values = [item.get(key, _KEY_DEFAULTS.get(key)) for key in keys]
    try:
        return _spelled(tuple(keys), *values)
    except TypeError:  # a patch of a person's: {name: {}}, which the API server will refuse
        return _spelled.__wrapped__(tuple(keys), *values)


@lru_cache(maxsize=4096, typed=True)
def _spelled(keys: tuple[str, ...], *values: Any) -> str:
    chosen = dict(sorted(zip(keys, values, strict=True)))
    return "k:" + json.dumps(chosen, separators=(",", ":"), ensure_ascii=False)
