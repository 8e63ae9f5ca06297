"""The operator as its own process, as its container runs it.

Most of what a start costs is imports, 3 s of CPU time, and this suite starts it a hundred times: each is a fork of a
process that has them (Python's forkserver).
"""

import multiprocessing
import os
import runpy
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import yaml

from halffull_operator.kinds import Manifest
from tests.operator.kube import wait_until
from tests.ports import free_port

CONFIG: Manifest = {
    "images": {
        "vllm": "example.test/vllm:1",
        "larry": "example.test/larry:1",
        "extproc": "example.test/extproc:1",
        "envoy": "example.test/envoy:1",
    }
}


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "halffull_operator.app", "halffull_operator.cli"])


class OperatorProcess:
    """Started, stopped, killed; its log is a file, and is shown when a test fails over it."""

    def __init__(
        self,
        *,
        kubeconfig: Path,
        folder: Path,
        config: Manifest | None = None,
        namespace: str = "halffull-system",
        program: tuple[str, ...] = ("-m", "halffull_operator"),
    ) -> None:
        self.kubeconfig = kubeconfig
        self.program = program  # -m and a module, or a file
        self.namespace = namespace
        self.log = folder / "operator.log"
        self.config = folder / "operator.yaml"
        self.config.write_text(yaml.safe_dump({**CONFIG, **(config or {})}))
        self.port = free_port()
        self._process: multiprocessing.process.BaseProcess | None = None

    def start(self, *, ready: bool = True) -> "OperatorProcess":
        assert not self.running()
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("KUBERNETES_")},
            "KUBECONFIG": str(self.kubeconfig),
            "POD_NAMESPACE": self.namespace,
        }
        given = {
            "program": self.program,
            "arguments": ["run", "--config", str(self.config), "--log", "json", "--port", str(self.port)],
            "environment": environment,
            "log": str(self.log),
        }
        script = str(Path(__file__).with_name("forked.py"))
        self._process = _FORKS.Process(target=runpy.run_path, args=(script, {"GIVEN": given}), daemon=True)
        self._process.start()
        if ready:
            self.wait_ready()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        assert self._process.pid is not None
        return self._process.pid

    def running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def wait_ready(self, *, within: float = 180.0) -> None:
        def look() -> bool:
            assert self.running(), f"the operator has ended:\n{self.tail()}"
            return self.http("/readyz")[0] == 200

        wait_until("the operator is ready", look, within=within)

    def http(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        total = 0.0
        for line in self.http("/metrics")[1].splitlines():
            series, _, value = line.rpartition(" ")
            found, _, given = series.partition("{")
            if found == name and all(f'{label}="{wanted}"' in given for label, wanted in labels.items()):
                total += float(value)
        return total

    def stop(self, *, within: float = 40.0) -> int:
        """SIGTERM; the exit code."""
        assert self._process is not None
        self._process.terminate()
        return self.wait_ended(within=within)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self.wait_ended(within=10)

    def wait_ended(self, *, within: float = 30.0) -> int:
        assert self._process is not None
        self._process.join(timeout=within)
        code = self._process.exitcode
        assert code is not None, f"the operator has not ended within {within:.0f} s:\n{self.tail()}"
        return code

    def close(self) -> None:
        if self.running():
            self.kill()

    def tail(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def errors(self) -> list[str]:
        """Lines of the log that a bug would leave."""
        text = self.log.read_text(errors="replace").splitlines()
        return [line for line in text if "a bug" in line or "Traceback" in line]


def wait_settled(look: Callable[[], object], *, for_seconds: float, within: float) -> None:
    """Wait until something has not changed for a while."""
    end, last, since = time.monotonic() + within, look(), time.monotonic()
    while time.monotonic() < end:
        time.sleep(0.2)
        now = look()
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since >= for_seconds:
            return
    raise AssertionError(f"still changing after {within:.0f} s")
