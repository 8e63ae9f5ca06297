"""The real picker as a process, with the rights that its Role gives the ServiceAccount of its pod."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from halffull_operator.kinds import Manifest
from tests.operator.kube import ControlPlane
from tests.operator.real import picker_here
from tests.ports import free_ports


class PickerProcess:
    """What `/status.json` says, and the log."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self._process = process
        self._port = port
        self._log = log

    def status(self) -> Manifest:
        assert self._process.poll() is None, f"the picker has ended:\n{self.log()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/status.json", timeout=5) as answer:
                found: Manifest = json.loads(answer.read())
        except OSError as error:
            raise AssertionError(f"no answer of the picker: {error}") from error
        return found

    def states(self) -> dict[str, str]:
        """Pod → state."""
        return {one["name"]: one["state"] for one in self.status()["pool"]["endpoints"]}

    def addresses(self) -> dict[str, str]:
        """Pod → address."""
        return {one["name"]: one["address"] for one in self.status()["pool"]["endpoints"]}

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)


@contextmanager
def picker(plane: ControlPlane, folder: Path, *, namespace: str, name: str) -> Iterator[PickerProcess]:
    """The picker of one LLMServing, as its pod runs it; killed at the end unless it was stopped."""
    kubeconfig = plane.kubeconfig_as(account=f"{name}-gateway", namespace=namespace, folder=folder)
    status, log = free_ports(3), folder / f"picker-{name}.log"
    addresses = {
        "unix:/run/halffull/picker.sock": f"unix:{folder}/{name}.sock",
        "[::]:9002": f"127.0.0.1:{status + 1}",
        "[::]:9003": f"127.0.0.1:{status + 2}",
        "[::]:9090": f"127.0.0.1:{status}",
    }
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")},
        "KUBECONFIG": str(kubeconfig),
        "ADDRESSES": json.dumps(addresses),
    }
    command = [sys.executable, picker_here.__file__, "run", "--config-map", f"{namespace}/{name}-picker"]
    with log.open("wb") as file:
        process = subprocess.Popen([*command, "--log", "json"], env=environment, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield PickerProcess(process, status, log)
    except BaseException:
        print(f"--- log of the picker:\n{log.read_text(errors='replace')[-6000:]}")  # noqa: T201  pytest shows it
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=10)
