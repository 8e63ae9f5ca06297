"""CRDs of the optional APIs, as far as the API server needs them to store and serve what the operator makes."""

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from tests.operator.kube import Api, Refused, wait_until


def install(admin: Api) -> None:
    """Have PodMonitor, InferencePool and HTTPRoute served; what is there already stays as it is."""
    for kind in kinds.OPTIONAL:
        name = f"{kind.plural}.{kind.group}"
        if admin.get(kinds.CRD, name) is None:
            admin.create(crd(kind))
        wait_until(f"{name} is served", lambda kind=kind: served(admin, kind))


def crd(kind: kinds.Kind) -> Manifest:
    """A CRD that takes anything as spec and status."""
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": free, "status": free}}},
    }
    return {
        "apiVersion": kinds.CRD.api_version,
        "kind": kinds.CRD.kind,
        # The groups of Kubernetes' own are protected: without it the API server takes no CRD of theirs.
        "metadata": {
            "name": f"{kind.plural}.{kind.group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a test"},
        },
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {"kind": kind.kind, "plural": kind.plural, "singular": kind.kind.lower()},
            "versions": [version],
        },
    }


def served(admin: Api, kind: kinds.Kind) -> bool:
    """Whether objects of a kind can be listed; a CRD is established a moment before that."""
    try:
        admin.call("GET", kind.path())
    except Refused:
        return False
    return True
