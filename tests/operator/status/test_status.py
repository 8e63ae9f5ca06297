"""What a person reads in the status, and when it changes."""

import copy
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from halffull_operator.plan import Apply, GrowClaim, OrphanAndRecreate
from halffull_operator.rolling import BECAUSE, RECREATED
from halffull_operator.status import Failure, Outcome, invalid, next_look, status
from tests.operator.plan.world import (
    T0,
    World,
    at,
    body,
    container,
    engine_pod,
    engine_set,
    gateway,
    gateway_pod,
    gateway_service,
    template_container,
)

CRASHED = [
    container(
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": {"exitCode": 1, "message": "ValueError: bad"}},
    )
]


def said(world: World, *failures: Failure, after: float = 10.0) -> dict[str, Any]:
    now = T0 + timedelta(seconds=after)
    return status(world.serving, world.children, world.observed, Outcome(failures), now=now)


def verdicts(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in found["conditions"]}


def message(found: dict[str, Any], kind: str) -> str:
    return next(one["message"] for one in found["conditions"] if one["type"] == kind)


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
    assert next_look(world.serving, world.children, world.observed, Outcome(), now=T0) is None


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


class TestEngines:
    def test_one_that_crashes_makes_enginesready_false_and_ready_stays(self) -> None:
        world = World()
        world.pods[1] = engine_pod(1, ready=False, containerStatuses=CRASHED)
        found = said(world)
        assert verdicts(found)["Ready"] == ("True", "Serving")
        assert verdicts(found)["EnginesReady"] == ("False", "CrashLoopBackOff")
        assert (
            message(found, "EnginesReady") == "1 of 2 engines are ready; llama-engine-1: exit code 1: ValueError: bad"
        )
        assert found["readyReplicas"] == 1
        assert found["unhealthy"] == [
            {"name": "llama-engine-1", "reason": "CrashLoopBackOff: exit code 1: ValueError: bad", "since": at(0)}
        ]

    def test_none_ready_is_not_ready_for_their_reason(self) -> None:
        world = World()
        world.pods[:2] = [engine_pod(number, ready=False, containerStatuses=CRASHED) for number in range(2)]
        found = said(world)
        assert verdicts(found)["Ready"] == ("False", "CrashLoopBackOff")
        assert "ValueError: bad" in message(found, "Ready")

    def test_refused_pods_are_told_by_quota(self) -> None:
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

    def test_scaled_to_zero(self) -> None:
        world = World(body=body(replicas=0), manifests=[engine_set(replicas=0), gateway(), gateway_service()])
        world.pods = world.pods[2:]
        found = verdicts(said(world))
        assert found["Ready"] == ("False", "ScaledToZero")
        assert found["EnginesReady"] == ("True", "ScaledToZero")
        assert found["Progressing"] == ("True", "Complete")

    def test_scaling(self) -> None:
        world = World()
        world.pods.pop(1)
        found = verdicts(said(world))
        assert found["EnginesReady"] == ("False", "Scaling")
        assert found["Progressing"] == ("True", "Scaling")
        assert found["Ready"] == ("True", "Serving")

    def test_no_more_than_sixteen_unhealthy_engines_first_the_worst_first(self) -> None:
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


class TestRoll:
    def rolling(self) -> World:
        world = World(body=body(replicas=4), manifests=[engine_set(replicas=4), gateway(), gateway_service()])
        world.engines["status"]["updateRevision"] = "r-2"
        world.engines["metadata"]["annotations"][BECAUSE] = "args --max-num-seqs"
        world.manifests[0]["metadata"]["annotations"][BECAUSE] = "args --max-num-seqs"
        world.engine_fields()["f:metadata"]["f:annotations"][f"f:{BECAUSE}"] = {}
        world.pods[:2] = [
            engine_pod(0),
            engine_pod(1),
            engine_pod(2),
            engine_pod(3, revision="r-2", ready=False, age=60),
        ]
        return world

    def test_it_says_what_rolls_and_why(self) -> None:
        found = said(self.rolling(), after=70)
        assert verdicts(found)["Ready"] == ("True", "Serving")
        assert verdicts(found)["EnginesReady"] == ("False", "ModelLoading")
        assert verdicts(found)["Progressing"] == ("True", "RollingOut")
        assert message(found, "Progressing") == (
            "1 of 4 engines are at the newest revision; changed: args --max-num-seqs; 3 of 4 engines are ready; "
            "llama-engine-3: loads the model for less than a minute (last step less than a minute ago)"
        )
        assert found["updatedReplicas"] == 1

    def test_between_two_pods_it_is_still_rolling(self) -> None:
        world = self.rolling()
        world.pods[3] = engine_pod(3, revision="r-2", age=60)
        found = said(world, after=70)
        assert verdicts(found)["EnginesReady"] == ("False", "RollingOut")
        assert (
            message(found, "EnginesReady") == "1 of 4 engines are at the newest revision; changed: args --max-num-seqs"
        )
        assert verdicts(found)["Progressing"] == ("True", "RollingOut")

    def test_when_it_halts_it_says_what_to_undo(self) -> None:
        world = self.rolling()
        world.pods[3] = engine_pod(3, revision="r-2", ready=False, age=60, containerStatuses=CRASHED)
        world.body["spec"]["rollout"] = {"progressDeadline": "30m"}
        assert verdicts(said(world, after=60 + 1799))["Progressing"] == ("True", "RollingOut")
        found = said(world, after=60 + 1801)
        assert verdicts(found)["Progressing"] == ("False", "ProgressDeadlineExceeded")
        assert message(found, "Progressing") == (
            "nothing has gone forward for over 30 minutes: 3 of 4 engines are ready; llama-engine-3: exit code 1: "
            "ValueError: bad. To go back, undo the last change of the LLMServing (args --max-num-seqs); "
            "3 engines still serve with what was before"
        )
        assert verdicts(found)["Ready"] == ("True", "Serving")

    def test_ready_does_not_flap(self) -> None:
        world = self.rolling()
        seen = set()
        for number in (3, 2, 1, 0):
            for pod in (None, engine_pod(number, revision="r-2", ready=False), engine_pod(number, revision="r-2")):
                world.pods = [one for one in world.pods if one["metadata"]["name"] != f"llama-engine-{number}"]
                world.pods += [pod] if pod else []
                seen.add(verdicts(said(world))["Ready"])
        assert seen == {("True", "Serving")}
        world.engines["status"]["currentRevision"] = "r-2"
        assert verdicts(said(world))["EnginesReady"] == ("True", "AllReady")

    def test_a_single_engine_that_is_being_replaced_is_honestly_not_ready(self) -> None:
        world = World(body=body(replicas=1), manifests=[engine_set(replicas=1), gateway(), gateway_service()])
        world.pods.pop(1)
        world.pods[0]["metadata"]["deletionTimestamp"] = at(1000)
        found = said(world)
        assert verdicts(found)["Ready"] == ("False", "RollingOut")
        assert found["replicas"] == 0


class TestDeadline:
    def test_any_step_forward_starts_it_anew(self) -> None:
        world = World()
        world.pods[1] = engine_pod(1, ready=False)
        assert verdicts(said(world, after=3601))["Progressing"][0] == "False"
        world.pods[0] = engine_pod(0, age=100)
        assert verdicts(said(world, after=3601))["Progressing"][0] == "True"
        assert verdicts(said(world, after=3701))["Progressing"][0] == "False"

    def test_an_edit_starts_it_anew(self) -> None:
        world = World()
        world.pods.pop(1)
        world.engines["metadata"]["managedFields"][0]["time"] = at(5000)
        assert verdicts(said(world, after=5010))["Progressing"] == ("True", "Scaling")

    def test_the_time_of_the_next_change_is_known(self) -> None:
        world = World()
        world.pods[1] = engine_pod(1, ready=False)

        def wait(after: float) -> float | None:
            now = T0 + timedelta(seconds=after)
            return next_look(world.serving, world.children, world.observed, Outcome(), now=now)

        assert wait(0) == 60
        after, found, writes = 0.0, said(world, after=0), 0
        while after < 86400:
            after += wait(after) or 86400
            now = said(world, after=after)
            assert now != found
            found, writes = now, writes + 1
        assert writes <= 14  # in a day, for a pod that never gets ready


class TestGateway:
    def test_without_a_ready_gateway_pod_no_answer(self) -> None:
        world = World()
        pull = [container("envoy", image="envoy:1", state={"waiting": {"reason": "ErrImagePull", "message": "denied"}})]
        world.pods[2:] = [gateway_pod(n, ready=False, containerStatuses=pull) for n in range(2)]
        found = said(world)
        assert verdicts(found)["Ready"] == ("False", "GatewayNotReady")
        assert verdicts(found)["GatewayReady"] == ("False", "ImagePullBackOff")
        assert (
            message(found, "Ready")
            == "no gateway pod is ready: llama-gateway-0: container envoy: image envoy:1 cannot be pulled: denied"
        )

    def test_with_one_of_two_it_is_ready_and_says_so(self) -> None:
        world = World()
        world.pods[3] = gateway_pod(1, ready=False)
        found = verdicts(said(world))
        assert found["GatewayReady"] == ("True", "Degraded")
        assert found["Ready"] == ("True", "Serving")

    def test_a_roll_of_its_pods_is_progress_and_no_outage(self) -> None:
        world = World()
        world.live["Deployment", "llama-gateway"]["status"]["updatedReplicas"] = 1
        found = verdicts(said(world))
        assert found["Progressing"] == ("True", "Starting")
        assert found["Ready"] == ("True", "Serving")

    def test_a_quota_on_its_pods(self) -> None:
        world = World()
        world.pods = world.pods[:2]
        world.live["Deployment", "llama-gateway"]["status"]["conditions"] = [
            {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota: q'}
        ]
        assert verdicts(said(world))["GatewayReady"] == ("False", "QuotaExceeded")

    def test_none_is_wanted(self) -> None:
        engines = gateway_service()
        engines["metadata"] |= {"name": "llama-engine", "labels": {"serving.halffull.dev/component": "engine"}}
        engines["spec"]["ports"][0]["port"] = 8000
        world = World(body=body(gateway={"mode": "None"}), manifests=[engine_set(), engines])
        world.pods = world.pods[:2]
        found = said(world)
        assert verdicts(found)["GatewayReady"] == ("True", "NoGateway")
        assert verdicts(found)["Ready"] == ("True", "Serving")
        assert found["url"] == "http://llama-engine.team.svc:8000/v1"

    def test_a_gateway_of_ones_own_goes_on_without_its_picker_unless_told_to_close(self) -> None:
        world = World(body=body(gateway={"mode": "InferencePool"}))
        world.pods = world.pods[:2]
        found = said(world)
        assert verdicts(found)["Ready"] == ("True", "Serving")
        assert verdicts(found)["GatewayReady"][0] == "False"
        assert "url" not in found
        world.body["spec"]["routing"] = {"failureMode": "FailClose"}
        assert verdicts(said(world))["Ready"] == ("False", "GatewayNotReady")

    def test_a_route_that_its_gateway_refuses(self) -> None:
        world = World()
        world.live["HTTPRoute", "llama-route"] = {
            "metadata": {"name": "llama-route", "ownerReferences": []},
            "status": {
                "parents": [
                    {
                        "parentRef": {"name": "gw"},
                        "conditions": [
                            {"type": "Accepted", "status": "False", "reason": "NotAllowedByListeners", "message": "no"}
                        ],
                    }
                ]
            },
        }
        found = said(world)
        assert verdicts(found)["GatewayReady"] == ("False", "RouteNotAccepted")
        assert message(found, "GatewayReady") == "Gateway gw refuses HTTPRoute llama-route: NotAllowedByListeners: no"

    def test_tls_is_in_the_url(self) -> None:
        world = World(body=body(gateway={"mode": "Managed", "managed": {"tls": {"secretName": "cert"}}}))
        world.manifests[2]["spec"]["ports"][0]["port"] = 443
        assert said(world)["url"] == "https://llama-gateway.team.svc/v1"


class TestApplied:
    def test_failures_are_named_with_the_first_ones_reason(self) -> None:
        world = World()
        failures = [
            Failure(
                GrowClaim("cache-llama-engine-0", "2Ti"),
                "CacheResizeUnsupported",
                "only dynamically provisioned pvc can be resized",
            ),
            Failure(Apply(gateway(), "x"), "Forbidden", "no"),
        ]
        found = said(world, *failures)
        assert verdicts(found)["Applied"] == ("False", "CacheResizeUnsupported")
        assert message(found, "Applied") == (
            "model.cache.size: claim cache-llama-engine-0 cannot grow to 2Ti: "
            "only dynamically provisioned pvc can be resized; Deployment llama-gateway: no"
        )
        assert verdicts(found)["Ready"] == ("True", "Serving")

    def test_many_failures_are_counted(self) -> None:
        found = said(World(), *(Failure(GrowClaim(f"c-{n}", "2Ti"), "Forbidden", "no") for n in range(9)))
        assert message(found, "Applied").endswith("; and 6 more")

    def test_a_missing_api(self) -> None:
        world = World()
        world.missing = (
            SimpleNamespace(field="monitoring.podMonitor.enabled", api="monitoring.coreos.com/v1 PodMonitor"),
        )
        found = said(world)
        assert verdicts(found)["Applied"] == ("False", "OptionalApiMissing")
        assert "monitoring.podMonitor.enabled needs monitoring.coreos.com/v1 PodMonitor" in message(found, "Applied")
        assert verdicts(found)["Ready"] == ("True", "Serving")

    def test_what_was_done_about_an_immutable_field_is_told_until_the_next_edit(self) -> None:
        world = World()
        world.manifests[0]["metadata"]["annotations"][RECREATED] = "4:spec.volumeClaimTemplates:0a1b2c3d"
        world.apply(world.manifests[0])
        world.body["metadata"]["generation"] = 4
        found = said(world)
        assert verdicts(found)["Applied"] == ("True", "ImmutableFieldChanged")
        assert message(found, "Applied").startswith(
            "spec.volumeClaimTemplates of the StatefulSet cannot be changed in place"
        )
        world.body["metadata"]["generation"] = 5
        assert verdicts(said(world))["Applied"] == ("True", "Applied")

    def test_an_immutable_field_that_could_not_be_handled(self) -> None:
        failure = Failure(OrphanAndRecreate(engine_set(), ("spec.serviceName",)), "Invalid", "field is immutable")
        assert verdicts(said(World(), failure))["Applied"] == ("False", "ImmutableFieldChanged")

    @pytest.mark.parametrize(
        ("mode", "verdict"),
        [("ReadWriteOnce", ("True", "ClaimMayNotBeShared")), ("ReadWriteOncePod", ("False", "ClaimNotShareable"))],
    )
    def test_a_claim_that_engines_cannot_share(self, mode: str, verdict: tuple[str, str]) -> None:
        world = World(body=body(model={"uri": "pvc://weights/llama"}))
        world.claims = [{"metadata": {"name": "weights"}, "spec": {"accessModes": [mode]}}]
        assert verdicts(said(world))["Applied"] == verdict

    def test_fields_of_a_newer_crd(self) -> None:
        world = World()
        world.body["spec"]["classes"] = []
        assert verdicts(said(world))["Applied"] == ("False", "UnknownField")

    def test_paused(self) -> None:
        world = World()
        world.body["metadata"]["annotations"] = {"serving.halffull.dev/paused": "true"}
        template_container(world.manifests[0])["image"] = "vllm:2"
        found = verdicts(said(world))
        assert found["Applied"] == ("Unknown", "Paused")
        assert found["Progressing"] == ("Unknown", "Paused")
        assert found["Ready"] == ("True", "Serving")
        assert found["EnginesReady"] == ("True", "AllReady")


def test_a_newer_template_is_told_with_the_command_that_brings_it() -> None:
    world = World()
    world.manifests[0] = engine_set(template="t-2")
    template_container(world.manifests[0])["image"] = "vllm:2"
    found = said(world)
    assert verdicts(found)["UpdateAvailable"] == ("True", "NewerTemplate")
    assert "serving.halffull.dev/restartedAt" in message(found, "UpdateAvailable")
    assert verdicts(found)["EnginesReady"] == ("True", "AllReady")
    assert verdicts(found)["Progressing"] == ("True", "Complete")
    assert found["image"] == "vllm:1"


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
    assert found["observedGeneration"] == 2
    assert found["url"] == stored["status"]["url"]
    again = invalid(
        {**stored, "status": found},
        field="spec.engine.args[0]",
        message="write maxModelLen",
        now=T0 + timedelta(days=1),
    )
    assert again == found


def test_a_spec_that_cannot_be_used_from_the_beginning_is_not_ready() -> None:
    found = invalid(body(), field="spec.model", message="is missing", now=T0)
    assert verdicts(found)["Ready"] == ("False", "InvalidSpec")
