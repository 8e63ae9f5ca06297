import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.discovery.slices import ServiceSlices, endpoints_from_slices
from halffull_extproc.endpoint import Endpoint, Health

from .kube_api import kube_api
from .waiting import until

SLICES = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices"
HTTP = [{"name": "http", "port": 8000}]


def item(*endpoints: Any, name: str = "s", family: str = "IPv4", ports: Any = HTTP) -> dict[str, Any]:
    return {"metadata": {"name": name}, "addressType": family, "ports": ports, "endpoints": list(endpoints)}


def ready(address: str, pod: str, **conditions: Any) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False, **conditions},
        "targetRef": {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"},
    }


def read(*slices: dict[str, Any], port: str | int = "http") -> list[Endpoint]:
    return endpoints_from_slices(slices, port=port, load_port=9400)


def test_a_ready_pod_is_healthy_under_its_name() -> None:
    assert read(item(ready("10.0.0.1", "engine-0"))) == [
        Endpoint(address="10.0.0.1:8000", load_port=9400, health=Health.HEALTHY, name="engine-0")
    ]


@pytest.mark.parametrize(
    ("conditions", "health"),
    [
        ({"ready": True, "serving": True, "terminating": False}, Health.HEALTHY),
        ({}, Health.HEALTHY),
        ({"ready": None, "serving": None, "terminating": None}, Health.HEALTHY),
        ({"ready": False, "serving": True, "terminating": True}, Health.DRAINING),
        ({"ready": False, "serving": False, "terminating": True}, Health.DRAINING),
        ({"ready": True, "serving": True, "terminating": True}, Health.DRAINING),
        ({"ready": False}, Health.UNHEALTHY),
        ({"ready": False, "serving": False}, Health.UNHEALTHY),
        ({"ready": False, "serving": True}, Health.HEALTHY),
        ({"ready": True, "serving": False}, Health.UNHEALTHY),
    ],
)
def test_conditions(conditions: dict[str, Any], health: Health) -> None:
    endpoint = {**ready("10.0.0.1", "p"), "conditions": conditions}
    assert [one.health for one in read(item(endpoint))] == [health]


def test_the_named_port_is_found_among_several_and_never_becomes_zero() -> None:
    ports = [{"name": "metrics", "port": 9090}, {"name": "http", "port": 8123}, {"name": "grpc", "port": 0}]
    several = item(ready("10.0.0.1", "p"), ports=ports)
    assert [one.address for one in read(several)] == ["10.0.0.1:8123"]
    assert [one.address for one in read(several, port=9090)] == ["10.0.0.1:9090"]
    for port in ("absent", "grpc", 8000, ""):
        assert read(several, port=port) == []


@pytest.mark.parametrize("ports", [None, [], [{"name": "http", "port": None}], [{"name": "http"}]])
def test_a_slice_without_the_port_is_left_out(ports: Any) -> None:
    assert read(item(ready("10.0.0.1", "p"), ports=ports)) == []


def test_a_slice_without_any_port_takes_a_number_as_it_is() -> None:
    assert [one.address for one in read(item(ready("10.0.0.1", "p"), ports=None), port=8000)] == ["10.0.0.1:8000"]


def test_a_port_may_differ_from_slice_to_slice() -> None:
    slices = [
        item(ready("10.0.0.1", "a"), ports=[{"name": "http", "port": 1}]),
        item(ready("10.0.0.2", "b"), ports=[{"name": "http", "port": 2}]),
    ]
    assert [one.address for one in read(*slices)] == ["10.0.0.1:1", "10.0.0.2:2"]


def test_both_families_are_one_endpoint_for_each_pod() -> None:
    four = item(ready("10.0.0.1", "a"), ready("10.0.0.2", "b"))
    six = item(ready("fd00::1", "a"), ready("fd00::2", "b"), family="IPv6")
    for slices in ([four, six], [six, four]):
        assert [one.address for one in read(*slices)] == ["10.0.0.1:8000", "10.0.0.2:8000"]


def test_one_family_is_kept_while_most_pods_have_it() -> None:
    six = item(ready("fd00::1", "a"), ready("fd00::2", "b"), ready("fd00::3", "c"), family="IPv6")
    four = item(ready("10.0.0.3", "c"), ready("10.0.0.4", "d"))
    assert [one.address for one in read(four, six)] == [
        "10.0.0.4:8000", "[fd00::1]:8000", "[fd00::2]:8000", "[fd00::3]:8000",
    ]  # fmt: skip


def test_ipv6_stands_in_brackets() -> None:
    assert [one.address for one in read(item(ready("fd00:0::1", "a"), family="IPv6"))] == ["[fd00::1]:8000"]


def test_names_of_hosts_and_nonsense_are_left_out() -> None:
    assert read(item(ready("engine.example", "a"), family="FQDN")) == []
    assert read(item(ready("engine.example", "a"))) == []
    assert read(item({"addresses": []}, {"addresses": None}, {})) == []
    assert read({"metadata": {"name": "x"}}) == []


def test_of_two_slices_with_one_pod_the_cautious_one_counts() -> None:
    old, new = item(ready("10.0.0.1", "a")), item(ready("10.0.0.1", "a", ready=False, terminating=True))
    assert [one.health for one in read(old, new)] == [one.health for one in read(new, old)] == [Health.DRAINING]


def test_an_address_that_a_new_pod_took_over_is_the_new_pods() -> None:
    old, new = item(ready("10.0.0.1", "old", terminating=True)), item(ready("10.0.0.1", "new"))
    for slices in ([old, new], [new, old]):
        assert [(one.name, one.health) for one in read(*slices)] == [("new", Health.HEALTHY)]


def test_an_endpoint_without_a_pod_is_its_address() -> None:
    bare = [{"addresses": [f"10.0.0.{number}"]} for number in (1, 2)]
    assert len(read(item(*bare))) == 2


@given(st.permutations(range(6)), st.integers(0, 5))
def test_the_order_of_slices_and_endpoints_does_not_matter(order: list[int], split: int) -> None:
    pods = [ready(f"10.0.0.{number + 1}", f"p{number}", terminating=number % 3 == 0) for number in range(6)]
    six = [ready(f"fd00::{number + 1}", f"p{number}", terminating=number % 3 == 0) for number in range(6)]
    shuffled = [pods[number] for number in order]
    slices = [item(*shuffled[:split]), item(*[six[number] for number in order], family="IPv6"), item(*shuffled[split:])]
    assert read(*slices) == read(item(*pods))


async def test_a_pod_leaves_the_pick_set_at_its_deletion_and_the_list_when_it_is_gone() -> None:
    lists: list[list[Endpoint]] = []
    troubles: list[str] = []
    async with kube_api() as (fake, api):
        fake.put(SLICES, item(ready("10.0.0.1", "a"), ready("10.0.0.2", "b")))
        source = ServiceSlices(
            api=api, namespace="ns", name="llama", port="http", load_port=9400,
            changed=lists.append, trouble=troubles.append,
        )  # fmt: skip
        task = asyncio.create_task(source.run())
        try:
            await until(lambda: fake.watching)
            assert fake.lists == [{"labelSelector": "kubernetes.io/service-name=llama"}]
            fake.put(SLICES, item(ready("10.0.0.1", "a", ready=False, terminating=True), ready("10.0.0.2", "b")))
            await until(lambda: len(lists) == 2)
            assert [one.health for one in lists[1]] == [Health.DRAINING, Health.HEALTHY]
            fake.put(SLICES, item(ready("10.0.0.2", "b")))
            await until(lambda: len(lists) == 3)
            assert [one.name for one in lists[2]] == ["b"]
            fake.delete(SLICES, "s")
            await until(lambda: lists[-1] == [])
            assert not any(troubles)
            fake.put(SLICES, item(ready("10.0.0.2", "b"), ports=[{"name": "web", "port": 80}]))
            await until(lambda: "no EndpointSlice of Service ns/llama has the port 'http'" in troubles[-1])
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
