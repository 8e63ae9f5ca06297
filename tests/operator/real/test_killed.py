"""The operator is killed by SIGKILL at every API call of a reconcile; the next one finishes what it had begun."""

import os
import signal

import pytest

from halffull_operator import kinds
from tests.operator.conftest import StartOperator
from tests.operator.kube import Api, wait_until
from tests.operator.process import OperatorProcess, wait_settled
from tests.operator.proxy import Answer, ApiProxy, Request
from tests.operator.servings import ALWAYS, children, pods, says, serving

pytestmark = pytest.mark.timeout(1800)

PODS = 3
"""One engine, two of the gateway."""


def of_a_reconcile(request: Request) -> bool:
    """A call of ours about one LLMServing; not kopf's, not lists, not the heartbeat, not the start."""
    return (
        "kopf" not in request.agent
        and "/namespaces/" in request.path
        and "/leases/" not in request.path
        and "labelSelector" not in request.query
    )


def converged(admin: Api, namespace: str, name: str) -> bool:
    body = admin.must_get(kinds.SERVING, name, namespace)
    return says(body, Ready="True", EnginesReady="True", GatewayReady="True", Progressing="True", Applied="True")


class Killer:
    """Kills a process at the nth call of a reconcile, once."""

    def __init__(self, operator: OperatorProcess, number: int) -> None:
        self.operator, self.number = operator, number
        self.calls = 0

    def strike(self, request: Request) -> bool:
        """Whether it was killed just now."""
        if not request.number:
            return False
        self.calls += 1
        if self.calls == self.number:
            os.kill(self.operator.pid, signal.SIGKILL)
            return True
        return False

    def before(self, request: Request) -> Answer | None:
        return (503, {}, {}) if self.strike(request) else None

    def after(self, request: Request) -> None:
        self.strike(request)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_at_every_call(
    admin: Api, namespace: str, operators: StartOperator, proxy: ApiProxy, moment: str
) -> None:
    """`before`: the API server never sees the call; `after`: it has done it, and the operator never learns."""
    operator = operators(through=proxy)
    killed = 0
    for number in range(1, 60):
        name = f"{moment}-{number}"
        killer = Killer(operator, number)
        proxy.reset()
        proxy.rules.counts = of_a_reconcile
        setattr(proxy.rules, moment, getattr(killer, moment))
        admin.apply(serving(name, namespace, replicas=1))
        wait_until(
            "it is killed, or has nothing more to do",
            lambda: not operator.running() or converged(admin, namespace, name),  # noqa: B023  used at once
            within=60,
        )
        if operator.running():
            wait_settled(lambda: len(proxy.seen), for_seconds=2.0, within=30)
        if operator.running():
            break
        killed += 1
        operator.wait_ended()
        operator.start()
        wait_until(f"{name} converges", lambda: converged(admin, namespace, name), within=60)  # noqa: B023
        assert {kind for kind, _ in children(admin, namespace, name)} == ALWAYS
        wait_until("its pods are there", lambda: len(pods(admin, namespace, name)) == PODS)  # noqa: B023
        admin.delete(kinds.SERVING, name, namespace)
    assert killed >= 2 * len(ALWAYS), "a look and an apply for each child"
