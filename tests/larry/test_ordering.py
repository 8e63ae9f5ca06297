"""Every order against a brute-force evaluation of its rule, under any interleaving."""

import statistics
import time
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from halffull_larry.lanes import _RunningMedian
from halffull_larry.ordering import FCFS, LARRY, POLICIES, LARRYPlus, Ordering, make_ordering, memory
from halffull_larry.waiting import LazyHeap

# Multiples of 1/8 s: sums and products below are exact, so that ties are ties on both sides.
times = st.integers(0, 4_000).map(lambda eighths: eighths / 8)


@dataclass
class Waiting:
    request_id: str
    arrival: float
    tokens: int
    priority: int
    preempted: bool
    sequence: int
    short: bool = False


@dataclass
class Brute:
    """The rules, written down once more without any data structure."""

    policy: str
    alpha: float
    now: float = 0.0
    queue_len: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    popped: list[Waiting] = field(default_factory=list)
    sequence: int = 0
    seen: list[int] = field(default_factory=list)  # prompt tokens of every arrival
    virtual: list[Waiting] = field(default_factory=list)  # FCFS's queue
    credit: int = 0
    delays: list[tuple[float, float]] = field(default_factory=list)
    bound: float = 0.25

    def add(self, request_id: str, arrival: float, tokens: int, priority: int, *, preempted: bool) -> None:
        self.sequence += 1
        entry = Waiting(request_id, arrival, tokens, priority, preempted, self.sequence)
        if not preempted:
            self.seen.append(tokens)
            recent = sorted(self.seen[-1000:])
            entry.short = tokens <= recent[(len(recent) - 1) // 2]
            self.virtual.append(entry)
        self.waiting.append(entry)

    def remove(self, request_id: str) -> None:
        entry = self.find(request_id)
        self.waiting.remove(entry)
        if entry in self.virtual:
            self.virtual.remove(entry)
        elif not entry.preempted:
            self.credit += entry.tokens
        self.serve()

    def find(self, request_id: str) -> Waiting:
        return next(entry for entry in self.waiting if entry.request_id == request_id)

    def start_step(self, now: float) -> None:
        for entry in self.popped:
            if entry.preempted:
                continue
            self.credit += entry.tokens
            self.serve()
        self.popped.clear()
        self.now = now
        self.queue_len = len(self.waiting)
        self.bound = self.longest_delay()  # holds for the whole step, whatever is aborted in it

    def serve(self) -> None:
        while self.virtual and self.virtual[0].tokens <= self.credit:
            head = self.virtual.pop(0)
            self.credit -= head.tokens
            self.delays.append((self.now, self.now - head.arrival))

    def longest_delay(self) -> float:
        delays = [delay for at, delay in self.delays if at >= self.now - 1800]
        if self.virtual:
            delays.append(self.now - self.virtual[0].arrival)
        return max([0.25, *delays])

    def best(self) -> str | None:
        if not self.waiting:
            return None
        tier = min((entry.priority, not entry.preempted) for entry in self.waiting)
        entries = [entry for entry in self.waiting if (entry.priority, not entry.preempted) == tier]
        if self.policy == "LARRYPlus":
            oldest = min(entries, key=lambda entry: (entry.arrival, entry.sequence))
            if self.now - oldest.arrival > self.bound:
                return oldest.request_id
        return min(entries, key=self.key).request_id

    def key(self, entry: Waiting) -> tuple[float, ...]:
        ties = (entry.arrival, entry.sequence)
        if self.policy == "FCFS":
            return ties
        if self.policy == "LARRY":
            wait = self.now - entry.arrival
            return (-(self.alpha * wait - self.queue_len * -(-entry.tokens // 16)), *ties)
        if entry.short:
            return (0, entry.tokens, *ties)
        return (1, entry.arrival + 10 * entry.tokens / 12_000, *ties)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), times, st.integers(1, 400), st.integers(-1, 1), st.booleans()),
        st.tuples(st.just("arrive"), st.integers(1, 6_000)),
        st.tuples(st.just("remove"), st.integers(0, 10**6)),
        st.tuples(st.just("step"), st.integers(0, 80)),
        st.tuples(st.just("pop")),
        st.tuples(st.just("pop")),
        st.tuples(st.just("put_back"), st.integers(0, 10**6)),
    ),
    max_size=120,
)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=150, deadline=None)
@given(alpha=st.sampled_from([0.0, 0.5, 1.0, 500.0]), script=operations)
@example(  # an abort between two looks of one step
    alpha=0.0,
    script=[
        *(("arrive", 1), ("add", 0.125, 1, 0, False), ("arrive", 1), ("arrive", 2), ("pop",), ("step", 3)),
        *(("pop",), ("arrive", 1), ("remove", 0)),
    ],
)
def test_equals_brute_force(policy: str, alpha: float, script: list[tuple[object, ...]]) -> None:
    ordering = make_ordering(policy, alpha=alpha)
    brute = Brute(policy, alpha)
    for number, (name, *values) in enumerate(script):
        if name in ("add", "arrive"):
            arrival, tokens, priority, preempted = values if name == "add" else (brute.now, values[0], 0, False)
            ordering.add(str(number), arrival=arrival, tokens=tokens, priority=priority, preempted=preempted)
            brute.add(str(number), arrival, tokens, priority, preempted=preempted)
        elif name == "remove" and brute.waiting:
            request_id = brute.waiting[values[0] % len(brute.waiting)].request_id
            ordering.remove(request_id)
            brute.remove(request_id)
        elif name == "step":
            now = brute.now + values[0] / 8
            ordering.start_step(now)
            brute.start_step(now)
        elif name == "pop" and brute.waiting:
            best = brute.best()
            assert ordering.pop() == best
            brute.popped.append(brute.find(best))
            brute.waiting.remove(brute.popped[-1])
        elif name == "put_back" and brute.popped:
            entry = brute.popped.pop(values[0] % len(brute.popped))
            ordering.put_back(entry.request_id)
            brute.waiting.append(entry)
        assert ordering.peek() == brute.best()
        assert len(ordering) == len(brute.waiting)
        assert set(ordering) == {entry.request_id for entry in brute.waiting}
    for request_id in list(ordering):
        ordering.remove(request_id)
    ordering.start_step(brute.now)
    if isinstance(ordering, LARRYPlus):  # all tokens are accounted for
        assert not ordering._delay._queue
        assert ordering._delay._credit == 0


def fill(ordering: Ordering, *requests: tuple[str, float, int]) -> None:
    for request_id, arrival, tokens in requests:
        ordering.add(request_id, arrival=arrival, tokens=tokens)


def heaps(ordering: Ordering) -> list[LazyHeap]:
    if isinstance(ordering, FCFS):
        return list(ordering._tiers.values())
    if isinstance(ordering, LARRY):
        return [heap for sizes in ordering._tiers.values() for heap in (sizes.by_age, *sizes.groups.values())]
    assert isinstance(ordering, LARRYPlus)
    return [heap for lanes in ordering._tiers.values() for heap in (lanes.short, lanes.long, lanes.by_age)]


def drain(ordering: Ordering) -> list[str]:
    return [ordering.pop() for _ in range(len(ordering))]


def test_memory_is_in_sixteens_rounded_up() -> None:
    assert [memory(tokens) for tokens in (0, 1, 16, 17, 32)] == [0, 1, 1, 2, 2]


def test_larry_weighs_memory_by_the_queue_and_waiting_by_alpha() -> None:
    ordering = LARRY(alpha=1.0)
    fill(ordering, ("long", 0.0, 160), ("short", 10.0, 16))
    ordering.start_step(20.0)  # long: 20 − 2·10 = 0, short: 10 − 2·1 = 8
    assert drain(ordering) == ["short", "long"]
    fill(ordering, ("long", 0.0, 160), ("short", 10.0, 16))
    ordering.alpha = 2.0  # long: 40 − 20, short: 20 − 2
    ordering.start_step(20.0)
    assert drain(ordering) == ["long", "short"]


def test_queue_len_is_frozen_for_the_step() -> None:
    ordering = LARRY()
    fill(ordering, ("long", 0.0, 160), ("short", 15.0, 16))
    ordering.start_step(20.0)  # 2 waiting: 0 + 2·10 = 20 against 15 + 2·1 = 17
    fill(ordering, *((f"new{i}", 20.0, 16) for i in range(5)))  # 20 + 2·1
    assert ordering.pop() == "short"
    assert ordering.pop() == "long"
    ordering.start_step(21.0, queue_len=0)
    assert ordering.peek() == "new0"


def test_ties_go_to_the_earlier_arrival_then_to_the_earlier_add() -> None:
    ordering = LARRY()
    fill(ordering, ("a", 2.0, 16), ("b", 0.0, 32), ("c", 2.0, 16))
    ordering.start_step(3.0, queue_len=2)  # 2 + 2, 0 + 4, 2 + 2
    assert drain(ordering) == ["b", "a", "c"]


@pytest.mark.parametrize("policy", POLICIES)
def test_priority_then_preempted_then_the_order(policy: str) -> None:
    ordering = make_ordering(policy)
    ordering.add("late", arrival=3.0, tokens=10)
    ordering.add("preempted", arrival=5.0, tokens=900, preempted=True)
    ordering.add("urgent", arrival=9.0, tokens=5_000, priority=-1)
    ordering.start_step(9.0)
    assert drain(ordering) == ["urgent", "preempted", "late"]


@pytest.mark.parametrize("policy", POLICIES)
def test_misuse_is_an_error(policy: str) -> None:
    ordering = make_ordering(policy)
    assert ordering.peek() is None
    with pytest.raises(IndexError):
        ordering.pop()
    with pytest.raises(KeyError):
        ordering.remove("unknown")
    ordering.add("a", arrival=0.0, tokens=1)
    with pytest.raises(ValueError, match="waiting already"):
        ordering.add("a", arrival=0.0, tokens=1)
    with pytest.raises(KeyError):
        ordering.put_back("a")
    ordering.start_step(0.0)
    ordering.pop()
    ordering.start_step(1.0)
    with pytest.raises(KeyError):
        ordering.put_back("a")  # of an earlier step


@pytest.mark.parametrize("alpha", [-1.0, float("nan"), float("inf")])
def test_alpha_is_checked(alpha: float) -> None:
    with pytest.raises(ValueError, match="alpha"):
        LARRY(alpha)


def test_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="LARRY, LARRYPlus, FCFS"):
        make_ordering("larry")


def test_larry_plus_serves_the_short_lane_first_by_size() -> None:
    ordering = LARRYPlus()
    fill(ordering, ("middle", 0.0, 100), ("long", 0.0, 1_000), ("short", 0.1, 50))
    ordering.start_step(0.2)
    assert drain(ordering) == ["short", "middle", "long"]


@pytest.mark.parametrize(("at", "first"), [(0.24, "new"), (0.3, "old")])
def test_larry_plus_lets_nobody_wait_longer_than_fcfs_would(at: float, first: str) -> None:
    ordering = LARRYPlus()
    fill(ordering, ("s", 0.0, 10), ("old", 0.0, 1_000))
    ordering.start_step(0.0)
    assert ordering.pop() == "s"
    fill(ordering, *((f"quick{number}", 0.1, 10) for number in range(100)))
    ordering.start_step(0.1)
    for _ in range(100):  # 1,000 tokens overtake `old`; FCFS would have spent them on it, at 0.1 s
        assert ordering.pop() != "old"
    fill(ordering, ("new", 0.2, 10))
    ordering.start_step(at)
    assert ordering.peek() == first


def test_larry_plus_forgets_delays_after_its_window() -> None:
    ordering = LARRYPlus()
    fill(ordering, ("a", 0.0, 10))
    ordering.start_step(100.0)
    ordering.pop()
    ordering.start_step(100.0)
    assert ordering._bound == 100.0
    ordering.start_step(1_900.0)
    assert ordering._bound == 100.0
    ordering.start_step(1_900.1)
    assert ordering._bound == 0.25


def test_larry_plus_does_not_wait_for_the_aborted() -> None:
    ordering = LARRYPlus()
    fill(ordering, ("s", 0.0, 10), ("old", 0.0, 1_000))
    ordering.start_step(0.0)
    ordering.pop()
    fill(ordering, *((f"quick{number}", 0.0, 10) for number in range(100)))
    ordering.start_step(0.0)
    for _ in range(100):
        ordering.pop()
    ordering.start_step(0.0)
    ordering.remove("old")  # served with the others' tokens in the virtual queue, where they still stand
    ordering.start_step(50.0)
    assert ordering._bound == 0.25


def test_the_median_is_of_the_last_arrivals() -> None:
    rolling = _RunningMedian(5)
    values = [number * 37 % 23 for number in range(60)]
    for index, value in enumerate(values):
        rolling.add(value)
        assert rolling.value == statistics.median_low(values[max(0, index - 4) : index + 1])


@pytest.mark.parametrize("policy", ["FCFS", "LARRYPlus"])
def test_putting_back_for_ever_costs_no_memory(policy: str) -> None:
    ordering = make_ordering(policy)
    fill(ordering, ("skipped", 0.0, 10), ("other", 0.1, 10))
    for step in range(1_000):
        ordering.start_step(float(step))
        assert ordering.pop() == "skipped"
        ordering.put_back("skipped")
    assert all(len(heap._heap) <= 2 for heap in heaps(ordering))


def test_larry_plus_learns_its_rate_from_the_engine() -> None:
    def order(ordering: LARRYPlus) -> list[str]:
        fill(ordering, ("x", 0.0, 10), ("y", 0.0, 11), ("z", 0.0, 12), ("wide", 0.0, 2_000), ("later", 0.05, 1_900))
        ordering.start_step(0.1)
        return drain(ordering)[3:]

    assert order(LARRYPlus()) == ["later", "wide"]
    fast = LARRYPlus()
    fast.progress(computed_tokens=20_000_000, busy_seconds=9.0)
    assert order(fast) == ["later", "wide"]
    fast.progress(computed_tokens=20_000_000, busy_seconds=10.0)
    assert order(fast) == ["wide", "later"]


@pytest.mark.parametrize("policy", POLICIES)
def test_heaps_do_not_keep_the_removed(policy: str) -> None:
    ordering = make_ordering(policy)
    ordering.add("head", arrival=0.0, tokens=1)
    for number in range(5_000):
        ordering.add(str(number), arrival=1.0 + number, tokens=1_000)
        ordering.remove(str(number))
    assert all(len(heap._heap) < 100 for heap in heaps(ordering))


@pytest.mark.parametrize("policy", POLICIES)
def test_thousands_waiting_cost_little(policy: str) -> None:
    ordering = make_ordering(policy)
    for number in range(5_000):
        ordering.add(str(number), arrival=float(number), tokens=number * 7919 % 5_000 + 1)
    begun = time.process_time()
    for step in range(200):
        ordering.start_step(5_000.0 + step)
        for _ in range(3):
            ordering.pop()
    assert time.process_time() - begun < 1.0  # about 0.01 to 0.02 s; a full sort per pop would take ten times the limit


def test_of_equal_scores_the_earlier_arrival_goes_first_whatever_its_size() -> None:
    ordering = LARRY(alpha=1.0)
    ordering.start_step(10.0, queue_len=1)
    for name, arrival, units in (("oldest", 0.0, 100), ("smaller", 5.0, 3), ("earlier", 4.0, 4)):
        ordering.add(name, arrival=arrival, tokens=16 * units)
    assert [ordering.pop() for _ in range(3)] == ["earlier", "smaller", "oldest"]
