"""Applied and UpdateAvailable: what of the spec is in force."""

from types import SimpleNamespace

import pytest

from halffull_operator.children.optional import INFERENCE_POOL
from halffull_operator.plan import Apply, GrowClaim, OrphanAndRecreate
from halffull_operator.rolling import RECREATED
from halffull_operator.status import Failure
from tests.operator.plan.world import World, body, engine_pod, engine_set, gateway, gateway_service, template_container
from tests.operator.status.reading import message, said, verdicts


def test_failures_are_named_with_the_first_ones_reason() -> None:
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


def test_what_is_refused_is_what_progress_waits_for() -> None:
    world = World()
    world.manifests[1]["spec"]["replicas"] = 3
    found = said(world, Failure(Apply(gateway(), "x"), "Forbidden", "no"))
    assert verdicts(found)["Progressing"] == ("True", "Applying")
    assert message(found, "Progressing").startswith("Deployment llama-gateway: no")


def test_many_failures_are_counted() -> None:
    found = said(World(), *(Failure(GrowClaim(f"c-{n}", "2Ti"), "Forbidden", "no") for n in range(9)))
    assert message(found, "Applied").endswith("; and 6 more")


def test_a_missing_api() -> None:
    world = World()
    world.missing = (SimpleNamespace(field="monitoring.podMonitor.enabled", api="monitoring.coreos.com/v1 PodMonitor"),)
    found = said(world)
    assert verdicts(found)["Applied"] == ("False", "OptionalApiMissing")
    assert "monitoring.podMonitor.enabled needs monitoring.coreos.com/v1 PodMonitor" in message(found, "Applied")
    assert verdicts(found)["Ready"] == ("True", "Serving")


def test_without_its_inference_pool_no_client_gets_an_answer() -> None:
    world = World(body=body(gateway={"mode": "InferencePool"}))
    world.missing = (SimpleNamespace(field="gateway.mode", api=INFERENCE_POOL),)
    found = said(world)
    assert verdicts(found)["Ready"] == verdicts(found)["Applied"] == ("False", "OptionalApiMissing")
    assert message(found, "Ready").startswith("gateway.mode needs inference.networking.k8s.io/v1 InferencePool")


def test_engines_that_the_api_server_refuses_to_write_are_why_none_is_ready() -> None:
    world = World()
    world.live.pop(("StatefulSet", "llama-engine"))
    world.pods = world.pods[2:]
    found = said(world, Failure(Apply(engine_set(), "x"), "Invalid", ".spec.contaners: field not declared in schema"))
    for kind in ("Ready", "EnginesReady", "Applied"):
        assert verdicts(found)[kind] == ("False", "Invalid")
        assert message(found, kind).endswith("contaners: field not declared in schema (see engine.podTemplate)")


def test_an_edit_of_the_engines_that_is_refused_is_why_they_are_not_as_asked() -> None:
    world = World()
    world.manifests[0]["spec"]["replicas"] = 3
    found = said(world, Failure(Apply(engine_set(), "x"), "Forbidden", "no"))
    assert verdicts(found)["Ready"] == ("True", "Serving")
    assert verdicts(found)["EnginesReady"] == ("False", "Forbidden")
    assert message(found, "EnginesReady") == "StatefulSet llama-engine: no"


def test_what_was_done_about_an_immutable_field_is_told_until_the_next_edit() -> None:
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


def test_an_immutable_field_that_could_not_be_handled() -> None:
    failure = Failure(OrphanAndRecreate(engine_set(), ("spec.serviceName",)), "Invalid", "field is immutable")
    assert verdicts(said(World(), failure))["Applied"] == ("False", "ImmutableFieldChanged")


@pytest.mark.parametrize(
    ("mode", "verdict"),
    [("ReadWriteOnce", ("True", "ClaimMayNotBeShared")), ("ReadWriteOncePod", ("False", "ClaimNotShareable"))],
)
def test_a_claim_that_engines_cannot_share(mode: str, verdict: tuple[str, str]) -> None:
    world = World(body=body(model={"uri": "pvc://weights/llama"}))
    world.claims = [{"metadata": {"name": "weights"}, "spec": {"accessModes": [mode]}}]
    assert verdicts(said(world))["Applied"] == verdict


def test_claims_that_stay_when_all_else_goes() -> None:
    def claim(number: int, **metadata: object) -> dict[str, object]:
        return {"metadata": {"name": f"cache-llama-engine-{number}", **metadata}, "spec": {}}

    policy = {"whenDeleted": "Delete", "whenScaled": "Retain"}
    cached = engine_set(persistentVolumeClaimRetentionPolicy=policy)
    world = World(manifests=[cached, gateway(), gateway_service()])
    world.engines["spec"]["persistentVolumeClaimRetentionPolicy"] = policy
    owned = {"ownerReferences": [{"kind": "StatefulSet"}]}
    world.claims = [
        claim(0),
        claim(1),
        claim(2),
        claim(3, **owned),
        claim(4, deletionTimestamp="x"),
        claim(11, **owned),
    ]
    world.pods = [engine_pod(0), engine_pod(2)]  # 1 is being made anew, and what becomes of 2 is not decided yet
    assert verdicts(said(world))["Applied"] == ("True", "Applied")
    world.claims += [claim(5), claim(6), claim(7), claim(8)]
    found = said(world)
    assert verdicts(found)["Applied"] == ("True", "ClaimLeftOver")
    names = ", ".join(f"cache-llama-engine-{number}" for number in (5, 6, 7))
    assert message(found, "Applied").startswith(f"{names} and 1 more of engines that were scaled away will outlive")
    policy["whenDeleted"] = "Retain"
    assert verdicts(said(world))["Applied"] == ("True", "Applied")


def test_fields_of_a_newer_crd() -> None:
    world = World()
    world.body["spec"]["classes"] = []
    assert verdicts(said(world))["Applied"] == ("False", "UnknownField")


def test_paused() -> None:
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
