"""When engine pods may roll, and the words for why they do. Pure.

A pod template is built from the spec, by an operator of some version. Two annotations of the StatefulSet tell an edited
spec (another `engine-inputs`: roll) from a newer operator or chart (the same inputs, another `template-hash`: leave the
pods alone). While they are left alone, the template that was applied last is applied again with whatever else changed:
managedFields say what it was (`ownership.project`). They do not say what stood where somebody else wrote since; that
rolled the pods anyway, and the repair brings the newer template.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from halffull_operator.compare import Difference, differences
from halffull_operator.labels import COMPONENT, ENGINE, ENGINE_INPUTS, GROUP, TEMPLATE_HASH
from halffull_operator.ownership import Fields, changed_by, child, our_fields, project

__all__ = ["BECAUSE", "RECREATED", "Manifest", "annotated", "because", "is_held", "is_through", "with_template"]

Manifest = dict[str, Any]

BECAUSE: Final = f"{GROUP}/rolling-because"
"""Annotation of the StatefulSet while a change of its pod template is not through: what changed."""
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
    return same_spec and another and _is_ours(live, TEMPLATE_HASH) and not _is_overwritten(wanted, live)


def is_through(live: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> bool:
    """Whether every engine is ready, and made from the newest template.

    The StatefulSet's own status does not tell: between the old pod of a single replica and the new one it counts none,
    and calls the roll complete.
    """
    status, spec = live.get("status") or {}, live.get("spec") or {}
    if (status.get("observedGeneration") or 0) < (live["metadata"].get("generation") or 0):
        return False
    engines = [
        pod
        for pod in pods
        if (pod["metadata"].get("labels") or {}).get(COMPONENT) == ENGINE
        and not pod["metadata"].get("deletionTimestamp")
    ]
    return len(engines) == spec.get("replicas", 1) and all(
        _is_new(pod, status.get("updateRevision")) for pod in engines
    )


def _is_new(pod: Mapping[str, Any], revision: str | None) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
    return ready and pod["metadata"]["labels"].get("controller-revision-hash") == revision


def with_template(
    wanted: Manifest, live: Mapping[str, Any] | None, pods: Iterable[Mapping[str, Any]] | None = None
) -> Manifest:
    """The StatefulSet to apply: the template held back where it must be, the annotations of earlier passes kept.

    Args:
        wanted: As this operator builds it.
        live: As it is.
        pods: All that there are; once they are through a roll, its reason is dropped.
    """
    if live is None:
        return wanted
    lasting = {RECREATED} if pods is not None and is_through(live, pods) else {BECAUSE, RECREATED}
    kept = {name: text for name, text in _annotations(live).items() if name in lasting}
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


def _is_overwritten(wanted: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether somebody else gave a field of our containers, variables or volumes another value.

    Elsewhere in the pod a field that is not ours may just be an addition, which an upgrade has to leave alone.
    """
    ours = child(child(our_fields(live), "spec"), "template")
    return any(
        difference.path[:2] == _TEMPLATE
        and _is_lost(ours, difference.path[2:])
        and changed_by(live, difference.path) is not None
        for difference in differences(wanted, live)
    )


def _is_lost(ours: Fields | None, path: Sequence[str]) -> bool:
    """Whether a field is no longer ours, of an item of a list that still is."""
    node, in_item = ours, False
    for step in path:
        if not node:
            return False
        is_item = step.startswith("k:")
        node = node.get(step if is_item else "f:" + step)
        if node is None:
            return in_item and not is_item
        in_item = in_item or is_item
    return False


def _applied_template(live: Mapping[str, Any]) -> Manifest:
    template: Manifest = live["spec"]["template"]
    node = child(child(our_fields(live), "spec"), "template")
    if node is None:
        return template
    applied: Manifest = project(template, node)
    return applied
