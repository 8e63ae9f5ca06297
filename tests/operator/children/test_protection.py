"""PodDisruptionBudgets and the NetworkPolicy."""

from typing import Any

import pytest

from tests.operator.children.family import children, kinds, one


@pytest.mark.parametrize("part", ["engine", "gateway"])
def test_budgets_let_go_of_what_is_not_well(part: str) -> None:
    budget = one(children(), "PodDisruptionBudget", f"-{part}")["spec"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    assert budget["selector"]["matchLabels"]["serving.halffull.dev/component"] == part


def policy(spec: dict[str, Any]) -> dict[str, Any]:
    enabled = {"enabled": True, **spec.pop("networkPolicy", {})}
    found: dict[str, Any] = one(children({**spec, "networkPolicy": enabled}), "NetworkPolicy")["spec"]
    return found


def test_only_when_asked_for() -> None:
    assert "NetworkPolicy/llama-engine" not in kinds(children({"networkPolicy": {"allowFrom": []}}))


def test_engines_accept_the_gateway_and_whom_it_says() -> None:
    namespace = {"namespaceSelector": {"matchLabels": {"a": "b"}}}
    block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
    found = policy({"networkPolicy": {"allowFrom": [namespace, block]}, "engine": {"parallelism": {"data": 4}}})
    (rule,) = found["ingress"]
    gateway = {
        "podSelector": {
            "matchLabels": {"serving.halffull.dev/name": "llama", "serving.halffull.dev/component": "gateway"}
        }
    }
    assert rule["from"] == [gateway, namespace, block]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8000}, {"protocol": "TCP", "port": 9400, "endPort": 9403}]
    assert found["podSelector"]["matchLabels"]["serving.halffull.dev/component"] == "engine"


def test_stock_engines_have_no_load_port_to_open() -> None:
    (rule,) = policy({"scheduler": {"policy": "Stock"}})["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 8000}]


def test_nobody_is_not_everybody() -> None:
    assert policy({"gateway": {"mode": "None"}})["ingress"] == []


def test_an_empty_selector_stays_one() -> None:
    (rule,) = policy({"gateway": {"mode": "None"}, "networkPolicy": {"allowFrom": [{"namespaceSelector": {}}]}})[
        "ingress"
    ]
    assert rule["from"] == [{"namespaceSelector": {}}], "it selects all namespaces; without it nobody would be selected"
