"""`status` of an LLMServing, for its schema. Pure."""

from typing import Annotated, Literal

from msgspec import Meta

from halffull_operator.shape import ListOf
from halffull_operator.spec_types import Strict

Count = Annotated[int, Meta(ge=0)]
Time = Annotated[str, Meta(max_length=64)]


class UnhealthyPod(Strict, frozen=True, kw_only=True):
    """A pod that is not well."""

    name: Annotated[str, Meta(max_length=253, description="Name of the pod.")]
    reason: Annotated[str, Meta(max_length=1024, description="Why, for a person.")]
    since: Annotated[Time, Meta(description="Since when.")]


class Condition(Strict, frozen=True, kw_only=True):
    """As in every Kubernetes object."""

    type: Annotated[str, Meta(max_length=316, description="Ready, EnginesReady, GatewayReady, Progressing, Applied, …")]
    status: Annotated[Literal["True", "False", "Unknown"], Meta(description="Whether it holds.")]
    observed_generation: Annotated[Count | None, Meta(description="The generation that it speaks of.")] = None
    last_transition_time: Annotated[Time, Meta(description="When status changed last.")]
    reason: Annotated[str, Meta(min_length=1, max_length=1024, description="Why, in one word.")]
    message: Annotated[str, Meta(max_length=32768, description="Why, and what to do.")]


class LLMServingStatus(Strict, frozen=True, kw_only=True):
    """What is."""

    replicas: Annotated[Count | None, Meta(description="Engines that exist.")] = None
    ready_replicas: Annotated[Count | None, Meta(description="Engines that answer.")] = None
    updated_replicas: Annotated[Count | None, Meta(description="Engines at the newest revision.")] = None
    selector: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        Meta(description="Label selector of the engines, for autoscalers."),
    ] = None
    url: Annotated[
        Annotated[str, Meta(max_length=1024)] | None, Meta(description="Address for clients, usable as base_url.")
    ] = None
    image: Annotated[Annotated[str, Meta(max_length=1024)] | None, Meta(description="The engines' image.")] = None
    model_revision: Annotated[
        Annotated[str, Meta(max_length=256)] | None,
        Meta(description="The model's revision, where the address has one."),
    ] = None
    observed_generation: Annotated[Count | None, Meta(description="The generation that the status speaks of.")] = None
    unhealthy: Annotated[
        tuple[UnhealthyPod, ...], Meta(max_length=16, description="Pods that are not well."), ListOf("map", ("name",))
    ] = ()
    conditions: Annotated[
        tuple[Condition, ...], Meta(max_length=16, description="Conditions."), ListOf("map", ("type",))
    ] = ()
