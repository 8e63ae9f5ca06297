"""The gateway's pods and Service."""

import subprocess
from typing import Any

import pytest

from halffull_extproc.cli import COMMANDS
from tests.operator.children.family import children, container, containers, gateway_pod, one

POOL = {"gateway": {"mode": "InferencePool"}}


def test_the_picker_is_a_sidecar_that_is_up_before_envoy() -> None:
    pod = gateway_pod(children())
    bootstrap, picker = pod["initContainers"]
    assert [c["name"] for c in containers(pod)] == ["bootstrap", "picker", "envoy"]
    assert picker["restartPolicy"] == "Always"
    assert "restartPolicy" not in bootstrap
    assert "readinessProbe" not in picker, "Envoy goes on without a picker, and so must its pod"
    assert "livenessProbe" not in picker, "a restart of the container would make the pod unready"
    assert picker["startupProbe"]["grpc"] == {"port": 9003, "service": "readiness"}


def test_the_commands_are_the_pickers_own() -> None:
    pod = gateway_pod(children())
    picker, bootstrap = container(pod, "picker"), container(pod, "bootstrap")
    assert picker["args"][0] in COMMANDS
    assert picker["args"][1:3] == ["--config-map", "ml/llama-picker"]
    assert picker["command"][-1] == "halffull-extproc", "the arguments follow"
    assert bootstrap["command"][3:] == ["ml/llama-picker", "/run/halffull/envoy.yaml"]
    assert "halffull-extproc bootstrap --config-map" in bootstrap["command"][2]


def test_envoy_reads_what_the_init_container_writes() -> None:
    pod = gateway_pod(children(None, "gateway: {workers: 5, envoy: {limits: {cpu: 5}}}\n"))
    envoy = container(pod, "envoy")
    assert envoy["args"][:2] == ["--config-path", container(pod, "bootstrap")["command"][-1]]
    assert envoy["args"][envoy["args"].index("--concurrency") + 1] == "5"
    assert envoy["resources"] == {"limits": {"cpu": "5"}}
    assert envoy["readinessProbe"]["httpGet"] == {"path": "/ready", "port": 9902}
    assert "httpGet" not in envoy["livenessProbe"], "waiting for the picker is no reason to be restarted"


def test_a_gateway_pod_has_time_to_drain() -> None:
    pod = gateway_pod(children({"engine": {"drainTimeout": "2m"}}))
    hook = container(pod, "envoy")["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[0] == "/bin/bash"
    assert hook[-3:] == ["9901", "5", "120"]
    assert pod["terminationGracePeriodSeconds"] >= 5 + 120 + 10, "the picker's own drain comes after Envoy's"
    subprocess.run(["/bin/bash", "-n", "-c", hook[2]], check=True)


def test_capacity_never_shrinks_in_a_roll() -> None:
    spec = one(children({"gateway": {"managed": {"replicas": 3}}}), "Deployment")["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_service() -> None:
    service = {"type": "LoadBalancer", "annotations": {"cloud/internal": "true"}}
    manifest = one(children({"gateway": {"managed": {"service": service}}}), "Service", "-gateway")
    assert manifest["metadata"]["annotations"] == {"cloud/internal": "true"}
    assert manifest["spec"]["type"] == "LoadBalancer"
    (port,) = manifest["spec"]["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("http", 80, 8000)
    secure = one(children({"gateway": {"managed": {"tls": {"secretName": "x"}}}}), "Service", "-gateway")
    (port,) = secure["spec"]["ports"]
    assert (port["name"], port["port"], port["targetPort"]) == ("https", 443, 8000)


def test_the_picker_alone_in_an_inference_pool() -> None:
    built = children(POOL)
    pod = gateway_pod(built)
    (picker,) = containers(pod)
    assert picker["name"] == "picker"
    assert picker["readinessProbe"]["grpc"]["service"] == "readiness"
    assert picker["livenessProbe"]["grpc"]["service"] == "liveness"
    assert "command" not in picker, "the image's entry point"
    assert "restartPolicy" not in picker
    (port,) = one(built, "Service", "-gateway")["spec"]["ports"]
    assert port["port"] in [p["containerPort"] for p in picker["ports"]]
    assert [volume["name"] for volume in pod["volumes"]] == ["tmp", "token"]


@pytest.mark.parametrize(("spec", "having"), [({}, {"bootstrap", "picker"}), (POOL, {"picker"})])
def test_envoy_has_no_token(spec: dict[str, Any], having: set[str]) -> None:
    pod = gateway_pod(children(spec))
    assert pod["automountServiceAccountToken"] is False
    place = "/var/run/secrets/kubernetes.io/serviceaccount"
    assert {
        each["name"]
        for each in [*pod.get("initContainers", []), *pod["containers"]]
        if {"name": "token", "mountPath": place, "readOnly": True} in each["volumeMounts"]
    } == having


def test_the_escape_hatch() -> None:
    patch = {
        "spec": {"priorityClassName": "high", "containers": [{"name": "envoy", "resources": {"limits": {"cpu": "9"}}}]}
    }
    pod = gateway_pod(children({"gateway": {"managed": {"podTemplate": patch}}}))
    assert pod["priorityClassName"] == "high"
    assert container(pod, "envoy")["resources"]["limits"] == {"memory": "1Gi", "cpu": "9"}
