"""A real node (hack/cluster), what runs on it, and the commands that a person types at it."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster import images
from tests.cluster.images import HOME, REPOSITORY, Image

CLUSTER: Final = REPOSITORY / "hack" / "cluster" / "cluster"
CHART: Final = REPOSITORY / "charts" / "halffull"
VALUES: Final = Path(__file__).parent / "values.yaml"
SYSTEM: Final = "halffull-system"
RELEASE: Final = "halffull"
SLOW: Final = 300
"""s that anything may take here: two cores carry the control plane, the pods and the test."""


class CommandError(AssertionError):
    """A command failed; its output is in the message."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that is up."""

    name: str

    @property
    def folder(self) -> Path:
        """Its state: kubeconfig, certificates, logs."""
        return HOME / "run" / self.name

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "admin.kubeconfig"

    def kubectl(self, *arguments: str, namespace: str | None = None, stdin: str | None = None) -> str:
        """What `kubectl` prints.

        Raises:
            CommandError: it failed.
        """
        place = ("--namespace", namespace) if namespace else ()
        return run([HOME / "bin" / "kubectl", "--kubeconfig", self.kubeconfig, *place, *arguments], stdin=stdin)

    def helm(self, *arguments: str) -> str:
        """What `helm` prints.

        Raises:
            CommandError: it failed.
        """
        return run([HOME / "bin" / "helm", "--kubeconfig", str(self.kubeconfig), *arguments])

    def apply(self, manifest: Mapping[str, Any], *, namespace: str) -> None:
        """`kubectl apply -f -` of one object."""
        self.kubectl("apply", "--filename", "-", namespace=namespace, stdin=yaml.safe_dump(dict(manifest)))

    def get(self, what: str, *, namespace: str, selector: str | None = None) -> Any:
        """`kubectl get WHAT -o json`: an object, or the items of a list."""
        chosen = ("--selector", selector) if selector else ()
        found = json.loads(self.kubectl("get", *what.split(), *chosen, "--output", "json", namespace=namespace))
        return found["items"] if found["kind"] == "List" else found

    def load(self, *tars: Path) -> None:
        """Make images known to the node, each once."""
        marks = self.folder / "loaded"
        marks.mkdir(exist_ok=True)
        for tar in tars:
            mark, state = marks / tar.name, str(tar.stat().st_mtime_ns)
            if not mark.exists() or mark.read_text() != state:
                _script("load-image", str(tar), name=self.name)
                mark.write_text(state)

    def load_images(self, *wanted: Image) -> None:
        """Build images where they changed, and make them known to the node."""
        for image in wanted:
            images.build(image)
            self.load(image.tar)

    def tag_images(self, version: str) -> None:
        """The project's own images, loaded before, are known by another version's names, too."""
        for image in images.OWN:
            _script("tag-image", image.reference, f"{image.reference.rpartition(':')[0]}:{version}", name=self.name)

    def install(self, *arguments: str, chart: Path = CHART) -> str:
        """The chart as docs/install.md installs it, with tests/cluster/values.yaml; what Helm prints.

        It is installed or upgraded, and the operator is ready then. `arguments` are more of Helm's.
        """
        told = self.helm(
            *("upgrade", RELEASE, str(chart), "--install", "--namespace", SYSTEM, "--create-namespace"),
            *("--values", str(VALUES), *arguments),
        )
        self.rolled_out(f"deployment/{RELEASE}", namespace=SYSTEM)
        return told

    @contextmanager
    def network_policies(self) -> Iterator[None]:
        """NetworkPolicies are enforced meanwhile; else the node does not look at them."""
        _script("enforce-policies", name=self.name)
        try:
            yield
        finally:
            _script("ignore-policies", name=self.name)

    def rolled_out(self, what: str, *, namespace: str) -> None:
        """`kubectl rollout status`."""
        self.kubectl("rollout", "status", what, f"--timeout={SLOW}s", namespace=namespace)


def run(command: list[str | Path], *, stdin: str | None = None, env: Mapping[str, str] | None = None) -> str:
    """What a command prints.

    Raises:
        CommandError: it failed.
    """
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        shown = " ".join(str(part) for part in command)
        raise CommandError(f"{shown}: exit code {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def _script(*arguments: str, name: str) -> str:
    return run([CLUSTER, *arguments], env={**os.environ, "CLUSTER_NAME": name})


def up(name: str) -> Cluster:
    """Start a cluster with a node, or find the one of that name; needs root, and what `cluster build node` makes."""
    cluster = Cluster(name)
    if not (cluster.folder / "mode").exists():
        _script("up", "node", name=name)
    return cluster


def down(name: str) -> None:
    """Stop it and remove all that it made; its logs stay."""
    _script("down", name=name)


@contextmanager
def temporary() -> Iterator[Cluster]:
    """A cluster of one's own that goes again in every case."""
    name = f"test-{os.getpid()}-{int(time.time()) % 100000}"
    try:
        yield up(name)
    finally:
        down(name)
