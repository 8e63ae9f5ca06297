"""Another operator or chart rolls no engine: it says that there is something newer, and the next edit takes it."""

from halffull_operator import kinds, labels
from halffull_operator.kinds import Manifest
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, ControlPlane, kubectl, wait_until
from tests.operator.process import CONFIG
from tests.operator.real import newer_template
from tests.operator.servings import condition, engines, says, serving, uids, wait_ready

DEPLOYMENT = kinds.named("apps/v1", "Deployment")
OLD: Manifest = {
    "profiles": {"big": {"env": [{"name": "SIZE", "value": "1"}], "args": ["--block-size", "16"]}},
}
NEW: Manifest = {
    "images": {part: image.replace(":1", ":2") for part, image in CONFIG["images"].items()},
    "registry": "mirror.example.test",
    "imagePullSecrets": [{"name": "mirror"}],
    "engine": {"shmSize": "32Gi", "podTemplate": {"spec": {"hostIPC": True}}},
    "profiles": {"big": {"env": [{"name": "SIZE", "value": "2"}], "args": ["--block-size", "32"]}},
    "podAnnotations": {"mesh.example.test/inject": "no"},
    "initResources": {"requests": {"cpu": "50m"}},
    "securityContext": {"runAsUser": None, "fsGroup": None},
    "proxy": {"httpsProxy": "https://proxy.example.test"},
    "listen": "0.0.0.0",
}
ALL = ("plain", "profiled", "edited", "restarted", "scaled", "drifted", "cached")
VLLM = {1: "example.test/vllm:1", 2: "mirror.example.test/vllm:2"}


def stateful_sets(admin: Api, namespace: str) -> dict[str, Manifest]:
    return {
        name: found["spec"]
        for name in ALL
        if (found := admin.must_get(kinds.STATEFUL_SET, f"{name}-engine", namespace))
    }


def image_of(admin: Api, namespace: str, name: str) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in engines(admin, namespace, name).values()}


def told(admin: Api, namespace: str, **available: str) -> bool:
    for name, status in available.items():
        body = admin.must_get(kinds.SERVING, name, namespace)
        says(body, UpdateAvailable=status)
    return True


def test_an_upgrade_and_a_rollback_roll_no_engine(
    plane: ControlPlane, admin: Api, namespace: str, operators: StartOperator
) -> None:
    older = operators(OLD)
    for name in ALL:
        spec: Manifest = {"replicas": 1}
        if name == "profiled":
            spec["profile"] = "big"
        if name == "cached":
            spec["model"] = {"uri": "hf://org/model", "cache": {"size": "1Gi", "storageClassName": "none"}}
        admin.apply(serving(name, namespace, **spec))
    running = [name for name in ALL if name != "cached"]  # nobody provides a volume here, so its pod waits
    wait_ready(admin, namespace, *running)
    wait_until("the last one's pod exists", lambda: engines(admin, namespace, "cached"))
    told(admin, namespace, **dict.fromkeys(running, "False"))
    pods = {name: uids(engines(admin, namespace, name)) for name in ALL}
    before = stateful_sets(admin, namespace)

    assert older.stop() == 0
    newer = operators(NEW, program=(newer_template.__file__,))
    wait_until("it is told", lambda: told(admin, namespace, **dict.fromkeys(ALL, "True")), within=90)
    wait_ready(admin, namespace, *running)
    gateway = admin.must_get(DEPLOYMENT, "plain-gateway", namespace)["spec"]["template"]["spec"]
    assert gateway["containers"][0]["image"] == "mirror.example.test/envoy:2", "gateways are upgraded at once"
    body = admin.must_get(kinds.SERVING, "plain", namespace)
    assert (
        f"kubectl -n {namespace} annotate llms plain --overwrite {labels.RESTARTED_AT}="
        in (condition(body, "UpdateAvailable")["message"])
    )
    assert body["status"]["image"] == VLLM[1], "what runs"
    assert stateful_sets(admin, namespace) == before
    assert {name: uids(engines(admin, namespace, name)) for name in ALL} == pods

    # What is edited without any bearing on the engines' pods leaves them alone; new pods are as the others.
    admin.merge(kinds.SERVING, "plain", {"spec": {"routing": {"policy": "LeastRequest"}}}, namespace)
    admin.merge(kinds.SERVING, "scaled", {"spec": {"replicas": 2}}, namespace)
    admin.merge(kinds.SERVING, "cached", {"spec": {"model": {"cache": {"size": "2Gi"}}}}, namespace)
    # An edit, a restart, and a hand in the pods that rolled them already, take what is newer.
    admin.merge(kinds.SERVING, "edited", {"spec": {"engine": {"args": ["--max-num-seqs", "64"]}}}, namespace)
    kubectl(plane, "-n", namespace, "annotate", "llms", "restarted", f"{labels.RESTARTED_AT}=2026-01-02T03:04:05Z")
    kubectl(plane, "-n", namespace, "set", "image", "statefulset/drifted-engine", "engine=foreign.example.test/v:1")
    taken = dict.fromkeys(("edited", "restarted", "drifted"), "False")
    left = dict.fromkeys(("plain", "profiled", "scaled", "cached"), "True")
    wait_until("three have taken it", lambda: told(admin, namespace, **taken, **left), within=60)
    wait_ready(admin, namespace, *running)
    for name in taken:
        assert image_of(admin, namespace, name) == {VLLM[2]}, name
        assert not set(uids(engines(admin, namespace, name)).values()) & set(pods[name].values())
        (container,) = (pod["spec"]["containers"][0] for pod in engines(admin, namespace, name).values())
        assert {"name": "NEWER", "value": "1"} in container["env"]
    for name in left:
        assert image_of(admin, namespace, name) == {VLLM[1]}, name
        assert uids(engines(admin, namespace, name)).items() >= pods[name].items(), f"{name} has rolled"
    assert len(engines(admin, namespace, "scaled")) == 2

    # Back again: what is newer stays, and is what is "another template" now.
    pods = {name: uids(engines(admin, namespace, name)) for name in ALL}
    between = stateful_sets(admin, namespace)
    assert newer.stop() == 0
    older.start()
    back = dict.fromkeys(taken, "True") | dict.fromkeys(left, "False")
    wait_until("it is told", lambda: told(admin, namespace, **back), within=90)
    wait_ready(admin, namespace, *running)
    assert stateful_sets(admin, namespace) == between
    assert {name: uids(engines(admin, namespace, name)) for name in ALL} == pods
