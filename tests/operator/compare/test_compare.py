"""The rules of comparing: nothing that a server adds is drift, nothing that a person changes is missed."""

import copy
from typing import Any

import pytest

from halffull_operator.compare import differences, quantity
from tests.operator.compare.manifests import defaulted_route, defaulted_statefulset, route, service, statefulset
from tests.operator.compare.server import ours, stored, write

VLLM = 'k:{"name":"vllm"}'
POD = ("spec", "template", "spec")
CONTAINER = (*POD, "containers", VLLM)


def live_statefulset() -> dict[str, Any]:
    return defaulted_statefulset(stored(statefulset()))


def wheres(wanted: dict[str, Any], live: dict[str, Any]) -> list[str]:
    return [difference.where for difference in differences(wanted, live)]


@pytest.mark.parametrize(
    ("wanted", "live"),
    [(statefulset(), live_statefulset()), (service(), stored(service())), (route(), defaulted_route(stored(route())))],
    ids=["StatefulSet", "Service", "HTTPRoute"],
)
def test_defaults_and_normalised_values_are_no_difference(wanted: dict[str, Any], live: dict[str, Any]) -> None:
    assert differences(wanted, live) == ()
    del live["metadata"]["managedFields"]
    assert differences(wanted, live) == ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 5),
        ((*CONTAINER, "image"), "vllm:2"),
        ((*CONTAINER, "args"), ["serve", "m", "--max-num-seqs", "64", "--enforce-eager"]),
        ((*CONTAINER, "env", 'k:{"name":"A"}', "value"), "1.0"),
        ((*CONTAINER, "env", 'k:{"name":"B"}'), ...),
        ((*CONTAINER, "resources", "limits", "memory"), "2Ti"),
        ((*CONTAINER, "ports", 'k:{"containerPort":9400,"protocol":"TCP"}'), ...),
        ((*CONTAINER, "volumeMounts", 'k:{"mountPath":"/b"}'), ...),
        ((*POD, "enableServiceLinks"), True),
        ((*POD, "enableServiceLinks"), ...),
        ((*POD, "nodeSelector", "gpu"), "l40s"),
        ((*POD, "nodeSelector", "zone"), "b"),
        ((*POD, "tolerations"), []),
        ((*POD, "volumes", 'k:{"name":"tmp"}', "emptyDir"), ...),
        (("metadata", "labels", "app"), "other"),
        (("metadata", "labels", "app"), ...),
        (("metadata", "ownerReferences", 'k:{"uid":"cr-1"}'), ...),
        (("spec", "selector", "matchLabels", "more"), "x"),
        (("spec", "template"), {}),
    ],
)
def test_what_somebody_changes_or_removes_is_a_difference(path: tuple[str, ...], value: Any) -> None:
    live = write(live_statefulset(), path, value)
    assert differences(statefulset(), live) != ()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("metadata", "labels", "team"), "x"),
        (("metadata", "annotations", "argocd/tracking"), "x"),
        (("metadata", "finalizers"), ["a/b"]),
        (("spec", "template", "metadata", "annotations"), {"injected": "yes"}),
        ((*POD, "priorityClassName"), "high"),
        ((*CONTAINER, "stdin"), True),
        (("spec", "minReadySeconds"), 5),
        (("spec", "replicas"), 2),
    ],
)
def test_what_others_add_beside_it_stays(path: tuple[str, ...], value: Any) -> None:
    assert differences(statefulset(), write(live_statefulset(), path, value)) == ()


def test_an_injected_container_volume_and_variable_stay() -> None:
    live = live_statefulset()
    pod = live["spec"]["template"]["spec"]
    pod["containers"].append({"name": "sidecar", "image": "x"})
    pod["volumes"].insert(0, {"name": "token", "emptyDir": {}})
    pod["containers"][0]["env"].insert(1, {"name": "INJECTED", "value": "x"})
    assert differences(statefulset(), live) == ()


def test_a_key_added_to_a_selector_that_is_one_value_is_a_difference() -> None:
    live = write(stored(service()), ("spec", "selector", "stolen"), "x")
    assert wheres(service(), live) == ["spec.selector"]


def test_an_item_changed_inside_a_list_that_is_one_value_is_a_difference_even_if_ours_is_still_there() -> None:
    live = defaulted_route(stored(route()))
    live["spec"]["rules"][0]["filters"] = [{"type": "RequestRedirect"}]
    for entry in live["metadata"]["managedFields"]:
        del entry["fieldsV1"]["f:spec"]["f:rules"]
    assert wheres(route(), live) == ["spec.rules"]


@pytest.mark.parametrize("name", ["priorityClassName", "dnsConfig"])
def test_a_field_that_we_own_and_no_longer_set_must_be_applied_away(name: str) -> None:
    before = statefulset()
    before["spec"]["template"]["spec"][name] = "x"
    live = defaulted_statefulset(stored(before))
    assert wheres(statefulset(), live) == [f"spec.template.spec.{name}"]


def test_an_item_that_we_own_and_no_longer_set_must_be_applied_away() -> None:
    wanted = statefulset()
    container = wanted["spec"]["template"]["spec"]["containers"][0]
    container["env"].pop()
    container["ports"].pop()
    assert wheres(wanted, live_statefulset()) == [
        "spec.template.spec.containers[vllm].env[B]",
        "spec.template.spec.containers[vllm].ports[9400,TCP]",
    ]


def test_a_protocol_left_out_is_tcp() -> None:
    wanted = service()
    wanted["spec"]["ports"] = [{"port": 53}, {"port": 53, "protocol": "UDP"}]
    live = stored(wanted)
    live["spec"]["ports"][0]["protocol"] = "TCP"
    assert differences(wanted, live) == ()
    fewer = copy.deepcopy(wanted)
    fewer["spec"]["ports"].pop()
    assert wheres(fewer, live) == ["spec.ports[53,UDP]"]


@pytest.mark.parametrize("empty", [False, 0, "", [], {}])
def test_an_empty_value_that_the_server_dropped_is_no_difference_but_a_new_one_is(empty: Any) -> None:
    wanted = statefulset()
    wanted["spec"]["template"]["spec"]["something"] = empty
    live = defaulted_statefulset(stored(wanted))
    del live["spec"]["template"]["spec"]["something"]
    assert differences(wanted, live) == ()  # applied, and dropped
    live["metadata"]["managedFields"] = [ours(statefulset())]
    # Never applied: absent may mean something else, of a list excepted.
    assert wheres(wanted, live) == ([] if empty == [] else ["spec.template.spec.something"])


def test_a_full_value_that_is_not_there_is_a_difference_even_if_owned() -> None:
    wanted = statefulset()
    wanted["spec"]["updateStrategy"] = {"rollingUpdate": {"maxUnavailable": 2}}
    live = live_statefulset()
    live["metadata"]["managedFields"] = [ours(wanted)]
    (difference,) = differences(wanted, live)
    assert difference.where == "spec.updateStrategy.rollingUpdate.maxUnavailable"
    assert differences(wanted, live, settled={difference}) == ()  # the server's answer to our apply was the same


def test_null_means_not_set_and_is_not_applied_away() -> None:
    wanted = statefulset()
    wanted["spec"]["template"]["spec"]["affinity"] = None
    live = defaulted_statefulset(stored(wanted))
    live["spec"]["template"]["spec"]["affinity"] = {"podAffinity": {}}
    assert differences(wanted, live) == ()


def test_of_duplicate_variables_the_last_is_in_force() -> None:
    wanted = statefulset()
    wanted["spec"]["template"]["spec"]["containers"][0]["env"] += [{"name": "A", "value": "2"}]
    live = live_statefulset()
    env = live["spec"]["template"]["spec"]["containers"][0]["env"]
    env[0]["value"] = "2"
    assert differences(wanted, live) == ()
    env.append({"name": "A", "value": "stolen"})
    assert wheres(wanted, live) == ["spec.template.spec.containers[vllm].env[A].value"]


@pytest.mark.parametrize("name", ["env", "initContainers"])
def test_order_counts_where_it_has_a_meaning(name: str) -> None:
    live = live_statefulset()
    pod = live["spec"]["template"]["spec"]
    (pod["containers"][0] if name == "env" else pod)[name].reverse()
    assert [where.split(".")[-1] for where in wheres(statefulset(), live)] == [f"{name}[order]"]
    live = live_statefulset()
    live["spec"]["template"]["spec"]["volumes"].reverse()
    assert differences(statefulset(), live) == ()


def test_an_object_that_we_never_applied_is_applied() -> None:
    live = live_statefulset()
    live["metadata"]["managedFields"][0]["manager"] = "kubectl"
    assert len(differences(statefulset(), live)) == 1
    live["metadata"]["managedFields"][0] |= {"manager": "halffull-operator", "operation": "Update"}
    assert len(differences(statefulset(), live)) == 1


def test_a_list_first_applied_empty_is_compared_like_any_other() -> None:
    before = statefulset()
    before["spec"]["template"]["spec"]["containers"][0]["env"] = []
    live = defaulted_statefulset(stored(before))
    live["spec"]["template"]["spec"]["containers"][0].pop("env")
    assert differences(before, live) == ()
    assert wheres(statefulset(), live) == ["spec.template.spec.containers[vllm].env"]
    # Somebody's own items in a list that we want empty stay.
    live["spec"]["template"]["spec"]["containers"][0]["args"] = before["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]


def test_status_and_identity_are_not_compared() -> None:
    wanted = statefulset() | {"status": {"replicas": 7}}
    live = live_statefulset()
    live["kind"] = live["apiVersion"] = None
    assert differences(wanted, live) == ()


@pytest.mark.parametrize(
    ("want", "found", "same"),
    [
        ("2048Mi", "2Gi", True),
        ("1", 1, True),
        (0.5, "500m", True),
        ("1e3", "1k", True),
        ("0.1", "100m", True),
        ("1.5Gi", "1536Mi", True),
        ("1G", "1Gi", False),
        ("1", "1000", False),
        ("x", "y", False),
        ("1m", "1M", False),
        ("100n", "100u", False),
    ],
)
def test_quantities(want: Any, found: Any, *, same: bool) -> None:
    wanted = statefulset()
    live = live_statefulset()
    for manifest, value in ((wanted, want), (live, found)):
        manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] = value
    assert (differences(wanted, live) == ()) is same


@pytest.mark.parametrize(
    ("want", "found"), [("1.0", "1"), ("1Gi", "1024Mi"), (1, True), (0, False), ("true", True), (1, "1")]
)
def test_a_value_that_is_no_quantity_is_not_read_as_one(want: Any, found: Any) -> None:
    wanted, live = statefulset(), live_statefulset()
    wanted["spec"]["template"]["metadata"]["annotations"] = {"a": want}
    live["spec"]["template"]["metadata"]["annotations"] = {"a": found}
    assert wheres(wanted, live) == ["spec.template.metadata.annotations.a"]


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Gib", "--1", "1e", True, None, "1ki", "0x1"])
def test_no_quantity(text: Any) -> None:
    assert quantity(text) is None


def network_policy(*ports: int) -> dict[str, Any]:
    rule = {"from": [{"podSelector": {}}], "ports": [{"port": port} for port in ports]}
    return {"kind": "NetworkPolicy", "metadata": {"name": "n"}, "spec": {"podSelector": {}, "ingress": [rule]}}


def test_a_list_inside_one_value_is_part_of_it() -> None:
    """Ports of a NetworkPolicy look like a Service's, which merge by key."""
    live = stored(network_policy(8000, 9400))
    assert live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"]["f:ingress"] == {}
    for port in live["spec"]["ingress"][0]["ports"]:
        port["protocol"] = "TCP"
    assert differences(network_policy(8000, 9400), live) == ()
    assert wheres(network_policy(8000), live) == ["spec.ingress[0].ports"]
    assert wheres(network_policy(9400, 8000), live) == [
        "spec.ingress[0].ports[0].port",
        "spec.ingress[0].ports[1].port",
    ]


def test_an_equal_object_that_somebody_else_applied_is_made_ours() -> None:
    live = stored(service())
    live["metadata"]["managedFields"][0]["manager"] = "argocd"
    assert len(differences(service(), live)) == 1


@pytest.mark.parametrize("empty", [False, 0, "", [], {}])
def test_without_managed_fields_an_empty_value_may_be_left_out(empty: Any) -> None:
    wanted = service()
    wanted["spec"]["something"] = empty
    live = stored(service())
    del live["metadata"]["managedFields"]
    assert differences(wanted, live) == ()
    wanted["spec"]["something"] = 1
    assert wheres(wanted, live) == ["spec.something"]
