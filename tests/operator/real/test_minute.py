"""What takes a minute: rest, a fight over a field beside it, a roll that halts. Then the operator is uninstalled."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from halffull_operator import kinds
from halffull_operator.kinds import Kind, Manifest
from tests.operator.kube import Api, Call, ControlPlane, wait_until
from tests.operator.process import OperatorProcess, wait_settled
from tests.operator.servings import children, condition, engines, says, serving, uids, versions, wait_ready

NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
DEPLOYMENT = kinds.named("apps/v1", "Deployment")
RESTING, FOUGHT, HALTED = "minute-resting", "minute-fought", "minute-halted"
NAMES = ("one", "two", "three")
SECONDS = 60.0
"""Both claims are about a minute; it is the least progressDeadline, too."""


@dataclass
class Minute:
    """What was seen in it."""

    fights: int
    calls: list[Call]
    """Of the operator, watches apart."""
    heartbeat_age: float
    halted: dict[str, str]
    """The engines before the roll that halts."""


@pytest.fixture(scope="module", autouse=True)
def settled(plane: ControlPlane, shared_operator: OperatorProcess) -> Iterator[None]:
    """LLMServings that are all that they are to be, and an operator with nothing to do."""
    admin = plane.admin
    for namespace in (RESTING, FOUGHT, HALTED):
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for name in NAMES:
        admin.apply(serving(name, RESTING))
    admin.apply(serving("llama", FOUGHT))
    admin.apply(serving("llama", HALTED, replicas=3, rollout={"progressDeadline": "1m"}))
    wait_ready(admin, RESTING, *NAMES)
    wait_ready(admin, FOUGHT, "llama")
    wait_ready(admin, HALTED, "llama")
    _wait_quiet(shared_operator)
    yield
    for namespace in (RESTING, FOUGHT, HALTED):
        admin.delete(NAMESPACE, namespace)


def _wait_quiet(operator: OperatorProcess) -> None:
    wait_settled(lambda: operator.metric("halffull_operator_reconciles_total"), for_seconds=3, within=60)


def _bodies(admin: Api) -> dict[str, str]:
    return {name: admin.must_get(kinds.SERVING, name, RESTING)["metadata"]["resourceVersion"] for name in NAMES}


def test_a_restart_applies_everything_once_and_touches_nothing(admin: Api, shared_operator: OperatorProcess) -> None:
    before = {name: versions(children(admin, RESTING, name)) for name in NAMES}
    bodies = _bodies(admin)
    assert shared_operator.stop() == 0
    shared_operator.start()
    wait_until(
        "everything was applied",
        lambda: shared_operator.metric("halffull_operator_reconciles_total") >= len(NAMES) + 2,
    )
    _wait_quiet(shared_operator)
    assert {name: versions(children(admin, RESTING, name)) for name in NAMES} == before
    assert _bodies(admin) == bodies


@pytest.fixture(scope="module")
def minute(plane: ControlPlane, settled: None, shared_operator: OperatorProcess) -> Minute:
    """Somebody sets replicas of one gateway back each time it is put right; an edit halts; nobody touches the rest."""
    admin = plane.admin
    halted = uids(engines(admin, HALTED, "llama"))
    edit = {"spec": {"engine": {"nodeSelector": {"example.test/gpu": "h200"}}}}
    admin.merge(kinds.SERVING, "llama", edit, HALTED)
    since, end, fights = plane.audit_position(), time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        if admin.must_get(DEPLOYMENT, "llama-gateway", FOUGHT)["spec"]["replicas"] != 7:
            admin.merge(DEPLOYMENT, "llama-gateway", {"spec": {"replicas": 7}}, FOUGHT)
            fights += 1
        time.sleep(0.2)
    calls = [call for call in plane.calls(since=since) if "halffull-operator" in call.user and call.verb != "watch"]
    return Minute(fights, calls, shared_operator.metric("halffull_operator_heartbeat_age_seconds"), halted)


def test_a_minute_of_rest_has_no_call_but_the_heartbeat(admin: Api, minute: Minute) -> None:
    assert [call for call in minute.calls if call.namespace == RESTING] == []
    everywhere = [call for call in minute.calls if not call.namespace and not call.resource.startswith("/")]
    assert everywhere == [], "no list of all namespaces either"
    assert minute.heartbeat_age < SECONDS
    assert admin.must_get(kinds.LEASE, "halffull-operator", "halffull-system")["spec"]["renewTime"]


def test_two_writers_that_fight_start_no_hot_loop(minute: Minute) -> None:
    calls = [call for call in minute.calls if call.namespace == FOUGHT]
    print(f"in a minute: {minute.fights} fights, {len(calls)} calls of the operator for them")  # noqa: T201
    assert 2 <= minute.fights <= 8
    assert len(calls) <= 40


def test_a_roll_that_halts_says_what_to_revert_and_the_revert_heals(admin: Api, minute: Minute) -> None:
    def stuck() -> Manifest:
        body = admin.must_get(kinds.SERVING, "llama", HALTED)
        says(body, Ready="True", EnginesReady="False", GatewayReady="True", Progressing="False", Applied="True")
        return body

    body = wait_until("the deadline passes", stuck, within=150)
    (new,) = body["status"]["unhealthy"]
    assert new["name"] == "llama-engine-2"
    assert new["reason"].startswith("Unschedulable: 0/")
    assert "node affinity/selector" in new["reason"], "the scheduler's own words"
    assert (body["status"]["readyReplicas"], body["status"]["updatedReplicas"]) == (2, 1)
    told = condition(body, "Progressing")
    assert told["reason"] == "ProgressDeadlineExceeded"
    assert "Unschedulable" in condition(body, "EnginesReady")["reason"]
    assert "undo the last change of the LLMServing (nodeSelector" in told["message"]
    assert "2 of 3 engines still serve with what was before" in told["message"]

    def halts() -> list[str]:
        return [one["type"] for one in admin.list(kinds.EVENT, HALTED) if one["reason"] == "ProgressDeadlineExceeded"]

    assert wait_until("the Event, which is written after the status", halts) == ["Warning"]

    admin.merge(kinds.SERVING, "llama", {"spec": {"engine": {"nodeSelector": None}}}, HALTED)
    wait_ready(admin, HALTED, "llama")
    now = uids(engines(admin, HALTED, "llama"))
    assert {name for name in now if now[name] != minute.halted[name]} == {"llama-engine-2"}, "only what was broken"


def test_with_the_operator_gone_namespaces_still_delete(
    admin: Api, minute: Minute, shared_operator: OperatorProcess
) -> None:
    assert shared_operator.stop() == 0
    for namespace in (RESTING, FOUGHT, HALTED):
        admin.delete(NAMESPACE, namespace)
    for namespace in (RESTING, FOUGHT, HALTED):
        wait_until(
            f"{namespace} is gone", lambda namespace=namespace: admin.get(NAMESPACE, namespace) is None, within=90
        )
