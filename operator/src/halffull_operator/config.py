"""What the chart gives the operator: one mounted YAML file. Pure."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from halffull_operator.config_text import ConfigError, Document
from halffull_operator.mistakes import Mistake, convert
from halffull_operator.pod_template import ENGINE_CONTAINERS, ENGINE_POD_FIELDS, refused
from halffull_operator.shape import Words, shape_of
from halffull_operator.spec import broken
from halffull_operator.spec_engine import Argument, GpuResource, Image
from halffull_operator.spec_types import (
    AnnotationValue,
    DNSLabel,
    EnvVars,
    FreeForm,
    LabelKey,
    LabelValue,
    NodeSelector,
    ObjectName,
    PullSecrets,
    Resources,
    Size,
    Strict,
    Tolerations,
    only,
)
from halffull_operator.vllm_args import refused_args, refused_env

__all__ = ["ConfigError", "OperatorConfig", "Profile", "load_config"]

Uid = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_ENVOY: Final = Resources(requests={"cpu": "500m", "memory": "256Mi"}, limits={"memory": "1Gi"})
_PICKER: Final = Resources(requests={"cpu": "500m", "memory": "256Mi"}, limits={"memory": "1Gi"})
_INIT: Final = Resources(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "512Mi"})


class Images(Strict, frozen=True, kw_only=True):
    """Images of the children, by tag or digest."""

    vllm: Annotated[Image, Meta(description="vLLM, where neither LLMServing nor profile name one.")]
    larry: Annotated[Image, Meta(description="LARRY: copies its wheel's content into the folder it is given.")]
    extproc: Annotated[Image, Meta(description="The picker.")]
    envoy: Annotated[Image, Meta(description="Envoy; its pre-stop hook needs bash, which the distroless image lacks.")]


class Profile(Strict, frozen=True, kw_only=True):
    """Defaults for `spec.engine`. What an LLMServing says itself takes precedence."""

    image: Image | None = None
    gpu_resource: GpuResource | None = None
    args: Annotated[tuple[Argument, ...], Meta(max_length=256)] = ()
    env: EnvVars = ()
    resources: Resources | None = None
    node_selector: NodeSelector = msgspec.field(default_factory=dict)
    tolerations: Tolerations = ()
    runtime_class_name: ObjectName | None = None
    shm_size: Size | None = None
    pod_template: FreeForm = msgspec.field(default_factory=dict)


class SecurityContext(Strict, frozen=True, kw_only=True):
    """Users of the children's pods. null: none is named, and the platform chooses (OpenShift's restricted-v2)."""

    run_as_user: Uid | None = 65532
    run_as_group: Uid | None = 65532
    fs_group: Uid | None = 65532


class Proxy(Strict, frozen=True, kw_only=True):
    """The way out for downloads, as HTTP_PROXY and so on in the engines."""

    http_proxy: Annotated[str, Meta(max_length=1024)] = ""
    https_proxy: Annotated[str, Meta(max_length=1024)] = ""
    no_proxy: Annotated[str, Meta(max_length=4096)] = ""


class GatewayDefaults(Strict, frozen=True, kw_only=True):
    """The gateways' pods."""

    envoy: Resources = _ENVOY
    picker: Resources = _PICKER
    workers: Annotated[int, Meta(ge=1, le=128, description="Envoy's worker threads.")] = 2


class Watch(Strict, frozen=True, kw_only=True):
    """What is watched."""

    namespaces: Annotated[tuple[DNSLabel, ...], Meta(max_length=1000, description="None: all namespaces.")] = ()


class OperatorConfig(Strict, frozen=True, kw_only=True):
    """All of operator.yaml."""

    images: Images
    registry: Annotated[
        Annotated[str, Meta(pattern=only(r"(?:[A-Za-z0-9][-A-Za-z0-9._:/]*[A-Za-z0-9])?"), max_length=255)],
        Words("a registry, or a path in one, such as registry.example.com/mirror"),
        Meta(description="Takes the place of the registry in every image, those that LLMServings name too."),
    ] = ""
    image_pull_secrets: Annotated[PullSecrets, Meta(description="Of every pod, in the LLMServing's namespace.")] = ()
    engine: Annotated[Profile, Meta(description="Defaults of all engines, under the profile's.")] = Profile()
    profiles: Annotated[dict[DNSLabel, Profile], Meta(max_length=100)] = msgspec.field(default_factory=dict)
    gateway: GatewayDefaults = GatewayDefaults()
    init_resources: Annotated[Resources, Meta(description="Of init containers.")] = _INIT
    labels: Annotated[dict[LabelKey, LabelValue], Meta(max_length=32, description="Of every child and its pods.")] = (
        msgspec.field(default_factory=dict)
    )
    annotations: Annotated[dict[LabelKey, AnnotationValue], Meta(max_length=32, description="Of every child.")] = (
        msgspec.field(default_factory=dict)
    )
    pod_labels: Annotated[dict[LabelKey, LabelValue], Meta(max_length=32, description="Of pods alone.")] = (
        msgspec.field(default_factory=dict)
    )
    pod_annotations: Annotated[
        dict[LabelKey, AnnotationValue],
        Meta(max_length=32, description="Of pods alone: a mesh's opt-out or excluded ports, say."),
    ] = msgspec.field(default_factory=dict)
    security_context: SecurityContext = SecurityContext()
    proxy: Proxy = Proxy()
    listen: Annotated[
        Literal["::", "0.0.0.0"],  # noqa: S104  what containers listen on
        Meta(description="What containers listen on. :: takes IPv4 too; 0.0.0.0 where nodes have no IPv6 at all."),
    ] = "::"
    watch: Watch = Watch()


def load_config(text: str, *, source: str) -> OperatorConfig:
    """Read operator.yaml; `source` is what messages call it.

    Raises:
        ConfigError: one line with source, line, key and what to write instead.
    """
    document = Document(text, source=source)
    try:
        config = convert(document.value, OperatorConfig)
    except Mistake as mistake:
        raise document.error(mistake.path, mistake.message) from None
    for path, message in broken(config, shape_of(OperatorConfig), ()):
        raise document.error(path, message)
    for where, profile in ((("engine",), config.engine), *((("profiles", n), p) for n, p in config.profiles.items())):
        for index, message in refused_args(profile.args, stock=False):
            raise document.error((*where, "args", index), message)
        for index, message in refused_env(variable.name for variable in profile.env):
            raise document.error((*where, "env", index, "name"), message)
        patch = profile.pod_template
        for path, message in refused(patch, pod_fields=ENGINE_POD_FIELDS, containers=ENGINE_CONTAINERS):
            raise document.error((*where, "podTemplate", *path), message)
    return config
