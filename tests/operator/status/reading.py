"""What a person reads in a status, for tests."""

from datetime import timedelta
from typing import Any

from halffull_operator.status import Failure, Outcome, status
from tests.operator.plan.world import T0, World, container

CRASHED = [
    container(
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": {"exitCode": 1, "message": "ValueError: bad"}},
    )
]


def said(world: World, *failures: Failure, after: float = 10.0) -> dict[str, Any]:
    now = T0 + timedelta(seconds=after)
    return status(world.serving, world.children, world.observed, Outcome(failures), now=now)


def verdicts(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in found["conditions"]}


def message(found: dict[str, Any], kind: str) -> str:
    return next(one["message"] for one in found["conditions"] if one["type"] == kind)
