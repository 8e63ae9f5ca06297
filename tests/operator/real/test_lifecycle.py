"""Apply → children → ready → status; delete → gone. On the real API server, with the rights of the service account."""

from typing import Any

from halffull_operator import kinds, labels
from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api, ControlPlane, kubectl, wait_until
from tests.operator.process import OperatorProcess, wait_settled
from tests.operator.servings import ALWAYS, children, condition, engines, pods, says, serving, wait_ready

NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
QUOTA = Kind("v1", "ResourceQuota", "resourcequotas")


def ready(admin: Api, namespace: str, name: str) -> Manifest:
    return wait_ready(admin, namespace, name)[0]


def test_apply_ready_status_columns_delete(
    plane: ControlPlane, admin: Api, namespace: str, shared_operator: OperatorProcess
) -> None:
    restricted = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    admin.merge(NAMESPACE, namespace, restricted)  # Pod Security's strictest
    admin.apply(serving("llama", namespace, model={"uri": "hf://org/model@abc", "servedNames": ["m"]}))
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
    assert (status["modelRevision"], status["image"]) == ("abc", "example.test/vllm:1")
    assert status["observedGeneration"] == body["metadata"]["generation"]
    assert len(pods(admin, namespace, "llama")) == 4
    assert len(admin.list(kinds.POD, namespace, selector=status["selector"])) == 2
    assert "finalizers" not in body["metadata"]
    assert "annotations" not in body["metadata"], "nothing of ours on the LLMServing"
    _columns(plane, namespace)
    told = [
        event["reason"] for event in admin.list(kinds.EVENT, namespace) if event["involvedObject"].get("uid") == uid
    ]
    assert told == ["Serving"], "an Event for a transition, once, and none that worries anybody at a usual start"

    admin.delete(kinds.SERVING, "llama", namespace)
    # Kubernetes' garbage collector looks for new kinds each half minute, and this cluster is hardly older.
    wait_until("all children are gone", lambda: not children(admin, namespace, "llama"), within=120)
    wait_until("all pods are gone", lambda: not pods(admin, namespace, "llama"), within=60)
    assert admin.get(kinds.SERVING, "llama", namespace) is None


def _columns(plane: ControlPlane, namespace: str) -> None:
    """What a person sees."""
    row = ["llama", "hf://org/model@abc", "2", "2", "2", "True", "Serving", f"http://llama-gateway.{namespace}.svc/v1"]
    head, line = kubectl(plane, "-n", namespace, "get", "llms").splitlines()
    assert head.split() == ["NAME", "MODEL", "DESIRED", "READY", "UPDATED", "APPLIED", "REASON", "URL", "AGE"]
    assert line.split()[:-1] == row
    head, line = kubectl(plane, "-n", namespace, "get", "llmservings", "-o", "wide").splitlines()
    assert head.split()[8:] == ["SCHEDULER", "ROUTING", "IMAGE", "AGE"]
    assert line.split()[:-1] == [*row, "LARRY", "SAL", "example.test/vllm:1"]


ENGINE = {"name": "engine", "image": "example.test/vllm:1", "imageID": "", "ready": False, "restartCount": 0}
LONG_AGO = "2026-01-01T00:00:00Z"
RUNNING = {"running": {"startedAt": LONG_AGO}}
LAST_WORDS = "INFO x\nValueError: no such head size\n"
DIED = {
    "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
    "lastState": {
        "terminated": {"exitCode": 1, "reason": "Error", "message": "INFO x\nValueError: no such head size\n"}
    },
    "restartCount": 3,
}
PULL = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "example.test/vllm:1"'}}}
LOADS = {"state": RUNNING, "started": False}
CREATED = {"state": {"waiting": {"reason": "PodInitializing"}}}
ATTACH = 'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) other-0'
TROUBLE = {
    "llama-engine-0": (DIED, "CrashLoopBackOff: exit code 1: ValueError: no such head size"),
    "llama-engine-1": (PULL, "ImagePullBackOff: image example.test/vllm:1 cannot be pulled"),
    "llama-engine-2": (CREATED, f"VolumeNotMounted: {ATTACH}"),
    "llama-engine-3": (LOADS, "ModelLoading: loads the model for over "),
}
LAST = "llama-engine-4"


def test_what_is_wrong_with_pods_is_told_in_words_to_act_on(
    admin: Api, namespace: str, shared_operator: OperatorProcess
) -> None:
    """What a kubelet would report is written into the pods' status by hand; the rest is real."""
    admin.apply(serving("llama", namespace, replicas=5))
    ready(admin, namespace, "llama")
    _tell_of_a_volume(admin, namespace, "llama-engine-2")
    for name, (container, _) in TROUBLE.items():
        _report(admin, namespace, name, {**ENGINE, **container})
    body = wait_until("every pod is told", lambda: _unhealthy(admin, namespace, 4))
    said = {one["name"]: one["reason"] for one in body["status"]["unhealthy"]}
    for name, (_, words) in TROUBLE.items():
        assert said[name].startswith(words), said
    assert [one["name"] for one in body["status"]["unhealthy"]] == sorted(TROUBLE), "the worst first"
    says(body, Ready="True", EnginesReady="False", Applied="True")
    assert condition(body, "EnginesReady")["reason"] == "CrashLoopBackOff"
    assert "1 of 5 engines are ready" in condition(body, "EnginesReady")["message"]
    assert body["status"]["readyReplicas"] == 1

    # Also while there is an edit that cannot be used.
    admin.merge(kinds.SERVING, "llama", {"spec": {"engine": {"args": ["--port=1"]}}}, namespace)
    wait_until("it is refused", lambda: says(admin.must_get(kinds.SERVING, "llama", namespace), Applied="False"))
    _report(admin, namespace, LAST, {**ENGINE, **DIED})
    body = wait_until("nobody answers", lambda: _unhealthy(admin, namespace, 5))
    says(body, Ready="False", EnginesReady="False", GatewayReady="True", Applied="False")
    assert condition(body, "Ready")["reason"] == "CrashLoopBackOff"
    assert condition(body, "Applied")["reason"] == "InvalidSpec"
    admin.merge(kinds.SERVING, "llama", {"spec": {"engine": {"args": None}}}, namespace)
    for name in engines(admin, namespace, "llama"):
        admin.delete(kinds.POD, name, namespace)
    ready(admin, namespace, "llama")
    assert "unhealthy" not in admin.must_get(kinds.SERVING, "llama", namespace)["status"]

    admin.create(
        {
            "apiVersion": "v1",
            "kind": QUOTA.kind,
            "metadata": {"name": "engines", "namespace": namespace},
            "spec": {"hard": {"pods": "8"}},
        }
    )
    admin.merge(kinds.SERVING, "llama", {"spec": {"replicas": 7}}, namespace)
    body = wait_until("the quota is told", lambda: _refused(admin, namespace), within=60)
    assert "exceeded quota: engines" in condition(body, "EnginesReady")["message"]
    says(body, Ready="True")
    admin.delete(QUOTA, "engines", namespace)
    admin.merge(kinds.SERVING, "llama", {"spec": {"replicas": 5}}, namespace)
    ready(admin, namespace, "llama")


def _report(admin: Api, namespace: str, name: str, container: dict[str, Any]) -> None:
    not_ready = [{"type": kind, "status": "False"} for kind in ("Ready", "ContainersReady")]
    body: Manifest = {"status": {"conditions": not_ready, "containerStatuses": [container]}}
    if container["state"] == CREATED["state"]:  # for a while, and before its init container
        body["status"] |= {"initContainerStatuses": [{**container, "name": "larry"}], "startTime": LONG_AGO}
    path = kinds.POD.path(namespace, name, "status")
    admin.call("PATCH", path, body, content_type="application/strategic-merge-patch+json")


def _tell_of_a_volume(admin: Api, namespace: str, name: str) -> None:
    """As the attach-detach controller does: no status says so."""
    uid = engines(admin, namespace, "llama")[name]["metadata"]["uid"]
    admin.create(
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "attach", "namespace": namespace},
            "involvedObject": {"kind": "Pod", "name": name, "namespace": namespace, "uid": uid},
            "type": "Warning",
            "reason": "FailedAttachVolume",
            "message": ATTACH,
            "lastTimestamp": LONG_AGO,
        }
    )


def _unhealthy(admin: Api, namespace: str, count: int) -> Manifest | None:
    body = admin.must_get(kinds.SERVING, "llama", namespace)
    return body if len(body["status"].get("unhealthy", ())) == count else None


def _refused(admin: Api, namespace: str) -> Manifest | None:
    body = admin.must_get(kinds.SERVING, "llama", namespace)
    return body if condition(body, "EnginesReady")["reason"] == "QuotaExceeded" else None


def test_a_namespace_deleted_while_it_runs_starts_no_loop(
    plane: ControlPlane, admin: Api, namespace: str, shared_operator: OperatorProcess
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
    admin: Api, namespace: str, shared_operator: OperatorProcess
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
    admin.merge(service, "llama-gateway", {"metadata": {"labels": {labels.SERVING: "other"}}}, namespace)
    wait_until("it is found again", lambda: ("Service", "llama-gateway") in children(admin, namespace, "llama"))
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


def test_a_name_that_is_taken_is_said_and_not_taken_over(
    admin: Api, namespace: str, shared_operator: OperatorProcess
) -> None:
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


def test_deleted_and_made_again_at_once(admin: Api, namespace: str, shared_operator: OperatorProcess) -> None:
    admin.apply(serving("llama", namespace))
    first = ready(admin, namespace, "llama")
    admin.delete(kinds.SERVING, "llama", namespace)
    admin.apply(serving("llama", namespace))
    second = ready(admin, namespace, "llama")
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    for child in children(admin, namespace, "llama").values():
        assert child["metadata"]["ownerReferences"][0]["uid"] == second["metadata"]["uid"]


def test_children_orphaned_by_a_person_are_adopted_with_their_pods(
    admin: Api, namespace: str, shared_operator: OperatorProcess
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
