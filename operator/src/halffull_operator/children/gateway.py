"""The gateway: Envoy and picker in each pod, or, in an InferencePool, the picker alone; and its Service. Pure."""

from typing import Final

from halffull_operator.children.gateway_drain import hook
from halffull_operator.children.gateway_picker import kept_running
from halffull_operator.children.manifest import (
    Family,
    Manifest,
    container_security,
    digest,
    patched,
    quantities,
    spread,
)
from halffull_operator.children.picker_config import (
    GATEWAY_PORT,
    GRPC_PORT,
    HEALTH_PORT,
    METRICS_PORT,
    POOL_REPLICAS,
    RUN,
    TLS,
    read_at_start,
)
from halffull_operator.engine_settings import PRE_STOP, drain_seconds, grace_seconds, image
from halffull_operator.labels import GATEWAY, PICKER_CONFIG, TEMPLATE_HASH

READY_PORT: Final = 9902
ADMIN_PORT: Final = 9901
_BOOTSTRAP: Final = f"{RUN}/envoy.yaml"
_TOKEN: Final = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
_DRAIN_TIME: Final = 10
"""s over which Envoy asks its clients to go, before its listener closes."""
_PATIENCE: Final = 150
"""Probes of 2 s until a picker that has no list of endpoints yet is restarted."""


def deployment(family: Family) -> Manifest:
    """The gateway's pods."""
    gateway = family.serving.spec.gateway
    pooled = gateway.mode == "InferencePool"
    template = _pool_template(family) if pooled else _template(family)
    patches = [] if pooled else [("spec.gateway.managed.podTemplate", gateway.effective.pod_template)]
    template = patched(template, patches, config=family.config)
    return family.child(
        "apps/v1",
        "Deployment",
        family.names.gateway,
        GATEWAY,
        annotations={TEMPLATE_HASH: digest(template)},
        spec={
            "replicas": POOL_REPLICAS if pooled else gateway.effective.replicas,
            "revisionHistoryLimit": 5,
            # A new pod before an old one goes: capacity never shrinks.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": family.gateways},
            "template": template,
        },
    )


def service(family: Family) -> Manifest:
    """Where clients (or, in an InferencePool, gateways) go."""
    gateway = family.serving.spec.gateway
    if gateway.mode == "InferencePool":
        port = {"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT, "protocol": "TCP", "appProtocol": "grpc"}
        return _service(family, [port])
    managed = gateway.effective
    secure = managed.tls is not None
    port = {
        "name": "https" if secure else "http",
        "port": 443 if secure else 80,
        "targetPort": GATEWAY_PORT,
        "protocol": "TCP",
        "appProtocol": "https" if secure else "http",
    }
    return _service(family, [port], type_=managed.service.type, annotations=managed.service.annotations)


def _service(
    family: Family, ports: list[Manifest], *, type_: str = "ClusterIP", annotations: dict[str, str] | None = None
) -> Manifest:
    return family.child(
        "v1",
        "Service",
        family.names.gateway,
        GATEWAY,
        annotations=annotations,
        spec={"type": type_, "selector": family.gateways, "ports": ports},
    )


def _template(family: Family) -> Manifest:
    tls = family.serving.spec.gateway.effective.tls
    volumes: list[Manifest] = [{"name": "run", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if tls is not None:
        volumes.append({"name": "tls", "secret": {"secretName": tls.secret_name}})
    # Native sidecar: up before Envoy and down after it.
    picker = {**_picker(family), "restartPolicy": "Always"}
    # No probe may end it either once it runs: Envoy goes on without it, and so must its pod.
    del picker["livenessProbe"]
    picker["command"] = kept_running(["halffull-extproc"], mark=f"{RUN}/picker-served")
    return _pod(
        family,
        volumes=volumes,
        grace=grace_seconds(family.serving),
        initContainers=[_bootstrap(family), picker],
        containers=[_envoy(family, secure=tls is not None)],
    )


def _pool_template(family: Family) -> Manifest:
    picker = _picker(family)
    picker["readinessProbe"] = _every(5, _health("readiness"), within=2, failures=3)
    picker["lifecycle"] = {"preStop": {"sleep": {"seconds": PRE_STOP}}}
    picker["ports"] = [{"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"}, *picker["ports"]]
    picker["volumeMounts"] = [mount for mount in picker["volumeMounts"] if mount["name"] != "run"]
    return _pod(family, volumes=[{"name": "tmp", "emptyDir": {}}], grace=30, containers=[picker])


def _pod(family: Family, *, volumes: list[Manifest], grace: int, **containers: list[Manifest]) -> Manifest:
    """Only containers that mount the volume `token` can ask the API server: not Envoy, which clients talk to."""
    return {
        "metadata": family.pod_metadata(GATEWAY, {PICKER_CONFIG: read_at_start(family)}),
        "spec": {
            "serviceAccountName": family.names.gateway,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace,
            "securityContext": family.pod_security(),
            "topologySpreadConstraints": spread(family.gateways),
            **family.pull_secrets(),
            **containers,
            "volumes": [*volumes, _token()],
        },
    }


def _token() -> Manifest:
    """What Kubernetes by default mounts into every container.

    The API server's defaults are written out: `sources` is compared as a whole.
    """
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    sources: list[Manifest] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": "token", "projected": {"sources": sources}}


def _envoy(family: Family, *, secure: bool) -> Manifest:
    drain = hook(admin=ADMIN_PORT, quiet=PRE_STOP, drain=drain_seconds(family.serving))
    mounts = _mounts()
    if secure:
        mounts.append({"name": "tls", "mountPath": TLS, "readOnly": True})
    return {
        "name": "envoy",
        "image": image(family.config.images.envoy, family.config),
        "command": ["envoy"],
        "args": [
            "--config-path",
            _BOOTSTRAP,
            "--concurrency",
            str(family.config.gateway.workers),
            "--drain-time-s",
            str(_DRAIN_TIME),
            "--disable-hot-restart",
        ],
        "ports": [
            {"name": "gateway", "containerPort": GATEWAY_PORT, "protocol": "TCP"},
            {"name": "envoy", "containerPort": READY_PORT, "protocol": "TCP"},
        ],
        "resources": quantities(family.config.gateway.envoy),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": _every(1, _ready(), within=2, failures=300),
        "readinessProbe": _every(5, _ready(), within=2, failures=3),
        # Not /ready: it says "not ready" while Envoy waits for its configuration, which a restart would not bring.
        "livenessProbe": _every(10, {"tcpSocket": {"port": READY_PORT}}, within=5, failures=6),
        "lifecycle": {"preStop": {"exec": {"command": drain}}},
        "volumeMounts": mounts,
    }


def _picker(family: Family) -> Manifest:
    return {
        "name": "picker",
        "image": image(family.config.images.extproc, family.config),
        "args": ["run", "--config-map", _config_map_name(family), "--log", "json"],
        "ports": [
            {"name": "health", "containerPort": HEALTH_PORT, "protocol": "TCP"},
            {"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        "resources": quantities(family.config.gateway.picker),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # Its ports open when it has a first list of endpoints.
        "startupProbe": _every(2, _health("readiness"), within=2, failures=_PATIENCE),
        "livenessProbe": _every(10, _health("liveness"), within=5, failures=3),
        "volumeMounts": [*_mounts(), _TOKEN],
    }


def _every(period: int, probe: Manifest, *, within: int, failures: int) -> Manifest:
    return {**probe, "periodSeconds": period, "timeoutSeconds": within, "failureThreshold": failures}


def _ready() -> Manifest:
    return {"httpGet": {"path": "/ready", "port": READY_PORT}}


def _health(service: str) -> Manifest:
    return {"grpc": {"port": HEALTH_PORT, "service": service}}


def _bootstrap(family: Family) -> Manifest:
    """Writes Envoy's first configuration: where the picker is."""
    ports = f"--admin-port {ADMIN_PORT} --ready-port {READY_PORT}"
    command = f'exec halffull-extproc bootstrap --config-map "$0" {ports} >"$1"'
    return {
        "name": "bootstrap",
        "image": image(family.config.images.extproc, family.config),
        "command": ["/bin/sh", "-c", command, _config_map_name(family), _BOOTSTRAP],
        "resources": quantities(family.config.init_resources),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*_mounts(), _TOKEN],
    }


def _config_map_name(family: Family) -> str:
    return f"{family.serving.namespace}/{family.names.picker}"


def _mounts() -> list[Manifest]:
    return [
        {"name": "run", "mountPath": RUN},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the container's own, an emptyDir
    ]
