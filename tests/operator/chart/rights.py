"""What the chart lets the operator do, and what calls of its needed."""

from collections.abc import Iterable

from halffull_operator.kinds import Manifest
from tests.operator.chart.render import template
from tests.operator.kube import Call

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""


def granted() -> set[Right]:
    """What the chart binds to the operator's account."""
    manifests = template()
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"])
        for one in manifests
        if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}
    }
    roles = [one for one in manifests if (one["kind"], one["metadata"]["name"]) in bound]
    return rights(rule for role in roles for rule in role["rules"])


def rights(rules: Iterable[Manifest]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(calls: Iterable[Call]) -> set[Right]:
    """What calls needed. A server-side apply that creates is a patch, and is asked for create too."""
    found = set()
    for call in calls:
        if call.resource.startswith("/"):
            continue  # discovery: everybody may
        found.add((call.group, call.resource, call.verb))
        if call.verb == "patch" and call.status == 201:
            found.add((call.group, call.resource, "create"))
    return found


def told(some: Iterable[Right]) -> list[str]:
    return sorted(f"{verb} {resource}.{group}" for group, resource, verb in some)
