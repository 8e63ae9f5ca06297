"""The picker against the real API server: discovery, its configuration live, and no right more than it uses."""

import ssl
import time
from pathlib import Path

import pytest
import yaml

from halffull_operator import kinds
from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api, ControlPlane, Refused, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.real.picker_process import PickerProcess, picker
from tests.operator.servings import engines, is_ready, serving, uids, wait_ready

DEPLOYMENT = kinds.named("apps/v1", "Deployment")
LIVE = ("LeastRequest", "RoundRobin", "Random", "SALPlus", "SAL")
LIMIT = 2.0
"""Seconds from the edit of routing.policy until the pickers follow (issue 5)."""
ON_A_BUSY_MACHINE = 20.0
"""Seconds that one edit of several may take where other processes have both cores."""


def timed(what: str, look: object, *, since: float) -> float:
    wait_until(what, look)  # type: ignore[arg-type]
    return time.monotonic() - since


def test_discovery_and_a_changed_policy(
    plane: ControlPlane, admin: Api, namespace: str, shared_operator: OperatorProcess, tmp_path: Path
) -> None:
    admin.apply(serving("llama", namespace, replicas=3))
    admin.apply(serving("other", namespace))
    wait_ready(admin, namespace, "llama", "other")
    since = plane.audit_position()
    with picker(plane, tmp_path, namespace=namespace, name="llama") as process:
        wait_until("it knows every engine", lambda: len(process.states()) == 3, within=60)
        _knows_its_own(admin, namespace, process)
        _follows_pods(admin, namespace, process)
        _follows_policy(admin, namespace, process)
        _says_what_waits_for_a_restart(admin, namespace, process)
        log = process.log()
        assert process.stop() == 0
    assert "Traceback" not in log
    user = f"system:serviceaccount:{namespace}:llama-gateway"

    def calls() -> bool:
        found = {
            (call.verb, call.resource, call.name, call.status) for call in plane.calls(since=since) if call.user == user
        }
        assert found == {
            ("list", "configmaps", "llama-picker", 200),
            ("watch", "configmaps", "llama-picker", 200),
            ("list", "endpointslices", "", 200),
            ("watch", "endpointslices", "", 200),
        }
        return True

    wait_until("it asks for that and for no more; the end of a watch is told a moment after it", calls)


def _knows_its_own(admin: Api, namespace: str, process: PickerProcess) -> None:
    pods = engines(admin, namespace, "llama")
    assert process.addresses() == {name: f"{pod['status']['podIP']}:8000" for name, pod in pods.items()}
    assert not process.status()["troubles"], process.status()["troubles"]


def _follows_pods(admin: Api, namespace: str, process: PickerProcess) -> None:
    """Not ready, ready again, being deleted, gone and made anew."""
    name, other = "llama-engine-0", "llama-engine-1"
    began = time.monotonic()
    _set_ready(admin, namespace, name, status="False")
    took = {"not ready": timed("it is not picked", lambda: process.states()[name] == "unhealthy", since=began)}
    began = time.monotonic()
    _set_ready(admin, namespace, name, status="True")
    took["ready again"] = timed("it is again", lambda: process.states()[name] != "unhealthy", since=began)

    before = uids(engines(admin, namespace, "llama"))[other]
    admin.merge(kinds.POD, other, {"metadata": {"finalizers": ["example.test/hold"]}}, namespace)
    began = time.monotonic()
    admin.delete(kinds.POD, other, namespace)
    took["deletionTimestamp"] = timed("it drains", lambda: process.states()[other] == "draining", since=began)
    admin.merge(kinds.POD, other, {"metadata": {"finalizers": None}}, namespace)
    wait_until("the new one is known", lambda: _is_new(admin, namespace, other, before, process))
    assert len(process.states()) == 3, "the old one is forgotten"
    print("seconds until the picker sees it:", {what: round(seconds, 2) for what, seconds in took.items()})  # noqa: T201
    assert min(took.values()) < LIMIT


def _is_new(admin: Api, namespace: str, name: str, before: str, process: PickerProcess) -> bool:
    """Often at the address of the old one."""
    pod = engines(admin, namespace, "llama").get(name, {})
    if not pod or pod["metadata"]["uid"] == before or not is_ready(pod):
        return False
    return process.addresses().get(name) == f"{pod['status']['podIP']}:8000" and process.states()[name] != "draining"


def _set_ready(admin: Api, namespace: str, name: str, *, status: str) -> None:
    """As a kubelet tells the result of the readiness probe."""
    body = {
        "status": {"conditions": [{"type": "Ready", "status": status}, {"type": "ContainersReady", "status": status}]}
    }
    path = kinds.POD.path(namespace, name, "status")
    admin.call("PATCH", path, body, content_type="application/strategic-merge-patch+json")


def _follows_policy(admin: Api, namespace: str, process: PickerProcess) -> None:
    deployment = admin.must_get(DEPLOYMENT, "llama-gateway", namespace)["metadata"]["generation"]
    pods = uids({pod["metadata"]["name"]: pod for pod in admin.list(kinds.POD, namespace)})
    took = []
    for policy in LIVE:
        began = time.monotonic()
        admin.merge(kinds.SERVING, "llama", {"spec": {"routing": {"policy": policy}}}, namespace)
        took.append(timed(policy, lambda policy=policy: process.status()["policy"] == policy, since=began))
    print("seconds from the edit to the picker:", [round(seconds, 2) for seconds in took])  # noqa: T201
    assert min(took) < LIMIT
    assert max(took) < ON_A_BUSY_MACHINE
    admin.merge(kinds.SERVING, "llama", {"spec": {"routing": {"failureMode": "FailClose"}}}, namespace)
    wait_until("failureMode is live too", lambda: process.status()["failure_mode"] == "FailClose")
    wait_ready(admin, namespace, "llama")
    assert admin.must_get(DEPLOYMENT, "llama-gateway", namespace)["metadata"]["generation"] == deployment
    assert uids({pod["metadata"]["name"]: pod for pod in admin.list(kinds.POD, namespace)}) == pods
    assert not process.status()["troubles"]


def _says_what_waits_for_a_restart(admin: Api, namespace: str, process: PickerProcess) -> None:
    """A key that is read at start: the gateway's pods roll, and until then the old picker says what it lacks."""
    pods = uids(engines(admin, namespace, "llama"))
    managed = {"spec": {"gateway": {"managed": {"paths": ["/v1/*"]}}}}
    generation = admin.must_get(DEPLOYMENT, "llama-gateway", namespace)["metadata"]["generation"]
    admin.merge(kinds.SERVING, "llama", managed, namespace)
    wait_until("it is told", lambda: any("gateway" in one["text"] for one in process.status()["troubles"]))
    wait_ready(admin, namespace, "llama")
    assert admin.must_get(DEPLOYMENT, "llama-gateway", namespace)["metadata"]["generation"] == generation + 1
    assert uids(engines(admin, namespace, "llama")) == pods


SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = kinds.named("v1", "ConfigMap")
SLICE = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")
FORBIDDEN = (
    ("GET", SECRET, None, ""),
    ("GET", CONFIG_MAP, "other-picker", ""),
    ("GET", CONFIG_MAP, None, ""),
    ("GET", CONFIG_MAP, None, "?fieldSelector=metadata.name%3Dother-picker"),
    ("GET", kinds.POD, None, ""),
    ("GET", kinds.SERVING, "llama", ""),
    ("GET", kinds.STATEFUL_SET, None, ""),
    ("DELETE", CONFIG_MAP, "llama-picker", ""),
    ("PATCH", CONFIG_MAP, "llama-picker", ""),
    ("DELETE", SLICE, None, ""),
)


def test_the_picker_may_read_nothing_else(
    plane: ControlPlane, admin: Api, namespace: str, shared_operator: OperatorProcess, tmp_path: Path
) -> None:
    for name in ("llama", "other"):
        admin.apply(serving(name, namespace, replicas=0))
    wait_until(
        "its Role is there",
        lambda: admin.get(kinds.named("rbac.authorization.k8s.io/v1", "RoleBinding"), "llama-picker", namespace),
    )
    wait_until("the other's map is there", lambda: admin.get(CONFIG_MAP, "other-picker", namespace))
    kubeconfig = yaml.safe_load(
        plane.kubeconfig_as(account="llama-gateway", namespace=namespace, folder=tmp_path).read_text()
    )
    unknown = ssl.create_default_context()
    unknown.check_hostname, unknown.verify_mode = False, ssl.CERT_NONE  # no certificate of the administrator's in it
    mine = Api(admin.host, admin.port, context=unknown, token=kubeconfig["users"][0]["user"]["token"])
    own: Manifest = wait_until("its own map", lambda: mine.get(CONFIG_MAP, "llama-picker", namespace))
    assert yaml.safe_load(own["data"]["picker.yaml"])["policy"] == "SAL"
    mine.call("GET", CONFIG_MAP.path(namespace) + "?fieldSelector=metadata.name%3Dllama-picker")
    mine.list(SLICE, namespace)
    for verb, kind, name, query in FORBIDDEN:
        body = {} if verb == "PATCH" else None
        with pytest.raises(Refused) as refused:
            mine.call(verb, kind.path(namespace, name) + query, body, content_type="application/merge-patch+json")
        assert refused.value.status == 403, (verb, kind.plural, name, query)
    with pytest.raises(Refused, match="403"):
        mine.list(SLICE, "kube-system")
