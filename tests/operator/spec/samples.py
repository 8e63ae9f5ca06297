"""LLMServings for tests: by hand, and at random from the types themselves."""

from typing import Any

from hypothesis import strategies as st

from halffull_operator.shape import Kind, Shape, shape_of
from halffull_operator.spec import LLMServing, LLMServingSpec, parse

Spec = dict[str, Any]
URI = "hf://meta-llama/Llama-3.1-8B-Instruct"


def body(spec: Spec | None = None, *, name: str = "llama", annotations: dict[str, str] | None = None) -> dict[str, Any]:
    """An LLMServing as the API gives it, with a model where the spec names none."""
    metadata = {"name": name, "namespace": "ml", "uid": "uid-1", "generation": 3, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"model": {"uri": URI}, **(spec or {})}}


def serving(spec: Spec | None = None, *, name: str = "llama", annotations: dict[str, str] | None = None) -> LLMServing:
    """The same, parsed."""
    return parse(body(spec, name=name, annotations=annotations))


# What may be written, by the words that say so. A new kind of text needs a line here.
TEXTS: dict[str, list[str]] = {
    "a duration from 1m": ["1m", "90s", "1h", "24h", "1h30m"],
    "a duration from 0s": ["0s", "10m", "24h"],
    "a name of a-z": ["h100", "a"],
    "the name of a Kubernetes object": ["secret", "a.b", "fast-ssd"],
    "a key such as": ["app", "example.com/app"],
    "a label's value": ["", "yes", "A.b_c"],
    "a size such as": ["1Gi", "200Gi", "500M"],
    "hf://": [URI, "hf://a/b@refs/pr/1", "pvc://models", "pvc://models/a/b", "s3://bucket/a/b"],
    "a model name": ["llama", "meta-llama/Llama:latest"],
    "a key of letters": ["token"],
    "a variable's name": ["HF_TOKEN", "_A1", "B"],
    "a range such as": ["10.0.0.0/8", "fd00::/8"],
    "an image such as": ["vllm/vllm-openai:v0.32.0", "ghcr.io/a/b@sha256:" + "0" * 64],
    "a resource such as": ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb", "none"],
    "a path such as /health": ["/health", "/v1/*", "/"],
    "an API group": ["gateway.networking.k8s.io", ""],
    "a kind such as": ["Gateway"],
    "a host name": ["llm.example.com", "*.example.com"],
    "a path such as /llama": ["/llama", "/a/b", "/"],
}


def values(shape: Shape) -> st.SearchStrategy[Any]:  # noqa: PLR0911  one for each kind
    """Values that the type takes; rules between fields may still refuse them."""
    match shape.kind:
        case Kind.OBJECT:
            required = {member.name: values(member.shape) for member in shape.fields if member.required}
            optional = {member.name: values(member.shape) for member in shape.fields if not member.required}
            return st.fixed_dictionaries(required, optional=optional)
        case Kind.LIST:
            assert shape.item is not None
            key = (lambda item: item["name"]) if shape.list_of.keys else repr
            return st.lists(values(shape.item), min_size=shape.min_length or 0, max_size=3, unique_by=key)
        case Kind.MAP:
            assert shape.item is not None
            assert shape.key is not None
            return st.dictionaries(values(shape.key), values(shape.item), max_size=2)
        case Kind.ANY:
            return st.just({})
        case Kind.QUANTITY:
            return st.sampled_from([1, 4, "500m", "16Gi", "1.5"])
        case Kind.BOOLEAN:
            return st.booleans()
        case Kind.INTEGER:
            return st.integers(int(shape.minimum or 0), min(int(shape.maximum or 8), 8))
        case Kind.NUMBER:
            return st.floats(shape.minimum, shape.maximum, allow_nan=False)
        case Kind.STRING:
            return st.sampled_from(texts(shape))


def texts(shape: Shape) -> list[str]:
    """Examples of a text."""
    if shape.enum:
        return list(shape.enum)
    if shape.words is None:
        return ["status.podIP"] if shape.max_length == 256 else ["x", "--seed=1"]
    return next(found for start, found in TEXTS.items() if shape.words.allowed.startswith(start))


specs = values(shape_of(LLMServingSpec))
"""`spec` as a person might write it."""
