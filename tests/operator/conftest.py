"""A real control plane for the session, a namespace for each test, and the operator as a process."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from halffull_operator import crd, kinds
from halffull_operator.kinds import Manifest
from tests.operator.kube import Api, ControlPlane, control_plane, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.proxy import ApiProxy

SYSTEM = "halffull-system"
ACCOUNT = "halffull-operator"
_NUMBERS = itertools.count(1)

StartOperator = Callable[..., OperatorProcess]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "operator: needs the control plane of hack/cluster; run by `make test-operator`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the control plane is marked `operator`: `make test` leaves it to `make test-operator`."""
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker("operator")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver, controller-manager, scheduler and kwok, with the CRD and the operator's account in them."""
    with prepared_plane(tmp_path_factory.mktemp("cluster")) as plane:
        yield plane


@contextmanager
def prepared_plane(folder: Path) -> Iterator[ControlPlane]:
    """A control plane with the CRD and the operator's account in it, for a module that would spoil the session's."""
    with control_plane(folder) as plane:
        admin = plane.admin
        admin.apply(crd.build(), manager="helm")
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        admin.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": SYSTEM}})
        rules = yaml.safe_load((Path(__file__).parent / "rbac.yaml").read_text())["rules"]
        metadata = {"name": ACCOUNT}
        api = "rbac.authorization.k8s.io"
        admin.create({"apiVersion": f"{api}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": rules})
        admin.create(
            {
                "apiVersion": f"{api}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": ACCOUNT},
                "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}],
            }
        )
        wait_until("the CRD is served", lambda: _served(admin))
        yield plane


@pytest.fixture
def admin(plane: ControlPlane) -> Api:
    return plane.admin


@pytest.fixture
def namespace(admin: Api) -> Iterator[str]:
    """A namespace that is the test's own. It is deleted and not waited for."""
    name = f"test-{next(_NUMBERS)}"
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    admin.delete(kinds.Kind("v1", "Namespace", "namespaces", namespaced=False), name)


@pytest.fixture
def operators(plane: ControlPlane, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartOperator]:
    """Starts operators, each with the rights of the service account; what still runs at the end is killed."""
    started: list[OperatorProcess] = []

    def start(
        config: Manifest | None = None, *, through: ApiProxy | None = None, ready: bool = True
    ) -> OperatorProcess:
        folder = tmp_path / f"operator-{len(started)}"
        folder.mkdir()
        kubeconfig = plane.kubeconfig_as(
            account=ACCOUNT, namespace=SYSTEM, folder=folder, server=through.url if through else None
        )
        process = OperatorProcess(kubeconfig=kubeconfig, folder=folder, config=config, namespace=SYSTEM)
        started.append(process)
        return process.start(ready=ready)

    yield start
    for process in started:
        process.close()
    bugs = [line for process in started for line in process.errors()]
    failed = getattr(request.node, "failed", False)
    if failed or bugs:
        for process in started:
            print(f"--- log of the operator {process.pid}:\n{process.tail(200)}")  # noqa: T201  pytest shows it
    assert not bugs, bugs[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]  # read by `operators`
    return report


@pytest.fixture
def operator(operators: StartOperator) -> OperatorProcess:
    """One operator for all namespaces, ready."""
    return operators()


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[ApiProxy]:
    """A way to the API server on which faults can be made."""
    with ApiProxy(plane) as proxy:
        yield proxy


def _served(admin: Api) -> bool:
    found = admin.get(kinds.CRD, "llmservings.serving.halffull.dev") or {}
    conditions = found.get("status", {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
