"""PodMonitor, InferencePool and HTTPRoute: absent, installed later, used, and taken away again."""

from pathlib import Path

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.real import fields_apis
from tests.operator.real.picker_process import picker
from tests.operator.servings import ALWAYS, children, condition, engines, says, serving, uids, wait_ready

MONITOR = kinds.named("monitoring.coreos.com/v1", "PodMonitor")
POOL = kinds.named("inference.networking.k8s.io/v1", "InferencePool")
ROUTE = kinds.named("gateway.networking.k8s.io/v1", "HTTPRoute")
MONITORED: Manifest = {"podMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
ROUTED: Manifest = {"parentRefs": [{"name": "public", "namespace": "infra"}], "hostnames": ["llm.example.test"]}
SPECS: dict[str, Manifest] = {
    "monitored": {"monitoring": MONITORED},
    "routed": {"gateway": {"mode": "Managed", "route": ROUTED}},
    "pooled": {"gateway": {"mode": "InferencePool"}},
    "bare": {"gateway": {"mode": "None"}, "monitoring": MONITORED},
}
LACKS = "OptionalApiMissing"
MISSING = {
    "monitored": "monitoring.podMonitor.enabled needs monitoring.coreos.com/v1 PodMonitor",
    "routed": "gateway.route needs gateway.networking.k8s.io/v1 HTTPRoute",
    "pooled": "gateway.mode needs inference.networking.k8s.io/v1 InferencePool",
    "bare": "monitoring.podMonitor.enabled needs monitoring.coreos.com/v1 PodMonitor",
}


def test_absent_installed_used_and_taken_away(
    plane: ControlPlane, admin: Api, namespace: str, operators: StartOperator, tmp_path: Path
) -> None:
    fields_apis.remove(admin)
    operator = operators()
    for name, spec in SPECS.items():
        admin.apply(serving(name, namespace, **spec))
    wait_until("what is missing is told, and nothing else is wrong", lambda: _lacking(admin, namespace), within=90)
    pods = {name: uids(engines(admin, namespace, name)) for name in SPECS}
    assert {kind for kind, _ in children(admin, namespace, "monitored")} == ALWAYS
    assert set(children(admin, namespace, "bare")) == {
        ("StatefulSet", "bare-engine"),
        ("Service", "bare-engine"),
        ("PodDisruptionBudget", "bare-engine"),
    }
    assert _body(admin, namespace, "bare")["status"]["url"] == f"http://bare-engine.{namespace}.svc:8000/v1"
    assert "url" not in _body(admin, namespace, "pooled")["status"], "nobody here knows the gateway's address"

    # Installed: the process ends, and its Deployment starts it anew.
    fields_apis.install(admin)
    try:
        assert operator.wait_ended(within=120) == 0
        operator.start()
        wait_ready(admin, namespace, *SPECS)
        _all_made(admin, namespace)
        assert {name: uids(engines(admin, namespace, name)) for name in SPECS} == pods
        _picked_from_the_pool(plane, admin, namespace, tmp_path)
        _watched_and_given_up(admin, namespace)
    finally:
        fields_apis.remove(admin)
    # Taken away while they are watched: the rest goes on, and what is missing is told.
    admin.merge(kinds.SERVING, "bare", {"spec": {"replicas": 3}}, namespace)
    assert operator.wait_ended(within=90) == 0
    operator.start()
    wait_until("the edit lands", lambda: len(engines(admin, namespace, "bare")) == 3, within=60)
    wait_until("it is told", lambda: condition(_body(admin, namespace, "bare"), "Applied")["reason"] == LACKS)


def _body(admin: Api, namespace: str, name: str) -> Manifest:
    return admin.must_get(kinds.SERVING, name, namespace)


def _lacking(admin: Api, namespace: str) -> bool:
    for name, text in MISSING.items():
        body = _body(admin, namespace, name)
        # Without its pool nobody can send a request to these engines.
        ready = "False" if name == "pooled" else "True"
        says(body, Ready=ready, EnginesReady="True", GatewayReady="True", Progressing="True", Applied="False")
        found = condition(body, "Applied")
        assert found["reason"] == LACKS, found
        assert found["message"] == f"{text}, which this cluster does not serve: install it, or remove the field"
    return True


def _all_made(admin: Api, namespace: str) -> None:
    made = {
        "monitored": admin.must_get(MONITOR, "monitored-monitor", namespace),
        "routed": admin.must_get(ROUTE, "routed-route", namespace),
        "pooled": admin.must_get(POOL, "pooled-pool", namespace),
        "bare": admin.must_get(MONITOR, "bare-monitor", namespace),
    }
    for name, child in made.items():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["name"], owner["controller"]) == (name, True)
    assert made["monitored"]["metadata"]["labels"]["release"] == "prometheus"
    ports = [one["port"] for one in made["monitored"]["spec"]["podMetricsEndpoints"]]
    named = {
        port["name"]
        for pod in admin.list(kinds.POD, namespace)
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
        for port in container.get("ports", ())
    }
    assert set(ports) <= named, "ports that pods have"
    rules = made["routed"]["spec"]["rules"]
    assert {backend["name"] for rule in rules for backend in rule["backendRefs"]} == {"routed-gateway"}
    pool = made["pooled"]["spec"]
    assert (pool["endpointPickerRef"]["name"], pool["endpointPickerRef"]["failureMode"]) == (
        "pooled-gateway",
        "FailOpen",
    )
    chosen = ",".join(f"{key}={value}" for key, value in sorted(pool["selector"]["matchLabels"].items()))
    assert len(admin.list(kinds.POD, namespace, selector=chosen)) == 2, "its engines, and no gateway pod"


def _picked_from_the_pool(plane: ControlPlane, admin: Api, namespace: str, folder: Path) -> None:
    """The endpoint picker reads the pool and its pods, and sees one that leaves at once."""
    with picker(plane, folder, namespace=namespace, name="pooled") as process:
        pods = engines(admin, namespace, "pooled")
        addresses = {name: f"{pod['status']['podIP']}:8000" for name, pod in pods.items()}
        wait_until("it knows every engine", lambda: process.addresses() == addresses, within=60)
        assert not process.status()["troubles"], process.status()["troubles"]
        admin.merge(kinds.POD, "pooled-engine-0", {"metadata": {"finalizers": ["example.test/hold"]}}, namespace)
        admin.delete(kinds.POD, "pooled-engine-0", namespace)
        wait_until("it drains", lambda: process.states()["pooled-engine-0"] == "draining")
        admin.merge(kinds.POD, "pooled-engine-0", {"metadata": {"finalizers": None}}, namespace)
        admin.merge(kinds.SERVING, "pooled", {"spec": {"routing": {"policy": "Random"}}}, namespace)
        wait_until("it follows the policy", lambda: process.status()["policy"] == "Random")
        assert process.stop() == 0


def _watched_and_given_up(admin: Api, namespace: str) -> None:
    """They are repaired as every other child is, and deleted when they are no longer asked for."""
    admin.delete(MONITOR, "bare-monitor", namespace)
    admin.merge(ROUTE, "routed-route", {"spec": {"hostnames": ["other.example.test"]}}, namespace)
    wait_until("it is made anew", lambda: admin.get(MONITOR, "bare-monitor", namespace))
    wait_until(
        "it is put right",
        lambda: admin.must_get(ROUTE, "routed-route", namespace)["spec"]["hostnames"] == ["llm.example.test"],
    )
    admin.merge(kinds.SERVING, "monitored", {"spec": {"monitoring": None}}, namespace)
    admin.merge(kinds.SERVING, "routed", {"spec": {"gateway": {"route": None}}}, namespace)
    admin.merge(kinds.SERVING, "pooled", {"spec": {"gateway": {"mode": "Managed"}}}, namespace)
    wait_until("the monitor is gone", lambda: admin.get(MONITOR, "monitored-monitor", namespace) is None)
    wait_until("the route is gone", lambda: admin.get(ROUTE, "routed-route", namespace) is None)
    wait_until("the pool is gone", lambda: admin.get(POOL, "pooled-pool", namespace) is None)
    wait_ready(admin, namespace, "monitored", "routed", "pooled")
    assert _body(admin, namespace, "pooled")["status"]["url"] == f"http://pooled-gateway.{namespace}.svc/v1"
