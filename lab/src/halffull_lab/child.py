"""Child processes that never outlive their parent: start, wait until ready, freeze, stop, kill, measure.

A child runs in a session of its own, so Ctrl-C at the terminal reaches the parent alone, which then stops its children
in order. Three things end a child: `stop`, `kill`, and the death of the parent by whatever means, SIGKILL included
(Linux: PR_SET_PDEATHSIG, set by a launcher in the child just before it becomes the command).
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import aiohttp
import psutil

# Runs in the child. prctl(1) is PR_SET_PDEATHSIG; it survives execve. The parent may have died before the call, hence
# the look at getppid. A launcher rather than Popen's preexec_fn, which runs Python after fork: unsafe with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
_TAIL = 2_000  # bytes of a log that an error quotes


class ChildError(Exception):
    """A child died at its start, or was not ready in time; the message ends with the tail of its log."""


class Port:
    """A free TCP port of a loopback address, kept for one child until `close`.

    On Linux the port stays bound, without listening, for as long as this object lives: nobody else is given it, while
    a server that sets SO_REUSEADDR (uvicorn, asyncio, http.server, Envoy) may still listen on it, and again after a
    restart. Elsewhere that combination does not exist and the port is only known to have been free.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]
        self.address = f"[{host}]:{self.number}" if ":" in host else f"{host}:{self.number}"
        if sys.platform != "linux":
            self._socket.close()

    def close(self) -> None:
        """Give the port back; idempotent."""
        self._socket.close()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago; use `Port` where another process must not get it meanwhile."""
    port = Port(host)
    port.close()
    return port.number


class Child:
    """One process, its log file and its group.

    Start it from the main thread: Linux delivers the death signal when the *thread* that forked ends.

    Args:
        argv: command and arguments.
        log: file that takes stdout and stderr, appended to, so that a restart keeps what came before.
        name: how errors call it; by default the log's stem.
        env: variables on top of the parent's own.
        cwd: working directory; the parent's by default.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        name: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.argv = list(argv)
        self.log = log
        self.name = name or log.stem
        self._env = dict(env or {})
        self._cwd = cwd
        self._popen: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        """Process id while it runs (stopped by SIGSTOP counts as running), else None."""
        return self._popen.pid if self._popen is not None and self.returncode is None else None

    @property
    def returncode(self) -> int | None:
        """Exit code once it has ended (−signal when killed), None while it runs or was never started.

        Looks without reaping: until `stop` or `kill` the pid stays ours, so a group signal can never hit a stranger.
        """
        if self._popen is None:
            return None
        if self._popen.returncode is not None:
            return self._popen.returncode
        info = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def start(self) -> Self:
        """Start the process; an error if it still runs. Returns at once: see `ready`."""
        if self.pid is not None:
            raise ChildError(f"{self.name} already runs as {self.pid}")
        self._reap()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *self.argv]
            self._popen = subprocess.Popen(
                launcher,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self._env},
                cwd=self._cwd,
            )
        return self

    async def ready(self, *, url: str | None = None, line: str | None = None, within: float = 30.0) -> None:
        """Wait until `url` answers 200 and `line` stands in the log of this start, each if given.

        Raises:
            ChildError: it exited meanwhile, or `within` seconds passed.
        """
        deadline = asyncio.get_running_loop().time() + within
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while not ((line is None or line in self.output()) and (url is None or await _answers(session, url))):
                if self.returncode is not None:
                    raise ChildError(f"{self.name} ended with {self.returncode} at its start{self._tail()}")
                if asyncio.get_running_loop().time() > deadline:
                    what = " and ".join(filter(None, (url, line and repr(line))))
                    raise ChildError(f"{self.name} not ready after {within:g} s ({what}){self._tail()}")
                await asyncio.sleep(0.02)

    async def stop(self, *, grace: float = 5.0) -> int | None:
        """SIGTERM, after `grace` seconds SIGKILL, both to the whole group; its exit code. Idempotent."""
        if self._popen is None:
            return None
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a frozen process gets no SIGTERM
        deadline = asyncio.get_running_loop().time() + grace
        try:
            # The kernel sets no asyncio.Event when a process ends
            while asyncio.get_running_loop().time() < deadline and self.returncode is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        finally:  # also when cancelled: then without grace
            self._reap()
        return self._popen.returncode

    def kill(self) -> None:
        """SIGKILL the whole group, now. Idempotent."""
        self._reap()

    def suspend(self) -> None:
        """Freeze the whole group (SIGSTOP): sockets stay open, nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen group go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """User and system CPU time so far, all threads, in seconds; 0 when it does not run."""
        pid = self.pid
        if pid is None:
            return 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            return float(times.user + times.system)
        return 0.0

    def output(self) -> str:
        """The log since the last start."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        # Unreaped, so the group's number is still ours. The launcher is its leader from the first instant (setsid).
        if self._popen is not None and self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._popen.pid, number)

    def _reap(self) -> None:
        self._signal(signal.SIGKILL)
        if self._popen is not None and self._popen.returncode is None:
            self._popen.wait()

    def _tail(self) -> str:
        tail = self.output()[-_TAIL:].strip()
        return f"; its log ends:\n{tail}" if tail else "; its log is empty"


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
