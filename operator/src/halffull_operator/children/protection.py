"""What guards the pods: PodDisruptionBudgets and the NetworkPolicy. Pure."""

from halffull_operator.children.engine_command import load_ports
from halffull_operator.children.manifest import Family, Manifest
from halffull_operator.engine_settings import HTTP_PORT
from halffull_operator.labels import ENGINE, GATEWAY
from halffull_operator.spec_types import written


def budgets(family: Family) -> list[Manifest]:
    """One pod of each part at a time may be evicted, and one that is not well always: it would block a node's drain."""
    budgets = [_budget(family, family.names.engine, ENGINE, family.engines)]
    if family.serving.spec.gateway.mode != "None":
        budgets.append(_budget(family, family.names.gateway, GATEWAY, family.gateways))
    return budgets


def _budget(family: Family, name: str, component: str, selected: dict[str, str]) -> Manifest:
    return family.child(
        "policy/v1",
        "PodDisruptionBudget",
        name,
        component,
        spec={
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selected},
        },
    )


def network_policy(family: Family) -> Manifest:
    """Engines accept this LLMServing's gateway and `allowFrom`, on the API's port and the load reports'."""
    serving = family.serving
    ports: list[Manifest] = [{"protocol": "TCP", "port": HTTP_PORT}]
    reports = load_ports(serving)
    if reports:
        last = {"endPort": reports[-1]} if len(reports) > 1 else {}
        ports.append({"protocol": "TCP", "port": reports[0], **last})
    peers: list[Manifest] = [written(peer) for peer in serving.spec.network_policy.allow_from]
    if serving.spec.gateway.mode != "None":
        peers.insert(0, {"podSelector": {"matchLabels": family.gateways}})
    return family.child(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        family.names.engine,
        ENGINE,
        spec={
            "podSelector": {"matchLabels": family.engines},
            "policyTypes": ["Ingress"],
            # Without any peer nobody may: `from: []` would mean everybody.
            "ingress": [{"from": peers, "ports": ports}] if peers else [],
        },
    )
