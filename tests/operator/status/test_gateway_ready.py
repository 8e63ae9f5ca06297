"""GatewayReady, the address, and what both make of Ready."""

from halffull_operator.status import events
from tests.operator.plan.world import World, body, container, engine_set, gateway_pod, gateway_service
from tests.operator.status.reading import message, said, verdicts


def test_without_a_ready_gateway_pod_no_answer() -> None:
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


def test_one_that_starts_is_no_trouble() -> None:
    world = World()
    world.pods = world.pods[:2]
    found = said(world)
    assert verdicts(found)["Ready"] == ("False", "Starting")
    assert message(found, "Ready") == "no gateway pod is ready: the gateway's pods are being made"
    assert events({}, found) == ()


def test_with_one_of_two_it_is_ready_and_says_so() -> None:
    world = World()
    runs = container("envoy", started=True, state={"running": {}})
    world.pods[3] = gateway_pod(1, ready=False, containerStatuses=[runs])
    found = verdicts(said(world))
    assert found["GatewayReady"] == ("True", "Degraded")
    assert found["Ready"] == ("True", "Serving")


def test_with_one_of_two_that_only_starts_nobody_is_warned() -> None:
    world = World()
    world.pods[3] = gateway_pod(1, ready=False)
    found = said(world)
    assert verdicts(found)["GatewayReady"] == ("True", "Starting")
    assert [event.type for event in events({}, found)] == []


def test_a_roll_of_its_pods_is_progress_and_no_outage() -> None:
    world = World()
    world.live["Deployment", "llama-gateway"]["status"]["updatedReplicas"] = 1
    found = verdicts(said(world))
    assert found["Progressing"] == ("True", "Starting")
    assert found["Ready"] == ("True", "Serving")


def test_a_quota_on_its_pods() -> None:
    world = World()
    world.pods = world.pods[:2]
    world.live["Deployment", "llama-gateway"]["status"]["conditions"] = [
        {"type": "ReplicaFailure", "status": "True", "message": 'pods "x" is forbidden: exceeded quota: q'}
    ]
    assert verdicts(said(world))["GatewayReady"] == ("False", "QuotaExceeded")


def test_none_is_wanted() -> None:
    engines = gateway_service()
    engines["metadata"] |= {"name": "llama-engine", "labels": {"serving.halffull.dev/component": "engine"}}
    engines["spec"]["ports"][0]["port"] = 8000
    world = World(body=body(gateway={"mode": "None"}), manifests=[engine_set(), engines])
    world.pods = world.pods[:2]
    found = said(world)
    assert verdicts(found)["GatewayReady"] == ("True", "NoGateway")
    assert verdicts(found)["Ready"] == ("True", "Serving")
    assert found["url"] == "http://llama-engine.team.svc:8000/v1"


def test_a_gateway_of_ones_own_goes_on_without_its_picker_unless_told_to_close() -> None:
    world = World(body=body(gateway={"mode": "InferencePool"}))
    world.pods = world.pods[:2]
    found = said(world)
    assert verdicts(found)["Ready"] == ("True", "Serving")
    assert verdicts(found)["GatewayReady"][0] == "False"
    assert "url" not in found
    world.body["spec"]["routing"] = {"failureMode": "FailClose"}
    assert verdicts(said(world))["Ready"] == ("False", "Starting")


def test_a_route_that_its_gateway_refuses() -> None:
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


def test_tls_is_in_the_url() -> None:
    world = World(body=body(gateway={"mode": "Managed", "managed": {"tls": {"secretName": "cert"}}}))
    world.manifests[2]["spec"]["ports"][0]["port"] = 443
    assert said(world)["url"] == "https://llama-gateway.team.svc/v1"
