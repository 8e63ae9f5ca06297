"""Starts vLLM servers in a fraction of the time: vLLM is imported once here, and each server is a fork of this process.

Run as a script by `serving.Launcher`; one JSON object a line on stdin asks, one on stdout answers:

    {"do": "warm"}                                             → {}              import vLLM now
    {"do": "start", "argv": ["serve", …], "env": {…}, "log": "…", "cold": false} → {"pid": 123}
    {"do": "poll", "pid": 123}                                 → {"code": null}  or its exit code, −N for signal N

Every server leads a process group of its own. When stdin ends, whatever became of the tests, every group is killed.

vLLM's CPU platform insists on starting its engine core and its worker by `spawn`, which imports everything again in
each. In a fork of this process `spawn` therefore means `fork`: 4 s of CPU time for a server instead of 33. Nothing else
differs from `vllm serve`; what must see the real thing asks for `cold`, which runs the `vllm` command itself.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
# What a server imports on its way up. The names moved between releases; what is missing here is imported by the server.
MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.llama",
    "vllm.v1.structured_output.backend_xgrammar",
    "xgrammar",
)


class Servers:
    """The server processes of this launcher, by process id."""

    def __init__(self) -> None:
        """No server yet."""
        self._codes: dict[int, int | None] = {}

    def warm(self) -> None:
        """Import what servers need, once."""
        for name in MODULES:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # the collector of a fork need not touch, and so copy, these pages

    def start(self, argv: list[str], env: dict[str, str], log: str, *, cold: bool) -> int:
        """Fork a server and return its process id, which is its group's too."""
        if not cold:
            self.warm()
        sys.stdout.flush()
        grouped, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.close(grouped)
            os.close(done)
            become(argv, env, log, cold=cold)
        os.close(done)
        os.read(grouped, 1)  # ends when the child has its group: it must be there to be killed
        os.close(grouped)
        self._codes[pid] = None
        return pid

    def poll(self, pid: int) -> int | None:
        """Reap whatever ended, orphans of servers too; the exit code of this server, None while it runs."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._codes:
                    self._codes[ended[0]] = os.waitstatus_to_exitcode(ended[1])
        return self._codes[pid]

    def kill(self) -> None:
        """End every group at once and reap what was in it."""
        for pid in self._codes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()


def become(argv: list[str], env: dict[str, str], log: str, *, cold: bool) -> None:
    """Turn this fork into `vllm ARGV`; does not return."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # should even the launcher be killed
    signal.signal(signal.SIGINT, signal.default_int_handler)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.environ.update(env)
    command = Path(sys.executable).with_name("vllm")
    if cold:
        os.execv(command, [str(command), *argv])  # noqa: S606  no shell is wanted
    context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: context("fork" if method == "spawn" else method)  # type: ignore[assignment]  # typeshed knows literals only
    without_pinned_memory()
    if "FORCE_ASYNC_SCHEDULING" in os.environ:
        keep_async_scheduling()
    sys.argv = [str(command), *argv]
    code = 1
    try:
        from vllm.entrypoints.cli.main import main  # noqa: PLC0415  loaded by warm()

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001  this process has no caller that could handle it
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


def without_pinned_memory() -> None:
    """On 0.18 a batch that mixes structured and plain output asks for pinned memory, which wants a GPU's driver."""
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415
    from vllm.v1.structured_output import utils  # noqa: PLC0415

    class Torch:
        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

        def tensor(self, *args: Any, **kwargs: Any) -> Any:
            return torch.tensor(*args, **kwargs | {"pin_memory": False})

    utils.torch = Torch()


def keep_async_scheduling() -> None:
    """VLLM's CPU platform turns async scheduling off ("not required"); it works there all the same, as on a GPU."""
    from vllm.platforms.cpu import CpuPlatform  # noqa: PLC0415  loaded by warm()

    check = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        asked = vllm_config.scheduler_config.async_scheduling
        check(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = asked

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process (Linux)."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def answer(servers: Servers, request: dict[str, Any]) -> dict[str, Any]:
    """Do what is asked."""
    match request.pop("do"):
        case "warm":
            servers.warm()
            return {}
        case "start":
            return {"pid": servers.start(**request)}
        case "poll":
            return {"code": servers.poll(**request)}
        case other:
            raise ValueError(other)


def serve() -> None:
    """Answer until stdin ends."""
    # Ctrl-C reaches the whole group of the terminal; pytest then closes our stdin, in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphaned engine cores become ours to reap
    # vLLM prints on import; the answers have a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.set_inheritable(answers.fileno(), False)
    servers = Servers()
    try:
        for line in sys.stdin:
            answers.write(json.dumps(answer(servers, json.loads(line))) + "\n")
            answers.flush()
    finally:
        servers.kill()


if __name__ == "__main__":
    serve()
