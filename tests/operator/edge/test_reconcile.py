"""One reconcile against a tiny API server: the order of its calls, and what becomes of each way to fail."""

import random
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from aiohttp import web

from halffull_operator import kinds, labels
from halffull_operator.cache import Cache, object_key
from halffull_operator.cluster import RETRIES, Cluster
from halffull_operator.config import load_config
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Manifest
from halffull_operator.metrics import Metrics
from halffull_operator.reconcile import FULL_EVERY, Reconciler
from tests.operator.edge.fake_api import FakeApi, refused
from tests.operator.plan.world import engine_pod
from tests.operator.servings import ALWAYS, condition, serving

CONFIG = load_config("images: {vllm: 'v:1', larry: 'l:1', extproc: 'e:1', envoy: 'n:1'}", source="test")
CONFIG_MAP = kinds.named("v1", "ConfigMap")


class World:
    """A cache, fed by hand from the API server, and a reconciler."""

    def __init__(self, api: FakeApi, cluster: Cluster, metrics: Metrics) -> None:
        self.api = api
        self.seconds = 0.0
        self.cache = Cache()
        self.reconciler = Reconciler(
            cluster=cluster,
            cache=self.cache,
            config=CONFIG,
            apis=frozenset(),
            metrics=metrics,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
            clock=lambda: self.seconds,
            rng=random.Random(1),
        )

    def watch(self) -> None:
        """What the watches would have told by now."""
        for kind in (kinds.SERVING, *kinds.CHILDREN, kinds.POD, kinds.CLAIM):
            there = self.api.all(kind)
            for one in there:
                self.cache.see(kind, one)
            self.cache.retain(kind, [object_key(kind, one) for one in there], version=str(self.api.version))

    def put(self, manifest: Manifest) -> str:
        uid = str(self.api.put(manifest)["metadata"]["uid"])
        self.watch()
        return uid

    def body(self) -> Manifest:
        (body,) = self.api.all(kinds.SERVING)
        return body

    def children(self) -> list[Manifest]:
        return [child for kind in kinds.CHILDREN for child in self.api.all(kind)]


@pytest.fixture
def world(api: FakeApi, cluster: Cluster, metrics: Metrics) -> World:
    return World(api, cluster, metrics)


async def test_everything_is_made_once_and_then_there_is_nothing_to_call(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    result = await world.reconciler.reconcile(uid)
    assert not result.gone
    assert not result.repaired
    assert {child["kind"] for child in world.children()} == ALWAYS
    assert condition(world.body(), "Applied")["status"] == "True"
    world.watch()
    await world.reconciler.reconcile(uid)
    world.watch()
    before = len(world.api.requests)
    again = await world.reconciler.reconcile(uid)
    assert len(world.api.requests) == before
    assert again.again is not None
    assert again.again <= FULL_EVERY


async def test_hourly_everything_is_applied(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    world.watch()
    world.seconds += FULL_EVERY + 1
    world.api.requests.clear()
    result = await world.reconciler.reconcile(uid)
    assert world.api.count("PATCH", "") >= len(world.children())
    assert not result.repaired


async def test_hourly_that_includes_what_was_edited_meanwhile(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    world.api.put({**world.body(), "spec": {**world.body()["spec"], "routing": {"policy": "LeastRequest"}}})
    world.watch()
    await world.reconciler.reconcile(uid)
    world.watch()
    world.seconds += FULL_EVERY + 1
    before = world.api.count("PATCH", "configmaps")
    await world.reconciler.reconcile(uid)
    assert world.api.count("PATCH", "configmaps") == before + 1


async def test_before_anything_is_made_the_serving_is_looked_at_again(world: World) -> None:
    """The cache may be behind: children of what is gone would be collected, told, made again, …"""
    uid = world.put(serving("llama", "ns"))
    world.api.remove(kinds.SERVING, "llama", "ns")
    assert (await world.reconciler.reconcile(uid)).gone
    assert world.children() == []


async def test_an_edit_that_the_cache_has_not_seen_is_taken_up(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    world.api.put({**world.body(), "spec": {**world.body()["spec"], "replicas": 5}})
    assert (await world.reconciler.reconcile(uid)).again == 0.0
    await world.reconciler.reconcile(uid)
    (stateful_set,) = world.api.all(kinds.STATEFUL_SET)
    assert stateful_set["spec"]["replicas"] == 5


@pytest.mark.parametrize("spec", [{}, {"model": {"uri": "what?"}}], ids=["valid", "invalid"])
async def test_an_edit_that_comes_just_before_a_status_is_written_is_taken_up(
    world: World, spec: dict[str, object]
) -> None:
    """The answer to the status brings it into the cache, so that the watch tells nothing new."""

    def edited() -> None:
        if world.api.count("PATCH", "/status") == 1:
            world.api.put({**world.body(), "spec": {**serving("llama", "ns")["spec"], "replicas": 5}})

    uid = world.put(serving("llama", "ns", **spec))
    world.api.fault = only("/status", "PATCH", edited)
    assert (await world.reconciler.reconcile(uid)).again == 0.0
    world.watch()
    await world.reconciler.reconcile(uid)
    (stateful_set,) = world.api.all(kinds.STATEFUL_SET)
    assert stateful_set["spec"]["replicas"] == 5


async def test_another_one_of_the_same_name_is_not_this_one(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    world.api.remove(kinds.SERVING, "llama", "ns")
    world.api.put(serving("llama", "ns"))
    assert (await world.reconciler.reconcile(uid)).gone
    assert world.children() == []


async def test_a_status_that_is_refused_in_a_race_is_written_later(world: World) -> None:
    """One that is taken for gone is forgotten until somebody edits it."""
    uid = world.put(serving("llama", "ns"))
    world.api.fault = only("/status", "PATCH", lambda: refused(409, "Conflict"))
    with pytest.raises(ApiError, match="Conflict"):
        await world.reconciler.reconcile(uid)
    world.api.fault = lambda _: None
    await world.reconciler.reconcile(uid)
    assert condition(world.body(), "Applied")["status"] == "True"


@pytest.mark.parametrize("again", [False, True])
async def test_one_that_goes_while_its_status_is_written_is_gone(world: World, again: bool) -> None:
    def taken_away() -> web.Response:
        if world.api.count("PATCH", "/status") == 1:
            world.api.remove(kinds.SERVING, "llama", "ns")
            if again:
                world.api.put(serving("llama", "ns"))
        return refused(409, "Conflict")

    uid = world.put(serving("llama", "ns"))
    world.api.fault = only("/status", "PATCH", taken_away)
    assert (await world.reconciler.reconcile(uid)).gone


async def test_one_that_is_being_deleted_is_left_alone(world: World) -> None:
    body = serving("llama", "ns")
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    uid = world.put(body)
    assert (await world.reconciler.reconcile(uid)).gone
    assert [one for one in world.api.requests if one[0] != "GET"] == []


async def test_paused_is_told_and_nothing_is_touched(world: World) -> None:
    uid = world.put(serving("llama", "ns", annotations={labels.PAUSED: "true"}))
    await world.reconciler.reconcile(uid)
    assert world.children() == []
    assert condition(world.body(), "Progressing")["reason"] == "Paused"


async def test_a_spec_that_cannot_be_used_is_said_and_changes_nothing(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    before = world.children()
    world.put({**world.body(), "spec": {"model": {"uri": "what?"}}})
    result = await world.reconciler.reconcile(uid)
    assert result.label == "invalid"
    assert condition(world.body(), "Applied")["reason"] == "InvalidSpec"
    assert "spec.model.uri" in condition(world.body(), "Applied")["message"]
    assert world.children() == before


async def test_how_pods_are_is_told_whatever_the_spec_says(world: World) -> None:
    """An edit that cannot be used may stand there for days."""
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    for number in range(2):
        world.api.put(engine(number, ready=True))
    world.put({**world.body(), "spec": {**world.body()["spec"], "engine": {"args": ["--model=x"]}, "replicas": 5}})
    for ready in (True, False):
        world.put(engine(0, ready=ready))
        await world.reconciler.reconcile(uid)
        found = world.body()["status"]
        assert found["readyReplicas"] == 1 + ready
        assert ("unhealthy" in found) is not ready
        assert condition(world.body(), "Applied")["reason"] == "InvalidSpec"
    world.put(engine(1, ready=False))
    result = await world.reconciler.reconcile(uid)
    assert result.again is not None, "for how long a model loads is told too"
    assert condition(world.body(), "Ready")["message"].startswith("no engine is ready: llama-engine-0")
    assert condition(world.body(), "EnginesReady")["reason"] == "ModelLoading"
    for number in range(2):
        world.put(engine(number, ready=True))
    await world.reconciler.reconcile(uid)
    assert "unhealthy" not in world.body()["status"]


def engine(number: int, *, ready: bool) -> Manifest:
    pod = engine_pod(number, ready=ready)
    labelled = {**pod["metadata"]["labels"], labels.MANAGED_BY: labels.OPERATOR}
    return {**pod, "metadata": {**pod["metadata"], "namespace": "ns", "labels": labelled}}


def only(
    part: str, method: str, answer: Callable[[], web.Response | None]
) -> Callable[[web.Request], web.Response | None]:
    return lambda request: answer() if request.method == method and part in request.path else None


@pytest.mark.parametrize(
    ("applied", "ready"), [("None", "Serving"), ("InferencePool", "OptionalApiMissing"), ("Managed", "Starting")]
)
@pytest.mark.parametrize("wanted", ["None", "InferencePool", "Managed"])
async def test_of_a_refused_edit_the_gateway_is_not_spoken(world: World, applied: str, ready: str, wanted: str) -> None:
    uid = world.put(serving("llama", "ns", gateway={"mode": applied}))
    await world.reconciler.reconcile(uid)
    world.put(engine(0, ready=True))
    await world.reconciler.reconcile(uid)
    before = [condition(world.body(), kind) for kind in ("Ready", "GatewayReady")]
    assert before[0]["reason"] == ready
    world.put({**world.body(), "spec": {**world.body()["spec"], "gateway": {"mode": wanted}, "profile": "none"}})
    await world.reconciler.reconcile(uid)
    assert condition(world.body(), "Applied")["reason"] == "InvalidSpec"
    after = [condition(world.body(), kind) for kind in ("Ready", "GatewayReady")]
    assert [(one["status"], one["reason"]) for one in after] == [(one["status"], one["reason"]) for one in before]


async def test_what_is_refused_is_said_and_the_rest_is_made(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    world.api.fault = only("/configmaps/", "PATCH", lambda: refused(403, "Forbidden", "exceeded quota: configmaps"))
    result = await world.reconciler.reconcile(uid)
    assert result.label == "refused"
    assert result.repaired, "held back like a fight"
    assert {child["kind"] for child in world.children()} == ALWAYS - {"ConfigMap"}
    found = condition(world.body(), "Applied")
    assert (found["status"], found["reason"]) == ("False", "QuotaExceeded")
    assert "llama-picker" in found["message"]
    world.api.fault = lambda _: None
    world.watch()
    await world.reconciler.reconcile(uid)
    assert {child["kind"] for child in world.children()} == ALWAYS


async def test_an_ill_server_gets_no_further_calls(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    world.api.fault = only("/services/", "PATCH", lambda: refused(503, "ServiceUnavailable"))
    with pytest.raises(ApiError, match="ServiceUnavailable") as caught:
        await world.reconciler.reconcile(uid)
    assert world.api.count("PATCH", "") == 1 + len(RETRIES)
    assert not caught.value.progress


async def test_what_was_done_before_a_failure_counts_as_progress(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    world.api.fault = only("/statefulsets/", "PATCH", lambda: refused(503, "ServiceUnavailable"))
    with pytest.raises(ApiError) as caught:
        await world.reconciler.reconcile(uid)
    assert caught.value.progress


async def test_a_race_is_tried_again_and_the_rest_is_made(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    world.api.fault = only("/configmaps/", "PATCH", lambda: refused(409, "Conflict"))
    with pytest.raises(ApiError, match="Conflict"):
        await world.reconciler.reconcile(uid)
    assert {child["kind"] for child in world.children()} == ALWAYS - {"ConfigMap"}
    assert condition(world.body(), "Applied")["status"] != "False"
    world.api.fault = lambda _: None
    world.api.requests.clear()
    await world.reconciler.reconcile(uid)
    assert {child["kind"] for child in world.children()} == ALWAYS
    applied = [path for method, path in world.api.requests if method == "PATCH" and "llmservings" not in path]
    assert len(applied) == 1, "a full pass that was interrupted goes on where it was"


async def test_a_namespace_that_goes_ends_it(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    details = {"causes": [{"reason": "NamespaceTerminating"}]}
    world.api.fault = only("", "PATCH", lambda: refused(403, "Forbidden", "…", details=details))
    assert (await world.reconciler.reconcile(uid)).gone
    assert world.api.count("PATCH", "") == 1


async def test_what_somebody_else_has_made_is_not_taken_over(world: World) -> None:
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "llama-picker", "namespace": "ns"}}
    mine = world.api.put(foreign)
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    assert world.api.all(CONFIG_MAP) == [mine]
    assert condition(world.body(), "Applied")["reason"] == "NameTaken"


async def test_what_another_controller_has_made_is_named(world: World) -> None:
    owner = {"apiVersion": "x/v1", "kind": "Other", "name": "it", "uid": "zzz", "controller": True}
    metadata = {"name": "llama-picker", "namespace": "ns", "ownerReferences": [owner]}
    world.api.put({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    assert "belongs to Other it" in condition(world.body(), "Applied")["message"]


async def test_a_child_of_a_predecessor_is_waited_for(world: World) -> None:
    """Deleted and made again at once: the garbage collector is still at work."""
    first = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(first)
    world.api.remove(kinds.SERVING, "llama", "ns")
    second = world.put(serving("llama", "ns"))
    old = world.api.objects.pop(("configmaps", "ns", "llama-picker"))
    world.watch()
    world.api.objects["configmaps", "ns", "llama-picker"] = old  # the cache does not know it yet
    with pytest.raises(ApiError, match="BeingDeleted"):
        await world.reconciler.reconcile(second)
    assert world.api.objects["configmaps", "ns", "llama-picker"] == old


async def test_an_immutable_field_is_changed_by_a_new_set_that_takes_over(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    world.watch()
    (before,) = world.api.all(kinds.STATEFUL_SET)
    model = {"uri": "hf://org/model", "cache": {"size": "10Gi"}}
    world.put({**world.body(), "spec": {**world.body()["spec"], "model": model}})
    deletes: list[web.Request] = []
    world.api.fault = lambda request: deletes.append(request) if request.method == "DELETE" else None
    await world.reconciler.reconcile(uid)
    (after,) = world.api.all(kinds.STATEFUL_SET)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert after["spec"]["volumeClaimTemplates"]
    assert len(deletes) == 1


async def test_events_tell_transitions_once(world: World) -> None:
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "llama-picker", "namespace": "ns"}}
    world.api.put(foreign)
    uid = world.put(serving("llama", "ns"))
    for _ in range(4):
        await world.reconciler.reconcile(uid)
        world.watch()
    told = [event for event in world.api.all(kinds.EVENT) if event["reason"] == "NameTaken"]
    assert len(told) == 1
    assert told[0]["involvedObject"]["uid"] == uid
    assert told[0]["type"] == "Warning"


async def test_events_that_cannot_be_written_stop_nothing(world: World) -> None:
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "llama-picker", "namespace": "ns"}}
    world.api.put(foreign)
    uid = world.put(serving("llama", "ns"))
    world.api.fault = only("/events", "POST", lambda: refused(403, "Forbidden", "no"))
    await world.reconciler.reconcile(uid)
    assert condition(world.body(), "Applied")["reason"] == "NameTaken"


async def test_a_repair_is_told_from_an_edit(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    await world.reconciler.reconcile(uid)
    world.watch()
    world.api.remove(CONFIG_MAP, "llama-picker", "ns")
    world.watch()
    assert (await world.reconciler.reconcile(uid)).repaired
    world.put({**world.body(), "spec": {**world.body()["spec"], "replicas": 3}})
    assert not (await world.reconciler.reconcile(uid)).repaired


async def test_a_failure_of_one_kind_alone_stops_no_other_and_is_told_once_it_lasts(world: World) -> None:
    """As by a webhook that is down."""
    uid = world.put(serving("llama", "ns"))
    world.api.fault = lambda request: (
        refused(500, "InternalError", "failed calling webhook w")
        if request.method == "PATCH" and "/statefulsets/" in request.path
        else None
    )
    for _ in range(3):
        assert condition(world.body(), "Applied") == {}
        with pytest.raises(ApiError, match="failed calling webhook w"):
            await world.reconciler.reconcile(uid)
        world.watch()
    assert {child["kind"] for child in world.children()} == ALWAYS - {"StatefulSet"}
    applied = condition(world.body(), "Applied")
    assert (applied["status"], applied["reason"]) == ("False", "InternalError")
    assert applied["message"] == "StatefulSet llama-engine: failed calling webhook w"
    world.api.fault = lambda _: None
    await world.reconciler.reconcile(uid)
    assert condition(world.body(), "Applied")["reason"] == "Applied"


async def test_an_ill_server_is_left_in_peace(world: World) -> None:
    uid = world.put(serving("llama", "ns"))
    world.api.fault = lambda request: refused(500, "InternalError") if request.method == "PATCH" else None
    for _ in range(4):
        world.api.requests.clear()
        with pytest.raises(ApiError):
            await world.reconciler.reconcile(uid)
        assert world.api.count("PATCH", "") <= 3 * (1 + len(RETRIES))
