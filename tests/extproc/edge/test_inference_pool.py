import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from halffull_extproc.discovery.inference_pool import PoolPods, Target, endpoints_from_pods, target_of
from halffull_extproc.discovery.kube import KubeError
from halffull_extproc.endpoint import Endpoint, Health

from .kube_api import FakeApi, kube_api
from .waiting import until

POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools"
PODS = "/api/v1/namespaces/ns/pods"


def pool(labels: Any = None, ports: Any = None, name: str = "p") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": "vllm"} if labels is None else labels},
            "targetPorts": [{"number": 8000}] if ports is None else ports,
        },
    }


def pod(name: str, *ips: str, ready: bool = True, phase: str = "Running", deleted: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {
        "metadata": metadata,
        "status": {
            "phase": phase,
            "podIP": ips[0] if ips else None,
            "podIPs": [{"ip": ip} for ip in ips],
            "conditions": [{"type": "Ready", "status": str(ready)}, {"type": "Initialized", "status": "True"}],
        },
    }


def read(*pods: dict[str, Any], ports: tuple[int, ...] = (8000,), ranks: int = 1) -> list[Endpoint]:
    return endpoints_from_pods(pods, ports=ports, load_port=9400, ranks=ranks)


def test_the_selector_and_ports_of_a_pool() -> None:
    target = target_of(pool({"b": "2", "a": "1"}, [{"number": 8000}, {"number": 8001}]))
    assert target == Target(selector="a=1,b=2", ports=(8000, 8001))


@pytest.mark.parametrize(
    "bad",
    [
        {"metadata": {"name": "p"}},
        pool({}),
        pool(ports=[]),
        pool(ports=[{"number": 0}]),
        pool(ports=[{}]),
        pool(ports=[{"number": 8000}, {"number": 70000}]),
        pool(ports=["8000"]),
    ],
)
def test_a_pool_that_selects_everything_or_has_no_port_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(KubeError, match=r"matchLabels|targetPorts"):
        target_of(bad)


@pytest.mark.parametrize(
    ("one", "health"),
    [
        (pod("a", "10.0.0.1"), [Health.HEALTHY]),
        (pod("a", "10.0.0.1", ready=False), [Health.UNHEALTHY]),
        (pod("a", "10.0.0.1", deleted=True), [Health.DRAINING]),
        (pod("a", "10.0.0.1", deleted=True, ready=False), [Health.DRAINING]),
        (pod("a", "10.0.0.1", phase="Failed"), []),
        (pod("a", "10.0.0.1", phase="Succeeded"), []),
        (pod("a"), []),
        ({"metadata": {"name": "a"}}, []),
    ],
)
def test_the_health_of_pods(one: dict[str, Any], health: list[Health]) -> None:
    assert [endpoint.health for endpoint in read(one)] == health


def test_a_pod_of_both_families_is_one_endpoint() -> None:
    assert [one.address for one in read(pod("a", "fd00::1", "10.0.0.1"))] == ["10.0.0.1:8000"]
    assert [one.address for one in read(pod("a", "fd00::1"))] == ["[fd00::1]:8000"]


def test_an_address_without_the_list_of_addresses_counts() -> None:
    old = pod("a", "10.0.0.1")
    del old["status"]["podIPs"]
    assert [one.address for one in read(old)] == ["10.0.0.1:8000"]


def test_several_ports_are_several_engines_with_load_ports_of_their_own() -> None:
    found = read(pod("a", "10.0.0.1", "fd00::1"), ports=(8000, 8001), ranks=2)
    assert [(one.address, one.load_port) for one in found] == [("10.0.0.1:8000", 9400), ("10.0.0.1:8001", 9402)]


class Told:
    def __init__(self) -> None:
        self.lists: list[list[str]] = []
        self.trouble = ""

    def changed(self, endpoints: list[Endpoint]) -> None:
        self.lists.append([endpoint.address for endpoint in endpoints])

    def say(self, line: str) -> None:
        self.trouble = line

    @property
    def last(self) -> list[str] | None:
        return self.lists[-1] if self.lists else None


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[tuple[FakeApi, Told]]:
    told = Told()
    async with kube_api() as (fake, api):
        source = PoolPods(
            api=api, namespace="ns", name="p", load_port=9400, ranks=1, changed=told.changed, trouble=told.say
        )
        task = asyncio.create_task(source.run())
        try:
            yield fake, told
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_pods_of_the_selector_are_followed_and_so_is_the_pool() -> None:
    async with watched() as (fake, told):
        await until(lambda: "InferencePool ns/p does not exist" in told.trouble)
        assert told.last == []
        fake.put(PODS, pod("a", "10.0.0.1"))
        await until(lambda: fake.watching == 1)
        fake.put(POOLS, pool())
        await until(lambda: told.last == ["10.0.0.1:8000"] and told.trouble == "")
        await until(lambda: fake.watching == 2)
        fake.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: told.last == ["10.0.0.1:8000", "10.0.0.2:8000"])
        fake.put(POOLS, pool(labels={"app": "other"}, ports=[{"number": 9}]))
        await until(lambda: told.last == ["10.0.0.1:9", "10.0.0.2:9"])
        assert [query["labelSelector"] for query in fake.lists if "labelSelector" in query] == ["app=vllm", "app=other"]
        await until(lambda: fake.watching == 2)  # the old watch of pods has ended
        fake.delete(POOLS, "p")
        await until(lambda: told.last == [] and "does not exist" in told.trouble)
        await until(lambda: fake.watching == 1)


async def test_a_pool_that_cannot_be_used_keeps_the_last_endpoints() -> None:
    async with watched() as (fake, told):
        await until(lambda: fake.watching == 1)
        fake.put(PODS, pod("a", "10.0.0.1"))
        fake.put(POOLS, pool())
        await until(lambda: told.last == ["10.0.0.1:8000"])
        await until(lambda: fake.watching == 2)
        fake.put(POOLS, pool(labels={}))
        await until(lambda: "would select every pod" in told.trouble)
        fake.put(PODS, pod("b", "10.0.0.2"))
        await until(lambda: told.last == ["10.0.0.1:8000", "10.0.0.2:8000"])


async def test_another_pool_of_the_namespace_changes_nothing() -> None:
    async with watched() as (fake, _):
        await until(lambda: fake.watching == 1)
        assert fake.lists[0] == {"fieldSelector": "metadata.name=p"}
