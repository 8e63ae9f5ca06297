"""A model's address, its names, and what several engines on one claim mean."""

import pytest

from halffull_operator.spec_model import ModelSource, served_names, shared_claim_problem, source_of
from halffull_operator.spec_types import seconds
from tests.operator.spec.samples import serving


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://a/b", ModelSource("hf", "a/b")),
        ("hf://a/b@refs/pr/1", ModelSource("hf", "a/b", revision="refs/pr/1")),
        ("pvc://models", ModelSource("pvc", "models")),
        ("pvc://models/llama/8b", ModelSource("pvc", "models", path="llama/8b")),
        ("s3://bucket/a/b", ModelSource("s3", "s3://bucket/a/b")),
    ],
)
def test_source(uri: str, source: ModelSource) -> None:
    assert source_of(serving({"model": {"uri": uri}}).spec.model) == source


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({"uri": "hf://a/b@main"}, ("a/b",)),
        ({"uri": "pvc://models/x"}, ("llama",)),
        ({"uri": "s3://bucket/x"}, ("llama",)),
        ({"uri": "hf://a/b", "servedNames": ["x", "y"]}, ("x", "y")),
    ],
)
def test_served_names(model: dict[str, object], names: tuple[str, ...]) -> None:
    assert served_names(serving({"model": model}).spec.model, serving_name="llama") == names


@pytest.mark.parametrize(
    ("uri", "replicas", "modes", "certain"),
    [
        ("pvc://m", 1, ("ReadWriteOncePod",), None),
        ("pvc://m", 2, ("ReadWriteOncePod",), True),
        ("pvc://m", 2, ("ReadWriteOnce",), False),
        ("pvc://m", 2, ("ReadWriteOnce", "ReadOnlyMany"), None),
        ("pvc://m", 2, ("ReadWriteMany",), None),
        ("hf://a/b", 2, ("ReadWriteOncePod",), None),
    ],
)
def test_a_shared_claim(uri: str, replicas: int, modes: tuple[str, ...], *, certain: bool | None) -> None:
    problem = shared_claim_problem(serving({"model": {"uri": uri}}).spec.model, replicas=replicas, access_modes=modes)
    assert (None if problem is None else problem[0]) is certain
    if problem is not None:
        assert "PersistentVolumeClaim m is" in problem[1]
        assert "2 engines" in problem[1]


@pytest.mark.parametrize(
    ("text", "length"), [("90s", 90), ("1h30m", 5400), ("24h", 86400), ("0s", 0), ("1h0m1s", 3601)]
)
def test_seconds(text: str, length: int) -> None:
    assert seconds(text) == length
