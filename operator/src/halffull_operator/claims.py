"""PersistentVolumeClaims: which of the engines' must grow, which would stay, and can they share a model's. Pure."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from halffull_operator.compare import quantity
from halffull_operator.spec_model import shared_claim_problem

if TYPE_CHECKING:
    from halffull_operator.spec_model import Model

__all__ = ["growing", "left_over", "source_claim", "unshareable"]

_SOURCE: Final = "pvc://"


def growing(stateful_set: Mapping[str, Any], claims: tuple[Mapping[str, Any], ...]) -> Iterator[tuple[str, str]]:
    """(claim, size) of every claim of a StatefulSet that asks for less than its template does. Claims never shrink."""
    for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
        size = template["spec"]["resources"]["requests"]["storage"]
        wanted = quantity(size)
        for _, claim in _of_pods(stateful_set, template, claims):
            if claim.get("status", {}).get("phase") == "Pending":
                continue  # the API server refuses until it is bound, of which its event tells
            asked = quantity(claim.get("spec", {}).get("resources", {}).get("requests", {}).get("storage"))
            if wanted is not None and asked is not None and asked < wanted:
                yield claim["metadata"]["name"], str(size)


def left_over(
    stateful_set: Mapping[str, Any], claims: tuple[Mapping[str, Any], ...], pods: Collection[str]
) -> tuple[str, ...]:
    """Claims that will not go with the StatefulSet although whenDeleted is Delete.

    Its controller makes a claim its own only while there is the claim's pod. One that was kept at a scale-down is
    nobody's once the StatefulSet was made anew (whose orphans lose their owner), or if whenDeleted was Retain then.
    """
    policy = stateful_set["spec"].get("persistentVolumeClaimRetentionPolicy") or {}
    if policy.get("whenDeleted") != "Delete":
        return ()
    return tuple(
        claim["metadata"]["name"]
        for template in stateful_set["spec"].get("volumeClaimTemplates") or ()
        for number, claim in _of_pods(stateful_set, template, claims)
        if number >= stateful_set["spec"]["replicas"]
        and f"{stateful_set['metadata']['name']}-{number}" not in pods
        and not claim["metadata"].get("ownerReferences")
    )


def _of_pods(
    stateful_set: Mapping[str, Any], template: Mapping[str, Any], claims: tuple[Mapping[str, Any], ...]
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(number of its pod, claim) of a template's claims that are not being deleted."""
    of_a_pod = re.compile(re.escape(f"{template['metadata']['name']}-{stateful_set['metadata']['name']}-") + "([0-9]+)")
    for claim in claims:
        match = of_a_pod.fullmatch(claim["metadata"]["name"])
        if match is not None and not claim["metadata"].get("deletionTimestamp"):
            yield int(match[1]), claim


def source_claim(uri: str) -> str | None:
    """The claim that a model.uri of pvc://CLAIM/PATH names."""
    return uri.removeprefix(_SOURCE).partition("/")[0] if uri.startswith(_SOURCE) else None


def unshareable(model: "Model", replicas: int, claims: tuple[Mapping[str, Any], ...]) -> tuple[bool, str] | None:
    """(certain to fail, message): engines cannot, or perhaps cannot, all mount the claim that the model lies on.

    None: they can, or the claim is not known.
    """
    name = source_claim(model.uri)
    for claim in claims:
        if claim["metadata"]["name"] == name:
            modes = tuple(claim.get("spec", {}).get("accessModes") or ())
            return shared_claim_problem(model, replicas=replicas, access_modes=modes) if modes else None
    return None
