"""A quota is in the way: the status says so in the server's words, and once it is raised all goes on by itself."""

import time

import pytest

from halffull_operator import kinds
from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.servings import ALWAYS, children, condition, serving, wait_ready

pytestmark = pytest.mark.timeout(900)
QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
OF_CHILDREN = {"count/deployments.apps": "0", "services": "1"}
OF_PODS = {"pods": "0"}


def limit(admin: Api, namespace: str, hard: dict[str, str]) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small", "namespace": namespace}}
    admin.create({**quota, "spec": {"hard": hard}})
    wait_until(
        "the quota is in force", lambda: (admin.must_get(QUOTA, "small", namespace).get("status") or {}).get("hard")
    )


def says(admin: Api, namespace: str, kind: str, *words: str) -> Manifest:
    found = condition(admin.must_get(kinds.SERVING, "llama", namespace), kind)
    assert (found.get("status"), found.get("reason")) == ("False", "QuotaExceeded"), found
    assert all(word in found["message"] for word in words), found
    return found


def test_a_quota_that_forbids_children_and_one_that_forbids_pods(
    plane: ControlPlane, admin: Api, namespace: str, shared_operator: OperatorProcess
) -> None:
    of_pods = f"{namespace}-pods"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": of_pods}})
    limit(admin, namespace, OF_CHILDREN)
    limit(admin, of_pods, OF_PODS)
    for where in (namespace, of_pods):
        admin.apply(serving("llama", where))

    # The server's words, about the child and about the pod.
    wait_until(
        "the children's quota is told",
        lambda: says(
            admin, namespace, "Applied", "exceeded quota: small, requested: ", "limited: ", "Deployment llama-gateway"
        ),
        within=60,
    )
    kept = {kind for kind, _ in children(admin, namespace, "llama")}
    assert kept == ALWAYS - {"Deployment"}, "one refusal stops no other child"
    wait_until(
        "the pods' quota is told",
        lambda: (
            says(admin, of_pods, "EnginesReady", "exceeded quota: small, requested: pods=1")
            and says(admin, of_pods, "GatewayReady", "exceeded quota: small, requested: pods=1")
        ),
        within=60,
    )

    since = plane.audit_position()
    began = time.monotonic()
    for where in (namespace, of_pods):
        admin.merge(QUOTA, "small", {"spec": {"hard": dict.fromkeys((*OF_CHILDREN, *OF_PODS), "50")}}, where)
    # Each refusal counts as a repair (queue.py): past the free ones it takes three minutes until the children are made,
    # and three more until that is told.
    wait_ready(admin, namespace, "llama", within=450)
    calls = [
        call
        for call in plane.calls(since=since)
        if call.namespace == namespace and "halffull-operator" in call.user and call.status >= 400
    ]
    print(f"all is there {time.monotonic() - began:.0f} s after the quota was raised")  # noqa: T201  a figure to read
    assert len(calls) <= 12
    wait_ready(admin, of_pods, "llama", within=150)
    admin.delete(NAMESPACE, of_pods)
