"""`spec.engine`: the vLLM engines. Pure."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from halffull_operator.shape import Rule, Words
from halffull_operator.spec_types import (
    DrainDuration,
    EnvVars,
    FreeForm,
    LongDuration,
    NodeSelector,
    ObjectName,
    PullSecrets,
    Resources,
    Size,
    Strict,
    Tolerations,
    only,
)

NO_GPU: Final = "none"
MAX_GPUS: Final = 64
Image = Annotated[
    str,
    Meta(pattern=only(r"[A-Za-z0-9][-A-Za-z0-9._/:@]*"), max_length=512),
    Words("an image such as vllm/vllm-openai:v0.32.0, by tag or digest"),
]
GpuResource = Annotated[
    str,
    Meta(
        pattern=only(rf"{NO_GPU}|[a-z0-9][-a-z0-9.]{{0,251}}[a-z0-9]/[A-Za-z0-9][-A-Za-z0-9_.]{{0,62}}"), max_length=317
    ),
    Words("a resource such as nvidia.com/gpu, or none for engines on CPU"),
]
Argument = Annotated[str, Meta(min_length=1, max_length=8192)]


class Parallelism(Strict, frozen=True, kw_only=True):
    """How an engine spreads over the GPUs of its pod."""

    tensor: Annotated[int, Meta(ge=1, le=MAX_GPUS, description="Tensor parallel size.")] = 1
    pipeline: Annotated[int, Meta(ge=1, le=MAX_GPUS, description="Pipeline parallel size.")] = 1
    data: Annotated[
        int, Meta(ge=1, le=MAX_GPUS, description="Data parallel size: so many engine cores behind one address.")
    ] = 1
    RULES = (
        Rule(
            f"self.tensor * self.pipeline * self.data <= {MAX_GPUS}",
            f"tensor × pipeline × data are the GPUs of one pod, at most {MAX_GPUS}: write smaller sizes, and replicas",
            lambda self: self.gpus <= MAX_GPUS,
        ),
    )

    @property
    def gpus(self) -> int:
        """GPUs of one pod."""
        return self.tensor * self.pipeline * self.data


class Engine(Strict, frozen=True, kw_only=True):
    """The vLLM engines. A change rolls them, one at a time."""

    image: Annotated[
        Image | None, Meta(description="vLLM's image, 0.18 or newer. Without it the profile's or the chart's.")
    ] = None
    parallelism: Annotated[Parallelism, Meta(description="How an engine spreads over GPUs.")] = Parallelism()
    gpu_resource: Annotated[
        GpuResource | None,
        Meta(
            description="Resource of which a pod gets tensor × pipeline × data, or none: CPU. Without it the "
            "profile's or the chart's (nvidia.com/gpu)."
        ),
    ] = None
    max_model_len: Annotated[
        Annotated[int, Meta(ge=1, le=2**31 - 1)] | None,
        Meta(description="Longest sequence in tokens. Without it the model's own."),
    ] = None
    args: Annotated[
        tuple[Argument, ...],
        Meta(
            max_length=256,
            description="More of vLLM's flags, each as --flag=value or as two items. Flags that a field of this "
            "resource stands for are refused.",
        ),
    ] = ()
    env: Annotated[EnvVars, Meta(description="Environment of the engine; it takes precedence over the profile's.")] = ()
    resources: Annotated[
        Resources | None,
        Meta(description="Requests and limits, GPUs apart. Without it the profile's or the chart's."),
    ] = None
    node_selector: Annotated[NodeSelector, Meta(description="Labels that a node must have, besides the profile's.")] = (
        msgspec.field(default_factory=dict)
    )
    tolerations: Annotated[
        Tolerations, Meta(description="Tolerations, besides the profile's and that of the GPU's taint.")
    ] = ()
    runtime_class_name: Annotated[ObjectName | None, Meta(description="RuntimeClass. Without it the profile's.")] = None
    shm_size: Annotated[
        Size | None,
        Meta(description="Limit of /dev/shm, which is memory. Without it the profile's or the chart's (8Gi)."),
    ] = None
    service_account_name: Annotated[
        ObjectName | None, Meta(description="ServiceAccount of the engines; its token is not mounted.")
    ] = None
    image_pull_secrets: Annotated[PullSecrets, Meta(description="Pull secrets, besides the chart's.")] = ()
    startup_timeout: Annotated[
        LongDuration,
        Meta(description="How long an engine may take to download and load the model; then it is restarted."),
    ] = "1h"
    drain_timeout: Annotated[
        DrainDuration,
        Meta(
            description="How long requests may go on when an engine or a gateway pod ends. An idle one ends at once; "
            "0s aborts them."
        ),
    ] = "10m"
    pod_template: Annotated[
        FreeForm,
        Meta(
            description="Escape hatch: a piece of a pod template, merged as Kubernetes merges (lists by their keys, "
            "null removes). The engine's container is named engine."
        ),
    ] = msgspec.field(default_factory=dict)
