"""The probe against real vLLM with LARRY and against the emulated engine: a client and the picker see the same."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_ports

from . import serving
from .serving import Server

HALFFULL = Path(__file__).parents[2] / ".venv" / "bin" / "halffull"
# The emulated engine has no prefix cache.
SERVER = serving.larry("--no-enable-prefix-caching", serving.LONG_STEPS, name="LARRY")
# What a machine's speed and the engine's implementation decide, not its contract.
MEASURED = re.compile(r"_s$|^bytes$|^steps$|^headers_|^events_")


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[tuple[str, str]]:
    port, load_port = free_ports(2), 0
    load_port = port + 1
    command = [
        HALFFULL,
        "engine",
        "--policy=LARRY",
        "--host=127.0.0.1",
        f"--port={port}",
        f"--load-port={load_port}",
        "--model=tiny",
        "--max-model-len=2048",
    ]
    with (tmp_path / "engine.log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield f"http://127.0.0.1:{port}", f"http://127.0.0.1:{load_port}"
        finally:
            process.terminate()


def _probe(url: str, load_url: str, to: Path) -> dict[str, dict[str, Any]]:
    subprocess.run(
        [HALFFULL, "probe", url, "--load-url", load_url, "--json", to], check=True, stdout=sys.stderr, timeout=150
    )
    return json.loads(to.read_text())  # type: ignore[no-any-return]


def test_both_show_the_same(server: Server, emulated: tuple[str, str], tmp_path: Path) -> None:
    real = _probe(server.url, f"http://127.0.0.1:{server.load_ports[0]}", tmp_path / "real.json")
    pretended = _probe(*emulated, tmp_path / "emulated.json")
    assert real.keys() == pretended.keys()
    differences = {
        f"{section}.{name}": (value, pretended[section].get(name))
        for section, values in real.items()
        for name, value in values.items()
        if not MEASURED.search(name) and value != pretended[section].get(name)
    }
    assert differences == {}
