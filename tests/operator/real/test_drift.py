"""What others do to children: changes of what is ours are repaired, additions stay, other spellings cause no loop."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import yaml

from halffull_operator import kinds, labels
from halffull_operator.children import Children, build
from halffull_operator.config import load_config
from halffull_operator.kinds import Manifest
from halffull_operator.observed import Observed, key_of
from halffull_operator.plan import FULL, plan
from halffull_operator.spec import LLMServing, parse
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.process import CONFIG, OperatorProcess, wait_settled
from tests.operator.real.fields import BASE, Snapshot, merged, snapshots
from tests.operator.real.fields_drift import SPOIL, DryRun
from tests.operator.real.fields_process import done, own_operator
from tests.operator.real.fields_spellings import REMEMBERED, SPELLINGS
from tests.operator.servings import children, condition, pods, versions

pytestmark = pytest.mark.timeout(600)  # the first test waits for the others' world too
_NAMESPACE = "drift"
_REGISTRY = "mirror.test/halffull"
_SETTINGS: Manifest = {
    "registry": _REGISTRY,
    "imagePullSecrets": [{"name": "pull"}],
    "profiles": {"h100": {"image": "quay.test/vllm:h100", "env": [{"name": "HF_HUB_OFFLINE", "value": "1"}]}},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "gateway": {"picker": {"requests": {"cpu": "10m"}}, "envoy": {"requests": {"cpu": "10m"}}},
}
_DIGEST = "sha256:" + "0" * 64
EVERYTHING: Manifest = {
    "profile": "h100",
    "model": {"servedNames": ["m"], "credentialsSecret": {"name": "token"}, "cache": {"size": "1Gi"}},
    "engine": {
        "args": ["--seed=1", "--offload-backend=x"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "nodeSelector": {"pool": "a"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "serviceAccountName": "engines",
        "imagePullSecrets": [{"name": "mine"}],
        "podTemplate": {
            "metadata": {"labels": {"team": "a"}},
            "spec": {
                "initContainers": [{"name": "first", "image": "busybox:1"}],
                "containers": [{"name": "side", "image": f"other.test/side/car:2@{_DIGEST}"}],
            },
        },
    },
    "gateway": {
        "managed": {
            "service": {"type": "NodePort", "annotations": {"example.test/a": "1"}},
            "tls": {"secretName": "cert"},
            "podTemplate": {"spec": {"containers": [{"name": "side", "image": "localhost/side"}]}},
        },
        "route": {"parentRefs": [{"name": "gw"}], "hostnames": ["a.test"], "pathPrefix": "/a"},
    },
    "networkPolicy": {"enabled": True, "allowFrom": [{"podSelector": {"matchLabels": {"app": "a"}}}]},
    "monitoring": {"podMonitor": {"enabled": True, "labels": {"release": "a"}}},
}
IN_POOL: Manifest = {"gateway": {"mode": "InferencePool", "managed": None}}
_REPAIRED = ("changed", "renumbered", "removed", "unlabelled", "orphaned", "deleted", "added")
SERVINGS: dict[str, Manifest] = {
    **dict.fromkeys(("everything", "relabelled", *_REPAIRED), EVERYTHING),
    "pool": {**IN_POOL, "replicas": 1},
    "stock": {"scheduler": {"policy": "Stock"}, "replicas": 1},
    **SPELLINGS,
}


@dataclass
class World:
    """The operator, with everything at rest."""

    admin: Api
    plane: ControlPlane
    operator: OperatorProcess

    def serving(self, name: str) -> LLMServing:
        return parse(self.admin.must_get(kinds.SERVING, name, _NAMESPACE))

    def children(self, name: str) -> dict[tuple[str, str], Manifest]:
        return children(self.admin, _NAMESPACE, name, optional=True)

    def wanted(self, name: str) -> Children:
        """As the operator builds them."""
        config = load_config(yaml.safe_dump({**CONFIG, **_SETTINGS}), source="test")
        apis = frozenset(f"{kind.group}/{kind.kind}" for kind in kinds.OPTIONAL)
        return build(self.serving(name), config, apis)

    def settle(self) -> None:
        """Wait until it does nothing."""
        wait_settled(lambda: calls(self.operator), for_seconds=4, within=90)


def calls(operator: OperatorProcess) -> float:
    """What it asked of the API server, the heartbeat and the watches apart."""
    total = operator.metric("halffull_operator_api_requests_total")
    total -= operator.metric("halffull_operator_api_requests_total", resource="leases")
    return total - operator.metric("halffull_operator_api_requests_total", verb="watch")


@pytest.fixture(scope="module")
def world(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    admin, began = plane.admin, time.monotonic()
    with own_operator(plane, tmp_path_factory.mktemp("drift"), _NAMESPACE, _SETTINGS) as operator:
        for name, spec in SERVINGS.items():
            metadata = {"name": name, "namespace": _NAMESPACE}
            version = {"apiVersion": kinds.SERVING.api_version, "kind": kinds.SERVING.kind}
            admin.create({**version, "metadata": metadata, "spec": merged(BASE, spec)})
        wait_until("all are made", lambda: all_complete(admin), within=120)
        world = World(admin, plane, operator)
        world.settle()
        print(f"{len(SERVINGS)} LLMServings made in {time.monotonic() - began:.0f} s")  # noqa: T201
        yield world


def all_complete(admin: Api) -> bool:
    for body in admin.list(kinds.SERVING, _NAMESPACE):
        name = body["metadata"]["name"]
        applied = condition(body, "Applied")
        assert applied.get("reason") == "Applied", f"{name}: {applied}"
        assert condition(body, "Progressing").get("reason") == "Complete", f"{name}: {condition(body, 'Progressing')}"
    return True


@pytest.mark.parametrize("name", ["everything", "pool", "stock"])
def test_a_registry_and_its_secret_reach_every_pod(world: World, name: str) -> None:
    templates = [
        child["spec"]["template"]["spec"]
        for (kind, _), child in world.children(name).items()
        if kind in ("StatefulSet", "Deployment")
    ]
    templates += [pod["spec"] for pod in pods(world.admin, _NAMESPACE, name)]
    assert len(templates) >= 3
    images = set()
    for spec in templates:
        assert {"name": "pull"} in spec["imagePullSecrets"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            images.add(container["image"])
            for text in (*container.get("args", ()), *(one.get("value", "") for one in container.get("env", ()))):
                assert "example.test" not in text
    assert all(image.startswith(f"{_REGISTRY}/") for image in images), images
    if name == "everything":
        assert images >= {
            f"{_REGISTRY}/vllm:h100",
            f"{_REGISTRY}/larry:1",
            f"{_REGISTRY}/extproc:1",
            f"{_REGISTRY}/envoy:1",
            f"{_REGISTRY}/busybox:1",
            f"{_REGISTRY}/side/car:2@{_DIGEST}",
            f"{_REGISTRY}/side",
        }
        engine = next(one for spec in templates for one in spec["containers"] if one["name"] == "engine")
        assert {"name": "HF_HUB_OFFLINE", "value": "1"} in engine["env"]


@pytest.mark.parametrize(("name", "only"), [("everything", ""), ("pool", "InferencePool")])
def test_whatever_changes_of_ours_is_seen_and_what_is_added_is_let_be(world: World, name: str, only: str) -> None:
    """Every field that is ours, of every child, by dry run: hundreds of changes."""
    serving, wanted, live = world.serving(name), world.wanted(name), world.children(name)
    body = world.admin.must_get(kinds.SERVING, name, _NAMESPACE)
    manifests = [one for one in wanted.manifests if only in ("", one["kind"])]
    seen: Counter[str] = Counter()
    unseen: list[Any] = []
    undone: list[Any] = []
    with DryRun(world.admin) as server:
        for manifest in manifests:
            key, alone = key_of(manifest), replace(wanted, manifests=(manifest,))

            def acts(child: Manifest, alone: Children = alone, key: tuple[str, str] = key) -> bool:
                return bool(plan(serving, alone, Observed(children={key: child}, body=body), full=False))

            assert not acts(live[key]), f"{key} is not at rest"
            for operations, after in server.changed(live[key]):
                seen[manifest["kind"]] += 1
                unseen += [] if acts(after) else [(key, operations)]
            for operations, after in server.added_to(live[key]):
                seen["additions"] += 1
                undone += [(key, operations)] if acts(after) else []
    print(f"{name}: {server.calls} dry runs, {dict(seen)}")  # noqa: T201
    assert unseen == []
    assert undone == []
    assert all(seen[manifest["kind"]] >= 10 for manifest in manifests)
    assert seen["additions"] > len(manifests)


def test_what_is_changed_is_put_right(world: World) -> None:
    """All children of six LLMServings at once, each in another way; a seventh only gets more.

    They are paused meanwhile: on a slow machine it would be repaired while it is spoiled, again and again, and be held
    back as a fight.
    """
    before = snapshots(world.admin, _NAMESPACE, _REPAIRED)
    writes = len(done(world.operator))
    _pause(world, "true")
    wait_until("the pause is told", lambda: _paused(world))
    spoiled = Counter({name: sum(SPOIL[name](world.admin, child) for child in _all(world, name)) for name in _REPAIRED})
    print(f"spoiled: {dict(spoiled)}")  # noqa: T201
    assert all(spoiled[name] >= 10 for name in _REPAIRED)
    _pause(world, None)
    wait_until("all is as before", lambda: _as_before(world, before), within=90)
    world.settle()
    assert _as_before(world, before)
    assert all_complete(world.admin)
    uids = {name: {child: flat[""] for child, flat in found.items()} for name, found in before.items()}
    for name, found in snapshots(world.admin, _NAMESPACE, _REPAIRED).items():
        same = {child: flat[""] for child, flat in found.items()} == uids[name]
        assert same == (name != "deleted"), name
    later = Counter((line["name"], line["kind"], line["child"]) for line in done(world.operator)[writes:])
    assert max(later.values()) <= 3, later.most_common(3)
    assert not [key for key in later if key[0] == "added"], "an addition is no reason to write"
    for child in _all(world, "added"):
        assert child["metadata"]["labels"]["somebody"] == "x"
        assert child["metadata"]["annotations"]["somebody"] == "x"


def _pause(world: World, value: str | None) -> None:
    for name in _REPAIRED:
        world.admin.merge(kinds.SERVING, name, {"metadata": {"annotations": {labels.PAUSED: value}}}, _NAMESPACE)


def _paused(world: World) -> bool:
    bodies = [world.admin.must_get(kinds.SERVING, name, _NAMESPACE) for name in _REPAIRED]
    return all(condition(body, "Progressing")["reason"] == "Paused" for body in bodies)


def _all(world: World, name: str) -> list[Manifest]:
    return list(world.children(name).values())


def _as_before(world: World, before: Mapping[str, Snapshot]) -> bool:
    """Whether everything has what it had; what was added may be there too."""
    now = snapshots(world.admin, _NAMESPACE, _REPAIRED)
    for name, snapshot in before.items():
        assert now[name].keys() == snapshot.keys(), f"{name}: {now[name].keys() ^ snapshot.keys()}"
        for child, flat in snapshot.items():
            have = {path: value for path, value in now[name][child].items() if path}
            want = {path: value for path, value in flat.items() if path and not _chosen_by_server(path)}
            missing = {path: (value, have.get(path)) for path, value in want.items() if have.get(path) != value}
            assert not missing, f"{name} {child}: {missing}"
            if name not in ("added", "renumbered"):
                more = {path for path in have if path not in flat and not _chosen_by_server(path)}
                assert not more, f"{name} {child}: {more}"
    return True


def _chosen_by_server(path: str) -> bool:
    return path.startswith(("spec.clusterIP", "secrets")) or path.endswith("nodePort")


def test_a_relabelled_serving_keeps_its_children(world: World) -> None:
    before = versions(world.children("relabelled"))
    texts = {"team": "b", "app.kubernetes.io/managed-by": "Helm", labels.SERVING: "other", labels.COMPONENT: "x"}
    for metadata in ({"labels": texts, "annotations": texts}, {"labels": dict.fromkeys(texts)}):
        reconciles = world.operator.metric("halffull_operator_reconciles_total")
        world.admin.merge(kinds.SERVING, "relabelled", {"metadata": metadata}, _NAMESPACE)
        wait_until("it is looked at", partial(_reconciled, world, since=reconciles))
    world.settle()
    assert versions(world.children("relabelled")) == before


def _reconciled(world: World, *, since: float) -> bool:
    return world.operator.metric("halffull_operator_reconciles_total") > since


def test_an_edit_lands_beside_what_others_added(world: World) -> None:
    edit = {"engine": {"args": ["--seed=2"]}, "gateway": {"managed": {"replicas": 2}}}
    world.admin.merge(kinds.SERVING, "added", {"spec": edit}, _NAMESPACE)
    wait_until("it is in force", lambda: all_complete(world.admin) and _seen(world, "added"), within=60)
    found = snapshots(world.admin, _NAMESPACE, ["added"])["added"]
    for child in ("StatefulSet/engine", "Deployment/gateway"):
        assert found[child]["spec.template.spec.containers[injected].image"] == "i:1"
        assert found[child]["spec.template.metadata.annotations.somebody"] == "x"
    assert found["StatefulSet/engine"]["spec.template.spec.containers[engine].args.--seed"] == "2"
    assert found["StatefulSet/engine"]["spec.template.spec.containers[engine].env[SOMEBODY].value"] == "x"
    assert found["Deployment/gateway"]["spec.replicas"] == 2


def _seen(world: World, name: str) -> bool:
    body = world.admin.must_get(kinds.SERVING, name, _NAMESPACE)
    return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])


@pytest.mark.parametrize("name", SPELLINGS)
def test_another_spelling_is_at_rest(world: World, name: str) -> None:
    """Without what the operator remembers of the API server's answers: only what is compared counts."""
    body = world.admin.must_get(kinds.SERVING, name, _NAMESPACE)
    observed = Observed(children=world.children(name), body=body)
    if name not in REMEMBERED:
        assert plan(world.serving(name), world.wanted(name), observed, full=False) == ()
    lines = [line for line in done(world.operator) if line["name"] == name and line["why"] != FULL]  # one comes hourly
    writes = Counter((line["kind"], line["child"]) for line in lines)
    assert set(writes.values()) == {1}, writes


def test_a_restart_changes_nothing_and_rest_is_silent(world: World) -> None:
    world.settle()
    # Of what was spoiled a full pass may take possession anew: somebody removed a field, and the server put it back.
    names = SERVINGS.keys() - REMEMBERED - set(_REPAIRED)
    before = {name: versions(world.children(name)) for name in names}
    assert world.operator.stop() == 0
    world.operator.start()
    wait_until(
        "all are applied once",
        lambda: world.operator.metric("halffull_operator_reconciles_total") >= len(SERVINGS),
        within=90,
    )
    world.settle()
    assert {name: versions(world.children(name)) for name in names} == before
    # Now, as the next full pass of any comes six minutes after that of the start, or later.
    began, began_at = calls(world.operator), time.monotonic()
    time.sleep(10)  # the claim is about time in which nothing happens
    assert calls(world.operator) == began
    print(f"{len(SERVINGS)} LLMServings, {time.monotonic() - began_at:.0f} s: no call")  # noqa: T201
    assert world.operator.errors() == []
