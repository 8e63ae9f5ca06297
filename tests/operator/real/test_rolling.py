"""Engines roll when their part of the spec changes: one at a time, and with a reason."""

from collections.abc import Iterator

import pytest

from halffull_operator import kinds, labels
from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api, ControlPlane, kubectl, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.recorder import Recording, recorded
from tests.operator.servings import condition, engines, is_ready, says, serving, uids, wait_ready

NODE = Kind("v1", "Node", "nodes", namespaced=False)
NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
GPUS = 9
POOL = {"key": "example.test/pool", "operator": "Equal", "value": "gpus", "effect": "NoSchedule"}
ON_GPUS = {"gpuResource": "nvidia.com/gpu", "nodeSelector": {"example.test/pool": "gpus"}, "tolerations": [POOL]}
FLAG = ["--max-num-seqs", "64"]


@pytest.fixture(scope="module")
def gpus(plane: ControlPlane) -> Iterator[None]:
    """A node of this module's own: what other tests leave behind takes none of its GPUs."""
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "500", "nvidia.com/gpu": str(GPUS)}
    taint = {key: value for key, value in POOL.items() if key != "operator"}
    plane.admin.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": "gpus", "labels": {"example.test/pool": "gpus", "kubernetes.io/hostname": "gpus"}},
            "spec": {"taints": [taint]},
            "status": {"allocatable": amounts, "capacity": amounts},
        }
    )
    yield
    plane.admin.delete(NODE, "gpus")


def test_a_changed_flag_rolls_engines_one_at_a_time_even_where_every_gpu_is_taken(
    admin: Api, namespace: str, shared_operator: OperatorProcess, gpus: None
) -> None:
    """ "one" and "eight" hold all GPUs of their node: each new engine takes the GPU of the old one."""
    small = serving("three", namespace)["spec"]["engine"]
    sizes = {"three": 3, "eight": 8, "one": 1}
    for name, replicas in sizes.items():
        engine = small if name == "three" else {**small, **ON_GPUS}
        admin.apply(serving(name, namespace, replicas=replicas, engine=engine))
    wait_ready(admin, namespace, *sizes)
    before = uids({pod["metadata"]["name"]: pod for pod in admin.list(kinds.POD, namespace)})
    with (
        recorded(admin, kinds.POD, namespace) as pods,
        recorded(admin, kinds.SERVING, namespace) as bodies,
    ):
        for name in sizes:
            admin.merge(kinds.SERVING, name, {"spec": {"engine": {"args": FLAG}}}, namespace)
        wait_until("all have rolled", lambda: all(_rolled(admin, namespace, name) for name in sizes), within=120)
        after = uids({pod["metadata"]["name"]: pod for pod in admin.list(kinds.POD, namespace)})
    for name, replicas in sizes.items():
        _one_at_a_time(pods, f"{name}-engine-", replicas)
        _reason_was_told(bodies, name)
    holding = [sum(name.startswith(("eight-engine", "one-engine")) for name in present) for present in pods.steps("")]
    assert max(holding) == GPUS
    assert {name for name, uid in before.items() if after[name] == uid} == {
        name for name in before if "gateway" in name
    }
    for name in ("three", "eight"):
        seen = {condition(body, "Ready").get("status") for body in bodies.of(name)}
        assert seen == {"True"}, f"Ready of {name} flaps in a roll"
    _evicted(admin, namespace)


def _rolled(admin: Api, namespace: str, name: str) -> bool:
    found = engines(admin, namespace, name).values()
    args = [pod["spec"]["containers"][0]["args"] for pod in found]
    assert all("--max-num-seqs" in flags for flags in args), name
    return bool(wait_ready(admin, namespace, name, within=0))


def _one_at_a_time(pods: Recording, prefix: str, replicas: int) -> None:
    missing = [replicas - sum(map(is_ready, present.values())) for present in pods.steps(prefix)]
    started = missing.index(0)  # the recording begins with one ADDED after the other
    assert max(missing[started:]) == 1
    assert missing[-1] == 0


def _reason_was_told(bodies: Recording, name: str) -> None:
    told = [condition(body, "Progressing") for body in bodies.of(name)]
    rolling = [one for one in told if one.get("reason") == "RollingOut"]
    assert rolling, [one.get("reason") for one in told]
    assert all("changed: args --max-num-seqs" in one["message"] for one in rolling)
    assert all("last step" in one["message"] for one in rolling)


def _evicted(admin: Api, namespace: str) -> None:
    """A drain of the node: the budget of a single engine lets it go, and it comes back."""
    before = uids(engines(admin, namespace, "one"))
    path = kinds.POD.path(namespace, "one-engine-0", "eviction")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "one-engine-0", "namespace": namespace}}
    admin.call("POST", path, body)
    wait_until("it is a new one", lambda: uids(engines(admin, namespace, "one")) not in ({}, before))
    wait_ready(admin, namespace, "one")


def test_restarted_at_rolls_and_a_pause_stops_everything(
    admin: Api, plane: ControlPlane, namespace: str, shared_operator: OperatorProcess
) -> None:
    for name in ("restarted", "paused", "kubectl"):
        admin.apply(serving(name, namespace))
    wait_ready(admin, namespace, "restarted", "paused", "kubectl")
    before = {name: uids(engines(admin, namespace, name)) for name in ("restarted", "paused", "kubectl")}
    kubectl(plane, "-n", namespace, "annotate", "llms", "paused", f"{labels.PAUSED}=true")
    _edit(admin, namespace, "paused", {"replicas": 3, "engine": {"args": FLAG}})
    admin.delete(kinds.named("v1", "Service"), "paused-gateway", namespace)
    at = "2026-01-02T03:04:05Z"
    with recorded(admin, kinds.POD, namespace) as pods:
        kubectl(plane, "-n", namespace, "annotate", "llms", "restarted", f"{labels.RESTARTED_AT}={at}")
        kubectl(plane, "-n", namespace, "rollout", "restart", "statefulset", "kubectl-engine")
        for name in ("restarted", "kubectl"):
            wait_until("every engine is new", lambda name=name: _all_new(admin, namespace, name, before[name]))
        wait_ready(admin, namespace, "restarted", "kubectl")
    _one_at_a_time(pods, "restarted-engine-", 2)
    assert "restartedAt" in str(admin.must_get(kinds.STATEFUL_SET, "restarted-engine", namespace)["metadata"])
    # A restart by kubectl is not undone by a later write of the operator, which would roll everything once more.
    once = uids(engines(admin, namespace, "kubectl"))
    _edit(admin, namespace, "kubectl", {"replicas": 3})
    wait_ready(admin, namespace, "kubectl")
    assert uids(engines(admin, namespace, "kubectl")).items() > once.items()

    body = wait_until("the pause is told", lambda: _paused(admin, namespace))
    assert f"kubectl -n {namespace} annotate llms paused" in condition(body, "Progressing")["message"]
    assert uids(engines(admin, namespace, "paused")) == before["paused"]
    assert admin.get(kinds.named("v1", "Service"), "paused-gateway", namespace) is None
    kubectl(plane, "-n", namespace, "annotate", "llms", "paused", f"{labels.PAUSED}-")
    wait_until("it goes on", lambda: _all_new(admin, namespace, "paused", before["paused"]))
    wait_ready(admin, namespace, "paused")
    assert len(engines(admin, namespace, "paused")) == 3
    admin.must_get(kinds.named("v1", "Service"), "paused-gateway", namespace)


def _edit(admin: Api, namespace: str, name: str, spec: Manifest) -> None:
    admin.merge(kinds.SERVING, name, {"spec": spec}, namespace)


def _all_new(admin: Api, namespace: str, name: str, before: dict[str, str]) -> bool:
    now = uids(engines(admin, namespace, name))
    return now.keys() >= before.keys() and not set(now.values()) & set(before.values())


def _paused(admin: Api, namespace: str) -> Manifest:
    body = admin.must_get(kinds.SERVING, "paused", namespace)
    says(body, Progressing="Unknown", Applied="Unknown", Ready="True")
    return body
