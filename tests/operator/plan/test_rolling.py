"""Engine pods roll when the spec changes, and for nothing else; the reason is written down."""

from typing import Any

import pytest

from halffull_operator.compare import differences
from halffull_operator.labels import TEMPLATE_HASH
from halffull_operator.plan import Apply, OrphanAndRecreate, plan
from halffull_operator.rolling import BECAUSE, because, is_held
from tests.operator.compare.server import stored, write
from tests.operator.plan.world import World, engine_pod, engine_set, template_container


def planned(world: World, *, full: bool = False) -> list[Any]:
    return [
        action
        for action in plan(world.serving, world.children, world.observed, full=full)
        if hasattr(action, "manifest")
    ]


def engines(world: World, *, full: bool = False) -> Any:
    found = [action for action in planned(world, full=full) if action.manifest["kind"] == "StatefulSet"]
    return found[0] if found else None


def upgraded(world: World) -> None:
    """A newer operator: another template from the same spec."""
    world.manifests[0] = engine_set(template="t-2")
    template_container(world.manifests[0])["image"] = "vllm:2"
    template_container(world.manifests[0])["env"].pop()
    world.manifests[0]["spec"]["template"]["spec"]["priorityClassName"] = "high"


def test_an_upgrade_changes_nothing() -> None:
    world = World()
    upgraded(world)
    assert engines(world) is None
    assert is_held(world.manifests[0], world.engines)


def test_a_full_pass_after_an_upgrade_applies_what_is_there_already() -> None:
    world = World()
    upgraded(world)
    action = engines(world, full=True)
    assert action.manifest["metadata"]["annotations"][TEMPLATE_HASH] == "t-1"
    assert template_container(action.manifest)["image"] == "vllm:1"
    assert differences(action.manifest, world.engines) == ()
    # Neither defaults nor other managers' additions became ours.
    assert "dnsPolicy" not in action.manifest["spec"]["template"]["spec"]


def test_scaling_after_an_upgrade_keeps_the_template() -> None:
    world = World()
    upgraded(world)
    world.manifests[0]["spec"]["replicas"] = 5
    action = engines(world)
    assert action.manifest["spec"]["replicas"] == 5
    assert template_container(action.manifest)["image"] == "vllm:1"
    assert [variable["name"] for variable in template_container(action.manifest)["env"]] == ["A", "B"]
    assert BECAUSE not in action.manifest["metadata"]["annotations"]


def test_an_immutable_field_after_an_upgrade_keeps_the_template() -> None:
    world = World()
    upgraded(world)
    world.manifests[0]["spec"]["podManagementPolicy"] = "OrderedReady"
    action = engines(world)
    assert isinstance(action, OrphanAndRecreate)
    assert template_container(action.manifest)["image"] == "vllm:1"


def taken_by(world: World, manager: str, path: tuple[str, ...]) -> None:
    """Somebody else wrote to a field of the pod template's container, and has it now."""
    entry = world.engines["metadata"]["managedFields"][0]
    item = 'k:{"name":"engine"}'
    above: Any = entry["fieldsV1"]
    for step in ("f:spec", "f:template", "f:spec", "f:containers", item, *path[:-1]):
        above = above[step]
    del above[path[-1]]
    theirs: Any = {path[-1]: {}}
    for step in reversed(("f:spec", "f:template", "f:spec", "f:containers", item, *path[:-1])):
        theirs = {step: theirs}
    world.engines["metadata"]["managedFields"].append(
        {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": theirs}
    )


@pytest.mark.parametrize("path", [("f:image",), ("f:env", 'k:{"name":"A"}', "f:value")])
def test_a_hand_in_the_pods_after_an_upgrade_is_put_right_by_the_newer_template(path: tuple[str, ...]) -> None:
    world = World()
    upgraded(world)
    template_container(world.engines)["image"] = "foreign:1"
    template_container(world.engines)["env"][0]["value"] = "foreign"
    template_container(world.manifests[0])["env"][0]["value"] = "ours"
    taken_by(world, "kubectl-set", path)
    assert not is_held(world.manifests[0], world.engines)
    assert template_container(engines(world).manifest)["image"] == "vllm:2"


def test_an_addition_that_the_newer_template_has_too_rolls_nothing() -> None:
    """Somebody's variable and priority class are not ours, and an upgrade is no reason to fight for them."""
    world = World()
    upgraded(world)
    template_container(world.manifests[0])["env"].append({"name": "ADDED", "value": "ours"})
    template_container(world.engines)["env"].append({"name": "ADDED", "value": "theirs"})
    world.engines["spec"]["template"]["spec"]["priorityClassName"] = "theirs"
    fields = {"f:priorityClassName": {}, "f:containers": {'k:{"name":"engine"}': {"f:env": {}}}}
    added = fields["f:containers"]['k:{"name":"engine"}']["f:env"]
    added['k:{"name":"ADDED"}'] = {".": {}, "f:name": {}, "f:value": {}}
    world.engines["metadata"]["managedFields"].append(
        {
            "manager": "kubectl-edit",
            "operation": "Update",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:spec": {"f:template": {"f:spec": fields}}},
        }
    )
    assert is_held(world.manifests[0], world.engines)
    assert engines(world) is None


def test_the_next_edit_brings_the_newer_template() -> None:
    world = World()
    upgraded(world)
    world.manifests[0]["metadata"]["annotations"]["serving.halffull.dev/engine-inputs"] = "in-2"
    action = engines(world)
    assert template_container(action.manifest)["image"] == "vllm:2"
    assert action.manifest["metadata"]["annotations"][TEMPLATE_HASH] == "t-2"
    assert action.manifest["metadata"]["annotations"][BECAUSE] == "image vllm:1 → vllm:2, priorityClassName, env B"
    world.apply(action.manifest)
    world.engines["status"]["updateRevision"] = "r-2"
    assert planned(world) == []


def test_the_reason_of_a_roll_stays_until_it_is_through() -> None:
    world = World()
    world.manifests[0] = engine_set(inputs="in-2", template="t-2")
    template_container(world.manifests[0])["args"] = ["serve", "m", "--max-num-seqs=128"]
    action = engines(world)
    assert action.manifest["metadata"]["annotations"][BECAUSE] == "args --max-num-seqs"
    world.apply(action.manifest)
    world.engines["status"]["updateRevision"] = "r-2"
    world.manifests[0]["spec"]["replicas"] = 5
    action = engines(world)
    assert action.manifest["metadata"]["annotations"][BECAUSE] == "args --max-num-seqs"
    world.apply(action.manifest)
    world.engines["status"]["updateRevision"] = "r-2"
    world.pods = [engine_pod(number, revision="r-2") for number in range(4)]
    assert engines(world) is None
    world.pods.append(engine_pod(4, revision="r-2"))
    assert BECAUSE not in engines(world).manifest["metadata"]["annotations"]
    world.apply(action.manifest)
    assert planned(world) == []


def test_drift_in_the_template_is_repaired_when_the_operator_is_the_same() -> None:
    world = World()
    path = ("spec", "template", "spec", "containers", 'k:{"name":"engine"}', "image")
    world.live["StatefulSet", "llama-engine"] = write(world.engines, path, "vllm:evil")
    action = engines(world)
    assert isinstance(action, Apply)
    assert template_container(action.manifest)["image"] == "vllm:1"
    assert action.manifest["metadata"]["annotations"][BECAUSE] == "image vllm:evil → vllm:1"


def test_kubectl_rollout_restart_is_not_undone_by_a_later_apply() -> None:
    world = World()
    world.live["StatefulSet", "llama-engine"] = write(
        world.engines, ("spec", "template", "metadata", "annotations"), {"kubectl.kubernetes.io/restartedAt": "now"}
    )
    world.manifests[0]["spec"]["replicas"] = 3
    world.manifests[0]["spec"]["serviceName"] = "other"
    action = engines(world)
    assert isinstance(action, OrphanAndRecreate)
    assert action.manifest["spec"]["template"]["metadata"]["annotations"] == {
        "kubectl.kubernetes.io/restartedAt": "now"
    }
    assert action.manifest["spec"]["template"]["metadata"]["labels"] == {"app": "llama"}


def test_a_template_of_unknown_origin_is_brought_in_line() -> None:
    world = World()
    upgraded(world)
    world.engines["metadata"]["annotations"] = {}
    assert template_container(engines(world).manifest)["image"] == "vllm:2"


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (["m", "--a", "1"], ["m", "--a", "2"], "args --a"),
        (["m", "--a=1"], ["m", "--a=2", "--b"], "args --a, --b"),
        (["m", "--a", "1"], ["n", "--a", "1"], "args model"),
        (["m", "--a", "--b"], ["m", "--b", "--a"], "args (their order)"),
        (["m", "--api-key", "secret-1"], ["m", "--api-key", "secret-2"], "args --api-key"),
    ],
)
def test_flags_are_named_and_their_values_are_not(before: list[str], after: list[str], words: str) -> None:
    world = World()
    template_container(world.manifests[0])["args"] = before
    live = stored(world.manifests[0])
    template_container(world.manifests[0])["args"] = after
    assert because(differences(world.manifests[0], live)) == words


def test_what_is_told_is_short() -> None:
    world = World()
    live = stored(world.manifests[0])
    template_container(world.manifests[0])["env"] = [
        {"name": f"VARIABLE_{n}" + "X" * 60, "value": "s3cret"} for n in range(200)
    ]
    text = because(differences(world.manifests[0], live))
    assert text is not None
    assert len(text) <= 300
    assert "s3cret" not in text


def test_what_is_not_in_the_template_is_no_reason_to_roll() -> None:
    world = World()
    live = stored(world.manifests[0])
    world.manifests[0]["spec"]["replicas"] = 9
    assert because(differences(world.manifests[0], live)) is None


def test_a_hash_that_somebody_else_wrote_holds_nothing_back() -> None:
    world = World()
    path = ("metadata", "annotations", TEMPLATE_HASH)
    world.live["StatefulSet", "llama-engine"] = write(world.engines, path, "stolen")
    assert engines(world).manifest["metadata"]["annotations"][TEMPLATE_HASH] == "t-1"
