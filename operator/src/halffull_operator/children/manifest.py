"""What every child has: names, labels, an owner; and what every container of ours is allowed. Pure."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from halffull_operator.config import OperatorConfig
from halffull_operator.engine_settings import image, resources_of
from halffull_operator.labels import API_VERSION, ENGINE, GATEWAY, KIND, child_labels, selector
from halffull_operator.mistakes import Mistake, dotted
from halffull_operator.names import Names
from halffull_operator.pod_template import merge
from halffull_operator.spec import LLMServing, SpecError
from halffull_operator.spec_types import Resources

Manifest = dict[str, Any]

_HASH_DIGITS: Final = 16


@dataclass(frozen=True, slots=True)
class Family:
    """The children of one LLMServing."""

    serving: LLMServing
    config: OperatorConfig

    @property
    def names(self) -> Names:
        """How they are called."""
        return Names.of(self.serving.name)

    @property
    def engines(self) -> dict[str, str]:
        """Labels that select the engines' pods."""
        return selector(self.names.base, ENGINE)

    @property
    def gateways(self) -> dict[str, str]:
        """Labels that select the gateway's pods."""
        return selector(self.names.base, GATEWAY)

    def child(
        self,
        api_version: str,
        kind: str,
        name: str,
        component: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        **content: Any,
    ) -> Manifest:
        """A manifest with metadata, owned by the LLMServing."""
        extra = {**self.config.labels, **(labels or {})}
        noted = {**self.config.annotations, **(annotations or {})}
        serving = self.serving
        owner = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": serving.name,
            "uid": serving.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        return {
            "apiVersion": api_version,
            "kind": kind,
            "metadata": {
                "name": name,
                "namespace": serving.namespace,
                "labels": child_labels(self.names.base, component, extra=extra),
                **({"annotations": noted} if noted else {}),
                "ownerReferences": [owner],
            },
            **content,
        }

    def pod_metadata(self, component: str, annotations: Mapping[str, str] | None = None) -> Manifest:
        """Metadata of a pod template."""
        config = self.config
        noted = {**config.annotations, **config.pod_annotations, **(annotations or {})}
        extra = {**config.labels, **config.pod_labels}
        return {
            "labels": child_labels(self.names.base, component, extra=extra),
            **({"annotations": noted} if noted else {}),
        }

    def pod_security(self) -> Manifest:
        """Security context of a pod: "restricted", and whose user it is only where the configuration names one."""
        context = self.config.security_context
        named = {
            "runAsUser": context.run_as_user,
            "runAsGroup": context.run_as_group,
            "fsGroup": context.fs_group,
            # A model cache has files by the thousand: do not walk it at every start.
            "fsGroupChangePolicy": "OnRootMismatch" if context.fs_group is not None else None,
        }
        return {
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
            **{key: value for key, value in named.items() if value is not None},
        }

    def pull_secrets(self, *more: str) -> Manifest:
        """Pull secrets of the configuration and `more`, as a part of a pod's spec."""
        names = dict.fromkeys((*(secret.name for secret in self.config.image_pull_secrets), *more))
        return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}

    def listen(self, port: int) -> str:
        """Where a server of ours listens."""
        host = self.config.listen
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def patched(
    template: Manifest, patches: Iterable[tuple[str, Mapping[str, Any]]], *, config: OperatorConfig
) -> Manifest:
    """A pod template with the escape hatches laid over it, each given with the field that it is from.

    Their images come from the configured registry too, and each says when it is pulled, as the API server says for a
    new object: left out, the rule of an earlier image stayed.

    Raises:
        SpecError: a patch that cannot be merged.
    """
    for where, patch in patches:
        try:
            template = merge(template, patch)
        except Mistake as mistake:
            raise SpecError(dotted((where, *mistake.path)), mistake.message) from None
    pod = dict(template["spec"])
    for group in ("initContainers", "containers"):
        if group in pod:
            pod[group] = [_pulled(container, "image", "imagePullPolicy", config) for container in pod[group]]
    if "volumes" in pod:
        pod["volumes"] = [
            {
                name: _pulled(value, "reference", "pullPolicy", config) if name == "image" else value
                for name, value in one.items()
            }
            for one in pod["volumes"]
        ]
    return {**template, "spec": pod}


def _pulled(thing: Any, key: str, policy: str, config: OperatorConfig) -> Any:
    if not isinstance(thing, dict) or not isinstance(thing.get(key), str):
        return thing  # as a person wrote it, for the API server to refuse
    reference = image(thing[key], config)
    tag = reference.rpartition("/")[2].partition(":")[2] or "latest"
    return {policy: "Always" if tag == "latest" else "IfNotPresent", **thing, key: reference}


def digest(value: Any) -> str:
    """A hash of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_DIGITS]


def spread(labels: Mapping[str, str]) -> list[Manifest]:
    """Pods on different hosts where there is room."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
        }
    ]


def container_security() -> Manifest:
    """What "restricted" asks of each container, and a root file system that nobody writes to."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def env(variables: Iterable[tuple[str, str]]) -> list[Manifest]:
    """Variables as a container has them."""
    return [{"name": name, "value": value} for name, value in variables]


def quantities(resources: Resources) -> Manifest:
    """Resources from the configuration."""
    return resources_of(resources.requests, resources.limits)
