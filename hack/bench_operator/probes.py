"""What is looked at: the operator's process from outside, its calls, and one reconcile of it in this process."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
from tests.operator.kube import Api, ControlPlane
from tests.operator.process import CONFIG, OperatorProcess
from tests.operator.servings import ALWAYS, children

from halffull_operator import kinds, labels
from halffull_operator.children import build
from halffull_operator.config import load_config
from halffull_operator.observed import Observed
from halffull_operator.plan import plan
from halffull_operator.spec import parse
from halffull_operator.status import Outcome, status_of


def say(what: str) -> None:
    """Progress, beside the result."""
    sys.stderr.write(f"bench-operator: {what}\n")
    sys.stderr.flush()


class _Process(subprocess.Popen[bytes]):
    """With the names of multiprocessing."""

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(timeout)

    @property
    def exitcode(self) -> int | None:
        """None: it runs."""
        return self.poll()


class Operator(OperatorProcess):
    """As its container runs it: no fork, as in the tests, of a process that has more in its memory."""

    def start(self, *, ready: bool = True) -> "Operator":
        """Start it, and wait until it is ready."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment: Any = {**kept, "KUBECONFIG": str(self.kubeconfig), "POD_NAMESPACE": self.namespace}
        command = [sys.executable, "-m", "halffull_operator", "run", "--config", str(self.config), "--log", "json"]
        with self.log.open("ab") as log:
            process: Any = _Process([*command, "--port", str(self.port)], env=environment, stdout=log, stderr=log)
        self._process = process
        if ready:
            self.wait_ready()
        return self


@dataclass
class Watcher:
    """Asks the operator's port four times a second, as a probe does: how long it takes is the lag of its loop."""

    operator: OperatorProcess
    answers: list[float] = field(default_factory=list)
    """Milliseconds."""
    heartbeat_age: float = 0.0
    """The oldest, s."""
    unhealthy: int = 0
    _stop: Event = field(default_factory=Event)

    def run(self) -> None:
        """Until `_stop`."""
        while not self._stop.wait(0.25):
            began = time.monotonic()
            code, trouble = self.operator.http("/healthz")
            if code == 503:
                say(f"not healthy: {trouble}")
                self.unhealthy += 1
            self.answers.append((time.monotonic() - began) * 1e3)
            if len(self.answers) % 20 == 0:
                age = self.operator.metric("halffull_operator_heartbeat_age_seconds")
                self.heartbeat_age = max(self.heartbeat_age, age if age == age else 0.0)  # noqa: PLR0124  NaN

    def figures(self) -> dict[str, float]:
        """The slowest answers."""
        self.answers.sort()
        return {
            "probe_ms_median": round(statistics.median(self.answers), 1),
            "probe_ms_p99": round(self.answers[int(len(self.answers) * 0.99)], 1),
            "probe_ms_max": round(self.answers[-1], 1),
            "heartbeat_age_s_max": round(self.heartbeat_age, 1),
            "unhealthy": self.unhealthy,
        }


@contextmanager
def watched(operator: OperatorProcess) -> Iterator[Watcher]:
    """Ask its port meanwhile."""
    watcher = Watcher(operator)
    thread = Thread(target=watcher.run, daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        watcher._stop.set()  # noqa: SLF001  ours
        thread.join()


def cpu(operator: OperatorProcess) -> float:
    """CPU seconds of the process so far."""
    times = psutil.Process(operator.pid).cpu_times()
    return float(times.user + times.system)


def memory(operator: OperatorProcess) -> dict[str, float]:
    """MiB in memory now, and at most so far."""
    lines = Path(f"/proc/{operator.pid}/status").read_text().splitlines()
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    return {
        "rss_mib": round(int(found["VmRSS"].split()[0]) / 1024, 1),
        "rss_peak_mib": round(int(found["VmHWM"].split()[0]) / 1024, 1),
    }


class Calls:
    """The operator's calls since a moment, as the API server logged them."""

    def __init__(self, plane: ControlPlane) -> None:
        """Begin now."""
        self._plane = plane
        self._since = plane.audit_position()

    def by_verb(self) -> Counter[str]:
        """Verb and what it is about → calls; lists and watches of kopf's included, the heartbeat left out."""
        found: Counter[str] = Counter()
        for call in self._plane.calls(since=self._since):
            if call.resource == "leases":
                continue
            if call.resource == "llmservings/status":
                found["write status"] += 1
            elif call.resource == "events" and call.verb == "create":
                found["create event"] += 1
            elif call.verb in {"list", "watch"}:
                found[f"{call.verb} {call.resource}"] += 1
            else:
                found[call.verb] += 1
        return found


def milliseconds(what: Callable[[], Any], *, times: int = 50) -> float:
    """CPU of one call; the median."""
    found = []
    for _ in range(times):
        began = time.thread_time()
        what()
        found.append((time.thread_time() - began) * 1e3)
    return round(statistics.median(found), 3)


def one_reconcile(admin: Api, where: tuple[str, str]) -> dict[str, float]:
    """Milliseconds of CPU of each step of a reconcile that finds nothing to do, all of it synchronous."""
    namespace, name = where
    config, apis, now = load_config(json.dumps(CONFIG), source="bench"), frozenset[str](), datetime.now(UTC)
    body = admin.must_get(kinds.SERVING, name, namespace)
    of_it = children(admin, namespace, name)
    pods = tuple(admin.list(kinds.POD, namespace, selector=f"{labels.SERVING}={name}"))
    assert {kind for kind, _ in of_it} == ALWAYS
    parsed = parse(body)
    wanted = build(parsed, config, apis)
    observed = Observed(children=of_it, pods=pods, claims=(), body=body)
    assert not plan(parsed, wanted, observed, full=False)
    return {
        "parse": milliseconds(lambda: parse(body)),
        "build": milliseconds(lambda: build(parsed, config, apis)),
        "plan": milliseconds(lambda: plan(parsed, wanted, observed, full=False)),
        "status": milliseconds(lambda: status_of(parsed, wanted, observed, Outcome(), now=now, pending=())),
    }
