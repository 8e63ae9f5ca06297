"""An engine's settings after chart, profile and LLMServing have had their say. Pure."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from halffull_operator.config import OperatorConfig, Profile
from halffull_operator.spec import LLMServing, SpecError
from halffull_operator.spec_engine import NO_GPU
from halffull_operator.spec_types import EnvVar, Resources, Toleration, seconds

Manifest = dict[str, Any]

HTTP_PORT: Final = 8000
LOAD_PORT: Final = 9400
PRE_STOP: Final = 5
"""s between the deletion of a pod and the first signal to it: until then every picker and proxy has heard of it."""
_SLACK: Final = 30  # s beyond the drain until a pod is killed
# Where neither LLMServing, profile nor chart say it.
_GPU: Final = "nvidia.com/gpu"
_RESOURCES: Final = Resources(requests={"cpu": "4", "memory": "16Gi"})
_SHM_SIZE: Final = "8Gi"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """What the engine's pod is built from."""

    image: str
    gpu_resource: str | None
    gpus: int
    args: tuple[str, ...]
    env: tuple[EnvVar, ...]
    resources: Manifest
    node_selector: dict[str, str]
    tolerations: tuple[Toleration, ...]
    runtime_class_name: str | None
    shm_size: str
    pod_templates: tuple[tuple[str, Mapping[str, Any]], ...]
    """Patches in order, each with the field that it is from."""

    @property
    def on_cpu(self) -> bool:
        """Whether the engine has no GPU."""
        return self.gpu_resource is None


def resolve(serving: LLMServing, config: OperatorConfig) -> EngineSettings:
    """Lay the LLMServing over its profile over the chart's defaults.

    Single values come from the topmost that has one, lists and mappings are joined.

    Raises:
        SpecError: there is no such profile, or resources name the GPU.
    """
    engine = serving.spec.engine
    layers = _layers(serving, config)
    gpu = engine.gpu_resource or _first(layer.gpu_resource for layer in layers) or _GPU
    gpu_resource = None if gpu == NO_GPU else gpu
    gpus = engine.parallelism.gpus if gpu_resource else 0
    asked = (engine.resources, *(layer.resources for layer in layers))
    # Every container has some: an empty one is as none.
    resources = _first(one for one in asked if one != Resources()) or _RESOURCES
    tolerations = (*engine.tolerations, *(item for layer in layers for item in layer.tolerations))
    if gpu_resource:
        taint = (
            f"{gpu_resource.partition('/')[0]}/gpu"  # slices of a GPU (MIG) have names of their own, their nodes not
        )
        tolerations = (*tolerations, Toleration(key=taint, operator="Exists", effect="NoSchedule"))
    lowest_first = layers[::-1]
    env = {variable.name: variable for layer in lowest_first for variable in layer.env}
    env |= {variable.name: variable for variable in engine.env}
    where = f"profile {serving.spec.profile}" if serving.spec.profile else "the chart's engine"
    return EngineSettings(
        image=image(engine.image or _first(layer.image for layer in layers) or config.images.vllm, config),
        gpu_resource=gpu_resource,
        gpus=gpus,
        args=(*(argument for layer in lowest_first for argument in layer.args), *engine.args),
        env=tuple(env.values()),
        resources=_with_gpus(resources, gpu_resource, gpus),
        node_selector={key: value for layer in lowest_first for key, value in layer.node_selector.items()}
        | engine.node_selector,
        tolerations=tuple(dict.fromkeys(tolerations)),
        runtime_class_name=engine.runtime_class_name or _first(layer.runtime_class_name for layer in layers),
        shm_size=engine.shm_size or _first(layer.shm_size for layer in layers) or _SHM_SIZE,
        pod_templates=(
            *((f"podTemplate of {where}", layer.pod_template) for layer in lowest_first),
            ("spec.engine.podTemplate", engine.pod_template),
        ),
    )


def _layers(serving: LLMServing, config: OperatorConfig) -> tuple[Profile, ...]:
    """Defaults, the topmost first."""
    name = serving.spec.profile
    if name is None:
        return (config.engine,)
    if name not in config.profiles:
        known = ", ".join(sorted(config.profiles)) or "none"
        raise SpecError("spec.profile", f"there is no profile {name!r}; the operator's chart defines: {known}")
    return config.profiles[name], config.engine


def _first(values: Iterable[Any]) -> Any:
    return next((value for value in values if value is not None), None)


def _with_gpus(resources: Resources, gpu_resource: str | None, gpus: int) -> Manifest:
    requests, limits = dict(resources.requests), dict(resources.limits)
    if gpu_resource:
        for group, given in (("requests", requests), ("limits", limits)):
            if gpu_resource in given:
                raise SpecError(
                    f"spec.engine.resources.{group}.{gpu_resource}",
                    "the number of GPUs follows from engine.parallelism: remove it here",
                )
        limits[gpu_resource] = str(gpus)  # requests are the same by default
    return resources_of(requests, limits)


def resources_of(requests: Mapping[str, Any], limits: Mapping[str, Any]) -> Manifest:
    """Resources of a container, empty parts left out, quantities as text."""
    parts = {"requests": requests, "limits": limits}
    return {name: {key: str(value) for key, value in sorted(part.items())} for name, part in parts.items() if part}


def image(reference: str, config: OperatorConfig) -> str:
    """An image in the registry that takes the place of all others, where one is configured."""
    registry = config.registry.rstrip("/")
    if not registry or reference.startswith(f"{registry}/"):
        return reference
    host, slash, rest = reference.partition("/")
    named = bool(slash) and ("." in host or ":" in host or host == "localhost")
    return f"{registry}/{rest if named else reference}"


def drain_seconds(serving: LLMServing) -> int:
    """How long requests may go on when a pod ends."""
    return seconds(serving.spec.engine.drain_timeout)


def grace_seconds(serving: LLMServing) -> int:
    """When a pod that ends is killed: after the drain, with room to spare."""
    return PRE_STOP + drain_seconds(serving) + _SLACK


def attempts(total: int, *, period: int) -> int:
    """Probes that fill a time."""
    return max(1, math.ceil(total / period))
