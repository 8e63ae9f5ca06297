"""`spec.model`: what is served, and where it is kept. Pure."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from msgspec import Meta

from halffull_operator.shape import ListOf, Rule, Words
from halffull_operator.spec_types import ObjectName, ObjectRef, Size, Strict, only

_PART: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HF: Final = f"hf://{_PART}/{_PART}(?:@[A-Za-z0-9][A-Za-z0-9._/-]{{0,127}})?"
_PVC: Final = r"pvc://[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?(?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*"
_S3: Final = r"s3://[a-z0-9][-a-z0-9.]{1,61}[a-z0-9](?:/[A-Za-z0-9_=-][A-Za-z0-9._=-]*)+"
_MAX_URI: Final = 512


class Retention(Strict, frozen=True, kw_only=True):
    """What becomes of the cache's claims."""

    when_deleted: Annotated[
        Literal["Retain", "Delete"],
        Meta(description="When the LLMServing is deleted. Retain: the downloaded model outlives it."),
    ] = "Retain"
    when_scaled: Annotated[Literal["Retain", "Delete"], Meta(description="When an engine is scaled away.")] = "Delete"


class Cache(Strict, frozen=True, kw_only=True):
    """A claim for each engine."""

    size: Annotated[Size, Meta(description="Size of each engine's claim. It can grow and never shrink.")]
    storage_class_name: Annotated[
        ObjectName | None, Meta(description="StorageClass of new claims; without one the cluster's default.")
    ] = None
    access_mode: Annotated[
        Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"],
        Meta(description="Access mode of new claims. Each engine has a claim of its own."),
    ] = "ReadWriteOnce"
    retention: Annotated[Retention, Meta(description="What becomes of the claims.")] = Retention()
    RULES = (
        Rule(
            "!isQuantity(self.size) || !isQuantity(oldSelf.size)"
            " || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",
            "model.cache.size cannot shrink: write the old size or a larger one, or remove model.cache, delete the "
            "claims, set replicas to 0 and write it anew",
        ),
    )


class Model(Strict, frozen=True, kw_only=True):
    """What is served."""

    uri: Annotated[
        str,
        Meta(
            pattern=only(f"{_HF}|{_PVC}|{_S3}"),
            max_length=_MAX_URI,
            description="Where the model is: hf://org/name@revision (Hugging Face), pvc://claim/path (a claim of this "
            "namespace, mounted read-only), s3://bucket/path (streamed by vLLM).",
        ),
        Words(
            "hf://org/name or hf://org/name@revision, pvc://claim/path, or s3://bucket/path",
            cel=f"self.matches(r'^({_HF}|{_PVC}|{_S3})$') && !self.contains('..')",
            holds=lambda uri: ".." not in uri,
        ),
    ]
    served_names: Annotated[
        tuple[
            Annotated[
                str,
                Meta(pattern=only(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*"), max_length=128),
                Words("a model name of letters, digits and . _ : / @ + -"),
            ],
            ...,
        ],
        Meta(
            max_length=16,
            description="What clients write as `model`; the first one is what answers say. Without any: org/name of "
            "hf://, else the LLMServing's name.",
        ),
        ListOf("set"),
    ] = ()
    credentials_secret: Annotated[
        ObjectRef | None,
        Meta(description="A Secret whose keys become environment of the engine: HF_TOKEN, AWS_ACCESS_KEY_ID, …"),
    ] = None
    cache: Annotated[
        Cache | None,
        Meta(description="Keep the downloaded model on a claim for each engine. Without it: gone with its pod."),
    ] = None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model's address, taken apart."""

    scheme: Literal["hf", "pvc", "s3"]
    place: str
    """org/name, the claim's name, or the whole s3:// address."""
    path: str = ""
    """In the claim."""
    revision: str | None = None


def source_of(model: Model) -> ModelSource:
    """Take the address apart, which the types have checked."""
    scheme, _, rest = model.uri.partition("://")
    if scheme == "hf":
        place, _, revision = rest.partition("@")
        return ModelSource("hf", place, revision=revision or None)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        return ModelSource("pvc", claim, path=path)
    return ModelSource("s3", model.uri)


def served_names(model: Model, *, serving_name: str) -> tuple[str, ...]:
    """What clients may call the model."""
    if model.served_names:
        return model.served_names
    source = source_of(model)
    return (source.place if source.scheme == "hf" else serving_name,)


def shared_claim_problem(model: Model, *, replicas: int, access_modes: tuple[str, ...]) -> tuple[bool, str] | None:
    """What several engines on one pvc:// claim mean, given the modes of that claim: (certain to fail, message)."""
    source = source_of(model)
    if source.scheme != "pvc" or replicas < 2 or {"ReadWriteMany", "ReadOnlyMany"} & set(access_modes):
        return None
    what = f"PersistentVolumeClaim {source.place} is {', '.join(access_modes) or 'of no known access mode'}"
    advice = "write replicas: 1, or use a ReadOnlyMany or ReadWriteMany claim, or hf:// with model.cache"
    if "ReadWriteOncePod" in access_modes:
        return True, f"{what}: one pod can have it, and there are {replicas} engines; {advice}"
    return False, f"{what}: all {replicas} engines must run on the one node that has it, or they hang; {advice}"
