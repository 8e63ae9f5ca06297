"""A serving where Pod Security's level `restricted` is enforced, the operator's own namespace too."""

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import MakeNamespace
from tests.cluster.node import RELEASE, SYSTEM, Cluster
from tests.cluster.security.client import Client
from tests.cluster.servings import Serving, emulated

ENFORCE = "pod-security.kubernetes.io/enforce"


@pytest.fixture(scope="package")
def restricted(cluster: Cluster, namespaces: MakeNamespace) -> Iterator[str]:
    """A namespace that admits what is `restricted` alone; the operator was admitted anew by such a one, too."""
    cluster.kubectl("label", "namespace", SYSTEM, f"{ENFORCE}=restricted")
    cluster.kubectl("rollout", "restart", f"deployment/{RELEASE}", namespace=SYSTEM)
    cluster.rolled_out(f"deployment/{RELEASE}", namespace=SYSTEM)
    yield namespaces("secure", {ENFORCE: "restricted"})
    cluster.kubectl("label", "namespace", SYSTEM, f"{ENFORCE}-")


@pytest.fixture(scope="package")
def secure(cluster: Cluster, restricted: str) -> Serving:
    """Two emulated engines and two gateways in it."""
    serving = Serving.apply(cluster, restricted, emulated())
    serving.settled()
    return serving


@pytest.fixture(scope="package")
def elsewhere(namespaces: MakeNamespace) -> str:
    """A namespace of others."""
    return namespaces("elsewhere", {ENFORCE: "restricted"})


@pytest.fixture(scope="package")
def stranger(cluster: Cluster, elsewhere: str) -> Client:
    """A pod of others."""
    return Client.start(cluster, elsewhere, "stranger")
