"""An operator that starts anew applies every child, and changes none: nothing rolls over a restart."""

import pytest

from halffull_operator import kinds
from tests.operator.conftest import USER, StartOperator
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.process import wait_settled
from tests.operator.servings import ALWAYS, children, serving, versions, wait_ready

SERVINGS = 20
KINDS = {kind.plural for kind in kinds.CHILDREN if kind.kind in ALWAYS}


@pytest.mark.timeout(600)
def test_a_restart_touches_no_child(plane: ControlPlane, admin: Api, namespace: str, operators: StartOperator) -> None:
    operator = operators()
    names = [f"model-{number}" for number in range(SERVINGS)]
    for name in names:
        admin.create(serving(name, namespace, replicas=1))
    wait_ready(admin, namespace, *names, within=300)
    assert operator.stop() == 0

    def all_of_them() -> dict[tuple[str, str], tuple[str, str, int]]:
        return {key: found for name in names for key, found in versions(children(admin, namespace, name)).items()}

    wait_settled(all_of_them, for_seconds=2.0, within=60)  # the controllers still write status
    before, since = all_of_them(), plane.audit_position()
    assert {kind for kind, _ in before} == ALWAYS

    operator.start()
    wait_until("every child was applied", lambda: applied(plane, namespace, since) == len(before), within=120)
    wait_settled(all_of_them, for_seconds=2.0, within=60)
    assert all_of_them() == before


def applied(plane: ControlPlane, namespace: str, since: int) -> int:
    """Children that the operator has applied."""
    return len(
        {
            (call.resource, call.name)
            for call in plane.calls(since=since)
            if call.user == USER and call.verb == "patch" and call.namespace == namespace and call.resource in KINDS
        }
    )
