"""The operator is killed by SIGKILL after every API call of a reconcile; the next one finishes what it had begun.

Of a reconcile that makes everything, one that changes and re-creates (status, updates, orphaning delete), and one that
deletes. The workers of one operator are held each after another call, then it is killed once: eight kills in one.
Before the next call is the same moment as after this one, but for the answer, which only memory has.
"""

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from halffull_operator import kinds
from halffull_operator.app import WORKERS
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, wait_until
from tests.operator.process import OperatorProcess, wait_settled
from tests.operator.proxy import ApiProxy, Request
from tests.operator.servings import ALWAYS, children, engines, says, serving, uids

pytestmark = pytest.mark.timeout(900)

Edit = Callable[[str], object]
QUIET = 5.0  # s
WITHOUT_GATEWAY = frozenset({"StatefulSet", "Service", "PodDisruptionBudget"})


class Holder:
    """Holds each LLMServing after another one of its calls: the API server has done it, the operator never learns."""

    def __init__(self, limits: dict[str, int]) -> None:
        """Take name → number of the call, from 1."""
        self.limits = limits
        self.made: Counter[str] = Counter()
        self.last: dict[str, str] = {}
        """What the last call was, that is, which moment this is."""
        self._lock = threading.Lock()
        self._called = time.monotonic()

    def of(self, request: Request) -> str | None:
        """The LLMServing that a call is about: its name is in the names of all that it has."""
        if "kopf" in request.agent or "/namespaces/" not in request.path or "labelSelector" in request.query:
            return None
        about = request.path.split("/namespaces/")[1]
        if about.endswith("/events") and request.method == "POST":
            about = json.loads(request.body)["involvedObject"]["name"]
        return next((one for one in self.limits if one in re.split("[/-]", about)), None)

    def held(self) -> set[str]:
        with self._lock:
            return {name for name, limit in self.limits.items() if self.made[name] >= limit}

    def at_rest(self) -> bool:
        """Whether nothing more happens: each is held, or the last one has ended its reconciles."""
        begun = all(self.made[name] for name in self.limits)
        return self.held() == set(self.limits) or (begun and time.monotonic() - self._called > QUIET)

    def after(self, request: Request) -> float:
        name = self.of(request)
        if name is None:
            return 0.0
        with self._lock:
            self._called = time.monotonic()
            self.made[name] += 1
            if self.made[name] < self.limits[name]:
                return 0.0
            self.last.setdefault(name, f"{request.method} {request.path.replace(name, '')}")
        return 3600.0

    def before(self, request: Request) -> float:
        """Nothing more of one that is held: not the second attempt of a call without an answer."""
        return 3600.0 if self.of(request) in self.held() else 0.0


def killed_after_each_call(operator: OperatorProcess, proxy: ApiProxy, names: list[str], edit: Edit) -> Counter[str]:
    """Edit each, kill after its 1st, 2nd, … call. Returns the moments, as the calls after which they were."""
    moments: Counter[str] = Counter()
    for first in range(0, len(names), WORKERS):
        batch = names[first : first + WORKERS]
        holder = Holder({name: number for number, name in enumerate(batch, first + 1)})
        proxy.reset()
        proxy.rules.delay, proxy.rules.after_delay = holder.before, holder.after
        for name in batch:
            edit(name)
        wait_until("each is held, or has nothing more to do", holder.at_rest, within=90)
        os.kill(operator.pid, signal.SIGKILL)
        operator.wait_ended()
        proxy.cut()
        proxy.reset()
        moments.update(holder.last.values())
        operator.start()
        # It looks through all there is first, which would be counted as the next edit's calls.
        wait_settled(lambda: operator.metric("halffull_operator_reconciles_total"), for_seconds=2, within=90)
    return moments


def test_killed_after_every_call(admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy) -> None:
    operator = operators(through=proxy)
    names = [f"k{number:02}" for number in range(3 * WORKERS)]
    model = {"uri": "hf://org/model", "cache": {"size": "1Gi", "storageClassName": "a"}}

    made = killed_after_each_call(
        operator, proxy, names, lambda name: admin.apply(serving(name, namespace, replicas=1, model=model))
    )
    wait_applied(admin, namespace, names)
    assert all({kind for kind, _ in children(admin, namespace, name)} == ALWAYS for name in names)
    before = {name: wait_until("an engine", lambda name=name: engines(admin, namespace, name)) for name in names}
    print(f"made: {dict(made)}")  # noqa: T201  figures to read
    assert sum("PATCH" in moment for moment in made) >= len(ALWAYS)
    assert any(moment.endswith("/status") for moment in made)

    changed = names[:WORKERS]
    other = {"spec": {"model": {"cache": {"storageClassName": "b"}}, "routing": {"policy": "Random"}}}
    changes = killed_after_each_call(
        operator, proxy, changed, lambda name: admin.merge(kinds.SERVING, name, other, namespace)
    )
    wait_applied(admin, namespace, changed)
    for name in changed:
        template = admin.must_get(kinds.STATEFUL_SET, f"{name}-engine", namespace)["spec"]["volumeClaimTemplates"][0]
        assert template["spec"]["storageClassName"] == "b"
        kept = engines(admin, namespace, name)
        assert uids(kept) == uids(before[name]), "a StatefulSet that is created anew keeps its pods"
    print(f"changed: {dict(changes)}")  # noqa: T201
    assert any("DELETE" in moment for moment in changes)

    off = {"spec": {"gateway": {"mode": "None"}, "routing": {"policy": "SAL"}}}
    bare = names[: 2 * WORKERS]
    deleted = killed_after_each_call(
        operator, proxy, bare, lambda name: admin.merge(kinds.SERVING, name, off, namespace)
    )
    wait_applied(admin, namespace, bare)
    for name in bare:
        wait_until("the gateway is gone", lambda name=name: left(admin, namespace, name) == WITHOUT_GATEWAY)
    print(f"deleted: {dict(deleted)}")  # noqa: T201
    assert sum("DELETE" in moment for moment in deleted) >= 5


def left(admin: Api, namespace: str, name: str) -> set[str]:
    return {kind for kind, _ in children(admin, namespace, name)}


def wait_applied(admin: Api, namespace: str, names: list[str]) -> None:
    """Wait until all of each is as asked. Their engines wait for volumes, which nobody provides here."""
    for name in names:
        wait_until(
            f"{name} is applied",
            lambda name=name: says(admin.must_get(kinds.SERVING, name, namespace), Applied="True"),
            within=120,
        )
