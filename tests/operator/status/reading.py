"""What a person reads in a status, for tests."""

from datetime import timedelta
from typing import Any

from halffull_operator.status import Failure, Outcome, status_of
from tests.operator.plan.world import T0, World, container

CRASHED = [
    container(
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": {"exitCode": 1, "message": "ValueError: bad"}},
    )
]


def said(world: World, *failures: Failure, after: float = 10.0) -> dict[str, Any]:
    return _look(world, failures, after)[0]


def next_look(world: World, *, after: float = 10.0) -> float | None:
    return _look(world, (), after)[1]


def _look(world: World, failures: tuple[Failure, ...], after: float) -> tuple[dict[str, Any], float | None]:
    now = T0 + timedelta(seconds=after)
    return status_of(world.serving, world.children, world.observed, Outcome(failures), now=now)


def verdicts(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in found["conditions"]}


def message(found: dict[str, Any], kind: str) -> str:
    return next(one["message"] for one in found["conditions"] if one["type"] == kind)
