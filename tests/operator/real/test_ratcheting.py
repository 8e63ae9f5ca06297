"""A new CRD forbids what is stored: status, metadata and deletion go on working, and a condition names the breach.

Kubernetes 1.34 was run. Ratcheting of rules and bounds is on by default since 1.30, which was not.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from halffull_operator import crd, kinds, labels
from halffull_operator.kinds import Manifest
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, Refused, path_of, wait_until
from tests.operator.real.bad_specs import Bad, bad_specs
from tests.operator.real.test_bad_input import post
from tests.operator.servings import condition, serving

pytestmark = pytest.mark.timeout(600)

_BOUNDS = frozenset(
    {
        "x-kubernetes-validations",
        "enum",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "maxProperties",
    }
)
_EACH = 3
"""Of each bound; of rules between fields, which come by name, all."""
FINALIZER = "example.test/hold"


def looser(value: Any) -> Any:
    """The CRD with types alone. (A property's name is none of the bounds' names.)"""
    if isinstance(value, dict):
        return {key: looser(inner) for key, inner in value.items() if key not in _BOUNDS}
    return [looser(item) for item in value] if isinstance(value, list) else value


def chosen() -> Iterator[Bad]:
    seen: Counter[str] = Counter()
    for bad in bad_specs():
        seen[bad.what] += 1
        # Those two are refused by any CRD with such a list, or with a scale subresource.
        if bad.typed and bad.what != "twice" and bad.spec.get("replicas") != -1 and seen[bad.what] <= _EACH:
            yield bad


@pytest.fixture
def old_crd(admin: Api) -> Iterator[None]:
    """The CRD of a release before there were any rules."""
    old: Manifest = looser(crd.build())
    old["metadata"]["annotations"][labels.SCHEMA_REVISION] = "0"
    admin.apply(old, manager="helm")
    try:
        yield
    finally:
        admin.apply(crd.build(), manager="helm")


def test_what_is_stored_goes_on_when_a_rule_forbids_it(
    admin: Api, namespace: str, operators: StartOperator, old_crd: None
) -> None:
    stored = {f"bad-{number}": bad for number, bad in enumerate(chosen())}
    bodies = {}
    for name, bad in stored.items():
        body = {**serving(name, namespace), "spec": bad.spec}
        body["metadata"]["finalizers"] = [FINALIZER]
        bodies[name] = body
        wait_until("the old CRD is served", lambda body=body: taken(admin, body))
    # One that is nested deeper than Python's parser goes, in the first list that the operator makes.
    post(admin, serving("deep", namespace, engine={"podTemplate": {"spec": {"affinity": "@deep 9900"}}}))
    operators()  # it raises the CRD
    deep = Bad("depth", "spec.engine.podTemplate", {}, typed=True)
    wait_until("the deep one is named", lambda: named(admin, namespace, "deep", deep))
    for name, bad in stored.items():
        wait_until(f"{bad.what} {bad.field} is named", lambda name=name, bad=bad: named(admin, namespace, name, bad))

    for name, body in bodies.items():
        with pytest.raises(Refused, match="422"):
            admin.create({**body, "metadata": {"name": f"new-{name}", "namespace": namespace}})
        admin.merge(kinds.SERVING, name, {"metadata": {"annotations": {"team": "a"}}}, namespace)
        path = kinds.SERVING.path(namespace, name, "status")
        admin.call("PATCH", path, {"status": {"modelRevision": "x"}}, content_type="application/merge-patch+json")
        admin.delete(kinds.SERVING, name, namespace)
        assert admin.must_get(kinds.SERVING, name, namespace)["metadata"]["deletionTimestamp"]
        admin.merge(kinds.SERVING, name, {"metadata": {"finalizers": None}}, namespace)
        assert admin.get(kinds.SERVING, name, namespace) is None


def taken(admin: Api, body: Manifest) -> bool:
    try:
        admin.call("POST", path_of(body, name=False), body)
    except Refused as error:
        raise AssertionError(error.message) from error  # looked at again: the CRD is new
    return True


def named(admin: Api, namespace: str, name: str, bad: Bad) -> bool:
    applied = condition(admin.must_get(kinds.SERVING, name, namespace), "Applied")
    assert (applied.get("status"), applied.get("reason")) == ("False", "InvalidSpec"), applied
    field = applied["message"].partition(": ")[0]
    assert field.startswith("spec"), applied
    # The smallest spec around a field may break a rule as well; it is about what is around it.
    assert bad.field.startswith(field) or field.startswith(bad.field), f"{bad.field}: {applied['message']}"
    return True
