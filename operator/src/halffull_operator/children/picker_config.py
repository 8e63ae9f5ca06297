"""The picker's configuration and its permissions. Pure."""

import json
from functools import lru_cache
from typing import Any, Final

import yaml

from halffull_operator.children.engine import PORT_NAME
from halffull_operator.children.engine_command import has_plugin
from halffull_operator.children.manifest import Family, Manifest, digest
from halffull_operator.engine_settings import LOAD_PORT, resolve
from halffull_operator.labels import GATEWAY
from halffull_operator.spec_gateway import Managed
from halffull_operator.vllm_args import value_of

KEY: Final = "picker.yaml"
RUN: Final = "/run/halffull"
SOCKET: Final = f"unix:{RUN}/picker.sock"
TLS: Final = "/etc/halffull/tls"
GATEWAY_PORT: Final = 8000
GRPC_PORT: Final = 9002
HEALTH_PORT: Final = 9003
METRICS_PORT: Final = 9090
POOL_REPLICAS: Final = 2
"""Pickers of an InferencePool."""
_LIVE: Final = ("policy", "failureMode", "sal", "salPlus", "poll")
"""Keys that a running picker applies; every other one it reads at start."""


def picker_config(family: Family) -> dict[str, Any]:
    """picker.yaml as data."""
    serving = family.serving
    routing, gateway = serving.spec.routing, serving.spec.gateway
    pooled = gateway.mode == "InferencePool"
    config: dict[str, Any] = {
        "version": 1,
        "policy": routing.policy,
        "failureMode": routing.failure_mode,
        "endpoints": _endpoints(family, pooled=pooled),
        "load": _load(family, pickers=POOL_REPLICAS if pooled else gateway.effective.replicas),
    }
    if not pooled:
        config["gateway"] = _gateway(family, gateway.effective)
    config["listen"] = {
        "grpc": family.listen(GRPC_PORT) if pooled else SOCKET,
        **({"tls": "selfSigned"} if pooled else {}),
        "health": family.listen(HEALTH_PORT),
        "metrics": family.listen(METRICS_PORT),
    }
    return config


def read_at_start(family: Family) -> str:
    """A hash of what only a new picker reads: with it in the pods' annotations, an edit of it rolls the gateway."""
    return digest({key: value for key, value in picker_config(family).items() if key not in _LIVE})


def config_map(family: Family) -> Manifest:
    """The ConfigMap that the picker watches by the API."""
    text = _text(json.dumps(picker_config(family)))
    return family.child("v1", "ConfigMap", family.names.picker, GATEWAY, data={KEY: text})


@lru_cache(maxsize=2048)  # half the time of a build, and the same each time
def _text(config: str) -> str:
    return yaml.safe_dump(json.loads(config), sort_keys=False, allow_unicode=True, width=120)


def permissions(family: Family) -> list[Manifest]:
    """ServiceAccount, Role and RoleBinding: what contract 2 allows the picker, and no more."""
    names = family.names
    account = family.child("v1", "ServiceAccount", names.gateway, GATEWAY)
    role = family.child(
        "rbac.authorization.k8s.io/v1",
        "Role",
        names.picker,
        GATEWAY,
        rules=[
            # list and watch by name need the client to ask by field selector, which it does
            _rule("", "configmaps", names=[names.picker]),
            *_discovery(family),
        ],
    )
    binding = family.child(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        names.picker,
        GATEWAY,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": names.picker},
        subjects=[{"kind": "ServiceAccount", "name": names.gateway, "namespace": family.serving.namespace}],
    )
    return [account, role, binding]


def _discovery(family: Family) -> list[Manifest]:
    if family.serving.spec.gateway.mode == "InferencePool":
        return [
            _rule("", "pods"),
            _rule("inference.networking.k8s.io", "inferencepools", names=[family.names.pool]),
        ]
    return [_rule("discovery.k8s.io", "endpointslices")]


def _rule(group: str, resource: str, *, names: list[str] | None = None) -> Manifest:
    return {
        "apiGroups": [group],
        "resources": [resource],
        "verbs": ["get", "list", "watch"],
        **({"resourceNames": names} if names else {}),
    }


def _endpoints(family: Family, *, pooled: bool) -> Manifest:
    namespace = family.serving.namespace
    if pooled:
        return {"inferencePool": {"namespace": namespace, "name": family.names.pool}}
    return {"service": {"namespace": namespace, "name": family.names.engine, "port": PORT_NAME}}


def _load(family: Family, *, pickers: int) -> Manifest:
    serving = family.serving
    if has_plugin(serving):
        return {"report": {"port": LOAD_PORT, "ranks": serving.spec.engine.parallelism.data}}
    budget = value_of(resolve(serving, family.config).args, "max-num-batched-tokens") or ""
    known = {"maxTokensPerBatch": int(budget)} if budget.isdecimal() and 0 < int(budget) <= 2**31 else {}
    return {"metrics": {**known, "pickers": pickers}}


def _gateway(family: Family, managed: Managed) -> Manifest:
    tls = {"tls": {"certFile": f"{TLS}/tls.crt", "keyFile": f"{TLS}/tls.key"}} if managed.tls is not None else {}
    return {"listen": family.listen(GATEWAY_PORT), **tls, "paths": list(managed.paths)}
