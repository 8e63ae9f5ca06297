"""Every field of the spec, edited after creation on the real API server: the named path of the named child, no other.

The table is in `fields_model`, `fields_engine` and `fields_gateway`. All LLMServings are made together and edited
together, so that the whole costs two waits.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from halffull_operator.plan import FULL
from halffull_operator.rolling import BECAUSE
from halffull_operator.shape import shape_of
from halffull_operator.spec import LLMServingSpec
from tests.operator.kube import Api, ControlPlane, Refused, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.real import fields_engine, fields_gateway, fields_model
from tests.operator.real.fields import BASE, Edit, Found, check, fields, merged, snapshots
from tests.operator.real.fields_model import FIXED, GROWS, PROFILES, REFUSED
from tests.operator.real.fields_process import done, own_operator
from tests.operator.servings import condition

pytestmark = pytest.mark.timeout(600)  # the first test waits for the others' world too
EDITS = {**fields_model.EDITS, **fields_engine.EDITS, **fields_gateway.EDITS}
_NAMESPACE = "every-field"
_VOLUMES = {GROWS: 2, FIXED: 1}
_ROLL_IS_OVER = f"metadata.annotations[{BECAUSE}]"
_NOT_TO_REST = {"deadline"}
"""Never complete, on purpose."""


@dataclass
class World:
    """What was found, and the operator that did it."""

    found: dict[str, Found]
    operator: OperatorProcess


@pytest.fixture(scope="module")
def world(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    admin, began = plane.admin, time.monotonic()
    storage(admin)
    folder = tmp_path_factory.mktemp("fields")
    with own_operator(plane, folder, _NAMESPACE, {"profiles": PROFILES}) as operator:
        for name, edit in EDITS.items():
            admin.create(manifest(name, merged(BASE, edit.before)))
        wait_until("all are made", lambda: at_rest(admin), within=120)
        made = time.monotonic() - began
        before = snapshots(admin, _NAMESPACE, EDITS)
        for name, edit in EDITS.items():
            admin.merge(kinds.SERVING, name, {"spec": edit.after}, _NAMESPACE)
        wait_until("all edits are in force", lambda: at_rest(admin) and told(admin), within=150)
        after = snapshots(admin, _NAMESPACE, EDITS)
        bodies = {body["metadata"]["name"]: body for body in admin.list(kinds.SERVING, _NAMESPACE)}
        found = {name: Found(before[name], after[name], bodies[name]) for name in EDITS}
        print(f"{len(EDITS)} LLMServings: made after {made:.0f} s, edited after {time.monotonic() - began:.0f} s")  # noqa: T201
        yield World(found, operator)


def manifest(name: str, spec: Manifest) -> Manifest:
    return {
        "apiVersion": kinds.SERVING.api_version,
        "kind": kinds.SERVING.kind,
        "metadata": {"name": name, "namespace": _NAMESPACE},
        "spec": spec,
    }


def storage(admin: Api) -> None:
    """Two StorageClasses and a volume for each claim that is to be bound; nobody provisions any."""
    for name, number in _VOLUMES.items():
        storage_class = {
            "metadata": {"name": name},
            "provisioner": "kubernetes.io/no-provisioner",
            "allowVolumeExpansion": name == GROWS,
        }
        admin.call("POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class)
        for index in range(number):
            volume = {
                "metadata": {"name": f"{name}-{index}"},
                "spec": {
                    "storageClassName": name,
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": f"/{name}-{index}"},
                },
            }
            admin.call("POST", "/api/v1/persistentvolumes", volume)


def at_rest(admin: Api) -> bool:
    """Whether each spec is in force as far as it ever will be, and said so of its newest generation."""
    claims = admin.list(kinds.CLAIM, _NAMESPACE)
    assert len(claims) == 3
    assert all(claim["status"].get("phase") == "Bound" for claim in claims)
    for body in admin.list(kinds.SERVING, _NAMESPACE):
        name, generation = body["metadata"]["name"], body["metadata"]["generation"]
        conditions = body.get("status", {}).get("conditions") or ()
        assert conditions, f"{name} has no status"
        assert all(one["observedGeneration"] == generation for one in conditions), f"{name} is not seen"
        assert condition(body, "Applied")["status"] != "Unknown", f"{name} is being applied"
        reason = condition(body, "Progressing")["reason"]
        assert reason == "Complete" or name in _NOT_TO_REST or condition(body, "Applied")["status"] == "False", (
            f"{name}: {reason}"
        )
    return True


def told(admin: Api) -> bool:
    for name, edit in EDITS.items():
        body = admin.must_get(kinds.SERVING, name, _NAMESPACE) if edit.says else {}
        for says in edit.says:
            one = condition(body, says.condition)
            assert (one.get("status"), one.get("reason")) == (says.status, says.reason), f"{name}: {one}"
    return True


def test_every_field_has_a_row() -> None:
    covered = {name for edit in EDITS.values() for name in edit.fields} | {field for field, *_ in REFUSED}
    every = set(fields(shape_of(LLMServingSpec)))
    assert every - covered == set(), "these fields have no row"
    assert covered - every == set(), "these rows are about no field"


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_reaches_what_it_names_and_nothing_else(world: World, name: str) -> None:
    edit: Edit = EDITS[name]
    found = world.found[name]
    check(edit, found)
    for says in edit.says:
        one = condition(found.body, says.condition)
        assert (one["status"], one["reason"]) == (says.status, says.reason)
        assert says.part in one["message"]
    if not any(says.condition == "Applied" for says in edit.says):
        assert condition(found.body, "Applied")["reason"] == "Applied", condition(found.body, "Applied")


@pytest.mark.parametrize("refused_edit", REFUSED, ids=[message for *_, message in REFUSED])
@pytest.mark.usefixtures("world")
def test_what_the_api_server_refuses_says_what_to_write(
    admin: Api, refused_edit: tuple[str, str, Manifest, str]
) -> None:
    _, name, patch, message = refused_edit
    with pytest.raises(Refused) as refused:
        admin.merge(kinds.SERVING, name, {"spec": patch}, _NAMESPACE)
    assert refused.value.status == 422
    assert message in refused.value.message


def test_each_child_is_written_once_when_made_and_once_for_the_edit(world: World) -> None:
    why: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for line in done(world.operator):
        if line["why"] not in {_ROLL_IS_OVER, FULL}:  # the second full pass may come after six minutes
            why[line["name"], line["kind"], line["child"]].append(line["why"])
    # A StatefulSet that is created anew is written by the pass that follows, too.
    most = {name: 3 if edit.recreated else 2 for name, edit in EDITS.items()}
    often = {key: reasons for key, reasons in why.items() if len(reasons) > most[key[0]]}
    assert not often
    assert len(why) > 10 * len(EDITS)
    assert world.operator.errors() == []
