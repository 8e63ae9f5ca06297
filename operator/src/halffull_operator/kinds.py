"""The kinds of object that the operator touches, and their paths in the API. Pure.

The table is fixed, so that nothing has to be discovered: a client that discovers makes calls of its own, at start and
at every miss.
"""

from dataclasses import dataclass
from typing import Any, Final

from halffull_operator import labels

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    optional: bool = False
    """Not of Kubernetes itself: a cluster may not serve it."""

    @property
    def group(self) -> str:
        """The API group; "" is the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version in its group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The path of one object, of a collection, or of the collection of all namespaces."""
        parts = ["apis" if self.group else "api", self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/" + "/".join(parts)


SERVING: Final = Kind(labels.API_VERSION, labels.KIND, labels.PLURAL)
STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
POD: Final = Kind("v1", "Pod", "pods")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT: Final = Kind("v1", "Event", "events")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
CRD: Final = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)

CHILDREN: Final = (
    STATEFUL_SET,
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("v1", "Service", "services"),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", optional=True),
    Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools", optional=True),
    Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", optional=True),
)
"""What a child of an LLMServing can be."""
OPTIONAL: Final = tuple(kind for kind in CHILDREN if kind.optional)

_BY_NAME: Final = {(kind.api_version, kind.kind): kind for kind in (*CHILDREN, SERVING, POD, CLAIM, EVENT, LEASE, CRD)}


def kind_of(manifest: Manifest) -> Kind:
    """The kind of an object.

    Raises:
        KeyError: the operator has nothing to do with such objects.
    """
    return named(manifest["apiVersion"], manifest["kind"])


def named(api_version: str, kind: str) -> Kind:
    """The kind of that name.

    Raises:
        KeyError: the operator has nothing to do with such objects.
    """
    return _BY_NAME[api_version, kind]
