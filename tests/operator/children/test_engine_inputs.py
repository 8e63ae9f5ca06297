"""When engines roll: the hash of what of an LLMServing their pods are built from."""

from typing import Any

import pytest

from halffull_operator.labels import ENGINE_INPUTS, TEMPLATE_HASH
from tests.operator.children.family import children, one


def hashes(spec: dict[str, Any] | None = None, more: str = "", **given: Any) -> tuple[str, str]:
    built = children(spec, more, **given)
    annotations = one(built, "StatefulSet")["metadata"]["annotations"]
    assert annotations[ENGINE_INPUTS] == built.engine_inputs
    return annotations[ENGINE_INPUTS], annotations[TEMPLATE_HASH]


FULL = {
    "model": {"uri": "hf://a/b", "cache": {"size": "1Gi"}},
    "engine": {
        "args": ["--seed=1"],
        "parallelism": {"tensor": 2},
        "tolerations": [{"key": "a", "value": "b"}],
        "drainTimeout": "1m",
    },
    "scheduler": {"policy": "LARRY", "larry": {"alpha": 500}},
}


def test_the_hash_is_the_same_in_every_version() -> None:
    """Another value here would roll all engines of all clusters at the next upgrade: it never changes in v1alpha1."""
    assert hashes()[0] == "3887e45c95b0636b"
    assert hashes(FULL, annotations={"serving.halffull.dev/restartedAt": "t"})[0] == "2d432cf51d8054ed"


def test_defaults_that_are_written_are_as_good_as_none() -> None:
    written = {
        "replicas": 1,
        "engine": {"parallelism": {"tensor": 1, "pipeline": 1}, "startupTimeout": "1h", "args": [], "podTemplate": {}},
        "scheduler": {"policy": "LARRY"},
        "model": {"uri": "hf://meta-llama/Llama-3.1-8B-Instruct", "servedNames": []},
    }
    assert hashes(written) == hashes()


@pytest.mark.parametrize(
    "spec",
    [
        {"replicas": 5},
        {"routing": {"policy": "Random"}},
        {"gateway": {"managed": {"replicas": 5, "tls": {"secretName": "x"}}}},
        {"gateway": {"mode": "None"}},
        {"networkPolicy": {"enabled": True}},
        {"monitoring": {"podMonitor": {"enabled": True}}},
        {"rollout": {"progressDeadline": "2h"}},
    ],
)
def test_what_is_no_matter_of_the_engines_pods(spec: dict[str, Any]) -> None:
    assert hashes(spec) == hashes()


def test_a_larger_cache_grows_claims_and_rolls_nothing() -> None:
    small = {"model": {"uri": "hf://a/b", "cache": {"size": "1Gi"}}}
    large = {"model": {"uri": "hf://a/b", "cache": {"size": "2Gi", "retention": {"whenScaled": "Retain"}}}}
    assert hashes(small) == hashes(large)
    assert hashes(small)[0] != hashes({"model": {"uri": "hf://a/b"}})[0]


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"uri": "hf://a/c"}},
        {"model": {"uri": "hf://a/b", "servedNames": ["x"]}},
        {"model": {"uri": "hf://a/b", "credentialsSecret": {"name": "x"}}},
        {"engine": {"image": "x:1"}},
        {"engine": {"args": ["--seed=1"]}},
        {"engine": {"env": [{"name": "A", "value": ""}]}},
        {"engine": {"parallelism": {"data": 2}}},
        {"engine": {"podTemplate": {"spec": {"hostIPC": True}}}},
        {"engine": {"drainTimeout": "1m"}},
        {"scheduler": {"policy": "FCFS"}},
        {"scheduler": {"larry": {"alpha": 2}}},
    ],
)
def test_what_rolls(spec: dict[str, Any]) -> None:
    base = {"model": {"uri": "hf://a/b"}}
    assert hashes({**base, **spec})[0] != hashes(base)[0]
    assert hashes({**base, **spec})[1] != hashes(base)[1]


def test_restarted_at_rolls() -> None:
    once = hashes(annotations={"serving.halffull.dev/restartedAt": "1"})
    again = hashes(annotations={"serving.halffull.dev/restartedAt": "2"})
    assert len({once, again, hashes()}) == 3
    assert len({once[1], again[1], hashes()[1]}) == 3


def test_another_chart_is_seen_in_the_template_alone() -> None:
    for more in ("engine: {image: other:1}\n", "labels: {chart: '2'}\n", "initResources: {requests: {cpu: 1}}\n"):
        inputs, template = hashes(None, more)
        assert inputs == hashes()[0]
        assert template != hashes()[1]
