"""EnginesReady, and what it makes of Ready."""

from tests.operator.plan.world import (
    World,
    at,
    body,
    engine_pod,
    engine_set,
    gateway,
    gateway_pod,
    gateway_service,
    template_container,
)
from tests.operator.status.reading import CRASHED, message, said, verdicts


def test_one_that_crashes_makes_enginesready_false_and_ready_stays() -> None:
    world = World()
    world.pods[1] = engine_pod(1, ready=False, containerStatuses=CRASHED)
    found = said(world)
    assert verdicts(found)["Ready"] == ("True", "Serving")
    assert verdicts(found)["EnginesReady"] == ("False", "CrashLoopBackOff")
    assert message(found, "EnginesReady") == "1 of 2 engines are ready; llama-engine-1: exit code 1: ValueError: bad"
    assert found["readyReplicas"] == 1
    assert found["unhealthy"] == [
        {"name": "llama-engine-1", "reason": "CrashLoopBackOff: exit code 1: ValueError: bad", "since": at(0)}
    ]


def test_none_ready_is_not_ready_for_their_reason() -> None:
    world = World()
    world.pods[:2] = [engine_pod(number, ready=False, containerStatuses=CRASHED) for number in range(2)]
    found = said(world)
    assert verdicts(found)["Ready"] == ("False", "CrashLoopBackOff")
    assert "ValueError: bad" in message(found, "Ready")


def test_refused_pods_are_told_by_quota() -> None:
    world = World()
    world.pods.pop(1)
    text = (
        "create Pod llama-engine-1 in StatefulSet llama-engine failed error: "
        'pods "llama-engine-1" is forbidden: exceeded quota: gpus, used: 1, limited: 1'
    )
    event = {
        "reason": "FailedCreate",
        "message": text,
        "lastTimestamp": at(5),
        "involvedObject": {"kind": "StatefulSet", "name": "llama-engine"},
    }
    world.events = [event]
    found = said(world)
    assert verdicts(found)["EnginesReady"] == ("False", "QuotaExceeded")
    assert (
        message(found, "EnginesReady")
        == "1 of 2 engines are ready; pods are refused: exceeded quota: gpus, used: 1, limited: 1"
    )
    event["message"] = 'create Pod p failed error: pods "p" is forbidden: violates PodSecurity "restricted:latest"'
    assert verdicts(said(world))["EnginesReady"] == ("False", "PodsRefused")
    world.pods.append(engine_pod(1))
    assert verdicts(said(world))["EnginesReady"] == ("True", "AllReady")


def test_scaled_to_zero() -> None:
    world = World(body=body(replicas=0), manifests=[engine_set(replicas=0), gateway(), gateway_service()])
    world.pods = world.pods[2:]
    found = verdicts(said(world))
    assert found["Ready"] == ("False", "ScaledToZero")
    assert found["EnginesReady"] == ("True", "ScaledToZero")
    assert found["Progressing"] == ("True", "Complete")


def test_scaling() -> None:
    world = World()
    world.pods.pop(1)
    found = verdicts(said(world))
    assert found["EnginesReady"] == ("False", "Scaling")
    assert found["Progressing"] == ("True", "Scaling")
    assert found["Ready"] == ("True", "Serving")


def test_no_more_than_sixteen_unhealthy_engines_first_the_worst_first() -> None:
    world = World(body=body(replicas=40))
    world.pods = [
        gateway_pod(0, ready=False),
        *(engine_pod(n, ready=False) for n in range(39)),
        engine_pod(39, ready=False, containerStatuses=CRASHED),
    ]
    unhealthy = said(world)["unhealthy"]
    assert len(unhealthy) == 16
    assert unhealthy[0]["name"] == "llama-engine-39"
    assert all(one["name"].startswith("llama-engine") for one in unhealthy)


class TestStale:
    """What is observed may speak of an earlier spec; then nothing is called done."""

    def test_an_edit_that_is_not_applied_yet(self) -> None:
        world = World()
        template_container(world.manifests[0])["image"] = "vllm:2"
        found = verdicts(said(world))
        assert found["EnginesReady"] == ("False", "Applying")
        assert found["Applied"] == ("Unknown", "Applying")
        assert found["Progressing"] == ("True", "Applying")
        assert found["Ready"] == ("True", "Serving")

    def test_an_edit_that_the_controller_has_not_seen(self) -> None:
        world = World()
        world.engines["metadata"]["generation"] = 2
        found = said(world)
        assert verdicts(found)["EnginesReady"][0] == "False"
        assert verdicts(found)["Progressing"] == ("True", "Starting")
        assert found["updatedReplicas"] == 0
