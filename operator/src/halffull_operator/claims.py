"""PersistentVolumeClaims: which of the engines' must grow, and whether they can share the one a model lies on. Pure."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from halffull_operator.compare import quantity
from halffull_operator.spec_model import shared_claim_problem

if TYPE_CHECKING:
    from halffull_operator.spec_model import Model

__all__ = ["growing", "source_claim", "unshareable"]

_SOURCE: Final = "pvc://"


def growing(stateful_set: Mapping[str, Any], claims: tuple[Mapping[str, Any], ...]) -> Iterator[tuple[str, str]]:
    """(claim, size) of every claim of a StatefulSet that asks for less than its template does. Claims never shrink."""
    for template in stateful_set["spec"].get("volumeClaimTemplates") or ():
        size = template["spec"]["resources"]["requests"]["storage"]
        wanted = quantity(size)
        of_a_pod = re.compile(
            re.escape(f"{template['metadata']['name']}-{stateful_set['metadata']['name']}-") + "[0-9]+"
        )
        for claim in claims:
            metadata = claim["metadata"]
            if metadata.get("deletionTimestamp") or not of_a_pod.fullmatch(metadata["name"]):
                continue
            if claim.get("status", {}).get("phase") == "Pending":
                continue  # the API server refuses until it is bound, of which its event tells
            asked = quantity(claim.get("spec", {}).get("resources", {}).get("requests", {}).get("storage"))
            if wanted is not None and asked is not None and asked < wanted:
                yield metadata["name"], str(size)


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
