"""The manifests that are really built: at rest once applied, whatever the spec, and not after any one change."""

from typing import Any

import pytest

from halffull_operator.children import Children, build
from halffull_operator.config import OperatorConfig, load_config
from halffull_operator.labels import TEMPLATE_HASH
from halffull_operator.observed import Observed, key_of
from halffull_operator.plan import Apply, Delete, OrphanAndRecreate, plan
from halffull_operator.spec import parse
from tests.operator.compare.server import stored
from tests.operator.plan.world import body

CONFIG = (
    "images: {vllm: vllm/vllm-openai:v0.32.0, larry: larry:1, extproc: extproc:1, envoy: envoyproxy/envoy:v1.40.0}\n"
)
APIS = frozenset(
    {
        "monitoring.coreos.com/PodMonitor",
        "inference.networking.k8s.io/InferencePool",
        "gateway.networking.k8s.io/HTTPRoute",
    }
)
CACHE = {"size": "100Gi"}
SPECS: dict[str, dict[str, Any]] = {
    "smallest": {},
    "cache": {"model": {"uri": "hf://meta/llama", "cache": CACHE}},
    "claim": {"model": {"uri": "pvc://weights/llama"}, "replicas": 1},
    "none": {"gateway": {"mode": "None"}, "scheduler": {"policy": "Stock"}},
    "pool": {"gateway": {"mode": "InferencePool", "route": {"parentRefs": [{"name": "gw"}]}}},
    "everything": {
        "model": {"uri": "hf://meta/llama", "cache": CACHE, "credentialsSecret": {"name": "hf"}},
        "engine": {
            "parallelism": {"tensor": 2},
            "args": ["--max-num-seqs", "64"],
            "env": [{"name": "A", "value": "1"}],
            "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "x", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "pull"}],
            "podTemplate": {"spec": {"priorityClassName": "high"}},
        },
        "gateway": {"managed": {"tls": {"secretName": "cert"}, "replicas": 3}},
        "networkPolicy": {"enabled": True, "allowFrom": [{"podSelector": {}}]},
        "monitoring": {"podMonitor": {"enabled": True}},
    },
}


def config(text: str = CONFIG) -> OperatorConfig:
    return load_config(text, source="operator.yaml")


def observed(body: dict[str, Any], manifests: Any) -> Observed:
    return Observed(children={key_of(manifest): stored(manifest) for manifest in manifests}, body=body)


@pytest.mark.parametrize("name", SPECS)
def test_what_was_applied_is_at_rest(name: str) -> None:
    asked = body(**SPECS[name])
    serving = parse(asked)
    children = build(serving, config(), APIS)
    assert plan(serving, children, observed(asked, children.manifests), full=False) == ()


@pytest.mark.parametrize("name", SPECS)
def test_a_newer_chart_rolls_no_engine(name: str) -> None:
    asked = body(**SPECS[name])
    serving = parse(asked)
    seen = observed(asked, build(serving, config(), APIS).manifests)
    newer = config(CONFIG.replace("larry:1", "larry:2").replace("vllm-openai:v0.32.0", "vllm-openai:v0.33.0"))
    actions = plan(serving, build(serving, newer, APIS), seen, full=False)
    assert not [one for one in actions if getattr(one, "manifest", {}).get("kind") == "StatefulSet"]
    for action in plan(serving, build(serving, newer, APIS), seen, full=True):
        if isinstance(action, Apply) and action.manifest["kind"] == "StatefulSet":
            before = seen.children[key_of(action.manifest)]
            assert action.manifest["spec"]["template"] == before["spec"]["template"]


@pytest.mark.parametrize("before", SPECS)
@pytest.mark.parametrize("after", SPECS)
def test_from_any_spec_to_any_other_in_one_pass(before: str, after: str) -> None:
    was, asked = body(**SPECS[before]), body(**SPECS[after])
    seen = observed(asked, build(parse(was), config(), APIS).manifests)
    serving = parse(asked)
    children = build(serving, config(), APIS)
    live = dict(seen.children)
    for action in plan(serving, children, seen, full=False):
        if isinstance(action, Apply | OrphanAndRecreate):
            live[key_of(action.manifest)] = stored(action.manifest)
        elif isinstance(action, Delete):
            del live[action.kind, action.name]
    assert set(live) == {key_of(manifest) for manifest in children.manifests}
    assert plan(serving, children, Observed(children=live, body=asked), full=False) == ()


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        return [place for key, inner in value.items() for place in leaves(inner, (*path, key))]
    if isinstance(value, list) and value:
        return [place for index, inner in enumerate(value) for place in leaves(inner, (*path, index))]
    return [path]


@pytest.mark.parametrize("name", SPECS)
def test_every_single_changed_value_is_seen(name: str) -> None:
    """A sweep over every leaf of every child that is really built."""
    asked = body(**SPECS[name])
    serving = parse(asked)
    missed = []
    for manifest in build(serving, config(), APIS).manifests:
        alone = Children(manifests=(manifest,), missing=(), engine_inputs="")
        for path in leaves(manifest):
            # The hash of the template is no part of the question (test_rolling has it).
            if path[0] in {"apiVersion", "kind"} or path[-1] in {"name", "namespace", TEMPLATE_HASH}:
                continue
            live = stored(manifest)
            target = live
            for step in path[:-1]:
                target = target[step]
            target[path[-1]] = "changed"
            seen = Observed(children={key_of(manifest): live}, body=asked)
            if plan(serving, alone, seen, full=False) == ():
                missed.append((manifest["kind"], path))
    assert missed == []
