"""When engine pods may roll, and the words for why they do. Pure.

A pod template is built from the spec, by an operator of some version. Two annotations of the StatefulSet tell an edited
spec (another `engine-inputs`: roll) from a newer operator or chart (the same inputs, another `template-hash`: leave the
pods alone). While they are left alone, the template that was applied last is applied again with whatever else changed:
managedFields say what it was (`ownership.project`).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from halffull_operator.compare import Difference
from halffull_operator.labels import ENGINE_INPUTS, GROUP, TEMPLATE_HASH
from halffull_operator.ownership import child, our_fields, project

__all__ = ["BECAUSE", "RECREATED", "Manifest", "annotated", "because", "is_held", "with_template"]

Manifest = dict[str, Any]

BECAUSE: Final = f"{GROUP}/rolling-because"
"""Annotation of the StatefulSet: what changed when its pod template last did."""
RECREATED: Final = f"{GROUP}/recreated-because"
"""Annotation of the StatefulSet: GENERATION:FIELD,FIELD:HASH for which it was made anew; a hash of their values."""

_RESTARTED: Final = "kubectl.kubernetes.io/restartedAt"
"""`kubectl rollout restart` sets it in the template. Kept, so that no later write of ours rolls the pods once more."""

_TEMPLATE: Final = ("spec", "template")
_MOST: Final = 6
_LONGEST: Final = 300


def is_held(wanted: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether the same spec would make another template: a newer operator or chart, for which nothing rolls."""
    if live is None:
        return False
    now, then = _annotations(wanted), _annotations(live)
    same_spec = now.get(ENGINE_INPUTS) is not None and now.get(ENGINE_INPUTS) == then.get(ENGINE_INPUTS)
    another = then.get(TEMPLATE_HASH) is not None and now.get(TEMPLATE_HASH) != then[TEMPLATE_HASH]
    return same_spec and another and _is_ours(live, TEMPLATE_HASH)


def with_template(wanted: Manifest, live: Mapping[str, Any] | None) -> Manifest:
    """The StatefulSet to apply: the template held back where it must be, the annotations of earlier passes kept."""
    if live is None:
        return wanted
    kept = {name: text for name, text in _annotations(live).items() if name in {BECAUSE, RECREATED}}
    template = wanted["spec"]["template"]
    if is_held(wanted, live):
        kept[TEMPLATE_HASH] = _annotations(live)[TEMPLATE_HASH]
        template = _applied_template(live)
    elif (at := _annotations(live["spec"]["template"]).get(_RESTARTED)) is not None:
        metadata = template.get("metadata") or {}
        annotations = {**(metadata.get("annotations") or {}), _RESTARTED: at}
        template = {**template, "metadata": {**metadata, "annotations": annotations}}
    return annotated({**wanted, "spec": {**wanted["spec"], "template": template}}, kept)


def annotated(manifest: Manifest, more: Mapping[str, str]) -> Manifest:
    """The same with more annotations."""
    metadata = manifest["metadata"]
    return {**manifest, "metadata": {**metadata, "annotations": {**(metadata.get("annotations") or {}), **more}}}


def because(found: Iterable[Difference]) -> str | None:
    """What of the pod template changed, for a person; values of variables and flags, which may be secret, are left out.

    None: nothing did, and no pod rolls.
    """
    words: dict[str, None] = {}
    for difference in found:
        if difference.path[:2] == _TEMPLATE:
            words[_word(difference)] = None
    if not words:
        return None
    text = ", ".join(list(words)[:_MOST]) + (f" and {len(words) - _MOST} more" if len(words) > _MOST else "")
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _word(difference: Difference) -> str:
    path = [step for step in difference.path[2:] if step not in {"metadata", "spec", "annotations", "containers"}]
    while path and path[0].startswith("k:"):  # the container's own name
        del path[0]
    match path:
        case ["args", *_]:
            return "args " + ", ".join(_flags(difference)) if difference.wanted and difference.found else "args"
        case ["image"] if difference.wanted and difference.found:
            return f"image {json.loads(difference.found)} → {json.loads(difference.wanted)}"
        case ["env", step, *_] if step.startswith("k:"):
            return f"env {json.loads(step[2:])['name']}"
        case []:
            return "pod template"
    return Difference(tuple(path), None, None).where


def _flags(difference: Difference) -> list[str]:
    now, then = (_by_flag(json.loads(text or "[]")) for text in (difference.wanted, difference.found))
    changed = [flag for flag in {**then, **now} if now.get(flag) != then.get(flag)]
    return changed or ["(their order)"]


def _by_flag(args: Sequence[Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    flag = "model"
    for arg in map(str, args):
        if arg.startswith("--"):
            flag, _, value = arg.partition("=")
            found.setdefault(flag, []).append(value)
        else:
            found.setdefault(flag, []).append(arg)
    return found


def _annotations(thing: Mapping[str, Any]) -> Mapping[str, str]:
    return (thing.get("metadata") or {}).get("annotations") or {}


def _is_ours(live: Mapping[str, Any], annotation: str) -> bool:
    """Whether nobody else wrote it since: a hash of somebody's own says nothing about the template."""
    metadata = child(our_fields(live), "metadata")
    return metadata is None or child(child(metadata, "annotations"), annotation) is not None


def _applied_template(live: Mapping[str, Any]) -> Manifest:
    template: Manifest = live["spec"]["template"]
    node = child(child(our_fields(live), "spec"), "template")
    if node is None:
        return template
    applied: Manifest = project(template, node)
    return applied
