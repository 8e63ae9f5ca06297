"""Which children there are, how they are called, whose they are."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_operator.children import MissingApi, build
from halffull_operator.labels import selector
from halffull_operator.names import MAX_BASE, base_name
from halffull_operator.spec import SpecError, parse
from tests.operator.children.family import children, config, containers, kinds, one, templates
from tests.operator.spec.samples import body, specs

GATEWAY = [
    "ServiceAccount/llama-gateway",
    "Role/llama-picker",
    "RoleBinding/llama-picker",
    "ConfigMap/llama-picker",
    "Service/llama-gateway",
    "Deployment/llama-gateway",
]
ENGINES = ["Service/llama-engine", "PodDisruptionBudget/llama-engine", "StatefulSet/llama-engine"]


def test_managed() -> None:
    assert sorted(kinds(children())) == sorted([*ENGINES, *GATEWAY, "PodDisruptionBudget/llama-gateway"])


def test_none_leaves_only_engines() -> None:
    assert sorted(kinds(children({"gateway": {"mode": "None"}}))) == sorted(ENGINES)


def test_inference_pool() -> None:
    found = kinds(children({"gateway": {"mode": "InferencePool"}}))
    assert sorted(found) == sorted(
        [*ENGINES, *GATEWAY, "PodDisruptionBudget/llama-gateway", "InferencePool/llama-pool"]
    )


def test_what_is_asked_for_and_not_served_is_missing_and_the_rest_is_there() -> None:
    spec = {
        "gateway": {"mode": "InferencePool", "route": {"parentRefs": [{"name": "gw"}]}},
        "monitoring": {"podMonitor": {"enabled": True}},
    }
    built = children(spec, apis=frozenset())
    assert built.missing == (
        MissingApi("gateway.mode", "inference.networking.k8s.io/v1 InferencePool"),
        MissingApi("gateway.route", "gateway.networking.k8s.io/v1 HTTPRoute"),
        MissingApi("monitoring.podMonitor.enabled", "monitoring.coreos.com/v1 PodMonitor"),
    )
    assert len(built.manifests) == 10
    everything = children(spec)
    assert everything.missing == ()
    assert len(everything.manifests) == 13
    assert children({"gateway": {"mode": "None"}}, apis=frozenset()).missing == ()


def test_what_is_referred_to_comes_first() -> None:
    found = kinds(children({"networkPolicy": {"enabled": True}}))
    assert found.index("Service/llama-engine") < found.index("StatefulSet/llama-engine")
    assert found.index("NetworkPolicy/llama-engine") < found.index("StatefulSet/llama-engine")
    assert found.index("ConfigMap/llama-picker") < found.index("Deployment/llama-gateway")


def test_a_profile_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(SpecError, match=r"no profile 'h200'; the operator's chart defines: a100, h100"):
        children({"profile": "h200"}, "profiles: {h100: {}, a100: {}}")


@settings(max_examples=60, deadline=None)
@given(st.from_regex(r"\A[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z"))
def test_names_fit_wherever_they_go(name: str) -> None:
    built = children({"gateway": {"route": {"parentRefs": [{"name": "g"}]}}}, name=name)
    base = base_name(name)
    assert len(base) <= MAX_BASE
    assert base == name or (len(name) > MAX_BASE and base[:31] == name[:31])
    for manifest in built.manifests:
        assert len(manifest["metadata"]["name"]) <= 52, "longer StatefulSet names break their pods' labels"
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


def test_long_names_that_begin_alike_stay_apart() -> None:
    assert base_name("a" * 40) == "a" * 40
    assert base_name("a" * 41) == "a" * 31 + "-" + hashlib.sha256(b"a" * 41).hexdigest()[:8]
    assert base_name("a" * 41) != base_name("a" * 42)
    assert len(base_name("a" * 63)) == 40


def test_children_of_servings_whose_names_continue_each_other_never_meet() -> None:
    names = ["a", "a-engine", "a-gateway", "a-picker", "a-engine-engine"]
    found = [kind for name in names for kind in kinds(children(name=name))]
    assert len(found) == len(set(found))


def test_every_child_is_owned_and_labelled_and_in_the_namespace() -> None:
    spec = {"networkPolicy": {"enabled": True}, "monitoring": {"podMonitor": {"enabled": True}}}
    built = children(spec, "labels: {team: a, app.kubernetes.io/name: other}\nannotations: {note: b}\n")
    for manifest in built.manifests:
        metadata = manifest["metadata"]
        (owner,) = metadata["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == ("uid-1", True, True)
        assert metadata["namespace"] == "ml"
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "halffull-operator"
        assert metadata["labels"]["app.kubernetes.io/name"] == "halffull", "a label of ours is nobody else's to set"
        assert metadata["labels"]["team"] == "a"
        assert metadata["annotations"]["note"] == "b"


def test_selectors_never_change() -> None:
    """Immutable in the API: a change here breaks every cluster that has an older version."""
    assert selector("llama", "engine") == {
        "serving.halffull.dev/name": "llama",
        "serving.halffull.dev/component": "engine",
    }
    built = children(None, "labels: {team: a}\npodLabels: {x: y}\n")
    for kind, component in (("StatefulSet", "engine"), ("Deployment", "gateway")):
        manifest = one(built, kind)
        assert manifest["spec"]["selector"]["matchLabels"] == selector("llama", component)
        assert selector("llama", component).items() <= manifest["spec"]["template"]["metadata"]["labels"].items()


def test_pods_have_labels_and_annotations_of_their_own() -> None:
    more = "podLabels: {a: b}\npodAnnotations: {sidecar.istio.io/inject: 'false'}\n"
    built = children(None, more)
    for template in templates(built):
        assert template["metadata"]["labels"]["a"] == "b"
        assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert "a" not in one(built, "StatefulSet")["metadata"]["labels"]


_SETTINGS = [
    "",
    "securityContext: {runAsUser: null, runAsGroup: null, fsGroup: null}\nlisten: 0.0.0.0\n",
    "registry: registry.example.com/mirror\nimagePullSecrets: [{name: pull}]\nprofiles: {h100: {}, a: {}}\n",
]


@settings(max_examples=60, deadline=None)
@given(spec=specs, more=st.sampled_from(_SETTINGS))
def test_whatever_is_asked_for_every_pod_keeps_the_promises(spec: dict[str, Any], more: str) -> None:
    try:
        built = build(parse({**body(), "spec": spec}), config(more), frozenset())
    except SpecError:
        return
    assert json.loads(json.dumps(built.manifests)) == list(built.manifests), "plain data, as the API gives it back"
    for template in templates(built):
        pod = template["spec"]
        assert pod["enableServiceLinks"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert ("runAsUser" in pod["securityContext"]) == ("null" not in more)
        assert None not in pod["securityContext"].values()
        volumes = {volume["name"] for volume in pod["volumes"]} | {"cache"}
        for one_of in containers(pod):
            security = one_of["securityContext"]
            assert security == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert one_of["resources"]
            assert one_of["terminationMessagePolicy"] == "FallbackToLogsOnError"
            assert {mount["name"] for mount in one_of["volumeMounts"]} <= volumes
            names = [port["name"] for port in one_of.get("ports", [])]
            assert len(names) == len(set(names))
            assert all(len(name) <= 15 for name in names)
        if "registry" in more:
            assert {"name": "pull"} in pod["imagePullSecrets"]
            assert all(c["image"].startswith("registry.example.com/mirror/") for c in containers(pod))
