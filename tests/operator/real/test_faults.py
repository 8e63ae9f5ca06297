"""Faults of the API server and of the way to it: retried, nothing lost, and no trace once they are over."""

import itertools
import random
import time

import pytest

from halffull_operator import kinds
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, wait_until
from tests.operator.proxy import ApiProxy, Request, refusal
from tests.operator.servings import ALWAYS, children, says, serving

pytestmark = pytest.mark.timeout(600)
DEPLOYMENT = kinds.named("apps/v1", "Deployment")


def of_ours(request: Request) -> bool:
    return "kopf" not in request.agent


def converged(admin: Api, namespace: str, name: str) -> bool:
    body = admin.must_get(kinds.SERVING, name, namespace)
    assert {kind for kind, _ in children(admin, namespace, name)} == ALWAYS
    return says(body, Ready="True", EnginesReady="True", GatewayReady="True", Progressing="True", Applied="True")


@pytest.mark.parametrize("kind", ["409", "429", "500", "cut before", "cut after", "all at random"])
def test_calls_that_fail(admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy, kind: str) -> None:
    operator = operators(through=proxy)
    rng = random.Random(kind)
    hits = itertools.count()
    answers = {
        "409": refusal(409, "Conflict"),
        "429": refusal(429, "TooManyRequests", Retry_After="1"),
        "500": refusal(500, "InternalError"),
    }

    def before(request: Request) -> tuple[int, dict[str, object], dict[str, str]] | None:
        if not of_ours(request) or rng.random() > 0.25:
            return None
        chosen = rng.choice([*answers, "cut before"]) if kind == "all at random" else kind
        if chosen in answers:
            next(hits)
            return answers[chosen]
        if chosen == "cut before":
            next(hits)
            raise ConnectionResetError
        return None

    def after(request: Request) -> None:
        if of_ours(request) and kind in ("cut after", "all at random") and rng.random() < 0.25:
            next(hits)
            raise ConnectionResetError

    proxy.rules.before, proxy.rules.after = before, after
    for name in ("one", "two"):
        admin.apply(serving(name, namespace))
    for name in ("one", "two"):
        wait_until(f"{name} converges", lambda name=name: converged(admin, namespace, name), within=120)
    admin.merge(kinds.SERVING, "one", {"spec": {"replicas": 3}}, namespace)
    wait_until("the edit lands", lambda: converged(admin, namespace, "one"), within=60)
    assert admin.must_get(kinds.SERVING, "one", namespace)["status"]["replicas"] == 3
    assert next(hits) > 3
    assert operator.running()


def test_calls_that_are_never_answered(admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy) -> None:
    """Each call is given up after half a minute, and made again."""
    operators(through=proxy)
    late = {"left": 1}

    def delay(request: Request) -> float:
        if of_ours(request) and request.writes and "/deployments/" in request.path and late["left"]:
            late["left"] -= 1
            return 300.0
        return 0.0

    proxy.rules.delay = delay
    admin.apply(serving("llama", namespace))
    wait_until("it converges", lambda: converged(admin, namespace, "llama"), within=90)


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
    proxy.freeze()
    began = time.monotonic()
    admin.merge(kinds.SERVING, "llama", {"spec": {"replicas": 3}}, namespace)
    admin.delete(DEPLOYMENT, "llama-gateway", namespace)
    wait_until(
        "both are seen",
        lambda: (
            converged(admin, namespace, "llama")
            and admin.must_get(kinds.STATEFUL_SET, "llama-engine", namespace)["spec"]["replicas"] == 3
        ),
        within=90,
    )
    assert time.monotonic() - began < 90
    assert operator.http("/healthz") == (200, "ok\n")
