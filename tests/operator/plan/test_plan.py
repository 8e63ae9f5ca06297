"""What is done about a difference, what is left alone, and what is never done."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest

from halffull_operator.compare import Difference
from halffull_operator.plan import (
    FULL,
    IN_THE_WAY,
    MISSING,
    Action,
    Apply,
    Delete,
    GrowClaim,
    OrphanAndRecreate,
    after_apply,
    plan,
)
from halffull_operator.rolling import RECREATED
from tests.operator.compare.manifests import OWNER
from tests.operator.compare.server import ours, stored, write
from tests.operator.plan.world import World, body, engine_set, gateway, gateway_service, template_container


def planned(world: World, *, full: bool = False) -> tuple[Action, ...]:
    before = copy.deepcopy((world.manifests, world.live))
    actions = plan(world.serving, world.children, world.observed, full=full)
    assert (world.manifests, world.live) == before
    return actions


def only(actions: tuple[Action, ...]) -> Any:
    (action,) = actions
    return action


def test_nothing_is_done_at_rest() -> None:
    assert planned(World()) == ()


def test_all_that_is_missing_is_made_in_the_builders_order() -> None:
    world = World()
    world.live.clear()
    actions = planned(world)
    assert [(action.manifest["kind"], action.why) for action in actions if isinstance(action, Apply)] == [
        ("StatefulSet", MISSING),
        ("Deployment", MISSING),
        ("Service", MISSING),
    ]


def test_a_full_pass_applies_every_child_once() -> None:
    actions = planned(World(), full=True)
    assert [action.why for action in actions if isinstance(action, Apply)] == [FULL] * 3


def test_only_what_differs_is_applied_and_the_reason_names_field_and_culprit() -> None:
    world = World()
    world.live["Deployment", "llama-gateway"] = write(
        world.live["Deployment", "llama-gateway"], ("spec", "replicas"), 9
    )
    action = only(planned(world))
    assert action.manifest["kind"] == "Deployment"
    assert action.why == "spec.replicas (set by kubectl-edit)"


def test_paused_or_being_deleted_nothing_is_done() -> None:
    world = World()
    world.live.clear()
    world.body["metadata"]["annotations"] = {"serving.halffull.dev/paused": "true"}
    assert planned(world, full=True) == ()
    world.body["metadata"]["annotations"] = {}
    assert planned(world) != ()
    world.body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert planned(world, full=True) == ()


def test_what_the_server_made_of_the_last_apply_is_not_applied_again() -> None:
    world = World()
    live = write(
        world.engines, ("spec", "template", "spec", "containers", 'k:{"name":"engine"}', "image"), "mirror/vllm:1"
    )
    world.live["StatefulSet", "llama-engine"] = live
    action = only(planned(world))
    world.settled["StatefulSet", "llama-engine"] = after_apply(action.manifest, live)
    assert planned(world) == ()
    template_container(live)["image"] = "other"
    assert len(planned(world)) == 1


class TestDelete:
    def test_what_is_no_longer_asked_for_goes(self) -> None:
        world = World()
        world.manifests.pop()
        action = only(planned(world))
        assert action == Delete("Service", "v1", "llama-gateway", "no longer asked for")

    @pytest.mark.parametrize("whose", ["nobody's", "another's", "being deleted"])
    def test_what_is_not_ours_or_goes_already_is_left_alone(self, whose: str) -> None:
        world = World()
        world.manifests.pop()
        metadata = world.live["Service", "llama-gateway"]["metadata"]
        if whose == "nobody's":
            metadata["ownerReferences"] = []
        elif whose == "another's":
            metadata["ownerReferences"] = [{**OWNER, "uid": "cr-0"}]
        else:
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        assert planned(world) == ()

    def test_an_api_that_is_away_for_a_moment_deletes_nothing(self) -> None:
        world = World()
        route = {
            "kind": "HTTPRoute",
            "apiVersion": "gateway.networking.k8s.io/v1",
            "metadata": {"name": "r", "ownerReferences": [OWNER]},
        }
        world.live["HTTPRoute", "r"] = stored(route)
        missing = SimpleNamespace(field="gateway.route", api="gateway.networking.k8s.io/v1 HTTPRoute")
        world.missing = (missing,)
        assert planned(world) == ()
        world.missing = ()
        assert isinstance(only(planned(world)), Delete)


class TestInTheWay:
    def test_an_object_that_is_being_deleted_waits(self) -> None:
        world = World()
        world.engines["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        world.engines["spec"]["replicas"] = 7
        assert only(planned(world)).why == IN_THE_WAY

    def test_the_object_of_another_owner_is_never_planned_over(self) -> None:
        world = World()
        world.engines["metadata"]["ownerReferences"][0]["uid"] = "cr-0"
        world.engines["spec"]["serviceName"] = "theirs"
        assert only(planned(world)).why == IN_THE_WAY

    def test_an_orphan_is_adopted(self) -> None:
        world = World()
        world.engines["metadata"]["ownerReferences"] = []
        world.engine_fields()["f:metadata"].pop("f:ownerReferences")
        action = only(planned(world))
        assert isinstance(action, Apply)
        assert action.why == "metadata.ownerReferences[cr-1]"


class TestImmutable:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("serviceName", "other"),
            ("podManagementPolicy", "OrderedReady"),
            ("selector", {"matchLabels": {"app": "x"}}),
            ("volumeClaimTemplates", []),
        ],
    )
    def test_a_statefulset_is_created_anew_and_the_field_is_named(self, name: str, value: Any) -> None:
        world = World()
        world.manifests[0]["spec"][name] = value
        world.body["metadata"]["generation"] = 7
        action = only(planned(world))
        assert isinstance(action, OrphanAndRecreate)
        assert action.fields == (f"spec.{name}",)
        assert action.manifest["metadata"]["annotations"][RECREATED].startswith(f"7:spec.{name}:")
        # Afterwards it is done, and the note stays.
        world.apply(action.manifest)
        assert planned(world) == ()

    def test_it_is_not_done_twice_for_the_same_values(self) -> None:
        """A webhook that rewrites claim templates, say, must not cost a StatefulSet at every pass."""
        world = World()
        world.manifests[0]["spec"]["serviceName"] = "other"
        action = only(planned(world))
        world.apply(action.manifest)
        world.engines["spec"]["serviceName"] = "rewritten"
        assert planned(world) == ()
        world.manifests[0]["spec"]["replicas"] = 3
        assert isinstance(only(planned(world)), Apply)
        world.manifests[0]["spec"]["serviceName"] = "another"
        assert isinstance(only(planned(world)), OrphanAndRecreate)

    def test_claim_templates_that_are_no_longer_wanted(self) -> None:
        world = World()
        del world.manifests[0]["spec"]["volumeClaimTemplates"]
        assert only(planned(world)).fields == ("spec.volumeClaimTemplates",)

    @pytest.mark.parametrize("size", ["100Gi", "102400Mi", "107374182400"])
    def test_the_same_size_in_other_words_is_no_change(self, size: str) -> None:
        world = World()
        world.manifests[0]["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = size
        assert planned(world) == ()

    def test_mutable_fields_are_applied(self) -> None:
        world = World()
        world.manifests[0]["spec"] |= {
            "replicas": 3,
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete"},
            "updateStrategy": {"type": "OnDelete"},
            "minReadySeconds": 3,
            "revisionHistoryLimit": 2,
        }
        assert isinstance(only(planned(world)), Apply)

    @pytest.mark.parametrize(
        ("manifest", "path"),
        [
            (gateway(), ("spec", "selector", "matchLabels", "app")),
            (gateway_service() | {"spec": {"clusterIP": "None"}}, ("spec", "clusterIP")),
            (
                {
                    "apiVersion": "rbac/v1",
                    "kind": "RoleBinding",
                    "metadata": {"name": "p", "ownerReferences": [OWNER]},
                    "roleRef": {"name": "a"},
                },
                ("roleRef", "name"),
            ),
        ],
    )
    def test_other_kinds_are_deleted_and_made_anew(self, manifest: dict[str, Any], path: tuple[str, ...]) -> None:
        world = World(manifests=[manifest])
        live = world.live[manifest["kind"], manifest["metadata"]["name"]]
        target = live
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = "other"
        action = only(planned(world))
        assert isinstance(action, Delete)
        del world.live[manifest["kind"], manifest["metadata"]["name"]]
        assert only(planned(world)).why == MISSING


class TestClaims:
    def claim(self, name: str, storage: str, **metadata: Any) -> dict[str, Any]:
        return {
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, **metadata},
            "spec": {"resources": {"requests": {"storage": storage}}, "accessModes": ["ReadWriteOnce"]},
        }

    def test_claims_grow_with_the_template_and_never_shrink(self) -> None:
        world = World()
        world.claims = [
            self.claim("cache-llama-engine-0", "50Gi"),
            self.claim("cache-llama-engine-1", "102400Mi"),
            self.claim("cache-llama-engine-2", "1Ti"),
            self.claim("cache-llama-engine-3", "50Gi", deletionTimestamp="2026-01-01T00:00:00Z"),
            self.claim("cache-llama-engine-extra-0", "50Gi"),
            self.claim("other-llama-engine-0", "50Gi"),
            self.claim("cache-llama-engine-4", "50Gi") | {"status": {"phase": "Pending"}},  # it would be refused
        ]
        assert planned(world) == (GrowClaim("cache-llama-engine-0", "100Gi"),)

    def test_a_larger_cache_recreates_and_then_grows(self) -> None:
        world = World()
        world.claims = [self.claim("cache-llama-engine-0", "100Gi")]
        world.manifests[0]["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] = "200Gi"
        first, second = planned(world)
        assert isinstance(first, OrphanAndRecreate)
        assert second == GrowClaim("cache-llama-engine-0", "200Gi")

    @pytest.mark.parametrize(
        ("modes", "replicas", "refused"),
        [
            (["ReadWriteOncePod"], 2, True),
            (["ReadWriteOncePod"], 1, False),
            (["ReadWriteOnce"], 2, False),
            (["ReadOnlyMany"], 2, False),
            ([], 2, False),
        ],
    )
    def test_engines_that_cannot_share_a_claim_are_not_made(
        self, modes: list[str], replicas: int, *, refused: bool
    ) -> None:
        world = World(body=body(model={"uri": "pvc://weights/llama"}, replicas=replicas))
        world.live.clear()
        world.claims = [{"metadata": {"name": "weights"}, "spec": {"accessModes": modes}}]
        kinds = {action.manifest["kind"] for action in planned(world) if isinstance(action, Apply)}
        assert ("StatefulSet" not in kinds) is refused
        assert "Deployment" in kinds


def test_a_foreign_addition_that_the_server_put_beside_ours_survives_a_repair() -> None:
    """Only our own fields are applied, so the rest cannot be lost."""
    world = World()
    live = write(world.engines, ("metadata", "labels", "team"), "x")
    world.live["StatefulSet", "llama-engine"] = write(live, ("spec", "replicas"), 1)
    action = only(planned(world))
    assert "team" not in action.manifest["metadata"]["labels"]
    assert action.manifest["spec"]["replicas"] == 2


def test_an_object_somebody_stripped_of_its_managers_is_taken_back() -> None:
    world = World()
    world.engines["metadata"]["managedFields"] = [{"manager": "x", "operation": "Update", "fieldsV1": {}}]
    assert isinstance(only(planned(world)), Apply)


def test_after_apply_of_an_exact_answer_there_is_nothing_to_tolerate() -> None:
    manifest = engine_set()
    assert after_apply(manifest, stored(manifest)) == frozenset()
    answer = stored(manifest)
    answer["spec"]["replicas"] = 1
    answer["metadata"]["managedFields"] = [ours(manifest)]
    assert after_apply(manifest, answer) == {Difference(("spec", "replicas"), "2", "1")}
