"""LLMServings on the node: emulated ones for speed, and how to look at any of them."""

import contextlib
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from halffull_operator import labels
from tests.cluster.images import VERSION
from tests.cluster.load import SteadyLoad
from tests.cluster.node import SLOW, Cluster
from tests.operator.kube import wait_until
from tests.operator.servings import is_ready, says

Manifest = dict[str, Any]
EMULATED: Final = "emulated"


def emulated(
    *, name: str = EMULATED, replicas: int = 2, gateways: int = 2, drain: str = "60s", **spec: Any
) -> Manifest:
    """An LLMServing of emulated engines; `spec` replaces whole fields of its spec.

    A request of 40 tokens takes about a second. `spec.scheduler` and `spec.routing` act as with vLLM.
    """
    return {
        "apiVersion": labels.API_VERSION,
        "kind": labels.KIND,
        "metadata": {"name": name},
        "spec": {
            "model": {"uri": f"hf://halffull/{EMULATED}", "servedNames": [EMULATED]},
            "replicas": replicas,
            "engine": {
                "image": f"halffull-engine:{VERSION}",
                "gpuResource": "none",
                "args": ["--profile=8b-a100"],
                "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
                "shmSize": "64Mi",
                "drainTimeout": drain,
            },
            "gateway": {"managed": {"replicas": gateways}},
            **spec,
        },
    }


@dataclass(frozen=True)
class Serving:
    """One LLMServing in its namespace."""

    cluster: Cluster
    namespace: str
    name: str

    @classmethod
    def apply(cls, cluster: Cluster, namespace: str, manifest: Manifest) -> "Serving":
        """`kubectl apply` it."""
        cluster.apply(manifest, namespace=namespace)
        return cls(cluster, namespace, manifest["metadata"]["name"])

    def body(self) -> Manifest:
        """The object."""
        found: Manifest = self.cluster.get(f"llmserving {self.name}", namespace=self.namespace)
        return found

    def kubectl(self, *arguments: str) -> str:
        """`kubectl` in its namespace."""
        return self.cluster.kubectl(*arguments, namespace=self.namespace)

    def patch(self, **spec: Any) -> None:
        """`kubectl patch llms NAME --type merge` of its spec."""
        self.kubectl("patch", "llms", self.name, "--type", "merge", "--patch", json.dumps({"spec": spec}))

    def settled(self, *, within: float = SLOW) -> Manifest:
        """Wait until it is all that its newest spec asks, each pod of it is ready, and none is leaving; its body."""

        def look() -> Manifest:
            body = self.body()
            says(body, Ready="True", EnginesReady="True", GatewayReady="True", Progressing="True", Applied="True")
            status = body["status"]
            replicas = body["spec"]["replicas"]
            assert (status["readyReplicas"], status["updatedReplicas"]) == (replicas, replicas), status
            # Ready is said with one gateway of two, and an operator may not have seen yet what has just happened.
            pods = {pod["metadata"]["name"]: is_ready(pod) for pod in self.engines() + self.gateways()}
            wanted = replicas + body["spec"]["gateway"]["managed"]["replicas"]
            assert list(pods.values()) == [True] * wanted, f"{wanted} ready pods are wanted: {pods}"
            return body

        return wait_until(f"{self.namespace}/{self.name} is settled", look, within=within)

    def wait(self, what: str, look: Callable[[], bool], *, within: float = SLOW) -> None:
        """Wait until something is so, with a generous limit."""
        wait_until(what, look, within=within)

    def engines(self) -> list[Manifest]:
        """Pods of its engines, by ordinal; those that are leaving too."""
        return self._pods(labels.ENGINE)

    def gateways(self) -> list[Manifest]:
        """Pods of its gateway; those that are leaving too."""
        return self._pods(labels.GATEWAY)

    def generations(self) -> dict[str, int]:
        """Of what makes its pods, by name: a generation more is a change of what is wanted."""
        found = self._children("statefulsets,deployments")
        return {one["metadata"]["name"]: one["metadata"]["generation"] for one in found}

    def _pods(self, component: str) -> list[Manifest]:
        found = self._children("pods", f",{labels.COMPONENT}={component}")
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def _children(self, kinds: str, more: str = "") -> list[Manifest]:
        selector = f"{labels.SERVING}={self.name}{more}"
        found: list[Manifest] = self.cluster.get(kinds, namespace=self.namespace, selector=selector)
        return found

    def logged(self) -> dict[str, str]:
        """The address of the engine that each request went to ("": to none), by request id.

        As the gateways that are there have logged it by now: Envoy writes its log every ten seconds.
        """
        found = {}
        for pod in self.gateways():
            for line in self.kubectl("logs", pod["metadata"]["name"], "--container", "envoy").splitlines():
                if line.startswith("{"):
                    entry = json.loads(line)
                    found[entry["request_id"]] = (entry["served"] or "").rpartition(":")[0]
        return found

    def served(self, names: Collection[str]) -> dict[str, str]:
        """Of requests that have ended, the same, once all of them have been logged."""

        def look() -> dict[str, str]:
            found = self.logged()
            lacking = set(names) - set(found)
            assert not lacking, lacking
            return {name: found[name] for name in names}

        return wait_until("the gateways have logged the requests", look, within=SLOW)

    @property
    def url(self) -> str:
        """The base_url from this machine, which reaches Services by their address and not by their name."""
        service = self.cluster.get(f"service {self.name}-gateway", namespace=self.namespace)
        return f"http://{service['spec']['clusterIP']}/v1"

    def load(self, **options: Any) -> SteadyLoad:
        """A steady load through its gateway."""
        body = self.body()
        names = body["spec"]["model"].get("servedNames") or [body["spec"]["model"]["uri"].removeprefix("hf://")]
        return SteadyLoad(self.url, names[0], **options)


def uid(pod: Manifest) -> str:
    """What makes two pods of one name different."""
    found: str = pod["metadata"]["uid"]
    return found


def processes(pod: Manifest, *, program: str) -> set[int]:
    """Processes of the picker's container by the name of their program, as this machine numbers them."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if entry.name.isdecimal() and uid(pod) in (entry / "cgroup").read_text():
                words = (entry / "cmdline").read_text(errors="replace").split("\0")
                if "halffull-extproc" in " ".join(words) and Path(words[0]).name.startswith(program):
                    found.add(int(entry.name))
    return found
