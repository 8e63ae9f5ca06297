"""What has to be put out of the way before an apply."""

import copy
from typing import Any

import pytest

from halffull_operator.clashes import asides

SERVICE: dict[str, Any] = {"kind": "Service", "spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}
PORTS = [{"name": "http", "containerPort": 8000, "protocol": "TCP"}, {"name": "load", "containerPort": 9400}]


def deployment(*ports: dict[str, Any], **pod: Any) -> dict[str, Any]:
    containers = [{"name": "first"}, {"name": "engine", "ports": list(ports)}]
    return {"kind": "Deployment", "spec": {"template": {"spec": {"containers": containers, **pod}}}}


def applied(live: dict[str, Any], operations: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The JSON patch, carried out."""
    live = copy.deepcopy(live)
    for one in operations:
        *steps, last = one["path"].split("/")[1:]
        target: Any = live
        for step in steps:
            target = target[int(step)] if isinstance(target, list) else target[step]
        if one["op"] == "test":
            assert target[last] == one["value"]
        else:
            target[last] = one["value"]
    return live


@pytest.mark.parametrize(
    "ports",
    [
        [{"name": "http", "port": 80}],
        [{"name": "http", "port": 80, "nodePort": 30080}, {"name": "more", "port": 81}],
        [{"name": "http", "port": 80}, {"name": "quic", "port": 80, "protocol": "UDP"}],
    ],
)
def test_ours_and_what_others_add_stay(ports: list[dict[str, Any]]) -> None:
    assert asides(SERVICE, {"kind": "Service", "spec": {"ports": ports}}) == ()


@pytest.mark.parametrize("name", ["http", "", None])
def test_a_renumbered_port_gets_a_name_of_its_own(name: str | None) -> None:
    live = {"kind": "Service", "spec": {"ports": [{"name": name, "port": 8080, "protocol": "TCP"}]}}
    assert applied(live, asides(SERVICE, live))["spec"]["ports"] == [
        {"name": "tcp-8080", "port": 8080, "protocol": "TCP"}
    ]


def test_a_port_of_a_container_likewise_but_an_unnamed_one_is_let_be() -> None:
    live = deployment({"name": "load", "containerPort": 9401}, {"containerPort": 7}, PORTS[0])
    after = applied(live, asides(deployment(*PORTS), live))
    assert after == deployment({"name": "tcp-9401", "containerPort": 9401}, {"containerPort": 7}, PORTS[0])


def test_other_kinds_have_nothing_in_the_way() -> None:
    assert asides({"kind": "ConfigMap", "data": {}}, {"kind": "ConfigMap", "data": {}}) == ()
