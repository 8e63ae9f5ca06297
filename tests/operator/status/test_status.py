"""The whole status: at rest, before anything exists, and when it changes."""

import copy
from datetime import timedelta

from halffull_operator.status import invalid
from tests.operator.plan.world import T0, World, at, body, engine_pod, gateway_pod
from tests.operator.status.reading import CRASHED, next_look, said, verdicts


def test_at_rest() -> None:
    found = said(World())
    assert verdicts(found) == {
        "Ready": ("True", "Serving"),
        "EnginesReady": ("True", "AllReady"),
        "GatewayReady": ("True", "AllReady"),
        "Progressing": ("True", "Complete"),
        "Applied": ("True", "Applied"),
        "UpdateAvailable": ("False", "UpToDate"),
    }
    conditions = found.pop("conditions")
    assert found == {
        "replicas": 2,
        "readyReplicas": 2,
        "updatedReplicas": 2,
        "selector": "app=llama",
        "url": "http://llama-gateway.team.svc/v1",
        "image": "vllm:1",
        "modelRevision": "abc",
        "observedGeneration": 1,
    }
    assert {one["observedGeneration"] for one in conditions} == {1}


def test_nothing_changes_while_nothing_happens() -> None:
    world = World()
    world.body["status"] = said(world)
    for after in (11.0, 3600.0, 10**7):
        assert said(world, after=after) == world.body["status"]
    assert next_look(world) is None


def test_a_transition_time_changes_with_the_status_only() -> None:
    world = World()
    world.pods = [engine_pod(0), engine_pod(1, ready=False), gateway_pod(0)]
    world.body["status"] = first = said(world, after=100)
    world.pods[1] = engine_pod(1, ready=False, containerStatuses=CRASHED)
    second = said(world, after=200)
    assert [one["lastTransitionTime"] for one in second["conditions"]] == [at(100)] * 6
    assert verdicts(second)["EnginesReady"] != verdicts(first)["EnginesReady"]
    world.pods[1] = engine_pod(1)
    third = {one["type"]: one["lastTransitionTime"] for one in said(world, after=300)["conditions"]}
    assert third["EnginesReady"] == at(300)
    assert third["Ready"] == at(100)


def test_before_anything_exists() -> None:
    world = World()
    world.live.clear()
    world.pods.clear()
    found = said(world)
    assert verdicts(found)["Ready"] == ("False", "Starting")
    assert verdicts(found)["EnginesReady"] == ("False", "Applying")
    assert verdicts(found)["GatewayReady"] == ("False", "Starting")
    assert verdicts(found)["Progressing"] == ("True", "Applying")


def test_a_spec_that_cannot_be_used_changes_nothing_else() -> None:
    world = World()
    stored = {**copy.deepcopy(world.body), "status": said(world)}
    stored["metadata"]["generation"] = 2
    found = invalid(stored, field="spec.engine.args[0]", message="write maxModelLen", now=T0)
    assert verdicts(found) | {"Applied": ("True", "Applied")} == verdicts(stored["status"])
    assert verdicts(found)["Applied"] == ("False", "InvalidSpec")
    (applied,) = (each for each in found["conditions"] if each["type"] == "Applied")
    assert applied["message"].endswith("write maxModelLen; what was applied before goes on unchanged")
    assert found["observedGeneration"] == 2
    assert found["url"] == stored["status"]["url"]
    again = invalid(
        {**stored, "status": found},
        field="spec.engine.args[0]",
        message="write maxModelLen",
        now=T0 + timedelta(days=1),
    )
    assert again == found


def test_how_pods_are_is_told_whatever_the_spec_says() -> None:
    world = World()
    stored = {**copy.deepcopy(world.body), "status": said(world)}
    world.pods = [engine_pod(0, ready=False, containerStatuses=CRASHED), engine_pod(1), gateway_pod(0, ready=False)]
    now = said(world)
    found = invalid(stored, field="spec.engine.args[0]", message="write maxModelLen", now=T0, found=now)
    assert verdicts(found) == verdicts(now) | {"Applied": ("False", "InvalidSpec")}
    assert verdicts(found)["Ready"] == ("False", "Starting")
    assert (found["readyReplicas"], found["unhealthy"]) == (1, now["unhealthy"])
    assert found["url"] == stored["status"]["url"]
    well = invalid({**stored, "status": found}, field="spec", message="no", now=T0, found=said(World()))
    assert "unhealthy" not in well


def test_a_spec_that_cannot_be_used_from_the_beginning_is_not_ready() -> None:
    found = invalid(body(), field="spec.model", message="is missing", now=T0)
    assert verdicts(found)["Ready"] == ("False", "InvalidSpec")
    for one in (found, invalid({**body(), "status": found}, field="spec.model", message="is missing", now=T0)):
        (applied,) = (each for each in one["conditions"] if each["type"] == "Applied")
        assert applied["message"] == "spec.model: is missing", "nothing was applied before, to go on unchanged"
