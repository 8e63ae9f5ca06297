"""The engines: StatefulSet and headless Service. Pure."""

from typing import Any, Final

from halffull_operator.children.engine_command import (
    CACHE,
    HOME,
    MODEL,
    PLUGIN,
    arguments,
    environment,
    has_plugin,
    load_ports,
)
from halffull_operator.children.manifest import (
    Family,
    Manifest,
    container_security,
    digest,
    patched,
    quantities,
    spread,
)
from halffull_operator.engine_settings import (
    HTTP_PORT,
    PRE_STOP,
    EngineSettings,
    attempts,
    grace_seconds,
    image,
)
from halffull_operator.labels import (
    ENGINE,
    ENGINE_INPUTS,
    MANAGED_BY,
    OPERATOR,
    RESTARTED_AT,
    TEMPLATE_HASH,
)
from halffull_operator.spec import LLMServing
from halffull_operator.spec_model import source_of
from halffull_operator.spec_types import Toleration, seconds, written

CONTAINER: Final = "engine"
PORT_NAME: Final = "engine"
"""Of the Service, and so of the EndpointSlices that the picker reads. A mesh takes over headless ports named http."""
_CACHE_VOLUME: Final = "cache"


def engine_inputs(serving: LLMServing) -> str:
    """A hash of all of the LLMServing that the engines' pod template is built from: while it stays, no engine rolls.

    Fields at their defaults are left out, so that a new field changes no hash. A larger cache grows claims and changes
    no pod.
    """
    spec = serving.spec
    model = written(spec.model)
    if spec.model.cache is not None:
        model["cache"] = True
    return digest(
        {
            "profile": spec.profile,
            "model": model,
            "engine": written(spec.engine),
            "scheduler": written(spec.scheduler),
            "restartedAt": serving.restarted_at,
        }
    )


def stateful_set(family: Family, settings: EngineSettings) -> Manifest:
    """The engines."""
    serving = family.serving
    template = patched(_template(family, settings), settings.pod_templates, config=family.config)
    cache = serving.spec.model.cache
    retention: Manifest = {}
    claims: Manifest = {}
    if cache is not None:
        retention = {
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": cache.retention.when_deleted,
                "whenScaled": cache.retention.when_scaled,
            }
        }
        claims = {"volumeClaimTemplates": [_claim(family)]}
    return family.child(
        "apps/v1",
        "StatefulSet",
        family.names.engine,
        ENGINE,
        annotations={TEMPLATE_HASH: digest(template), ENGINE_INPUTS: engine_inputs(serving)},
        spec={
            "replicas": serving.spec.replicas,
            "serviceName": family.names.engine,
            "podManagementPolicy": "Parallel",  # OrderedReady stays stuck after a bad rollout (kubernetes#67250)
            # The partition is ours too: left out, one that somebody once set would hold every roll.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "revisionHistoryLimit": 5,
            "selector": {"matchLabels": family.engines},
            "template": template,
            **retention,
            **claims,
        },
    )


def service(family: Family) -> Manifest:
    """The headless Service: what the picker discovers engines by."""
    ports = [{"name": PORT_NAME, "port": HTTP_PORT, "targetPort": HTTP_PORT, "protocol": "TCP"}]
    ports += [
        {"name": name, "port": port, "targetPort": port, "protocol": "TCP"}
        for name, port in load_port_names(family.serving)
    ]
    return family.child(
        "v1",
        "Service",
        family.names.engine,
        ENGINE,
        spec={"clusterIP": "None", "selector": family.engines, "ports": ports},
    )


def load_port_names(serving: LLMServing) -> list[tuple[str, int]]:
    """Ports of the load reports by name: load, load-1 and so on."""
    return [(f"load-{rank}" if rank else "load", port) for rank, port in enumerate(load_ports(serving))]


def _template(family: Family, settings: EngineSettings) -> Manifest:
    serving = family.serving
    engine = serving.spec.engine
    restarted = {RESTARTED_AT: serving.restarted_at} if serving.restarted_at else {}
    init = [_plugin(family)] if has_plugin(serving) else []
    tolerations = [_toleration(toleration) for toleration in settings.tolerations]
    return {
        "metadata": family.pod_metadata(ENGINE, restarted),
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT
            # As process 1 vLLM would lose a SIGTERM that comes while it imports, for 20 s and more, and live out its
            # grace: the kernel drops what process 1 has no handler for.
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": grace_seconds(serving),
            "securityContext": family.pod_security(),
            "topologySpreadConstraints": spread(family.engines),
            # Always written: from a template that leaves it out the API server removes none that was there before.
            "serviceAccountName": engine.service_account_name or "default",
            **({"runtimeClassName": settings.runtime_class_name} if settings.runtime_class_name else {}),
            **({"nodeSelector": settings.node_selector} if settings.node_selector else {}),
            **({"tolerations": tolerations} if tolerations else {}),
            **family.pull_secrets(*(secret.name for secret in engine.image_pull_secrets)),
            **({"initContainers": init} if init else {}),
            "containers": [_engine(family, settings)],
            "volumes": _volumes(serving, settings),
        },
    }


def _toleration(toleration: Toleration) -> Manifest:
    """Without an empty value: the API server keeps none, and the list is compared as a whole."""
    return {key: value for key, value in written(toleration).items() if value != ""}


def _engine(family: Family, settings: EngineSettings) -> Manifest:
    serving = family.serving
    secret = serving.spec.model.credentials_secret
    startup = seconds(serving.spec.engine.startup_timeout)
    ports = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    ports += [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in load_port_names(serving)]
    return {
        "name": CONTAINER,
        "image": settings.image,
        "command": ["vllm", "serve"],
        "args": arguments(family, settings),
        "env": environment(family, settings),
        **({"envFrom": [{"secretRef": {"name": secret.name}}]} if secret is not None else {}),
        "ports": ports,
        "resources": settings.resources,
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the last log lines, without permission to read logs
        "startupProbe": _probe(period=10, timeout=5, failures=attempts(startup, period=10)),
        "readinessProbe": _probe(period=5, timeout=5, failures=3),
        "livenessProbe": _probe(period=10, timeout=10, failures=6),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP}}},
        "volumeMounts": _mounts(serving),
    }


def _probe(*, period: int, timeout: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def _plugin(family: Family) -> Manifest:
    """The init container that brings LARRY into any vLLM image: it copies the content of its wheel."""
    return {
        "name": "larry",
        "image": image(family.config.images.larry, family.config),
        "args": [PLUGIN],
        "resources": quantities(family.config.init_resources),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "larry", "mountPath": PLUGIN}],
    }


def _volumes(serving: LLMServing, settings: EngineSettings) -> list[Manifest]:
    volumes: list[Manifest] = [
        {"name": "home", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": settings.shm_size}},
    ]
    if has_plugin(serving):
        volumes.append({"name": "larry", "emptyDir": {}})
    if serving.spec.model.cache is None:
        volumes.append({"name": _CACHE_VOLUME, "emptyDir": {}})
    source = source_of(serving.spec.model)
    if source.scheme == "pvc":
        volumes.append({"name": "model", "persistentVolumeClaim": {"claimName": source.place, "readOnly": True}})
    return volumes


def _mounts(serving: LLMServing) -> list[Manifest]:
    mounts: list[Manifest] = [
        {"name": _CACHE_VOLUME, "mountPath": CACHE},
        {"name": "home", "mountPath": HOME},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the container's own, an emptyDir
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108  the 64 MiB that containers have are too few for NCCL
    ]
    if has_plugin(serving):
        mounts.append({"name": "larry", "mountPath": PLUGIN, "readOnly": True})
    if source_of(serving.spec.model).scheme == "pvc":
        mounts.append({"name": "model", "mountPath": MODEL, "readOnly": True})
    return mounts


def _claim(family: Family) -> Manifest:
    """Immutable in a StatefulSet: nothing in it may depend on the version or the configuration of the operator."""
    cache = family.serving.spec.model.cache
    assert cache is not None  # noqa: S101  asked for only then
    spec: dict[str, Any] = {
        "accessModes": [cache.access_mode],
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class_name is not None:
        spec["storageClassName"] = cache.storage_class_name
    labels = {**family.engines, MANAGED_BY: OPERATOR}
    return {"metadata": {"name": _CACHE_VOLUME, "labels": labels}, "spec": spec}
