"""The children of an LLMServing: what should exist, as plain manifests. Pure; one module for each family of kinds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from halffull_operator.children import engine, gateway, optional, picker_config, protection
from halffull_operator.children.engine import engine_inputs
from halffull_operator.children.manifest import Family, Manifest
from halffull_operator.config import OperatorConfig
from halffull_operator.engine_settings import resolve
from halffull_operator.spec import LLMServing

__all__ = ["Children", "Manifest", "MissingApi", "OptionalApis", "build", "engine_inputs"]

OptionalApis = frozenset[str]
"""What the cluster serves of the APIs that are not Kubernetes' own: `GROUP/KIND`, such as
`gateway.networking.k8s.io/HTTPRoute`."""


@dataclass(frozen=True, slots=True)
class MissingApi:
    """A field that asks for a child whose API the cluster does not serve."""

    field: str
    api: str
    """`monitoring.coreos.com/v1 PodMonitor`."""


@dataclass(frozen=True, slots=True)
class Children:
    """What should exist."""

    manifests: tuple[Manifest, ...]
    """In an order in which each finds what it refers to."""
    missing: tuple[MissingApi, ...]
    engine_inputs: str
    """Hash of what of the LLMServing the engines' pod template depends on."""


_FIELDS: Final = {
    optional.POD_MONITOR: "monitoring.podMonitor.enabled",
    optional.INFERENCE_POOL: "gateway.mode",
    optional.HTTP_ROUTE: "gateway.route",
}


def build(serving: LLMServing, config: OperatorConfig, apis: OptionalApis) -> Children:
    """All children.

    Raises:
        halffull_operator.spec.SpecError: the LLMServing and the configuration do not go together.
    """
    family = Family(serving, config)
    manifests, missing = list(_always(family)), []
    for api, manifest in _wished(family):
        if f"{manifest['apiVersion'].partition('/')[0]}/{manifest['kind']}" in apis:
            manifests.append(manifest)
        else:
            missing.append(MissingApi(_FIELDS[api], api))
    return Children(
        manifests=tuple(manifests),
        missing=tuple(missing),
        engine_inputs=engine_inputs(serving),
    )


def _always(family: Family) -> Iterator[Manifest]:
    spec = family.serving.spec
    settings = resolve(family.serving, family.config)
    yield engine.service(family)
    if spec.network_policy.enabled:
        yield protection.network_policy(family)
    yield from protection.budgets(family)
    yield engine.stateful_set(family, settings)
    if spec.gateway.mode != "None":
        yield from picker_config.permissions(family)
        yield picker_config.config_map(family)
        yield gateway.service(family)
        yield gateway.deployment(family)


def _wished(family: Family) -> Iterator[tuple[str, Manifest]]:
    spec = family.serving.spec
    if spec.gateway.mode == "InferencePool":
        yield optional.INFERENCE_POOL, optional.inference_pool(family)
    if spec.gateway.route is not None:
        yield optional.HTTP_ROUTE, optional.http_route(family)
    if spec.monitoring.pod_monitor.enabled:
        yield optional.POD_MONITOR, optional.pod_monitor(family)
