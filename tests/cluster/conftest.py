"""A real single-node Kubernetes for the session, with the chart in it.

Fixtures for tests here:

- `cluster` (session): a `node.Cluster` that is up, with the images of operator, picker, plugin, Envoy and emulated
  engine loaded and the chart installed by its defaults (tests/cluster/values.yaml says what differs and why).
  `cluster.kubectl(…)`, `cluster.helm(…)`, `cluster.apply(…)`, `cluster.get(…)`.
- `vllm` (session): the same, and vLLM's image is loaded too (6 GB: only where vLLM itself is wanted).
- `namespace` (function): a namespace of the test's own; `namespaces` (session): the function that makes more of them,
  with labels, as in `namespaces("secure", {"pod-security.kubernetes.io/enforce": "restricted"})`.
- `serving` (module): two emulated engines and two gateways, settled, for tests that leave it as it was. No other bears
  its name, which selects its pods in all namespaces.

`Serving.apply(cluster, namespace, emulated())` makes another; `with serving.load() as load:` sends requests to it.

All is built and torn down anew, in about two minutes beside the images. To keep a cluster and work against it:
`python -m tests.cluster.up dev`, then `HALFFULL_CLUSTER=dev pytest tests/cluster -m cluster`.
"""

import itertools
import os
from collections.abc import Callable, Iterator

import pytest

from tests.cluster import images, node
from tests.cluster.node import Cluster
from tests.cluster.servings import Serving, emulated

MakeNamespace = Callable[..., str]
_NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the node is marked `cluster`, and left to `make test-cluster`; with vLLM on it `vllm`, too."""
    for item in items:
        if "vllm" in getattr(item, "fixturenames", ()):
            item.add_marker("vllm")
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(900, func_only=True))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if kept := os.environ.get("HALFFULL_CLUSTER"):
        yield node.up(kept)
        return
    with node.temporary() as cluster:
        cluster.load(images.envoy())
        cluster.load_images(*images.SMALL)
        cluster.install()
        yield cluster


@pytest.fixture(scope="session")
def vllm(cluster: Cluster) -> Cluster:
    cluster.load_images(images.VLLM)
    return cluster


@pytest.fixture(scope="session")
def namespaces(cluster: Cluster) -> Iterator[MakeNamespace]:
    """Makes namespaces; they are deleted at the end of the session."""
    made = []

    def make(name: str = "test", labels: dict[str, str] | None = None) -> str:
        full = f"{name}-{next(_NUMBERS)}-{os.getpid()}"
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": full, "labels": labels or {}}}
        cluster.apply(manifest, namespace=full)
        made.append(full)
        return full

    yield make
    for name in made:
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture
def namespace(cluster: Cluster, namespaces: MakeNamespace) -> Iterator[str]:
    name = namespaces()
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module")
def serving(cluster: Cluster, namespaces: MakeNamespace) -> Iterator[Serving]:
    namespace = namespaces()
    made = Serving.apply(cluster, namespace, emulated(name=f"in-{namespace}"))
    made.settled()
    yield made
    cluster.kubectl("delete", "namespace", made.namespace, "--wait=false")
