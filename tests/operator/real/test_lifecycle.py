"""Apply → children → ready → status; delete → gone. On the real API server, with the rights of the service account."""

import http.client
import json
import time

from halffull_operator import kinds, labels
from halffull_operator.kinds import Manifest
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.process import OperatorProcess, wait_settled
from tests.operator.servings import ALWAYS, children, condition, pods, says, serving, versions

NAMESPACE = kinds.Kind("v1", "Namespace", "namespaces", namespaced=False)


def ready(admin: Api, namespace: str, name: str) -> Manifest:
    def look() -> Manifest:
        body = admin.must_get(kinds.SERVING, name, namespace)
        says(body, Ready="True", EnginesReady="True", GatewayReady="True", Progressing="True", Applied="True")
        return body

    return wait_until(f"{name} is ready", look, within=60)


def test_apply_ready_status_delete(admin: Api, namespace: str, operator: OperatorProcess) -> None:
    admin.apply(serving("llama", namespace))
    body = ready(admin, namespace, "llama")
    found = children(admin, namespace, "llama")
    assert {kind for kind, _ in found} == ALWAYS
    uid = body["metadata"]["uid"]
    for child in found.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert owner["uid"] == uid
        assert owner["controller"]
        assert owner["blockOwnerDeletion"]
        assert child["metadata"]["labels"][labels.MANAGED_BY] == labels.OPERATOR
    status = body["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (2, 2, 2)
    assert status["url"] == f"http://llama-gateway.{namespace}.svc/v1"
    assert status["observedGeneration"] == body["metadata"]["generation"]
    assert len(pods(admin, namespace, "llama")) == 4
    assert "finalizers" not in body["metadata"]
    assert "annotations" not in body["metadata"], "nothing of ours on the LLMServing"

    admin.delete(kinds.SERVING, "llama", namespace)
    wait_until("all children are gone", lambda: not children(admin, namespace, "llama"))
    wait_until("all pods are gone", lambda: not pods(admin, namespace, "llama"))
    assert admin.get(kinds.SERVING, "llama", namespace) is None


def test_columns(admin: Api, namespace: str, operator: OperatorProcess) -> None:
    admin.apply(serving("llama", namespace, model={"uri": "hf://org/model", "servedNames": ["m"]}))
    ready(admin, namespace, "llama")
    connection = http.client.HTTPSConnection(admin.host, admin.port, context=admin.context)
    connection.request(
        "GET",
        kinds.SERVING.path(namespace),
        headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
    )
    table = json.loads(connection.getresponse().read())
    connection.close()
    names = [column["name"] for column in table["columnDefinitions"] if column["priority"] == 0]
    assert names == ["Name", "Model", "Desired", "Ready", "Updated", "Reason", "URL", "Age"]
    row = dict(zip([column["name"] for column in table["columnDefinitions"]], table["rows"][0]["cells"], strict=True))
    assert (row["Desired"], row["Ready"], row["Updated"]) == (2, 2, 2)
    assert row["URL"] == f"http://llama-gateway.{namespace}.svc/v1"


def test_with_the_operator_gone_the_namespace_still_deletes(
    admin: Api, namespace: str, operator: OperatorProcess
) -> None:
    admin.apply(serving("llama", namespace))
    ready(admin, namespace, "llama")
    assert operator.stop() == 0
    admin.delete(NAMESPACE, namespace)
    wait_until("the namespace is gone", lambda: admin.get(NAMESPACE, namespace) is None, within=90)


def test_a_namespace_deleted_while_it_runs_starts_no_loop(
    plane: ControlPlane, admin: Api, namespace: str, operator: OperatorProcess
) -> None:
    admin.apply(serving("llama", namespace))
    ready(admin, namespace, "llama")
    admin.delete(NAMESPACE, namespace)
    wait_until("the namespace is gone", lambda: admin.get(NAMESPACE, namespace) is None, within=90)
    since = plane.audit_position()
    wait_settled(
        lambda: [call for call in plane.calls(since=since) if call.namespace == namespace and "halffull" in call.user],
        for_seconds=5,
        within=30,
    )
    calls = [call for call in plane.calls(since=since) if call.namespace == namespace and "halffull" in call.user]
    assert len(calls) <= 5


def test_a_child_that_is_changed_or_deleted_is_put_right_and_additions_stay(
    admin: Api, namespace: str, operator: OperatorProcess
) -> None:
    admin.apply(serving("llama", namespace))
    ready(admin, namespace, "llama")
    service = kinds.named("v1", "Service")
    before = admin.must_get(service, "llama-gateway", namespace)
    admin.delete(service, "llama-gateway", namespace)
    wait_until(
        "it is there again",
        lambda: (
            (found := admin.get(service, "llama-gateway", namespace)) is not None
            and found["metadata"]["uid"] != before["metadata"]["uid"]
        ),
    )
    deployment = kinds.named("apps/v1", "Deployment")
    wanted = admin.must_get(deployment, "llama-gateway", namespace)["spec"]["replicas"]
    admin.merge(deployment, "llama-gateway", {"spec": {"replicas": wanted + 3}}, namespace)
    wait_until(
        "the replicas are put right",
        lambda: admin.must_get(deployment, "llama-gateway", namespace)["spec"]["replicas"] == wanted,
    )
    admin.merge(service, "llama-gateway", {"metadata": {"labels": {"team": "a"}, "annotations": {"x": "y"}}}, namespace)
    admin.merge(deployment, "llama-gateway", {"spec": {"replicas": wanted + 1}}, namespace)
    wait_until(
        "the replicas are put right again",
        lambda: admin.must_get(deployment, "llama-gateway", namespace)["spec"]["replicas"] == wanted,
    )
    kept = admin.must_get(service, "llama-gateway", namespace)["metadata"]
    assert kept["labels"]["team"] == "a"
    assert kept["annotations"]["x"] == "y"


def test_a_name_that_is_taken_is_said_and_not_taken_over(admin: Api, namespace: str, operator: OperatorProcess) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "llama-picker", "namespace": namespace},
        "data": {"mine": "yes"},
    }
    kind = kinds.named("v1", "ConfigMap")
    mine = admin.create(foreign)
    admin.apply(serving("llama", namespace))
    body = wait_until(
        "the condition says so",
        lambda: (
            (found := admin.must_get(kinds.SERVING, "llama", namespace))
            and condition(found, "Applied").get("reason") == "NameTaken"
            and found
        ),
    )
    assert "llama-picker" in condition(body, "Applied")["message"]
    assert (
        admin.must_get(kind, "llama-picker", namespace)["metadata"]["resourceVersion"]
        == mine["metadata"]["resourceVersion"]
    )
    admin.delete(kind, "llama-picker", namespace)
    ready(admin, namespace, "llama")


def test_deleted_and_made_again_at_once(admin: Api, namespace: str, operator: OperatorProcess) -> None:
    admin.apply(serving("llama", namespace))
    first = ready(admin, namespace, "llama")
    admin.delete(kinds.SERVING, "llama", namespace)
    admin.apply(serving("llama", namespace))
    second = ready(admin, namespace, "llama")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    for child in children(admin, namespace, "llama").values():
        assert child["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]


def test_children_orphaned_by_a_person_are_adopted_with_their_pods(
    admin: Api, namespace: str, operator: OperatorProcess
) -> None:
    admin.apply(serving("llama", namespace))
    ready(admin, namespace, "llama")
    before = {pod["metadata"]["uid"] for pod in pods(admin, namespace, "llama")}
    admin.delete(kinds.SERVING, "llama", namespace, propagation="Orphan")
    wait_until("it is gone", lambda: admin.get(kinds.SERVING, "llama", namespace) is None)
    admin.apply(serving("llama", namespace))
    again = ready(admin, namespace, "llama")
    for child in children(admin, namespace, "llama").values():
        assert [owner["uid"] for owner in child["metadata"]["ownerReferences"]] == [again["metadata"]["uid"]]
    assert {pod["metadata"]["uid"] for pod in pods(admin, namespace, "llama")} == before


def test_a_restart_touches_no_child_and_rest_is_quiet(
    plane: ControlPlane, admin: Api, namespace: str, operators: StartOperator
) -> None:
    names = ["one", "two", "three"]
    operator = operators()
    for name in names:
        admin.apply(serving(name, namespace))
    for name in names:
        ready(admin, namespace, name)
    wait_settled(lambda: operator.metric("halffull_operator_reconciles_total"), for_seconds=3, within=60)
    before = {name: versions(children(admin, namespace, name)) for name in names}
    bodies = {name: admin.must_get(kinds.SERVING, name, namespace)["metadata"]["resourceVersion"] for name in names}
    assert operator.stop() == 0
    operator.start()
    wait_until(
        "everything was applied once", lambda: operator.metric("halffull_operator_reconciles_total") >= len(names)
    )
    wait_settled(lambda: operator.metric("halffull_operator_reconciles_total"), for_seconds=3, within=60)
    assert {name: versions(children(admin, namespace, name)) for name in names} == before
    assert {
        name: admin.must_get(kinds.SERVING, name, namespace)["metadata"]["resourceVersion"] for name in names
    } == bodies

    since = plane.audit_position()
    began = operator.metric("halffull_operator_heartbeat_age_seconds")
    assert began < 60
    time.sleep(60)  # the claim is about a minute of rest
    calls = [
        call
        for call in plane.calls(since=since)
        if "halffull-operator" in call.user and call.verb != "watch" and call.resource != "leases"
    ]
    assert calls == []
    assert admin.must_get(kinds.LEASE, "halffull-operator", "halffull-system")["spec"]["renewTime"]


def test_two_writers_that_fight_start_no_hot_loop(
    plane: ControlPlane, admin: Api, namespace: str, operator: OperatorProcess
) -> None:
    """Somebody sets replicas of the gateway back, each time it is put right."""
    admin.apply(serving("llama", namespace))
    ready(admin, namespace, "llama")
    deployment = kinds.named("apps/v1", "Deployment")
    fights, end = 0, time.monotonic() + 60
    since = plane.audit_position()
    while time.monotonic() < end:
        found = admin.must_get(deployment, "llama-gateway", namespace)
        if found["spec"]["replicas"] != 7:
            admin.merge(deployment, "llama-gateway", {"spec": {"replicas": 7}}, namespace)
            fights += 1
        time.sleep(0.1)
    calls = [
        call
        for call in plane.calls(since=since)
        if "halffull-operator" in call.user and call.namespace == namespace and call.verb != "watch"
    ]
    assert 2 <= fights <= 8
    assert len(calls) <= 40
