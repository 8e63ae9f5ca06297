"""Nonsense anywhere in the escape hatches: refused with the field's name, or built; never another exception."""

import copy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from halffull_operator.children import build
from halffull_operator.config import OperatorConfig
from halffull_operator.observed import Observed, key_of
from halffull_operator.plan import plan
from halffull_operator.spec import SpecError, parse
from tests.operator.process import CONFIG
from tests.operator.spec.samples import body

CONFIGURATION = msgspec.convert(CONFIG, OperatorConfig)
NONSENSE: list[Any] = [
    None,
    10**30,
    1.5,
    "☃ 😀",
    [],
    {},
    [None],
    {"": None},
    {"$patch": ["replace"]},
    [{"name": {}}],
    [{"name": "engine", "$patch": "replace"}],
]
CONTAINER: dict[str, Any] = {
    "name": "engine",
    "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
    "volumeDevices": [{"name": "d", "devicePath": "/dev/d"}],
    "livenessProbe": {"periodSeconds": 5},
    "securityContext": {"capabilities": {"add": ["SYS_NICE"]}},
}
SIDE: dict[str, Any] = {
    "name": "side",
    "image": "side:1",
    "args": ["x"],
    "ports": [{"containerPort": 1}],
    "resources": {"claims": [{"name": "gpu"}]},
}
TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"team": "a"}},
    "spec": {
        "containers": [CONTAINER, SIDE],
        "initContainers": [{"name": "before", "image": "before:1"}, {"name": "larry", "env": [{"name": "X"}]}],
        "volumes": [{"name": "a", "emptyDir": {}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "securityContext": {"sysctls": [{"name": "a", "value": "b"}]},
        "schedulingGates": [{"name": "a/b"}],
        "resourceClaims": [{"name": "gpu"}],
        "dnsConfig": {"options": [{"name": "ndots", "value": "1"}]},
    },
}


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in a value, the whole of it first."""
    yield path
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[str | int, ...], put: Any) -> Any:
    if not path:
        return put
    new = copy.copy(value)
    new[path[0]] = changed(value[path[0]], path[1:], put)
    return new


@pytest.mark.parametrize("nonsense", NONSENSE, ids=repr)
@pytest.mark.parametrize(("hatch", "container"), [("spec.engine", "engine"), ("spec.gateway.managed", "envoy")])
def test_nonsense_at_every_place(hatch: str, container: str, nonsense: Any) -> None:
    known = {key_of(one): one for one in build(parse(body()), CONFIGURATION, frozenset()).manifests}
    template = changed(TEMPLATE, ("spec", "containers", 0, "name"), container)
    fields, built = [], 0
    for path in places(template):
        piece = {"podTemplate": changed(template, path, nonsense)}
        spec = {"engine": piece} if container == "engine" else {"gateway": {"managed": piece}}
        try:
            serving = parse(body(spec))
            children = build(serving, CONFIGURATION, frozenset())
        except SpecError as error:
            fields.append(error.field)
        else:
            built += 1
            plan(serving, children, Observed(children=known, pods=(), claims=(), body=body(spec)), full=False)
    assert fields
    assert all(field.startswith(f"{hatch}.podTemplate") for field in fields)
    assert built or isinstance(nonsense, int | float), "some fields take anything"
