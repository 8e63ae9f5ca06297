"""A real control plane for the session, a namespace for each test, and the operator as a process."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from halffull_operator import crd, kinds
from halffull_operator.kinds import Manifest
from tests.operator.chart.render import NAMESPACE as SYSTEM
from tests.operator.chart.render import template
from tests.operator.chart.rights import granted, told, used
from tests.operator.kube import AUDIT_POLICY, Api, ControlPlane, control_plane, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.proxy import ApiProxy

ACCOUNT = "halffull-operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
RIGHTS = frozenset({"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"})
_NUMBERS = itertools.count(1)

StartOperator = Callable[..., OperatorProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the control plane is marked `operator`: `make test` leaves it to `make test-operator`."""
    for item in items:
        if "plane" in getattr(item, "fixturenames", ()):
            item.add_marker("operator")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """etcd, kube-apiserver, controller-manager, scheduler and kwok, with the CRD and the operator's account in them.

    At the end its audit log is judged: whatever the tests made operators do, they asked for what the chart grants only.
    """
    with prepared_plane(tmp_path_factory.mktemp("cluster")) as plane:
        yield plane
        calls = [call for call in plane.calls() if call.user == USER]
        refused = {(call.verb, call.resource, call.namespace, call.name) for call in calls if not call.allowed}
        assert not refused, f"asked for, and not granted: {sorted(refused)}"
        assert told(used(calls) - granted()) == []


@contextmanager
def prepared_plane(folder: Path, *, audit_policy: str = AUDIT_POLICY, flags: str = "") -> Iterator[ControlPlane]:
    """A control plane with the CRD and the operator's account in it, for a module that would spoil the session's."""
    with control_plane(folder, audit_policy=audit_policy, flags=flags) as plane:
        admin = plane.admin
        admin.apply(crd.build(), manager="helm")
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
        # The chart's own ServiceAccount, Roles and bindings: everything here runs with the rights that people get.
        for manifest in template(f"--set=fullnameOverride={ACCOUNT}"):
            if manifest["kind"] in RIGHTS:
                admin.create(manifest)
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
    with _operators(plane, tmp_path) as (start, started):
        yield start
        if getattr(request.node, "failed", False):
            for process in started:
                _show(process)


@pytest.fixture(scope="module")
def shared_operator(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One operator, ready, for all tests of a module that leave it running."""
    with _operators(plane, tmp_path_factory.mktemp("operators")) as (start, _):
        yield start()


@contextmanager
def _operators(plane: ControlPlane, folder: Path) -> Iterator[tuple[StartOperator, list[OperatorProcess]]]:
    started: list[OperatorProcess] = []

    def start(
        config: Manifest | None = None,
        *,
        through: ApiProxy | None = None,
        ready: bool = True,
        program: tuple[str, ...] = ("-m", "halffull_operator"),
    ) -> OperatorProcess:
        own = folder / f"operator-{len(started)}"
        own.mkdir()
        kubeconfig = plane.kubeconfig_as(
            account=ACCOUNT, namespace=SYSTEM, folder=own, server=through.url if through else None
        )
        process = OperatorProcess(kubeconfig=kubeconfig, folder=own, config=config, namespace=SYSTEM, program=program)
        started.append(process)
        return process.start(ready=ready)

    yield start, started
    for process in started:
        process.close()
    bugs = [(line, process) for process in started for line in process.errors()]
    for _, process in bugs[:1]:
        _show(process)
    assert not bugs, bugs[0][0]


def _show(process: OperatorProcess) -> None:
    print(f"--- log of the operator {process.pid}:\n{process.tail(200)}")  # noqa: T201  pytest shows it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if report.when == "call" and report.failed:
        item.failed = True  # type: ignore[attr-defined]  # read by `operators`
        if (shared := getattr(item, "funcargs", {}).get("shared_operator")) is not None:
            report.sections.append(("log of the shared operator", shared.tail(200)))
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
