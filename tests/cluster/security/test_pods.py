"""What the pods of operator, gateway and engines are and may do, by their specs and seen from inside.

The engines are emulated ones. Their pods are made as vLLM's are, by the same code, with the same volumes to write to.
"""

import re
from collections.abc import Iterator

import pytest

from tests.cluster.node import RELEASE, SYSTEM, Cluster
from tests.cluster.servings import Manifest, Serving, emulated

ALL = {"operator", "bootstrap", "picker", "envoy", "larry", "engine"}
RUNNING = ALL - {"bootstrap", "larry"}
ARBITRARY = 1000910000
"""A user of no image, as OpenShift chooses one for a namespace. No group is named, which makes it group 0, as there."""
# What is called pause is Kubernetes' own: an engine's pod shares its processes with it.
LOOK = """
for process in /proc/[0-9]*; do
  grep -q '^Name:.pause$' $process/status || cat $process/status
done 2>/dev/null
grep ' / ' /proc/self/mounts
for folder in / /etc /usr/bin /opt /var /home; do
  if touch $folder/written 2>/dev/null; then echo "written: $folder"; fi
done
"""


def pods(serving: Serving) -> list[Manifest]:
    """Of the operator, and of all of a serving."""
    operator = f"app.kubernetes.io/name=halffull,app.kubernetes.io/instance={RELEASE}"
    return [
        *serving.cluster.get("pods", namespace=SYSTEM, selector=operator),
        *serving.gateways(),
        *serving.engines(),
    ]


def look_inside(cluster: Cluster, pod: Manifest, container: str) -> str:
    where = ("exec", pod["metadata"]["name"], "--container", container)
    return cluster.kubectl(*where, "--", "sh", "-c", LOOK, namespace=pod["metadata"]["namespace"])


def check_inside(said: str) -> set[tuple[int, int]]:
    """Judge what LOOK printed; users and groups (effective) of the processes."""
    fields: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+):\t(.*)$", said, re.MULTILINE):
        fields.setdefault(name, []).append(value)
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert {int(value, 16) for value in fields[capabilities]} == {0}, capabilities
    assert set(fields["NoNewPrivs"]) == {"1"}
    assert set(fields["Seccomp"]) == {"2"}, "2 is a filter"
    assert re.search(r"^overlay / overlay ro,", said, re.MULTILINE), said[-500:]
    assert "written: " not in said, said[-500:]
    users = [{int(part) for part in value.split()} for value in fields["Uid"]]
    groups = [{int(part) for part in value.split()} for value in fields["Gid"]]
    assert all(len(one) == 1 for one in users + groups), "real, effective, saved"
    return {(next(iter(user)), next(iter(group))) for user, group in zip(users, groups, strict=True)}


def test_all_containers_are_locked_down_by_their_specs(secure: Serving) -> None:
    seen = set()
    for pod in pods(secure):
        spec = pod["spec"]
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert all("hostPath" not in volume for volume in spec["volumes"])
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            seen.add(container["name"])
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "readOnlyRootFilesystem": True,
            }, container["name"]
    assert seen == ALL


def test_inside_there_is_no_root_no_capability_and_nothing_to_write_to(cluster: Cluster, secure: Serving) -> None:
    seen = set()
    for pod in pods(secure):
        for container in pod["status"]["containerStatuses"] + pod["status"].get("initContainerStatuses", []):
            if "running" in container["state"]:
                seen.add(container["name"])
                users = check_inside(look_inside(cluster, pod, container["name"]))
                assert users == {(65532, 65532)}, container["name"]
    assert seen == RUNNING


@pytest.fixture
def arbitrary(cluster: Cluster, restricted: str, secure: Serving) -> Iterator[Serving]:
    """Another serving, all whose pods, and the operator's, run as a user that the platform chose; all gateways do."""
    chosen = {"runAsUser": ARBITRARY, "runAsGroup": "null", "fsGroup": ARBITRARY}
    cluster.install(*(f"--set=securityContext.{field}={number}" for field, number in chosen.items()))
    manifest = emulated(replicas=1, gateways=1)
    manifest["metadata"]["name"] = "arbitrary"
    yield Serving.apply(cluster, restricted, manifest)
    cluster.kubectl("delete", "llms", "arbitrary", namespace=restricted)
    cluster.install()
    secure.wait("its gateways are as before", lambda: ARBITRARY not in {_user(pod) for pod in secure.gateways()})
    secure.settled()


def _user(pod: Manifest) -> int | None:
    user: int | None = pod["spec"]["securityContext"].get("runAsUser")
    return user


def test_any_user_will_do(cluster: Cluster, arbitrary: Serving) -> None:
    arbitrary.settled()
    seen = set()
    for pod in pods(arbitrary):
        assert pod["spec"]["securityContext"]["fsGroup"] == ARBITRARY
        for container in pod["status"]["containerStatuses"] + pod["status"].get("initContainerStatuses", []):
            if "running" in container["state"]:
                seen.add(container["name"])
                assert check_inside(look_inside(cluster, pod, container["name"])) == {(ARBITRARY, 0)}
    assert seen == RUNNING
    with arbitrary.load() as load:
        load.more(5)
    assert not load.failed(), load.failed()[:5]


def test_the_pod_of_helm_test_is_admitted_too(cluster: Cluster, restricted: str) -> None:
    said = cluster.helm("test", RELEASE, "--namespace", SYSTEM, "--timeout", "300s")
    assert re.search(r"Phase:\s+Succeeded", said), (restricted, said)
