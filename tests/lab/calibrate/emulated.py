"""An emulated engine in a process of its own, to be calibrated."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SPEED = 4.0


@dataclass
class Emulated:
    url: str
    load_url: str

    def load(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.load_url}/load", timeout=30) as answer:  # noqa: S310  http to loopback
            return json.loads(answer.read())  # type: ignore[no-any-return]

    def until(self, *, busy: bool) -> None:
        deadline = time.monotonic() + 60
        while (self.load()["running"] > 0) != busy:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def argv(self, out: Path, *options: str) -> list[str]:
        return ["calibrate", "--url", self.url, "--out", str(out), "--minutes=2", *options]


@contextmanager
def emulated(*options: str) -> Iterator[Emulated]:
    command = [sys.executable, "-m", "halffull_lab", "engine", "--port=0", "--load-port=0", f"--speed={SPEED}"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            ports = json.loads(process.stdout.readline())
            yield Emulated(f"http://127.0.0.1:{ports['port']}", f"http://127.0.0.1:{ports['load_port']}")
        finally:
            process.terminate()
