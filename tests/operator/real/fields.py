"""Every field of an LLMServing's spec: what a table of edits is made of, and how what an edit did is compared with it.

An `Edit` is one LLMServing that is made, brought to rest, and changed. Its rows say which field changed and which path
of which child takes which value; what the children differ in afterwards must be exactly that. Children are flattened,
`path → scalar`, so that a difference is one line: items of lists stand under their key, flags of a command line under
their name, and the picker's configuration is read.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from halffull_operator import kinds
from halffull_operator.kinds import Kind, Manifest
from halffull_operator.labels import ENGINE_INPUTS, GROUP, PICKER_CONFIG, TEMPLATE_HASH
from halffull_operator.names import base_name
from halffull_operator.shape import Kind as Form
from halffull_operator.shape import Shape
from tests.operator.kube import Api

Spec = dict[str, Any]
Flat = dict[str, Any]
Snapshot = dict[str, Flat]
"""A child, as KIND/SUFFIX of its name → its content; "" stands for the child itself, and is its uid."""

ENGINES: Final = "StatefulSet/engine"
GATEWAYS: Final = "Deployment/gateway"
PICKER: Final = "ConfigMap/picker"
POD: Final = "spec.template.spec"
ENGINE: Final = f"{POD}.containers[engine]"
CONFIG: Final = "data[picker.yaml]"

ANY: Final = ...
"""A value that the API server chooses."""
GONE: Final = None
"""No longer there."""

BASE: Final[Manifest] = {
    "model": {"uri": "hf://org/model"},
    "replicas": 0,
    "engine": {"gpuResource": "none", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}},
    "gateway": {"managed": {"replicas": 1}},
}


@dataclass(frozen=True)
class Row:
    """Where a field's value goes."""

    field: str
    """As `fields` spells it."""
    child: str
    path: str
    """"" for the whole child: then the value is ANY (made) or GONE."""
    value: Any


@dataclass(frozen=True)
class Says:
    """A field whose edit is told by a condition."""

    field: str
    condition: str
    status: str
    reason: str
    part: str
    """Of the message."""


@dataclass(frozen=True)
class Edit:
    """One LLMServing: how it begins, what is merged into its spec later, and what comes of that."""

    before: Manifest
    """Merged into BASE."""
    after: Manifest
    rows: tuple[Row, ...]
    says: tuple[Says, ...] = ()
    rolls: frozenset[str] = frozenset()
    """Of ENGINES and GATEWAYS: whose pods are replaced. Nobody else's are."""
    recreated: tuple[str, ...] = ()
    """Children that cannot be changed in place."""
    exact: bool = True
    """Whether the rows tell everything that changes."""

    @property
    def fields(self) -> set[str]:
        """Fields that it covers."""
        return {row.field for row in self.rows} | {one.field for one in self.says}


@dataclass
class Found:
    """What an edit did."""

    before: Snapshot
    after: Snapshot
    body: Manifest = field(default_factory=dict)
    """The LLMServing, at the end."""


def of_engines(field: str, path: str, value: Any) -> Row:
    """A row about the StatefulSet."""
    return Row(field, ENGINES, path, value)


def fields(shape: Shape, path: str = "") -> Iterator[str]:
    """Every field that holds a value: `model.uri`, `engine.env[].name`."""
    if shape.kind is Form.OBJECT:
        for member in shape.fields:
            yield from fields(member.shape, f"{path}.{member.name}" if path else member.name)
    elif shape.kind is Form.LIST and shape.item is not None and shape.item.kind is Form.OBJECT:
        yield from fields(shape.item, f"{path}[]")
    else:
        yield path


def merged(base: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(base) if isinstance(base, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def snapshots(admin: Api, namespace: str, names: Iterable[str]) -> dict[str, Snapshot]:
    """All children of each LLMServing, and the claims of its engines."""
    found: dict[str, Snapshot] = {name: {} for name in names}
    bases = {base_name(name): name for name in found}
    for kind in (*kinds.CHILDREN, kinds.CLAIM):
        for item in admin.list(kind, namespace):
            base = (item["metadata"].get("labels") or {}).get(f"{GROUP}/name")
            if base in bases:
                suffix = item["metadata"]["name"].replace(f"{base}-", "")
                found[bases[base]][f"{kind.kind}/{suffix}"] = flat(kind, item)
    return found


_NOT_OURS: Final = {"deployment.kubernetes.io/revision"}


def flat(kind: Kind, body: Manifest) -> Flat:
    """A child as paths and scalars: what somebody wrote, not what the server or a controller notes."""
    if kind is kinds.CLAIM:
        content = {"spec": {"resources": body["spec"]["resources"]}}
    else:
        content = {key: value for key, value in body.items() if key not in ("apiVersion", "kind", "metadata", "status")}
        kept = {key: body["metadata"].get(key) or {} for key in ("labels", "annotations", "ownerReferences")}
        kept["annotations"] = {key: value for key, value in kept["annotations"].items() if key not in _NOT_OURS}
        content["metadata"] = {key: value for key, value in kept.items() if value}
    if kind.kind == "ConfigMap":
        content["data"] = {key: _parsed(text) for key, text in content["data"].items()}
    return {"": body["metadata"]["uid"], **dict(_leaves(content, ""))}


def _parsed(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text  # somebody spoiled it


_KEYS: Final = ("mountPath", "name", "ip", "topologyKey", "uid")


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            step = f"[{key}]" if "." in key or "/" in key else f".{key}" if path else key
            yield from _leaves(inner, path + step)
    elif isinstance(value, list) and path.endswith(".args") and value[:1] != ["run"]:
        for flag, text in _flags(value):
            yield f"{path}.{flag}", text
    elif isinstance(value, list) and value:
        key = next((key for key in _KEYS if all(isinstance(item, dict) and key in item for item in value)), None)
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{item[key] if key else index}]")
    else:
        yield path, value


def _flags(args: list[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values; a value that no flag claims stands under its place."""
    values: dict[str, list[str]] = {}
    last = None
    for index, item in enumerate(args):
        if item.startswith("-"):
            last, equals, value = item.partition("=")
            values[last] = [value] if equals else []
        elif last is None:
            values[str(index)] = [item]
        else:
            values[last].append(item)
    return ((flag, " ".join(parts)) for flag, parts in values.items())


def changes(before: Snapshot, after: Snapshot) -> dict[tuple[str, str], Any]:
    """(child, path) → the value afterwards. A child that came or went is one change; a uid is none."""
    found: dict[tuple[str, str], Any] = {}
    for child in before.keys() | after.keys():
        if child not in after or child not in before:
            found[child, ""] = after.get(child, {}).get("", GONE)
            continue
        old, new = before[child], after[child]
        for path in old.keys() | new.keys():
            if path and old.get(path) != new.get(path):
                found[child, path] = new.get(path, GONE)
    return found


_NOTES: Final[Mapping[str, tuple[str, ...]]] = {
    ENGINES: tuple(
        f"metadata.annotations[{name}]" for name in (TEMPLATE_HASH, ENGINE_INPUTS, f"{GROUP}/rolling-because")
    ),
    GATEWAYS: (f"metadata.annotations[{TEMPLATE_HASH}]", f"spec.template.metadata.annotations[{PICKER_CONFIG}]"),
}
"""What the operator notes on what it rolls."""
_RECREATED: Final = f"metadata.annotations[{GROUP}/recreated-because]"


def check(edit: Edit, found: Found) -> None:
    """Compare what an edit did with its rows.

    Raises:
        AssertionError: which paths did not take their value, which others changed, or which pods roll for nothing.
    """
    changed = changes(found.before, found.after)
    for child in (ENGINES, GATEWAYS):
        note = changed.get((child, _NOTES[child][0]))
        made_anew = (child, "") in changed
        assert made_anew or (note is not None) == (child in edit.rolls), f"{child}: rolls: {note is not None}"
    for row in edit.rows:
        assert (row.child, row.path) in changed, f"{row.field}: {row.child} {row.path} did not change: {changed}"
        value = changed[row.child, row.path]
        assert value is not GONE if row.value is ANY else value == row.value, f"{row.field}: {row.path} is {value!r}"
    if edit.exact:
        noted = {(child, path) for child in edit.rolls for path in _NOTES[child]}
        noted |= {(child, _RECREATED) for child in edit.recreated}
        others = changed.keys() - noted - {(row.child, row.path) for row in edit.rows}
        assert not others, f"nobody asked for { ({key: changed[key] for key in others}) }"
    new = {
        child for child in found.before.keys() & found.after.keys() if found.before[child][""] != found.after[child][""]
    }
    assert new == set(edit.recreated)
