"""What an API server makes of a manifest: managedFields of a server-side apply. As far as tests need it."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from halffull_operator.ownership import FIELD_MANAGER

KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "ownerReferences": ("uid",),
}
AS_ONE = {"selector", "nodeSelector", "matchLabels", "valueFrom", "ingress"}


def fields_of(value: Any, name: str = "") -> dict[str, Any]:
    """FieldsV1 of a value that was applied under a name."""
    if isinstance(value, Mapping) and value and name not in AS_ONE:
        return {f"f:{key}": fields_of(inner, key) for key, inner in value.items()}
    if isinstance(value, list) and value and name == "ports":
        keys = ("containerPort", "protocol") if "containerPort" in value[0] else ("port", "protocol")
        return dict(_items(value, keys))
    if isinstance(value, list) and value and name in KEYS:
        return dict(_items(value, KEYS[name]))
    return {}


def _items(value: list[Any], keys: tuple[str, ...]) -> Any:
    for item in value:
        chosen = {key: item.get(key, "TCP" if key == "protocol" else None) for key in sorted(keys)}
        yield "k:" + json.dumps(chosen, separators=(",", ":")), {".": {}, **fields_of(item)}


def ours(manifest: Mapping[str, Any], time: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    """The entry of managedFields after the operator applied a manifest."""
    rest = {key: value for key, value in manifest.items() if key not in {"apiVersion", "kind", "metadata"}}
    metadata = {
        key: manifest["metadata"][key]
        for key in ("labels", "annotations", "ownerReferences")
        if key in manifest["metadata"]
    }
    return {
        "manager": FIELD_MANAGER,
        "operation": "Apply",
        "time": time,
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": fields_of(metadata), **fields_of(rest)},
    }


def stored(manifest: Mapping[str, Any], **metadata: Any) -> dict[str, Any]:
    """The object right after the operator created it, before anybody filled in a default."""
    live = copy.deepcopy(dict(manifest))
    live["metadata"] = {"uid": "u-1", "resourceVersion": "1", "generation": 1, **live["metadata"], **metadata}
    live["metadata"]["managedFields"] = [ours(manifest)]
    return live


def write(live: dict[str, Any], path: tuple[Any, ...], value: Any, *, manager: str = "kubectl-edit") -> dict[str, Any]:
    """Another manager sets (or, with ..., removes) one field: it changes, and is ours no more.

    A step of the path is a field's name, or the FieldsV1 step of an item ('k:{"name":"x"}').
    """
    live = copy.deepcopy(live)
    entry = next(entry for entry in live["metadata"]["managedFields"] if entry["manager"] == FIELD_MANAGER)
    node, target, theirs = entry["fieldsV1"], live, {}
    inner = theirs
    for step in path[:-1]:
        target = _enter(target, step)
        key = step if step.startswith("k:") else f"f:{step}"
        if node is not None and key in node and not node[key]:
            del node[key]  # one value: all of it is theirs now
            node = None
        node = node.get(key) if node is not None else None
        inner = inner.setdefault(key, {})
    last = path[-1]
    if last.startswith("k:"):
        target.remove(_enter(target, last))
        key = last
    elif value is ...:
        del target[last]
        key = f"f:{last}"
    else:
        target[last] = value
        key = f"f:{last}"
        inner[key] = {}
    if node is not None:
        node.pop(key, None)
    live["metadata"]["managedFields"].append({"manager": manager, "operation": "Update", "fieldsV1": theirs})
    return live


def _enter(target: Any, step: str) -> Any:
    if not step.startswith("k:"):
        return target[step]
    keys = json.loads(step[2:])
    return next(item for item in target if all(item.get(key, "TCP") == value for key, value in keys.items()))
