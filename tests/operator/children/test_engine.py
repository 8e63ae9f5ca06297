"""The engines' StatefulSet and Service."""

from typing import Any

import pytest

from halffull_operator.spec import SpecError
from tests.operator.children.family import children, container, engine, engine_pod, environment, gateway_pod, one


def test_the_stateful_set() -> None:
    spec = one(children({"replicas": 3}), "StatefulSet")["spec"]
    assert (spec["replicas"], spec["serviceName"], spec["podManagementPolicy"]) == (3, "llama-engine", "Parallel")
    # maxUnavailable is dropped in silence up to 1.34; a partition that somebody set would hold all rolls.
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    assert "volumeClaimTemplates" not in spec


def test_no_replicas_are_allowed() -> None:
    assert one(children({"replicas": 0}), "StatefulSet")["spec"]["replicas"] == 0


def test_a_cache_is_a_claim_for_each_engine() -> None:
    cache = {
        "size": "2048Mi",
        "storageClassName": "fast",
        "accessMode": "ReadWriteOncePod",
        "retention": {"whenDeleted": "Delete", "whenScaled": "Retain"},
    }
    built = children({"model": {"uri": "hf://a/b", "cache": cache}}, "labels: {chart: '1'}\n")
    spec = one(built, "StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOncePod"],
        "resources": {"requests": {"storage": "2048Mi"}},
        "storageClassName": "fast",
    }
    assert "chart" not in claim["metadata"]["labels"], "immutable: the chart must not reach it"
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}
    assert "cache" not in [volume["name"] for volume in engine_pod(built)["volumes"]]


def test_without_a_cache_an_empty_dir() -> None:
    volumes = {volume["name"]: volume for volume in engine_pod(children())["volumes"]}
    assert volumes["cache"] == {"name": "cache", "emptyDir": {}}


def test_any_user_can_write_where_it_must() -> None:
    of = engine(children())
    variables = environment(of)
    mounts = {mount["mountPath"] for mount in of["volumeMounts"] if not mount.get("readOnly")}
    assert {"/cache", "/tmp", "/dev/shm"} <= mounts  # noqa: S108  in the container
    for name in (
        "HOME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "VLLM_CACHE_ROOT",
    ):
        assert any(variables[name].startswith(mount) for mount in mounts), name
    assert variables["HF_HOME"].startswith("/cache/")
    assert variables["USER"] == variables["LOGNAME"] == "halffull"


def test_shared_memory_is_memory_of_the_size_that_is_asked_for() -> None:
    for spec, more, size in (
        ({}, "", "8Gi"),
        ({"engine": {"shmSize": "1Gi"}}, "engine: {shmSize: 2Gi}\n", "1Gi"),
        ({}, "engine: {shmSize: 2Gi}\n", "2Gi"),
    ):
        volumes = {volume["name"]: volume for volume in engine_pod(children(spec, more))["volumes"]}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


@pytest.mark.parametrize(("drain", "flag", "grace"), [("10m", 600, 635), ("0s", 0, 35), ("1h30m", 5400, 5435)])
def test_an_engine_has_time_to_drain(drain: str, flag: int, grace: int) -> None:
    built = children({"engine": {"drainTimeout": drain}})
    of = engine(built)
    assert f"--shutdown-timeout={flag}" in of["args"]
    pre_stop = of["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert engine_pod(built)["terminationGracePeriodSeconds"] == grace > flag + pre_stop


@pytest.mark.parametrize(("timeout", "probes"), [("1h", 360), ("90s", 9), ("61s", 7)])
def test_nothing_kills_an_engine_that_loads(timeout: str, probes: int) -> None:
    of = engine(children({"engine": {"startupTimeout": timeout}}))
    probe = of["startupProbe"]
    assert probe["failureThreshold"] == probes
    assert probe["failureThreshold"] * probe["periodSeconds"] >= int(timeout[:-1]) * (3600 if timeout[-1] == "h" else 1)
    assert {of[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")} == {"/health"}


@pytest.mark.parametrize(
    ("engine_spec", "more", "resource", "number", "taint"),
    [
        ({}, "", "nvidia.com/gpu", "1", "nvidia.com/gpu"),
        ({"parallelism": {"tensor": 2, "data": 2}}, "", "nvidia.com/gpu", "4", "nvidia.com/gpu"),
        ({"gpuResource": "nvidia.com/mig-1g.5gb"}, "", "nvidia.com/mig-1g.5gb", "1", "nvidia.com/gpu"),
        ({}, "engine: {gpuResource: amd.com/gpu}\n", "amd.com/gpu", "1", "amd.com/gpu"),
    ],
)
def test_gpus(engine_spec: dict[str, Any], more: str, resource: str, number: str, taint: str) -> None:
    built = children({"engine": engine_spec}, more)
    assert engine(built)["resources"]["limits"] == {resource: number}
    assert {"key": taint, "operator": "Exists", "effect": "NoSchedule"} in engine_pod(built)["tolerations"]


def test_no_gpu() -> None:
    built = children({"engine": {"gpuResource": "none", "parallelism": {"tensor": 2}}})
    assert "limits" not in engine(built)["resources"]
    assert "tolerations" not in engine_pod(built)


def test_the_number_of_gpus_is_said_once() -> None:
    with pytest.raises(SpecError, match=r"spec\.engine\.resources\.limits\.nvidia\.com/gpu: .*engine\.parallelism"):
        children({"engine": {"resources": {"limits": {"nvidia.com/gpu": 2}}}})


def test_resources_replace_the_chart_s_and_are_written_as_text() -> None:
    built = children(
        {"engine": {"resources": {"requests": {"memory": "1Gi", "cpu": 2}}}},
        "engine: {resources: {limits: {cpu: 9}}}\n",
    )
    assert engine(built)["resources"] == {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"nvidia.com/gpu": "1"}}


PROFILES = """\
engine:
  image: base:1
  args: [--base]
  env: [{name: A, value: base}, {name: B, value: base}]
  nodeSelector: {a: base, b: base}
  podTemplate: {spec: {priorityClassName: base, schedulerName: base}}
profiles:
  big:
    image: ghcr.io/big:1
    args: [--big]
    env: [{name: B, value: big}, {name: C, value: big}]
    nodeSelector: {b: big}
    tolerations: [{key: big, operator: Exists}]
    runtimeClassName: nvidia
    podTemplate: {spec: {schedulerName: big}}
"""


def test_a_serving_over_its_profile_over_the_chart() -> None:
    spec = {
        "profile": "big",
        "engine": {
            "args": ["--mine"],
            "env": [{"name": "C", "value": "mine"}],
            "nodeSelector": {"c": "mine"},
            "tolerations": [{"key": "mine", "operator": "Exists"}],
            "podTemplate": {"spec": {"priorityClassName": "mine"}},
        },
    }
    built = children(spec, PROFILES)
    of, pod = engine(built), engine_pod(built)
    assert of["image"] == "ghcr.io/big:1"
    assert of["args"][-3:] == ["--base", "--big", "--mine"]
    assert [environment(of)[name] for name in "ABC"] == ["base", "big", "mine"]
    assert pod["nodeSelector"] == {"a": "base", "b": "big", "c": "mine"}
    assert [toleration["key"] for toleration in pod["tolerations"]] == ["mine", "big", "nvidia.com/gpu"]
    assert pod["runtimeClassName"] == "nvidia"
    assert (pod["priorityClassName"], pod["schedulerName"]) == ("mine", "big")
    assert engine(children({"profile": "big", "engine": {"image": "x:1"}}, PROFILES))["image"] == "x:1"
    assert engine(children(None, PROFILES))["image"] == "base:1"


def test_the_model_on_a_claim_is_mounted_read_only() -> None:
    built = children({"model": {"uri": "pvc://models/llama/8b"}})
    of = engine(built)
    assert of["args"][:3] == ["/mnt/model/llama/8b", "--served-model-name", "llama"]
    assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in of["volumeMounts"]
    volumes = {volume["name"]: volume for volume in engine_pod(built)["volumes"]}
    assert volumes["model"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert engine(children({"model": {"uri": "pvc://models"}}))["args"][0] == "/mnt/model"


def test_credentials_and_secrets_are_only_referred_to() -> None:
    secret = {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    built = children({"model": {"uri": "hf://a/b", "credentialsSecret": {"name": "hf"}}, "engine": {"env": [secret]}})
    of = engine(built)
    assert of["envFrom"] == [{"secretRef": {"name": "hf"}}]
    assert secret in of["env"]
    assert engine_pod(built)["automountServiceAccountToken"] is False


def test_vllm_is_not_process_1() -> None:
    assert engine_pod(children())["shareProcessNamespace"] is True, "it would lose a SIGTERM while it imports"


def test_pull_secrets_and_service_account() -> None:
    spec = {"engine": {"imagePullSecrets": [{"name": "mine"}, {"name": "all"}], "serviceAccountName": "sa"}}
    pod = engine_pod(children(spec, "imagePullSecrets: [{name: all}]\n"))
    assert pod["imagePullSecrets"] == [{"name": "all"}, {"name": "mine"}]
    assert pod["serviceAccountName"] == "sa"
    assert engine_pod(children())["serviceAccountName"] == "default", "left out, an earlier one would stay"


def test_an_empty_value_of_a_toleration_is_left_out_as_the_api_server_does() -> None:
    spec = {"engine": {"tolerations": [{"key": "a", "value": ""}], "gpuResource": "none"}}
    assert engine_pod(children(spec))["tolerations"] == [{"key": "a"}]


def test_no_resources_are_as_none_given() -> None:
    spec = {"engine": {"resources": {}, "gpuResource": "none"}}
    assert engine(children(spec))["resources"] == engine(children({"engine": {"gpuResource": "none"}}))["resources"]


def test_the_registry_holds_for_containers_that_a_person_adds() -> None:
    reference = "other.test/a/side:1"
    volumes = [{"name": "data", "image": {"reference": reference}}]
    template = {"spec": {"containers": [{"name": "side", "image": reference}], "volumes": volumes}}
    spec = {"engine": {"podTemplate": template}, "gateway": {"managed": {"podTemplate": template}}}
    built = children(spec, "registry: mirror.test/m\n")
    for pod in (engine_pod(built), gateway_pod(built)):
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "data"]
        assert container(pod, "side")["image"] == volume["image"]["reference"] == "mirror.test/m/a/side:1"


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:v1", "r.example.com/m/vllm/vllm-openai:v1"),
        ("docker.io/vllm/vllm:v1", "r.example.com/m/vllm/vllm:v1"),
        ("localhost:5000/a@sha256:" + "0" * 64, "r.example.com/m/a@sha256:" + "0" * 64),
        ("busybox", "r.example.com/m/busybox"),
        ("r.example.com/m/a:1", "r.example.com/m/a:1"),
    ],
)
def test_one_registry_takes_the_place_of_all(image: str, expected: str) -> None:
    assert engine(children({"engine": {"image": image}}, "registry: r.example.com/m\n"))["image"] == expected


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("vllm/vllm-openai:v1", "IfNotPresent"),
        ("localhost:5000/a", "Always"),
        ("localhost:5000/a:latest", "Always"),
        ("a@sha256:" + "0" * 64, "IfNotPresent"),
        ("a:latest@sha256:" + "0" * 64, "IfNotPresent"),
    ],
)
def test_when_an_image_is_pulled_follows_the_image_and_not_the_one_before_it(image: str, expected: str) -> None:
    assert engine(children({"engine": {"image": image}}))["imagePullPolicy"] == expected
    own = {"spec": {"containers": [{"name": "engine", "imagePullPolicy": "Never"}]}}
    assert engine(children({"engine": {"image": image, "podTemplate": own}}))["imagePullPolicy"] == "Never"


def test_the_plugin_comes_by_an_init_container() -> None:
    pod = engine_pod(children(None, "initResources: {requests: {cpu: 1}}\n"))
    (init,) = pod["initContainers"]
    assert (init["name"], init["image"], init["args"]) == ("larry", "halffull-larry:0.1.0", ["/opt/halffull/larry"])
    assert init["resources"] == {"requests": {"cpu": "1"}}
    assert {"name": "larry", "mountPath": "/opt/halffull/larry", "readOnly": True} in container(pod, "engine")[
        "volumeMounts"
    ]


def test_stock_has_no_plugin_at_all() -> None:
    built = children({"scheduler": {"policy": "Stock"}})
    assert "initContainers" not in engine_pod(built)
    assert "larry" not in repr(one(built, "StatefulSet"))
    assert [port["name"] for port in one(built, "Service", "-engine")["spec"]["ports"]] == ["engine"]


def test_the_service_is_headless_and_names_the_ports() -> None:
    spec = one(children({"engine": {"parallelism": {"data": 3}}}), "Service", "-engine")["spec"]
    assert spec["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in spec, "an engine that loads must not be picked"
    assert [(port["name"], port["port"]) for port in spec["ports"]] == [
        ("engine", 8000),
        ("load", 9400),
        ("load-1", 9401),
        ("load-2", 9402),
    ]


def test_the_escape_hatch_is_laid_over_the_pod() -> None:
    patch = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"hostIPC": True, "containers": [{"name": "engine", "tty": True}]},
    }
    template = one(children({"engine": {"podTemplate": patch}}), "StatefulSet")["spec"]["template"]
    assert template["metadata"]["annotations"]["a"] == "b"
    assert template["spec"]["hostIPC"] is True
    assert template["spec"]["containers"][0]["tty"] is True
