"""The work queue: what runs when, under a clock of the test's."""

import asyncio
import random
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from halffull_operator.queue import FIRST_BACKOFF, FREE_REPAIRS, LONGEST_BACKOFF, REPAIR_EVERY, SPACING, WorkQueue


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def queue(time: Time) -> WorkQueue:
    return WorkQueue(clock=time, rng=random.Random(1))


def pop(queue: WorkQueue) -> str | None:
    """What a free worker would get at this moment."""
    return queue._next()[0]


def wait(queue: WorkQueue) -> float | None:
    return queue._next()[1]


def test_a_burst_is_one_run(queue: WorkQueue) -> None:
    for _ in range(10):
        queue.add("a")
    assert pop(queue) == "a"
    assert pop(queue) is None


def test_a_key_never_has_two_workers_and_news_meanwhile_are_run_afterwards(queue: WorkQueue, time: Time) -> None:
    queue.add("a")
    assert pop(queue) == "a"
    queue.add("a", urgent=True)
    assert pop(queue) is None
    queue.done("a")
    assert pop(queue) == "a"
    queue.done("a")
    assert pop(queue) is None


def test_what_a_person_waits_for_goes_before_all_that_is_overdue(queue: WorkQueue, time: Time) -> None:
    for key in "abcd":
        queue.add(key)
    time.now += 1
    queue.add("c", urgent=True)  # queued already
    queue.add("e", urgent=True)
    time.now += 1
    queue.add("c", urgent=True)  # again: it keeps its place
    assert [pop(queue) for _ in range(6)] == ["c", "e", "a", "b", "d", None]


def test_news_about_children_run_a_key_once_a_spacing(queue: WorkQueue, time: Time) -> None:
    queue.add("a")
    assert pop(queue) == "a"
    queue.done("a")
    queue.add("a")
    assert pop(queue) is None
    assert wait(queue) == pytest.approx(SPACING)
    time.now += SPACING
    assert pop(queue) == "a"


def test_an_edit_does_not_wait_for_the_spacing(queue: WorkQueue) -> None:
    queue.add("a")
    assert pop(queue) == "a"
    queue.done("a")
    queue.add("a")
    queue.add("a", urgent=True)
    assert pop(queue) == "a"


def test_a_failure_waits_longer_each_time_and_success_forgets(queue: WorkQueue, time: Time) -> None:
    queue.add("a")
    longest = FIRST_BACKOFF
    for _ in range(20):
        assert pop(queue) == "a"
        delay = queue.failed("a")
        assert longest / 2 <= delay <= longest
        longest = min(longest * 2, LONGEST_BACKOFF)
        queue.add("a")  # news about a child do not shorten it
        time.now += delay - 0.001
        assert pop(queue) is None
        time.now += 0.002
    assert pop(queue) == "a"
    queue.done("a")
    queue.add("a", urgent=True)
    assert pop(queue) == "a"
    assert queue.failed("a") <= FIRST_BACKOFF


def test_a_failure_waits_as_long_as_the_server_asks(queue: WorkQueue) -> None:
    queue.add("a")
    pop(queue)
    assert queue.failed("a", at_least=17.0) == 17.0


def test_a_failure_after_some_progress_waits_as_the_first_does(queue: WorkQueue, time: Time) -> None:
    queue.add("a")
    for _ in range(10):
        assert pop(queue) == "a"
        delay = queue.failed("a", progress=True)
        assert delay <= FIRST_BACKOFF
        time.now += delay + 0.001


def test_an_edit_does_not_wait_for_the_back_off_not_even_when_it_came_during_the_failing_run(queue: WorkQueue) -> None:
    queue.add("a")
    pop(queue)
    queue.add("a", urgent=True)
    queue.failed("a", at_least=100.0)
    assert pop(queue) == "a"
    queue.failed("a", at_least=100.0)
    assert pop(queue) is None
    queue.add("a", urgent=True)
    assert pop(queue) == "a"


def test_two_writers_that_fight_cost_a_run_in_three_minutes(queue: WorkQueue, time: Time) -> None:
    runs = []
    queue.add("a")
    end = time.now + 3600
    while time.now < end:
        if pop(queue) == "a":
            runs.append(time.now)
            queue.add("a")  # the other writer answers while we write
            queue.done("a", repaired=True)
            queue.add("a")  # and once more
        time.now += 0.25
    assert len(runs) <= FREE_REPAIRS + 3600 / REPAIR_EVERY + 1
    assert len(runs) >= 3600 / REPAIR_EVERY - 1
    assert min(b - a for a, b in zip(runs[FREE_REPAIRS:], runs[FREE_REPAIRS + 1 :], strict=False)) >= 0.9 * REPAIR_EVERY


def test_an_edit_is_not_held_by_a_fight(queue: WorkQueue, time: Time) -> None:
    for _ in range(FREE_REPAIRS + 3):
        queue.add("a", urgent=True)
        assert pop(queue) == "a"
        queue.done("a", repaired=True)
    queue.add("a")
    assert pop(queue) is None
    queue.add("a", urgent=True)
    assert pop(queue) == "a"


def test_a_forgotten_key_does_not_come_back_from_its_own_run(queue: WorkQueue) -> None:
    queue.add("a")
    pop(queue)
    queue.forget("a")
    queue.done("a", again=1.0, repaired=True)
    assert len(queue) == 0
    assert queue.failed("a") == 0.0
    assert not queue._states


def test_a_key_that_is_there_again_while_its_last_run_ends_is_run_once_more(queue: WorkQueue) -> None:
    queue.add("a")
    pop(queue)
    queue.forget("a")
    queue.add("a", urgent=True)
    assert pop(queue) is None
    queue.done("a")
    assert pop(queue) == "a"


def test_again_is_the_latest_moment_and_news_come_first(queue: WorkQueue, time: Time) -> None:
    queue.add("a")
    pop(queue)
    queue.done("a", again=3600.0)
    assert wait(queue) == pytest.approx(3600.0)
    time.now += 10
    queue.add("a")
    assert pop(queue) == "a"
    queue.done("a", again=3600.0)
    assert wait(queue) == pytest.approx(3600.0)


def test_a_moment_of_an_earlier_plan_gives_no_key_to_a_second_worker(time: Time) -> None:
    queue = WorkQueue(clock=time, spacing=10.0)
    queue.add("a")
    pop(queue)
    queue.done("a", again=10.0)
    queue.add("a", urgent=True)
    assert pop(queue) == "a"
    queue.add("a")  # due when the earlier plan was
    time.now += 11
    assert pop(queue) is None
    queue.done("a")
    assert pop(queue) == "a"


async def test_a_worker_wakes_for_what_is_new_and_for_what_becomes_due() -> None:
    loop = asyncio.get_running_loop()
    queue = WorkQueue(clock=loop.time, spacing=0.05)
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await worker == "a"
    queue.add("a")
    began = loop.time()
    worker = asyncio.create_task(queue.get())
    queue.done("a")
    assert await worker == "a"
    assert loop.time() - began >= 0.04


async def test_closing_sends_every_worker_home() -> None:
    queue = WorkQueue(clock=asyncio.get_running_loop().time)
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.add("a")
    queue.close()
    assert set(await asyncio.gather(*workers)) <= {None, "a"}
    assert await queue.get() is None


class Machine(RuleBasedStateMachine):
    """Against what must hold whatever happens: nothing is lost, and no key has two workers."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.queue = WorkQueue(clock=self.time, rng=random.Random(0))
        self.active: set[str] = set()
        self.owed: set[str] = set()
        """Keys that have news that no run that began later has seen."""
        self.urgent: set[str] = set()
        self.forgotten: set[str] = set()
        """Forgotten while active, and not added since."""

    keys = st.sampled_from("abc")

    @rule(key=keys, urgent=st.booleans())
    def add(self, key: str, urgent: bool) -> None:
        self.queue.add(key, urgent=urgent)
        self.owed.add(key)
        self.forgotten.discard(key)
        if urgent:
            self.urgent.add(key)

    @rule()
    def get(self) -> None:
        key = pop(self.queue)
        if key is None:
            assert not self.urgent - self.active, "somebody waits, and a worker is free"
            return
        assert key not in self.active
        self.active.add(key)
        self.owed.discard(key)
        self.urgent.discard(key)

    @precondition(lambda self: self.active)
    @rule(data=st.data(), repaired=st.booleans(), again=st.none() | st.floats(0, 4000))
    def done(self, data: st.DataObject, repaired: bool, again: float | None) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        self.active.discard(key)
        self.forgotten.discard(key)
        self.queue.done(key, repaired=repaired, again=again)

    @precondition(lambda self: self.active)
    @rule(data=st.data(), at_least=st.floats(0, 400))
    def failed(self, data: st.DataObject, at_least: float) -> None:
        key = data.draw(st.sampled_from(sorted(self.active)))
        self.active.discard(key)
        self.queue.failed(key, at_least=at_least)
        if key not in self.forgotten:
            self.owed.add(key)
        self.forgotten.discard(key)

    @rule(key=keys)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.owed.discard(key)
        self.urgent.discard(key)
        if key in self.active:
            self.forgotten.add(key)

    @rule(seconds=st.floats(0, 400))
    def pass_time(self, seconds: float) -> None:
        self.time.now += seconds

    @invariant()
    def what_is_owed_is_due_within_the_longest_wait(self) -> None:
        for key in self.owed - self.active:
            due = self.queue._states[key].due
            assert due is not None
            assert due <= self.time.now + 64 * REPAIR_EVERY

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.active == len(self.active)

    def teardown(self) -> None:
        """Time passes and every run ends well: all that is owed is run."""
        for key in sorted(self.active):
            self.queue.done(key)
        owed, ran = set(self.owed), defaultdict(int)
        for _ in range(200):
            self.time.now += 400
            while (key := pop(self.queue)) is not None:
                ran[key] += 1
                self.queue.done(key)
        assert owed <= set(ran)


Machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestMachine = Machine.TestCase


@given(st.integers(0, 2000))
@settings(deadline=None, max_examples=20)
def test_back_off_never_overflows(failures: int) -> None:
    time = Time()
    queue = WorkQueue(clock=time, rng=random.Random(0))
    queue.add("a")
    for _ in range(failures):
        assert pop(queue) == "a"
        time.now += queue.failed("a") + 0.001
    assert pop(queue) == "a"
    assert queue.failed("a") <= LONGEST_BACKOFF
