"""One operator for a module's tests, in a namespace of its own, on a cluster that serves the optional APIs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from tests.operator.chart.render import NAMESPACE as SYSTEM
from tests.operator.conftest import ACCOUNT
from tests.operator.kube import ControlPlane
from tests.operator.process import OperatorProcess
from tests.operator.real import fields_apis

_NAMESPACE = kinds.Kind("v1", "Namespace", "namespaces", namespaced=False)


@contextmanager
def own_operator(plane: ControlPlane, folder: Path, namespace: str, config: Manifest) -> Iterator[OperatorProcess]:
    """The operator, ready; its log is printed when the tests' set-up fails."""
    admin = plane.admin
    fields_apis.install(admin)
    admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kubeconfig = plane.kubeconfig_as(account=ACCOUNT, namespace=SYSTEM, folder=folder)
    watched = {"watch": {"namespaces": [SYSTEM, namespace]}}  # what other tests leave behind is not its concern
    operator = OperatorProcess(kubeconfig=kubeconfig, folder=folder, config={**config, **watched}, namespace=SYSTEM)
    try:
        yield operator.start()
    except BaseException:
        print(operator.tail(100))  # noqa: T201  pytest shows it
        raise
    finally:
        operator.close()
        admin.delete(_NAMESPACE, namespace)
        fields_apis.remove(admin)


def done(operator: OperatorProcess) -> list[Manifest]:
    """What it did to children, from its log: {name, action, kind, child, why}."""
    lines = []
    for line in operator.log.read_text(errors="replace").splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            if entry.get("event") == "done":
                lines.append(entry)
    return lines
