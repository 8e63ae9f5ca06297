"""Faults of the API server and of the way to it: retried, nothing lost, and no trace once they are over."""

import itertools
import random
import time
from collections import Counter

import pytest

from halffull_operator import kinds
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, wait_until
from tests.operator.proxy import Answer, ApiProxy, Request, refusal
from tests.operator.servings import ALWAYS, children, says, serving

pytestmark = pytest.mark.timeout(600)
DEPLOYMENT = kinds.named("apps/v1", "Deployment")
REFUSALS: dict[str, Answer] = {
    "f409": refusal(409, "Conflict"),
    "f429": refusal(429, "TooManyRequests", Retry_After="1"),
    "f500": refusal(500, "InternalError"),
    "f503": refusal(503, "ServiceUnavailable"),
    "patience": refusal(429, "TooManyRequests", Retry_After="4"),
}
CUTS = ("before", "after")
NAMES = (*REFUSALS, *CUTS, "mixed", "late")
PATIENCE = 4.0  # s
PATIENT = 4
"""So often is it asked of; each time is a wait, and the back-off grows besides."""


def of_kopf(request: Request) -> bool:
    return "kopf" in request.agent


def converged(admin: Api, namespace: str, name: str) -> bool:
    body = admin.must_get(kinds.SERVING, name, namespace)
    assert {kind for kind, _ in children(admin, namespace, name)} == ALWAYS
    return says(body, Ready="True", EnginesReady="True", GatewayReady="True", Progressing="True", Applied="True")


class Faults:
    """One call in four goes wrong, for each LLMServing in the way that its name says; `late`: one takes for ever."""

    def __init__(self) -> None:
        """Always the same ones, as far as the order of calls is."""
        self.rng = random.Random(5)
        self.made: Counter[str] = Counter()
        self.too_early = 0
        """Calls of `patience` within the seconds that it was asked to wait."""
        self._asked = float("-inf")

    def _of(self, request: Request) -> str | None:
        about = request.path.split("/namespaces/")[-1].replace("-", "/").split("/")
        return None if of_kopf(request) else next((name for name in NAMES if name in about), None)

    def before(self, request: Request) -> Answer | None:
        name = self._of(request)
        if name == "patience":
            self.too_early += time.monotonic() - self._asked < PATIENCE - 0.2
        if name is None or self.rng.random() > 0.25 or (name == "patience" and self.made[name] >= PATIENT):
            return None
        fault = self.rng.choice(["f409", "f429", "f500", "f503", *CUTS]) if name == "mixed" else name
        if fault == "before":
            self.made[name] += 1
            raise ConnectionResetError
        if fault in REFUSALS:
            self.made[name] += 1
            if name == "patience":
                self._asked = time.monotonic()
            return REFUSALS[fault]
        return None

    def after(self, request: Request) -> None:
        name = self._of(request)
        if name in ("after", "mixed") and self.rng.random() < 0.25:
            self.made[name] += 1
            raise ConnectionResetError

    def delay(self, request: Request) -> float:
        if self._of(request) == "late" and request.writes and "/deployments/" in request.path and not self.made["late"]:
            self.made["late"] += 1
            return 300.0
        return 0.0


def test_calls_that_fail(admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy) -> None:
    """A call without an answer is given up after half a minute; `Retry-After` is kept to."""
    operator = operators(through=proxy)
    faults = Faults()
    proxy.rules.before, proxy.rules.after, proxy.rules.delay = faults.before, faults.after, faults.delay
    for name in NAMES:
        admin.apply(serving(name, namespace, replicas=1))
    for name in NAMES:
        wait_until(f"{name} converges", lambda name=name: converged(admin, namespace, name), within=180)
    for name in NAMES:
        admin.merge(kinds.SERVING, name, {"spec": {"replicas": 2}}, namespace)
    for name in NAMES:
        wait_until(f"the edit of {name} lands", lambda name=name: converged(admin, namespace, name), within=120)
        assert admin.must_get(kinds.SERVING, name, namespace)["status"]["replicas"] == 2
    assert set(faults.made) == set(NAMES)
    assert faults.too_early == 0
    assert operator.running()


def test_a_start_at_which_lists_and_watches_fail(
    admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy
) -> None:
    rng, made = random.Random(7), itertools.count()

    def before(request: Request) -> Answer | None:
        if rng.random() > 0.25:
            return None
        next(made)
        chosen = rng.choice(("f429", "f500", "f503", "cut"))
        if chosen == "cut":
            raise ConnectionResetError
        return REFUSALS[chosen]

    proxy.rules.before = before
    admin.apply(serving("llama", namespace))
    operator = operators(through=proxy, ready=False)
    operator.wait_ready(within=150)
    wait_until("it converges", lambda: converged(admin, namespace, "llama"), within=120)
    assert next(made) > 10
    assert operator.running()


def test_a_connection_that_is_cut(admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy) -> None:
    operators(through=proxy)
    admin.apply(serving("llama", namespace))
    wait_until("it converges", lambda: converged(admin, namespace, "llama"), within=60)
    for replicas in (3, 4, 1):
        proxy.cut()
        admin.merge(kinds.SERVING, "llama", {"spec": {"replicas": replicas}}, namespace)
        wait_until(
            "the edit lands",
            lambda replicas=replicas: (
                converged(admin, namespace, "llama")
                and admin.must_get(kinds.STATEFUL_SET, "llama-engine", namespace)["spec"]["replicas"] == replicas
            ),
            within=30,
        )


def test_a_watch_that_has_silently_died(admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy) -> None:
    operator = operators(through=proxy)
    admin.apply(serving("llama", namespace))
    wait_until("it converges", lambda: converged(admin, namespace, "llama"), within=60)
    proxy.freeze()  # connections stay open, and nothing comes any more
    began = time.monotonic()
    admin.merge(kinds.SERVING, "llama", {"spec": {"replicas": 3}}, namespace)
    admin.delete(DEPLOYMENT, "llama-gateway", namespace)
    wait_until(
        "both are seen",
        lambda: (
            converged(admin, namespace, "llama")
            and admin.must_get(kinds.STATEFUL_SET, "llama-engine", namespace)["spec"]["replicas"] == 3
        ),
        within=150,  # 70 until kopf gives a silent watch up, and what is then to be done on a busy machine
    )
    print(f"seen {time.monotonic() - began:.0f} s after the watches fell silent")  # noqa: T201  a figure to read
    assert operator.http("/healthz") == (200, "ok\n")
