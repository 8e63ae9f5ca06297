"""What no watch tells is asked for, and only where a serving is in trouble, and not often."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from halffull_operator import kinds, labels
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Kind, Manifest
from halffull_operator.lookups import AGAIN, CREATING_FOR, PODS_MISSING_FOR, Lookups
from halffull_operator.observed import Observed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVENT = {"reason": "FailedCreate"}
CREATING = {"state": {"waiting": {"reason": "ContainerCreating"}}}


class Asked:
    """A Cluster that answers everything alike, and remembers what it was asked."""

    def __init__(self) -> None:
        self.about: list[str] = []
        self.error: ApiError | None = None

    def _answer(self, about: str) -> list[Manifest]:
        self.about.append(about)
        if self.error is not None:
            raise self.error
        return [EVENT]

    async def list(self, kind: Kind, *, namespace: str, field_selector: str) -> tuple[list[Manifest], str]:
        assert (kind, namespace) == (kinds.EVENT, "ns")
        return self._answer(field_selector), ""

    async def get(self, kind: Kind, name: str, *, namespace: str) -> Manifest | None:
        assert (kind, namespace) == (kinds.CLAIM, "ns")
        return next(iter(self._answer(name)), None)


class World:
    """Time, a server, and Lookups."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.asked = Asked()
        cluster: Any = self.asked
        self.lookups = Lookups(
            cluster=cluster, clock=lambda: self.seconds, now=lambda: NOW + timedelta(seconds=self.seconds)
        )

    async def look(self, *pods: Manifest, replicas: int = 1, uri: str = "hf://a/b") -> Observed:
        stateful_set = {"metadata": {"name": "x-engine", "uid": "set"}, "spec": {"replicas": replicas}}
        observed = Observed(
            children={("StatefulSet", "x-engine"): stateful_set},
            pods=pods,
            body={"metadata": {"name": "x", "namespace": "ns"}},
        )
        return await self.lookups.complete("u", observed, uri=uri)


def pod(name: str = "p", *containers: Manifest) -> Manifest:
    metadata = {"name": name, "uid": name, "labels": {labels.COMPONENT: labels.ENGINE}}
    return {
        "metadata": metadata,
        "status": {"startTime": NOW.strftime("%Y-%m-%dT%H:%M:%SZ"), "containerStatuses": list(containers)},
    }


@pytest.fixture
def world() -> World:
    return World()


async def test_while_nothing_is_wrong_nobody_is_asked(world: World) -> None:
    await world.look(pod("p", {"state": {"running": {}}}))
    await world.look(replicas=0)
    assert world.asked.about == []
    assert world.lookups.wait("u") is None


async def test_pods_that_are_not_made_are_asked_about_once_it_lasts(world: World) -> None:
    assert (await world.look()).pod_events == ()
    assert (world.asked.about, world.lookups.wait("u")) == ([], PODS_MISSING_FOR)
    world.seconds = PODS_MISSING_FOR
    assert (await world.look()).pod_events == (EVENT,)
    assert world.asked.about == ["involvedObject.uid=set,type=Warning"]
    assert world.lookups.wait("u") == AGAIN
    # They come and go once more: it is another beginning.
    await world.look(pod())
    assert world.lookups.wait("u") is None
    assert (await world.look()).pod_events == ()


async def test_the_same_is_not_asked_often(world: World) -> None:
    await world.look()
    for second in range(10, 10 + 2 * int(AGAIN)):
        world.seconds = float(second)
        assert (await world.look()).pod_events == (EVENT,)
    assert len(world.asked.about) == 2


async def test_a_pod_that_is_not_created_is_asked_about_and_no_second_one(world: World) -> None:
    pods = (pod("p", CREATING), pod("q", CREATING))
    await world.look(*pods)
    assert (world.asked.about, world.lookups.wait("u")) == ([], CREATING_FOR)
    world.seconds = CREATING_FOR
    assert (await world.look(*pods)).pod_events == (EVENT,)
    assert world.asked.about == ["involvedObject.uid=p,type=Warning"]


async def test_the_claim_of_the_model_is_looked_up(world: World) -> None:
    found = await world.look(pod("p", {"state": {"running": {}}}), uri="pvc://weights/llama")
    assert (found.claims, world.asked.about) == ((EVENT,), ["weights"])


async def test_a_refusal_stops_nothing_and_an_ill_server_is_tried_again(world: World) -> None:
    world.asked.error = ApiError("Forbidden", "no", status=403)
    assert (await world.look(pod(), uri="pvc://weights/llama")).claims == ()
    world.asked.error = ApiError("InternalError", "ill", status=500, retryable=True)
    world.seconds = AGAIN
    with pytest.raises(ApiError, match="ill"):
        await world.look(pod(), uri="pvc://weights/llama")


async def test_what_is_gone_is_forgotten(world: World) -> None:
    await world.look(uri="pvc://weights/llama")
    world.lookups.forget("u")
    assert world.lookups.wait("u") is None
    await world.look(uri="pvc://weights/llama")
    assert world.asked.about == ["weights", "weights"]
