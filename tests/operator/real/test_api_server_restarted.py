"""The API server is killed and started again, at once and after a while: every watch has to list anew."""

import time
from collections.abc import Iterator

import pytest

from halffull_operator import kinds
from tests.operator.conftest import StartOperator, prepared_plane
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.servings import serving, wait_ready

pytestmark = pytest.mark.timeout(600)
DEPLOYMENT = kinds.named("apps/v1", "Deployment")


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One of this module's own: what else runs in it takes its time to recover."""
    with prepared_plane(tmp_path_factory.mktemp("cluster")) as plane:
        yield plane


def test_edits_and_drift_after_it_are_seen(
    plane: ControlPlane, admin: Api, namespace: str, operators: StartOperator
) -> None:
    operator = operators()
    admin.apply(serving("llama", namespace, replicas=1))
    wait_ready(admin, namespace, "llama")
    for replicas, down_for in ((2, 0.0), (3, 20.0)):
        before = admin.must_get(DEPLOYMENT, "llama-gateway", namespace)["metadata"]["uid"]
        plane.restart_api_server(down_for=down_for)
        began = time.monotonic()
        admin.delete(DEPLOYMENT, "llama-gateway", namespace)
        admin.merge(kinds.SERVING, "llama", {"spec": {"replicas": replicas}}, namespace)
        wait_until(
            "the edit lands",
            lambda replicas=replicas: (
                admin.must_get(kinds.STATEFUL_SET, "llama-engine", namespace)["spec"]["replicas"] == replicas
            ),
            within=90,
        )
        wait_until(
            "the drift is repaired",
            lambda before=before: admin.must_get(DEPLOYMENT, "llama-gateway", namespace)["metadata"]["uid"] != before,
            within=90,
        )
        took = time.monotonic() - began
        print(f"down for {down_for:.0f} s: all is seen {took:.0f} s after it is back")  # noqa: T201  a figure to read
        assert took < 90
    assert operator.running()
    assert operator.http("/healthz") == (200, "ok\n")
