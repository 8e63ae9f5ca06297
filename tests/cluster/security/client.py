"""A pod as anybody may run one: it calls what it is told to, and notes who calls it."""

from dataclasses import dataclass
from typing import Final

from tests.cluster.images import ENGINE
from tests.cluster.node import SLOW, Cluster

PORT: Final = 8000
"""Of its own server: the engines' port, so that a gateway could take it for one."""
SILENCE: Final = "timed out"
"""What is heard from an address whose packets are dropped."""
_ASK: Final = f"""
import sys, urllib.request
from concurrent.futures import ThreadPoolExecutor

def ask(url):
    try:
        return urllib.request.urlopen(url, timeout=10).status
    except OSError as error:
        return "{SILENCE}" if "timed out" in str(error) else error

with ThreadPoolExecutor(16) as pool:
    print(*pool.map(ask, sys.argv[1:]), sep="\\n")
"""


@dataclass(frozen=True)
class Client:
    """One such pod, running."""

    cluster: Cluster
    namespace: str
    name: str

    @classmethod
    def start(cls, cluster: Cluster, namespace: str, name: str) -> "Client":
        """Run it, labelled `app: NAME`."""
        container = {
            "name": "client",
            "image": ENGINE.reference,
            "command": ["python3", "-m", "http.server", str(PORT), "--directory", "/licenses"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        }
        manifest = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {
                "containers": [container],
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "terminationGracePeriodSeconds": 0,
            },
        }
        cluster.apply(manifest, namespace=namespace)
        cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={SLOW}s", namespace=namespace)
        return cls(cluster, namespace, name)

    @property
    def address(self) -> str:
        """Of its pod."""
        found: str = self.cluster.get(f"pod {self.name}", namespace=self.namespace)["status"]["podIP"]
        return found

    def ask(self, *urls: str) -> list[str]:
        """GET each, all at once: its status, SILENCE, or what else went wrong."""
        command = ("exec", self.name, "--", "python3", "-c", _ASK, *urls)
        return self.cluster.kubectl(*command, namespace=self.namespace).splitlines()

    def asked(self) -> list[str]:
        """Lines about the requests that its own server got."""
        return [
            line
            for line in self.cluster.kubectl("logs", self.name, namespace=self.namespace).splitlines()
            if '"' in line
        ]
