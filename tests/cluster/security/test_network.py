"""`networkPolicy.enabled`: engines answer their gateway, whom `allowFrom` names and the kubelet, and nobody else."""

from collections.abc import Iterator

import pytest

from tests.cluster import node
from tests.cluster.node import Cluster
from tests.cluster.security.client import SILENCE, Client
from tests.cluster.servings import Serving, uid
from tests.operator.kube import wait_until


@pytest.fixture(scope="module")
def enforced(cluster: Cluster) -> Iterator[None]:
    """The node enforces policies."""
    with cluster.network_policies():
        yield


@pytest.fixture(scope="module")
def neighbour(cluster: Cluster, secure: Serving) -> Client:
    """Another pod of the serving's own namespace."""
    return Client.start(cluster, secure.namespace, "neighbour")


@pytest.fixture(scope="module")
def guarded(enforced: None, secure: Serving, stranger: Client) -> Iterator[Serving]:
    """The serving with its policy, as soon as that is enforced."""
    assert set(stranger.ask(*engines(secure))) == {"200"}, "without it the engines are open, as docs/production.md says"
    secure.patch(networkPolicy={"enabled": True})
    becomes(SILENCE, secure, stranger)
    yield secure
    secure.patch(networkPolicy=None)
    becomes("200", secure, stranger)


def becomes(answer: str, serving: Serving, client: Client) -> None:
    """Wait until all that the client hears from engines is this."""
    wait_until(f"{client.name}: {answer}", lambda: set(client.ask(*engines(serving))) == {answer}, within=node.SLOW)


def engines(serving: Serving) -> list[str]:
    """What to ask the engines for, at the port of the API and at that of the load reports."""
    addresses = [pod["status"]["podIP"] for pod in serving.engines()]
    return [f"http://{address}:{rest}" for address in addresses for rest in ("8000/health", "9400/load")]


def gateway(serving: Serving) -> str:
    """What to ask the gateway for."""
    return f"{serving.url}/models"


def test_only_the_gateway_reaches_engines(guarded: Serving, stranger: Client, neighbour: Client) -> None:
    for client in (stranger, neighbour):
        becomes(SILENCE, guarded, client)
        assert client.ask(*engines(guarded), gateway(guarded)) == [SILENCE] * 4 + ["200"], client.name
    gone, stays = guarded.engines()
    with guarded.load() as load:
        # A new one has no old connections: its probes and the pickers' polls have to get in anew.
        guarded.kubectl("delete", "pod", gone["metadata"]["name"], "--wait=false")
        guarded.wait("it has gone", lambda: uid(gone) not in {uid(pod) for pod in guarded.engines()})
        guarded.settled()
        load.more(40)
    assert not load.failed(), load.failed()[:5]
    pods = guarded.engines()
    assert uid(stays) in {uid(pod) for pod in pods}
    assert [pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods] == [0, 0]
    addresses = {pod["status"]["podIP"] for pod in pods}
    guarded.wait("both have served, by the gateways' logs", lambda: addresses <= set(guarded.logged().values()))
    assert set(stranger.ask(*engines(guarded))) == {SILENCE}, "the new one is no more open"


@pytest.mark.parametrize("by", ["namespace", "pod"])
def test_allow_from_lets_others_in(guarded: Serving, stranger: Client, neighbour: Client, by: str) -> None:
    names, pods = {"kubernetes.io/metadata.name": stranger.namespace}, {"app": neighbour.name}
    peer = (
        {"namespaceSelector": {"matchLabels": names}, "podSelector": {"matchLabels": {"app": stranger.name}}}
        if by == "namespace"
        else {"podSelector": {"matchLabels": pods}}
    )
    friend, other = (stranger, neighbour) if by == "namespace" else (neighbour, stranger)
    guarded.patch(networkPolicy={"enabled": True, "allowFrom": [peer]})
    becomes("200", guarded, friend)
    becomes(SILENCE, guarded, other)  # whom the last test let in, perhaps
    assert other.ask(*engines(guarded), gateway(guarded)) == [SILENCE] * 4 + ["200"]
