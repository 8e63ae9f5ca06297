"""The escape hatch: a piece of a pod template, laid over the operator's own. Pure.

It is merged as `kubectl patch --type strategic` does: mappings key by key, lists of the pod API by their keys, other
lists as a whole; null removes; `$patch: delete` and `$patch: replace` are understood. Different on purpose: a volume or
a variable of the same name is replaced and not mixed, which would give it two sources.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from halffull_operator.labels import GROUP
from halffull_operator.mistakes import Mistake, Path
from halffull_operator.vllm_args import OWNED_ENV

_DIRECTIVE: Final = "$patch"
_KEYS: Final = {
    ("spec", "containers"): "name",
    ("spec", "initContainers"): "name",
    ("spec", "volumes"): "name",
    ("spec", "imagePullSecrets"): "name",
    ("spec", "hostAliases"): "ip",
    ("spec", "topologySpreadConstraints"): "topologyKey",
    ("spec", "schedulingGates"): "name",
    ("spec", "resourceClaims"): "name",
    ("env",): "name",
    ("ports",): "containerPort",
    ("volumeMounts",): "mountPath",
    ("volumeDevices",): "devicePath",
    ("resources", "claims"): "name",
}
"""Lists that merge, by their place in the template, or in one of its containers."""
_CONTAINERS: Final = ("containers", "initContainers")
_WHOLE: Final = ("volumes", "env")
_MAX_DEPTH: Final = 24
_MAX_VALUES: Final = 5_000
_MOST: Final = 2**63 - 1
_LONGEST_KEY: Final = 317  # of a label or an annotation, with its prefix

_OWN_POD_FIELDS: Final = {
    "restartPolicy": "pods are always restarted",
    "hostname": "it is the pod's identity",
    "subdomain": "it is the pod's identity",
    "automountServiceAccountToken": "the operator sets it",
}
ENGINE_POD_FIELDS: Final = _OWN_POD_FIELDS | {
    "terminationGracePeriodSeconds": "write engine.drainTimeout",
    "serviceAccountName": "write engine.serviceAccountName",
    "serviceAccount": "write engine.serviceAccountName",
    "runtimeClassName": "write engine.runtimeClassName",
    "nodeSelector": "write engine.nodeSelector",
    "tolerations": "write engine.tolerations",
    "imagePullSecrets": "write engine.imagePullSecrets",
}
GATEWAY_POD_FIELDS: Final = _OWN_POD_FIELDS | {
    "terminationGracePeriodSeconds": "write engine.drainTimeout",
    "serviceAccountName": "the picker's permissions hang on it",
    "serviceAccount": "the picker's permissions hang on it",
}
_COMMAND: Final = {
    "command": "the operator sets it",
    "lifecycle": "draining hangs on it",
    "ports": "the operator sets them",
}
ENGINE_CONTAINERS: Final = {
    "engine": _COMMAND
    | {"args": "write engine.args", "image": "write engine.image", "resources": "write engine.resources"},
    "larry": _COMMAND | {"args": "the operator sets it"},
}
GATEWAY_CONTAINERS: Final = {
    name: _COMMAND | {"args": "the operator sets it", "restartPolicy": "the picker is a sidecar"}
    for name in ("envoy", "picker", "bootstrap")
}


def merge(base: Any, patch: Mapping[str, Any], path: Path = ()) -> Any:
    """`patch` laid over `base`; neither is changed.

    Raises:
        Mistake: an item of a list that merges has no key, or the patch has another kind of value there.
    """
    if patch.get(_DIRECTIVE) == "replace":
        return _without_nulls({key: value for key, value in patch.items() if key != _DIRECTIVE})
    merged = dict(base)
    for key, value in patch.items():
        here = (*path, key)
        if value is None:
            merged.pop(key, None)
        elif list_key := _list_key(here):
            merged[key] = _merge_list(merged.get(key) or [], value, list_key, here)
        elif isinstance(value, Mapping):
            inner = merged.get(key)
            merged[key] = merge(inner if isinstance(inner, Mapping) else {}, value, here)
        else:
            merged[key] = value
    return merged


def _merge_list(base: list[Any], patch: Any, key: str, path: Path) -> list[Any]:
    if not isinstance(patch, list | tuple):
        raise Mistake(path, f"write a list of items, each with {key}")
    merged = list(base)
    for index, item in enumerate(patch):
        if not isinstance(item, Mapping) or not _is_key(item.get(key)):
            raise Mistake((*path, index), f"each item needs {key}, by which it is merged")
        place = next((at for at, known in enumerate(merged) if known.get(key) == item[key]), None)
        if item.get(_DIRECTIVE) == "delete":
            if place is not None:
                del merged[place]
        elif place is None:
            merged.append(merge({}, item, (*path, index)))
        elif path[-1] in _WHOLE:
            merged[place] = _without_nulls(item)
        else:
            merged[place] = merge(merged[place], item, (*path, index))
    return merged


def _is_key(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _list_key(path: Path) -> str | None:
    names = tuple(step for step in path if not isinstance(step, int))
    if names in _KEYS:
        return _KEYS[names]
    if len(names) > 2 and names[0] == "spec" and names[1] in _CONTAINERS:
        return _KEYS.get(names[2:])
    return None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


def refused(
    patch: Mapping[str, Any], *, pod_fields: Mapping[str, str], containers: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[Path, str]]:
    """What of a patch cannot be used: too large, of the wrong form, or about what belongs to the operator.

    Args:
        patch: what a person wrote.
        pod_fields: fields of the pod that belong to the operator → what to write instead.
        containers: the operator's containers → the same for their fields.
    """
    if problem := _oversized(patch):
        yield (), problem
        return
    yield from _refused_values(patch, ())
    for key in patch:
        if key not in ("metadata", "spec"):
            yield (key,), "a pod template has metadata and spec, nothing else"
    yield from _refused_metadata(patch.get("metadata", {}))
    yield from _refused_spec(patch.get("spec", {}), pod_fields, containers)
    try:
        merge({}, patch)
    except Mistake as mistake:
        yield mistake.path, mistake.message


def _refused_spec(
    spec: Any, pod_fields: Mapping[str, str], containers: Mapping[str, Mapping[str, str]]
) -> Iterator[tuple[Path, str]]:
    if not isinstance(spec, Mapping):
        yield ("spec",), "write a mapping of a pod's fields"
        return
    if _DIRECTIVE in spec:
        yield ("spec", _DIRECTIVE), "it would remove the operator's own containers"
    for field, instead in pod_fields.items():
        if field in spec:
            yield ("spec", field), f"belongs to the operator: {instead}"
    for group in (*_CONTAINERS, "volumes"):
        if group in spec and not isinstance(spec[group], list | tuple):
            yield ("spec", group), "write a list of items, each with name"
            return
    for group in _CONTAINERS:
        for index, container in enumerate(spec.get(group, ())):
            yield from _refused_container(container, containers, ("spec", group, index))


def _refused_metadata(metadata: Any) -> Iterator[tuple[Path, str]]:
    if not isinstance(metadata, Mapping):
        yield ("metadata",), "write a mapping with labels and annotations"
        return
    for key in metadata:
        if key not in ("labels", "annotations"):
            yield ("metadata", key), "only labels and annotations can be added"
    for group in ("labels", "annotations"):
        entries = metadata.get(group, {})
        if not isinstance(entries, Mapping):
            yield ("metadata", group), "write a mapping of text to text"
            continue
        for key, value in entries.items():
            if key.startswith(f"{GROUP}/") or (group == "labels" and key.startswith("app.kubernetes.io/")):
                yield ("metadata", group, key), "belongs to the operator, which finds its pods by it"
            elif not isinstance(value, str):
                yield ("metadata", group, key), "write text, in quotes"


def _refused_container(
    container: Any, containers: Mapping[str, Mapping[str, str]], path: Path
) -> Iterator[tuple[Path, str]]:
    if not isinstance(container, Mapping) or not isinstance(container.get("name"), str):
        yield path, "each item needs name, by which it is merged"
        return
    own = containers.get(container["name"])
    if own is None:
        return
    if _DIRECTIVE in container:
        yield (*path, _DIRECTIVE), f"the container {container['name']} cannot be removed or replaced"
    for field, instead in own.items():
        if field in container:
            yield (*path, field), f"belongs to the operator: {instead}"
    env = container.get("env", [])
    if not isinstance(env, list | tuple):
        yield (*path, "env"), "write a list of items, each with name"
        return
    names = [item.get("name") if isinstance(item, Mapping) else None for item in env]
    for index, name in enumerate(names):
        if isinstance(name, str) and (name in OWNED_ENV or name == "PYTHONPATH"):
            yield (*path, "env", index, "name"), f"belongs to the operator: write {name} in engine.env, or leave it out"


def _refused_values(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    """What the API server makes something else of without a word, or cannot even read."""
    # No field of a pod is a fraction.
    if isinstance(value, float) or (isinstance(value, int) and not -_MOST - 1 <= value <= _MOST):
        yield path, f"{value!r} does not fit: write a whole number of at most 64 bits"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if len(key) > _LONGEST_KEY:
                yield (*path, key[:20] + "…"), f"no field and no key has more than {_LONGEST_KEY} characters"
            yield from _refused_values(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _refused_values(inner, (*path, index))


def _oversized(patch: Mapping[str, Any]) -> str | None:
    """Whether it is deeper or larger than a pod template can sensibly be; without recursion."""
    level: list[Any] = [patch]
    seen = 0
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for value in level
            for inner in (value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ())
        ]
        seen += len(level)
        if seen > _MAX_VALUES:
            return f"has more than {_MAX_VALUES} values"
        if not level:
            return None
    return f"is nested deeper than {_MAX_DEPTH} levels"
