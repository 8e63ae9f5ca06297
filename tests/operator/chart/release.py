"""A release of the chart on a real API server, with its operator run here as its Deployment says.

kwok only pretends the operator's pod. So the process is started beside it, with the configuration and the service
account of the Deployment as the API server has it.
"""

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from tests.operator.chart.render import CHART, NAMESPACE, run
from tests.operator.kube import Api, ControlPlane
from tests.operator.process import OperatorProcess

DEPLOYMENT = kinds.named("apps/v1", "Deployment")
CONFIG_MAP = kinds.named("v1", "ConfigMap")
CRD_FILE = "llmservings.serving.halffull.dev.yaml"


class Release:
    """What `helm` does, and the operator that results."""

    def __init__(self, plane: ControlPlane, folder: Path, *, name: str, namespace: str = NAMESPACE) -> None:
        self.plane, self.admin = plane, plane.admin
        self.name, self.namespace = name, namespace
        self._folder = folder
        self._started = 0

    def helm(self, command: str, *arguments: str) -> str:
        """Run a command on this release; what it prints."""
        answer = run(
            command, self.name, *arguments, "--namespace", self.namespace, "--kubeconfig", str(self.plane.kubeconfig)
        )
        assert answer.returncode == 0, f"helm {command}: {answer.stderr}{answer.stdout}"
        return answer.stdout

    def install(self, chart: Path, *settings: str) -> str:
        return self.helm("install", str(chart), "--create-namespace", "--wait", "--timeout=60s", *settings)

    def upgrade(self, chart: Path, *settings: str) -> str:
        return self.helm("upgrade", str(chart), "--wait", "--timeout=60s", *settings)

    @contextmanager
    def operator(self) -> Iterator[OperatorProcess]:
        """The operator of the Deployment, ready; it is stopped at the end, and what it said must hold no bug."""
        (deployment,) = self.admin.list(DEPLOYMENT, self.namespace, selector=f"app.kubernetes.io/instance={self.name}")
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["args"][:3] == ["run", "--config", "/etc/halffull/operator.yaml"]
        (volume,) = pod["volumes"]
        config = self.admin.must_get(CONFIG_MAP, volume["configMap"]["name"], self.namespace)
        folder = self._folder / f"{self.name}-{self._started}"
        self._started += 1
        folder.mkdir()
        process = OperatorProcess(
            kubeconfig=self.plane.kubeconfig_as(
                account=pod["serviceAccountName"], namespace=self.namespace, folder=folder
            ),
            folder=folder,
            config=yaml.safe_load(config["data"]["operator.yaml"]),
            namespace=self.namespace,
        )
        try:
            yield process.start()
            assert process.stop() == 0
        except BaseException:
            print(f"--- log of the operator of {self.name}:\n{process.tail(100)}")  # noqa: T201  pytest shows it
            raise
        finally:
            process.close()
        assert process.errors() == []

    @property
    def user(self) -> str:
        """Who its operator is to the API server, where the account has the chart's own name."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"


def earlier_chart(folder: Path) -> Path:
    """The chart as an earlier release might have had it: its CRD does not know `spec.rollout` yet."""
    chart = shutil.copytree(CHART, folder / "earlier" / "halffull")
    path = chart / "crds" / CRD_FILE
    crd = yaml.safe_load(path.read_text())
    (version,) = crd["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["rollout"]
    crd["metadata"]["annotations"]["serving.halffull.dev/schema-revision"] = "0"
    path.write_text(yaml.safe_dump(crd))
    text = (chart / "Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(text.replace("version: 0.1.0", "version: 0.0.9"))
    return chart


def stored(admin: Api, name: str, namespace: str) -> Manifest:
    """What of an LLMServing is a person's: all but the status, and what the API server counts."""
    body = copy.deepcopy(admin.must_get(kinds.SERVING, name, namespace))
    for key in ("resourceVersion", "managedFields"):
        del body["metadata"][key]
    body.pop("status", None)
    return body
