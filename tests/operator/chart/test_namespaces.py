"""`watch.namespaces`: a Role in each of them and nothing else, on a real API server."""

from pathlib import Path

import pytest

from halffull_operator import kinds
from halffull_operator.heartbeat import MANAGER
from tests.operator.chart import optional_apis
from tests.operator.chart.release import Release
from tests.operator.chart.render import CHART
from tests.operator.kube import ControlPlane, wait_until
from tests.operator.servings import children, serving, wait_ready

pytestmark = [pytest.mark.operator, pytest.mark.timeout(300)]
WATCHED = ("team-a", "team-b")
OTHER = "team-c"
NAMESPACE = kinds.Kind("v1", "Namespace", "namespaces", namespaced=False)
CONFIG_MAP = kinds.named("v1", "ConfigMap")


def test_named_namespaces_are_served_and_no_other(bare: ControlPlane, tmp_path: Path) -> None:
    admin = bare.admin
    optional_apis.install(admin)
    for name in (*WATCHED, OTHER):
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    release = Release(bare, tmp_path, name="halffull", namespace="narrow")
    notes = release.install(CHART, "--set=watch.namespaces={team-a,team-b}")
    assert "narrow is not watched: the heartbeat's Lease is in team-a" in notes
    wait_until("the CRD is served", lambda: optional_apis.served(admin, kinds.SERVING))
    for name in (*WATCHED, OTHER):
        admin.create(serving("llama", name, replicas=1, monitoring={"podMonitor": {"enabled": True}}))
    with release.operator() as operator:
        for name in WATCHED:
            wait_ready(admin, name, "llama")
        # Watches, not lists alone: an edit and a drift are seen.
        for name in WATCHED:
            admin.merge(kinds.SERVING, "llama", {"spec": {"replicas": 2}}, name)
            admin.delete(CONFIG_MAP, "llama-picker", name)
        for name in WATCHED:
            wait_ready(admin, name, "llama")
            assert admin.must_get(kinds.STATEFUL_SET, "llama-engine", name)["spec"]["replicas"] == 2
            wait_until("it is there again", lambda name=name: admin.get(CONFIG_MAP, "llama-picker", name))
        assert operator.http("/healthz") == (200, "ok\n")
        assert operator.metric("halffull_operator_servings") == 2
        wait_until("a heartbeat was seen", lambda: 0 <= operator.metric("halffull_operator_heartbeat_age_seconds") < 60)
    assert "status" not in admin.must_get(kinds.SERVING, "llama", OTHER)
    assert children(admin, OTHER, "llama", optional=True) == {}
    leases = [lease for lease in admin.list(kinds.LEASE) if lease["metadata"]["name"] == "halffull-operator"]
    assert [lease["metadata"]["namespace"] for lease in leases] == ["team-a"]
    assert MANAGER in {field["manager"] for field in leases[0]["metadata"]["managedFields"]}

    calls = [call for call in bare.calls() if call.user == release.user]
    assert calls
    asked = {(call.verb, call.resource, call.namespace) for call in calls if not call.allowed}
    # kopf asks which namespaces there are, and takes those that it was told when it may not know.
    assert asked <= {("list", "namespaces", "")}
    outside = {
        (call.verb, call.resource, call.namespace)
        for call in calls
        if call.allowed and call.namespace not in WATCHED and not call.resource.startswith("/")
    }
    assert {(resource, namespace) for _, resource, namespace in outside} == {("customresourcedefinitions", "")}
    release.helm("uninstall", "--wait")
    for name in (*WATCHED, OTHER):
        admin.delete(NAMESPACE, name)
