"""Cache claims: one for each engine, grown and never shrunk, kept or deleted as asked; and shared ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from halffull_operator import kinds
from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api, ControlPlane, Refused, kubectl, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.servings import condition, engines, says, serving, uids, wait_ready

CLASS = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
VOLUME = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
VOLUMES = {
    "claims-grow": [["ReadWriteOnce", "ReadWriteMany"]] * 6,
    "claims-fixed": [["ReadWriteOnce"], ["ReadWriteOnce"], ["ReadWriteOncePod"]],
}
"""Class → the access modes of each volume."""


@pytest.fixture(scope="module", autouse=True)
def storage(plane: ControlPlane) -> Iterator[None]:
    """Two classes, one of which lets claims grow, and volumes made by hand: nothing here provides any."""
    admin = plane.admin
    for name in VOLUMES:
        admin.call(
            "POST",
            CLASS.path(),
            {
                "metadata": {"name": name},
                "provisioner": "kubernetes.io/no-provisioner",
                "allowVolumeExpansion": name == "claims-grow",
            },
        )
    volumes = [(name, number) for name, modes in VOLUMES.items() for number in range(len(modes))]
    for name, number in volumes:
        admin.create(
            {
                "apiVersion": "v1",
                "kind": VOLUME.kind,
                "metadata": {"name": f"{name}-{number}"},
                "spec": {
                    "storageClassName": name,
                    "capacity": {"storage": "10Gi"},
                    "accessModes": VOLUMES[name][number],
                    "persistentVolumeReclaimPolicy": "Retain",
                    "csi": {"driver": "csi.example.test", "volumeHandle": f"{name}-{number}"},
                },
            }
        )
    yield
    for name, number in volumes:
        admin.delete(VOLUME, f"{name}-{number}")
    for name in VOLUMES:
        admin.delete(CLASS, name)


def cached(name: str, namespace: str, replicas: int, **cache: Any) -> Manifest:
    model = {"uri": "hf://org/model", "cache": {"size": "1Gi", "storageClassName": "claims-grow", **cache}}
    return serving(name, namespace, replicas=replicas, model=model)


def claims(admin: Api, namespace: str, name: str) -> dict[str, Manifest]:
    found = admin.list(kinds.CLAIM, namespace)
    return {
        one["metadata"]["name"].removeprefix(f"cache-{name}-engine-"): one
        for one in found
        if one["metadata"]["name"].startswith(f"cache-{name}-") and "deletionTimestamp" not in one["metadata"]
    }


def sizes(admin: Api, namespace: str, name: str) -> dict[str, str]:
    found = claims(admin, namespace, name)
    return {number: claim["spec"]["resources"]["requests"]["storage"] for number, claim in found.items()}


def resized(admin: Api, namespace: str, name: str, size: str) -> None:
    admin.merge(kinds.SERVING, name, {"spec": {"model": {"cache": {"size": size}}}}, namespace)


def applied(admin: Api, namespace: str, name: str, status: str, reason: str) -> Manifest:
    body = admin.must_get(kinds.SERVING, name, namespace)
    says(body, Applied=status)
    found = condition(body, "Applied")
    assert found["reason"] == reason, found
    return found


def test_caches(plane: ControlPlane, admin: Api, namespace: str, shared_operator: OperatorProcess) -> None:
    """ "keep" and "drop" differ in their retention; "fixed" is of a class that forbids to grow."""
    manifests = {
        "keep": cached("keep", namespace, 2),
        "drop": cached("drop", namespace, 2, retention={"whenDeleted": "Delete", "whenScaled": "Retain"}),
        "fixed": cached("fixed", namespace, 1, storageClassName="claims-fixed"),
    }
    for manifest in manifests.values():
        admin.apply(manifest)
    wait_ready(admin, namespace, *manifests)
    for name, manifest in manifests.items():
        expected = [str(number) for number in range(manifest["spec"]["replicas"])]
        assert sizes(admin, namespace, name) == dict.fromkeys(expected, "1Gi")
    # What kubectl wrote into a template has to outlive the StatefulSet, or its pods roll once more.
    restarted = set(uids(engines(admin, namespace, "keep")).values())
    kubectl(plane, "-n", namespace, "rollout", "restart", "statefulset/keep-engine")
    wait_until("it has rolled", lambda: len(set(uids(engines(admin, namespace, "keep")).values()) - restarted) == 2)
    wait_ready(admin, namespace, "keep")
    pods = {name: uids(engines(admin, namespace, name)) for name in manifests}
    volumes = {name: uids(claims(admin, namespace, name)) for name in manifests}

    # Larger: the claims of the StatefulSet cannot be edited, so it is made anew around its pods.
    for name in manifests:
        resized(admin, namespace, name, "2Gi")
    for name in ("keep", "drop"):
        wait_until(
            f"{name} has grown",
            lambda name=name: (
                sizes(admin, namespace, name) == {"0": "2Gi", "1": "2Gi"}
                and applied(admin, namespace, name, "True", "ImmutableFieldChanged")
            ),
        )
    told = wait_until(
        "fixed says why not", lambda: applied(admin, namespace, "fixed", "False", "CacheResizeUnsupported")
    )
    assert "model.cache.size: claim cache-fixed-engine-0 cannot grow to 2Gi" in told["message"]
    assert sizes(admin, namespace, "fixed") == {"0": "1Gi"}
    wait_until(
        "it goes on",
        lambda: says(admin.must_get(kinds.SERVING, "fixed", namespace), Ready="True", EnginesReady="True"),
    )
    told = condition(admin.must_get(kinds.SERVING, "fixed", namespace), "Progressing")
    assert "claim cache-fixed-engine-0 cannot grow" in told["message"], "what is waited for"
    wait_ready(admin, namespace, "keep", "drop")
    assert {name: uids(engines(admin, namespace, name)) for name in manifests} == pods, "no engine was restarted"
    for name in manifests:
        template = admin.must_get(kinds.STATEFUL_SET, f"{name}-engine", namespace)["spec"]["volumeClaimTemplates"][0]
        assert template["spec"]["resources"]["requests"]["storage"] == "2Gi", "what new engines get"

    # Smaller: refused, with what to do instead.
    with pytest.raises(Refused, match=r"model\.cache\.size cannot shrink: write the old size or a larger one"):
        resized(admin, namespace, "keep", "1536Mi")

    # Scaled down: by whenScaled.
    for name in ("keep", "drop"):
        admin.merge(kinds.SERVING, name, {"spec": {"replicas": 1}}, namespace)
    wait_ready(admin, namespace, "keep", "drop")
    wait_until(
        "the claim of the engine that is gone is deleted", lambda: set(claims(admin, namespace, "keep")) == {"0"}
    )
    assert set(claims(admin, namespace, "drop")) == {"0", "1"}
    resized(admin, namespace, "drop", "3Gi")
    wait_until(
        "the claim that waits for its engine grows too",
        lambda: sizes(admin, namespace, "drop") == {"0": "3Gi", "1": "3Gi"},
    )
    wait_ready(admin, namespace, "drop")
    wait_until(
        "it is told that nobody owns it now",
        lambda: (
            "cache-drop-engine-1 of" in applied(admin, namespace, "drop", "True", "ImmutableFieldChanged")["message"]
        ),
    )
    admin.merge(kinds.SERVING, "drop", {"spec": {"rollout": {"progressDeadline": "2h"}}}, namespace)
    wait_until("and goes on being told", lambda: applied(admin, namespace, "drop", "True", "ClaimLeftOver"))
    admin.merge(kinds.SERVING, "drop", {"spec": {"replicas": 2}}, namespace)
    wait_ready(admin, namespace, "drop")
    assert uids(claims(admin, namespace, "drop")) == volumes["drop"], "the model is still there"
    applied(admin, namespace, "drop", "True", "Applied")

    # Deleted: by whenDeleted.
    for name in manifests:
        admin.delete(kinds.SERVING, name, namespace)
    wait_until("all engines are gone", lambda: not any(engines(admin, namespace, name) for name in manifests))
    wait_until("the claims are deleted", lambda: not claims(admin, namespace, "drop"))
    assert uids(claims(admin, namespace, "keep")) == {"0": volumes["keep"]["0"]}
    assert uids(claims(admin, namespace, "fixed")) == volumes["fixed"]
    # The next one of that name finds its model, and asks for no smaller claim.
    admin.apply(manifests["keep"] | {"spec": {**manifests["keep"]["spec"], "replicas": 1}})
    wait_ready(admin, namespace, "keep")
    assert uids(claims(admin, namespace, "keep")) == {"0": volumes["keep"]["0"]}
    assert sizes(admin, namespace, "keep") == {"0": "2Gi"}


def test_engines_that_share_a_claim(admin: Api, namespace: str, shared_operator: OperatorProcess) -> None:
    modes = {"rwo": "ReadWriteOnce", "rwop": "ReadWriteOncePod", "rwx": "ReadWriteMany"}
    for name, mode in modes.items():
        admin.create(
            {
                "apiVersion": "v1",
                "kind": kinds.CLAIM.kind,
                "metadata": {"name": f"weights-{name}", "namespace": namespace},
                "spec": {
                    "storageClassName": "claims-grow" if name == "rwx" else "claims-fixed",
                    "accessModes": [mode],
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
        )
    for name in (*modes, "absent"):
        admin.apply(serving(name, namespace, model={"uri": f"pvc://weights-{name}/llama"}))
    wait_ready(admin, namespace, "rwo", "rwx")
    told = applied(admin, namespace, "rwo", "True", "ClaimMayNotBeShared")
    assert "all 2 engines must run on the one node that has it" in told["message"]
    applied(admin, namespace, "rwx", "True", "Applied")

    told = wait_until("it is refused", lambda: applied(admin, namespace, "rwop", "False", "ClaimNotShareable"))
    assert "one pod can have it, and there are 2 engines; write replicas: 1" in told["message"]
    assert admin.get(kinds.STATEFUL_SET, "rwop-engine", namespace) is None, "before pods hang"
    admin.merge(kinds.SERVING, "rwop", {"spec": {"replicas": 1}}, namespace)
    wait_ready(admin, namespace, "rwop")
    admin.merge(kinds.SERVING, "rwop", {"spec": {"replicas": 2}}, namespace)
    wait_until("it is refused", lambda: applied(admin, namespace, "rwop", "False", "ClaimNotShareable"))
    assert len(engines(admin, namespace, "rwop")) == 1
    says(admin.must_get(kinds.SERVING, "rwop", namespace), Ready="True")

    body = admin.must_get(kinds.SERVING, "absent", namespace)
    says(body, Ready="False", EnginesReady="False")
    found = condition(body, "EnginesReady")
    assert found["reason"] == "Unschedulable"
    assert 'persistentvolumeclaim "weights-absent" not found' in found["message"]
