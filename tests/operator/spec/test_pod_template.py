"""The escape hatch: merged as Kubernetes merges, and refused where it would break what the operator promises."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_operator.mistakes import Mistake, dotted
from halffull_operator.pod_template import ENGINE_CONTAINERS, ENGINE_POD_FIELDS, merge, refused

BASE: dict[str, Any] = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
        "containers": [
            {
                "name": "engine",
                "args": ["--x"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/data"}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}


def merged(patch: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy(BASE)
    result: dict[str, Any] = merge(BASE, patch)
    assert before == BASE, "the template is not changed"
    return result


def test_mappings_merge_and_null_removes() -> None:
    spec = merged({"spec": {"securityContext": {"runAsUser": None, "runAsGroup": 0}, "hostIPC": True}})["spec"]
    assert spec["securityContext"] == {"runAsNonRoot": True, "runAsGroup": 0}
    assert spec["hostIPC"] is True
    assert spec["containers"] == BASE["spec"]["containers"]


def test_containers_merge_by_name_and_others_are_added() -> None:
    patch = {
        "spec": {
            "containers": [{"name": "log"}, {"name": "engine", "env": [{"name": "B", "value": "3"}, {"name": "C"}]}]
        }
    }
    engine, log = merged(patch)["spec"]["containers"]
    assert log == {"name": "log"}
    assert engine["args"] == ["--x"]
    assert engine["env"] == [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C"}]


def test_lists_without_keys_are_replaced() -> None:
    patch = {
        "spec": {
            "containers": [{"name": "engine", "securityContext": {"capabilities": {"drop": [], "add": ["IPC_LOCK"]}}}]
        }
    }
    assert merged(patch)["spec"]["containers"][0]["securityContext"] == {
        "capabilities": {"drop": [], "add": ["IPC_LOCK"]}
    }


def test_a_volume_or_variable_of_the_same_name_does_not_get_two_sources() -> None:
    source = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    patch = {
        "spec": {
            "volumes": [{"name": "tmp", "hostPath": {"path": "/fast"}, "emptyDir": None}],
            "containers": [{"name": "engine", "env": [source]}],
        }
    }
    spec = merged(patch)["spec"]
    assert spec["volumes"] == [{"name": "tmp", "hostPath": {"path": "/fast"}}]
    assert spec["containers"][0]["env"][0] == source


def test_mounts_merge_by_path_and_directives_are_understood() -> None:
    patch = {
        "spec": {
            "containers": [
                {
                    "name": "engine",
                    "volumeMounts": [{"mountPath": "/data", "subPath": "x"}, {"name": "n", "mountPath": "/n"}],
                    "env": [{"name": "A", "$patch": "delete"}, {"name": "Z", "$patch": "delete"}],
                    "securityContext": {"$patch": "replace", "privileged": False},
                }
            ]
        }
    }
    engine = merged(patch)["spec"]["containers"][0]
    assert engine["volumeMounts"] == [
        {"name": "tmp", "mountPath": "/data", "subPath": "x"},
        {"name": "n", "mountPath": "/n"},
    ]
    assert engine["env"] == [{"name": "B", "value": "2"}]
    assert engine["securityContext"] == {"privileged": False}


def test_an_item_without_its_key_is_named() -> None:
    with pytest.raises(Mistake) as caught:
        merged({"spec": {"volumes": [{"name": "a"}, {"emptyDir": {}}]}})
    assert caught.value.path == ("spec", "volumes", 1)


@pytest.mark.parametrize(
    ("patch", "path", "words"),
    [
        ({"kind": "Pod"}, "kind", "nothing else"),
        ({"metadata": {"name": "x"}}, "metadata.name", "labels and annotations"),
        ({"metadata": []}, "metadata", "a mapping"),
        ({"metadata": {"labels": {"serving.halffull.dev/name": "x"}}}, "metadata.labels", "finds its pods"),
        ({"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}, "metadata.labels", "finds its pods"),
        ({"metadata": {"annotations": {"a": 1}}}, "metadata.annotations.a", "in quotes"),
        ({"spec": None}, "spec", "a mapping"),
        ({"spec": {"$patch": "replace"}}, "spec.$patch", "remove the operator's own"),
        ({"spec": {"containers": None}}, "spec.containers", "a list"),
        ({"spec": {"volumes": None}}, "spec.volumes", "a list"),
        ({"spec": {"terminationGracePeriodSeconds": 5}}, "spec.termination", "engine.drainTimeout"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.containers[0]", "needs name"),
        ({"spec": {"containers": [{"name": "engine", "args": []}]}}, "spec.containers[0].args", "engine.args"),
        (
            {"spec": {"containers": [{"name": "engine", "$patch": "delete"}]}},
            "spec.containers[0].$patch",
            "cannot be removed",
        ),
        ({"spec": {"containers": [{"name": "engine", "env": None}]}}, "spec.containers[0].env", "a list"),
        (
            {"spec": {"containers": [{"name": "engine", "env": [{"name": "HF_HOME"}]}]}},
            "spec.containers[0].env[0]",
            "HF_HOME",
        ),
        (
            {"spec": {"containers": [{"name": "engine", "volumeMounts": [{}]}]}},
            "spec.containers[0].volumeMounts[0]",
            "mountPath",
        ),
    ],
)
def test_what_belongs_to_the_operator_is_refused(patch: dict[str, Any], path: str, words: str) -> None:
    found = [(dotted(where), message) for where, message in refusals(patch)]
    assert any(where.startswith(path) and words in message for where, message in found), found


def refusals(patch: dict[str, Any]) -> list[tuple[tuple[str | int, ...], str]]:
    return list(refused(patch, pod_fields=ENGINE_POD_FIELDS, containers=ENGINE_CONTAINERS))


@pytest.mark.parametrize(
    "patch",
    [
        {},
        {"spec": {"affinity": None, "priorityClassName": "high", "hostIPC": True}},
        {"spec": {"containers": [{"name": "sidecar", "image": "x", "args": ["y"], "command": ["z"]}]}},
        {"spec": {"containers": [{"name": "engine", "livenessProbe": None, "env": [{"name": "A", "value": ""}]}]}},
        {"metadata": {"labels": {"team": "a"}, "annotations": {"sidecar.istio.io/inject": "false"}}},
    ],
)
def test_what_an_escape_hatch_is_for(patch: dict[str, Any]) -> None:
    assert refusals(patch) == []


_PATCHES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.dictionaries(st.sampled_from(["a", "b", "name", "containers", "env", "spec", "$patch"]), inner, max_size=4)
        | st.lists(inner, max_size=3)
    ),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["spec", "metadata", "x"]), _PATCHES, max_size=3))
def test_a_patch_is_refused_or_merges_twice_to_the_same(patch: dict[str, Any]) -> None:
    if refusals(patch):
        return
    once = merge(BASE, patch)
    assert merge(once, patch) == once
    assert merge(BASE, {}) == BASE
