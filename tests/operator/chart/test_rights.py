"""The chart's Roles are what the operator needs, and no more.

All of tests/operator runs with the rights that the chart renders (`prepared_plane`), on an API server with
OwnerReferencesPermissionEnforcement. This module makes the operator do all that it has a right for. That it asks for
nothing else is judged at the end of each session, over all that its tests have made it do (`plane`).
"""

from collections.abc import Iterable
from typing import Any

import pytest

from halffull_operator import kinds, labels
from halffull_operator.children import build
from halffull_operator.config import load_config
from halffull_operator.kinds import Manifest
from halffull_operator.raise_crd import CRD_NAME
from halffull_operator.spec import parse
from tests.operator.chart import optional_apis
from tests.operator.chart.render import operator_yaml, template
from tests.operator.chart.rights import Right, granted, told, used
from tests.operator.conftest import USER, StartOperator
from tests.operator.kube import Api, ControlPlane, Refused, path_of, wait_until
from tests.operator.real import fields_apis
from tests.operator.servings import children, condition, serving

pytestmark = pytest.mark.timeout(300)

NO_CALL_SHOWS: dict[Right, str] = {
    ("serving.halffull.dev", "llmservings/finalizers", "update"): "cannot set blockOwnerDeletion",
    ("", "pods", "get"): "attempting to grant RBAC permissions not currently held",
    ("discovery.k8s.io", "endpointslices", "get"): "attempting to grant RBAC permissions not currently held",
    ("discovery.k8s.io", "endpointslices", "list"): "attempting to grant RBAC permissions not currently held",
    ("discovery.k8s.io", "endpointslices", "watch"): "attempting to grant RBAC permissions not currently held",
}
"""Rights that the API server asks for while it admits something else, and what it says to who lacks one."""


_STORAGE = "rights"


def volume(admin: Api) -> None:
    """For a claim that can grow: the operator leaves one alone that is not bound."""
    storage = {"provisioner": "kubernetes.io/no-provisioner", "allowVolumeExpansion": True}
    admin.call("POST", "/apis/storage.k8s.io/v1/storageclasses", {"metadata": {"name": _STORAGE}, **storage})
    spec = {
        "storageClassName": _STORAGE,
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": f"/{_STORAGE}"},
    }
    admin.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": _STORAGE}, "spec": spec})


def full_of_children(name: str, namespace: str) -> Manifest:
    """Everything that a managed gateway can bring."""
    return serving(
        name,
        namespace,
        replicas=1,
        model={"uri": "hf://org/model", "cache": {"size": "1Gi", "storageClassName": _STORAGE}},
        gateway={"route": {"parentRefs": [{"name": "gateway"}]}},
        networkPolicy={"enabled": True},
        monitoring={"podMonitor": {"enabled": True}},
    )


def pooled(name: str, namespace: str) -> Manifest:
    return serving(
        name,
        namespace,
        replicas=1,
        model={"uri": "pvc://models"},
        gateway={"mode": "InferencePool"},
    )


def kinds_of(admin: Api, namespace: str, name: str) -> set[str]:
    return {kind for kind, _ in children(admin, namespace, name, optional=True)}


def test_every_right_is_used(plane: ControlPlane, admin: Api, namespace: str, operators: StartOperator) -> None:
    optional_apis.install(admin)
    volume(admin)
    admin.merge(kinds.CRD, CRD_NAME, {"metadata": {"annotations": {labels.SCHEMA_REVISION: "0"}}})
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": namespace}}
    admin.create({**quota, "spec": {"hard": {"pods": "0"}}})
    operator = operators()
    admin.create(full_of_children("full", namespace))
    admin.create(pooled("pooled", namespace))
    every = {kind.kind for kind in kinds.CHILDREN}
    wait_until(
        "every kind of child is there",
        lambda: kinds_of(admin, namespace, "full") | kinds_of(admin, namespace, "pooled") == every,
        within=60,
    )
    claims = wait_until("there is a claim", lambda: admin.list(kinds.CLAIM, namespace), within=60)
    assert [claim["spec"]["resources"]["requests"]["storage"] for claim in claims] == ["1Gi"]
    without = {
        "gateway": {"mode": "None", "route": None},
        "networkPolicy": {"enabled": False},
        "monitoring": {"podMonitor": {"enabled": False}},
    }
    before = admin.must_get(kinds.STATEFUL_SET, "full-engine", namespace)["metadata"]["uid"]
    admin.merge(kinds.SERVING, "full", {"spec": {**without, "model": {"cache": {"size": "2Gi"}}}}, namespace)
    admin.merge(kinds.SERVING, "pooled", {"spec": {"gateway": {"mode": "None"}}}, namespace)
    left = {"StatefulSet", "Service", "PodDisruptionBudget"}
    for name in ("full", "pooled"):
        wait_until(
            f"{name} has its engines alone", lambda name=name: kinds_of(admin, namespace, name) <= left, within=60
        )
        wait_until(
            "the quota is told",
            lambda name=name: "quota" in condition(admin.must_get(kinds.SERVING, name, namespace), "Ready")["message"],
            within=60,
        )
    after = admin.must_get(kinds.STATEFUL_SET, "full-engine", namespace)["metadata"]["uid"]
    assert after != before, "the StatefulSet is another one, for a claim of another size"
    assert operator.stop() == 0  # a watch is in the log when it has ended

    expected = granted() - set(NO_CALL_SHOWS)

    def look() -> bool:
        unused = told(expected - used(call for call in plane.calls() if call.user == USER))
        assert not unused, f"granted, and used by nothing in this session: {unused}"
        return True

    wait_until("every right is used", look)
    fields_apis.remove(admin)  # other tests are about clusters that lack them


@pytest.fixture(scope="module")
def wanted() -> list[Manifest]:
    """The StatefulSet and the pickers' Roles of two LLMServings, with the chart's own configuration."""
    config = load_config(operator_yaml(template()), source="operator.yaml")
    apis = frozenset(f"{kind.group}/{kind.kind}" for kind in kinds.OPTIONAL)
    found: list[Manifest] = []
    for body in (full_of_children("full", "default"), pooled("pooled", "default")):
        body["metadata"] |= {"uid": "5f1c7c1e-0000-4000-8000-000000000000", "generation": 1}
        found += build(parse(body), config, apis).manifests
    return [one for one in found if one["kind"] in {"StatefulSet", "Role"}]


class Person(Api):
    """Somebody with some rights, spoken for by the admin."""

    def __init__(self, admin: Api, name: str, rules: list[Manifest]) -> None:
        super().__init__(admin.host, admin.port, context=admin.context)
        self._headers = {"Impersonate-User": name}
        api = "rbac.authorization.k8s.io"
        metadata = {"name": name}
        admin.create({"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules})
        admin.create(
            {
                "apiVersion": f"{api}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": api, "kind": "User", "name": name}],
            }
        )
        probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe", "namespace": "default"}}
        wait_until("the binding is in force", lambda: self.refusal(probe) == "")

    def refusal(self, manifest: Manifest) -> str:
        """What the API server says when it is asked to create this; "" when it would."""
        try:
            self.call("POST", path_of(manifest, name=False) + "?dryRun=All", manifest)
        except Refused as error:
            if error.status != 403:
                raise
            return error.message
        return ""


def test_the_rights_that_no_call_shows_are_needed(admin: Api, wanted: list[Manifest]) -> None:
    everything = sorted(granted())
    assert set(NO_CALL_SHOWS) <= set(everything)

    def rules(some: Iterable[Right]) -> list[Any]:
        return [{"apiGroups": [group], "resources": [resource], "verbs": [verb]} for group, resource, verb in some]

    person = Person(admin, "person-with-all", rules(everything))
    assert [person.refusal(manifest) for manifest in wanted] == [""] * len(wanted)
    for number, (right, words) in enumerate(NO_CALL_SHOWS.items()):
        person = Person(admin, f"person-{number}", rules(one for one in everything if one != right))
        refusals = [text for manifest in wanted if (text := person.refusal(manifest))]
        assert refusals, f"nothing is refused without {told([right])}"
        assert all(words in text for text in refusals), refusals
