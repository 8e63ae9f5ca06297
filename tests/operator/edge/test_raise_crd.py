"""The CRD: raised when older, never lowered, waited for when it is not there."""

import asyncio

import pytest

from halffull_operator import kinds, labels, raise_crd
from halffull_operator.cluster import Cluster
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Manifest
from tests.operator.edge.conftest import until
from tests.operator.edge.fake_api import FakeApi, refused


def crd(revision: int | str | None, *, established: bool = True, manager: str = "halffull-operator") -> Manifest:
    annotations = {} if revision is None else {labels.SCHEMA_REVISION: str(revision)}
    return {
        "apiVersion": kinds.CRD.api_version,
        "kind": kinds.CRD.kind,
        "metadata": {
            "name": raise_crd.CRD_NAME,
            "annotations": annotations,
            "managedFields": [{"manager": manager, "operation": "Apply"}],
        },
        "spec": {"of": revision},
        "status": {"conditions": [{"type": "Established", "status": str(established)}]},
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raise_crd, "_WAIT", 0.01)


@pytest.mark.parametrize("old", [1, None, "nonsense", "-7", "²"])
async def test_an_older_one_is_raised(api: FakeApi, cluster: Cluster, old: int | str | None) -> None:
    api.put(crd(old))
    assert await raise_crd.ensure(cluster, crd(2))
    (found,) = api.all(kinds.CRD)
    assert raise_crd.revision(found) == 2


@pytest.mark.parametrize("old", [2, 3, 10])
async def test_the_same_or_a_newer_one_is_left_alone(api: FakeApi, cluster: Cluster, old: int) -> None:
    api.put(crd(old))
    assert not await raise_crd.ensure(cluster, crd(2))
    assert api.count("PATCH", "customresourcedefinitions") == 0


@pytest.mark.parametrize(("old", "calls"), [(2, 1), (3, 0)])
async def test_the_same_is_held_and_a_newer_one_is_not(api: FakeApi, cluster: Cluster, old: int, calls: int) -> None:
    api.put(crd(old, manager="helm"))
    assert not await raise_crd.ensure(cluster, crd(2))
    assert api.count("PATCH", "customresourcedefinitions") == calls


async def test_one_that_is_missing_is_waited_for_and_never_made(api: FakeApi, cluster: Cluster) -> None:
    """Who installs it decides; a chart with --skip-crds means it."""
    said: list[str] = []
    task = asyncio.create_task(raise_crd.ensure(cluster, crd(2), said=said.append))
    await until("it is said", lambda: said)
    assert "halffull-operator crd" in said[0]
    assert api.all(kinds.CRD) == []
    api.put(crd(2))
    assert not await task


async def test_one_that_is_not_served_yet_is_waited_for(api: FakeApi, cluster: Cluster) -> None:
    api.put(crd(2, established=False))
    said: list[str] = []
    task = asyncio.create_task(raise_crd.ensure(cluster, crd(2), said=said.append))
    await until("it is said", lambda: said)
    api.put(crd(2))
    await task


async def test_an_ill_server_is_waited_for_and_a_refusal_is_not(api: FakeApi, cluster: Cluster) -> None:
    api.put(crd(2))
    failures = iter([True, True, False])
    api.fault = lambda _: refused(503, "ServiceUnavailable") if next(failures, False) else None
    await raise_crd.ensure(cluster, crd(2))
    api.fault = lambda _: refused(403, "Forbidden", "no rights")
    with pytest.raises(ApiError, match="no rights"):
        await raise_crd.ensure(cluster, crd(2))
