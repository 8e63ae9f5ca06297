"""Whoever scales by /scale decides: the operator follows, and never writes the number of replicas itself."""

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from tests.operator.kube import Api, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.servings import engines, serving, wait_ready

HPA_MIN = 3


def hpa(name: str, namespace: str) -> Manifest:
    """As with `kubectl autoscale`; there are no metrics here, and to its minimum it scales without any."""
    target = {"apiVersion": kinds.SERVING.api_version, "kind": kinds.SERVING.kind, "name": name}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"scaleTargetRef": target, "minReplicas": HPA_MIN, "maxReplicas": 6},
    }


def scale(admin: Api, namespace: str, name: str, replicas: int) -> None:
    path = f"{kinds.SERVING.path(namespace, name, 'scale')}?fieldManager=autoscaler"
    admin.call("PATCH", path, {"spec": {"replicas": replicas}}, content_type="application/merge-patch+json")


def follows(admin: Api, namespace: str, name: str, replicas: int) -> bool:
    stateful_set = admin.must_get(kinds.STATEFUL_SET, f"{name}-engine", namespace)
    assert stateful_set["spec"]["replicas"] == replicas
    found = admin.call("GET", kinds.SERVING.path(namespace, name, "scale"))
    assert found["spec"].get("replicas", 0) == replicas
    assert found["status"]["replicas"] == replicas
    selected = admin.list(kinds.POD, namespace, selector=found["status"]["selector"])
    assert {pod["metadata"]["name"] for pod in selected} == set(engines(admin, namespace, name))
    assert len(selected) == replicas
    return True


def test_scaling_by_others_is_followed_and_not_fought(
    admin: Api, namespace: str, shared_operator: OperatorProcess
) -> None:
    for name in ("by-hand", "by-hpa"):
        admin.apply(serving(name, namespace, replicas=1))
    admin.create(hpa("by-hpa", namespace))
    wait_ready(admin, namespace, "by-hand")
    for replicas in (4, 2, 5, 0, 3):
        scale(admin, namespace, "by-hand", replicas)
        wait_until(
            f"{replicas} engines", lambda replicas=replicas: follows(admin, namespace, "by-hand", replicas), within=60
        )
    # A person applies the manifest again, without replicas this time: what the autoscaler wrote stays.
    again = serving("by-hand", namespace)
    del again["spec"]["replicas"]
    again["spec"]["scheduler"] = {"policy": "FCFS"}
    admin.apply(again)
    wait_ready(admin, namespace, "by-hand")
    assert follows(admin, namespace, "by-hand", 3)

    wait_until("the autoscaler's minimum", lambda: follows(admin, namespace, "by-hpa", HPA_MIN), within=90)
    wait_ready(admin, namespace, "by-hpa")
    for name in ("by-hand", "by-hpa"):
        for entry in admin.must_get(kinds.SERVING, name, namespace)["metadata"]["managedFields"]:
            assert not ("halffull" in entry["manager"] and "f:spec" in entry["fieldsV1"])
