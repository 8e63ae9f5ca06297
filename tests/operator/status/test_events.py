"""Events tell transitions, once."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from halffull_operator.conditions import Clock, condition
from halffull_operator.status import events
from tests.operator.plan.world import T0, World, container, engine_pod, template_container
from tests.operator.status.reading import said


def told(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]]:
    return [(event.type, event.reason) for event in events(old, new)]


def test_equal_statuses_tell_nothing() -> None:
    assert told(said(World()), said(World())) == []


def test_a_good_beginning_tells_nothing_and_getting_ready_is_told() -> None:
    world = World()
    world.pods.clear()
    first = said(world)
    assert told({}, first) == []
    assert told(first, said(World())) == [("Normal", "Serving")]


def test_a_crash_is_told_once_while_it_lasts_and_while_its_words_change() -> None:
    well = said(World())
    world = World()
    crash = {"terminated": {"exitCode": 1, "message": "ValueError: bad"}}
    world.pods[1] = engine_pod(1, ready=False, containerStatuses=[container(lastState=crash)])
    crashed = said(world)
    assert told(well, crashed) == [("Warning", "CrashLoopBackOff")]
    crash["terminated"]["message"] = "ValueError: other"
    assert told(crashed, said(world)) == []
    assert told(crashed, well) == []


def test_one_trouble_that_is_the_reason_of_several_conditions_is_told_once() -> None:
    world = World()
    crash = [container(lastState={"terminated": {"exitCode": 1}})]
    world.pods[:2] = [engine_pod(n, ready=False, containerStatuses=crash) for n in range(2)]
    assert told(said(World()), said(world)) == [("Warning", "CrashLoopBackOff")]


def test_a_normal_roll_tells_no_warning() -> None:
    world = World()
    steps = [said(world)]
    template_container(world.manifests[0])["image"] = "vllm:2"
    steps.append(said(world))
    world.pods[1] = engine_pod(1, ready=False)
    steps.append(said(world))
    kinds = {kind for old, new in pairwise(steps) for kind, _ in told(old, new)}
    assert "Warning" not in kinds


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-5, "for less than a minute"),
        (59, "for less than a minute"),
        (60, "for over 1 minute"),
        (10**9, "for over 1 week"),
    ],
)
def test_time_is_told_coarsely(seconds: int, words: str) -> None:
    clock = Clock(T0 + timedelta(seconds=seconds))
    assert clock.elapsed(T0) == words
    assert clock.elapsed(None) == ""


def test_a_message_is_bounded() -> None:
    one = condition("A", "True", "B", "x" * 10_000, old={}, generation=1, now=T0)
    assert len(one["message"]) == 1000
