"""Each balancer against its definition, computed anew from everything that is under way."""

import math
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.load_report import LoadReport
from halffull_extproc.policies import Policy
from halffull_extproc.pool import PoolConfig, Source
from halffull_lab.simulation.balancers import BALANCERS, LAB_ONLY, Balancer, NoEndpointError, Ticket, make_balancer
from tests.extproc.core.builders import make_report

BETA = 2.0
CONFIG = PoolConfig(policy=Policy.Random, source=Source.REPORT, beta=BETA)

Loads = Callable[[int], float]

SCRIPT = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.just(0), st.just(0)),
        st.tuples(st.just("pick"), st.integers(1, 40_000), st.just(0)),
        st.tuples(st.just("pick"), st.sampled_from([4_000, 8_000]), st.just(0)),
        st.tuples(st.just("first"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("close"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("poll"), st.integers(0, 99), st.integers(0, 6)),
    ),
    max_size=80,
)


class Model:
    """What is under way, and from it each rule's load of a row: the lowest is to be picked."""

    def __init__(self) -> None:
        self.rows = 0
        self.under_way: list[Ticket] = []
        self.prefilling: list[Ticket] = []
        self.reports: dict[int, tuple[LoadReport, float]] = {}
        """Report, and the time that it shows at the latest."""

    def LeastOutstanding(self, row: int) -> float:  # noqa: N802 (as the rule is called)
        return sum(ticket.row == row for ticket in self.under_way)

    def LeastTokens(self, row: int) -> float:  # noqa: N802
        return sum(ticket.tokens for ticket in self.prefilling if ticket.row == row)

    def Llumnix(self, row: int) -> float:  # noqa: N802
        report, shown = self.reports.get(row, (make_report(free_tokens=0), -math.inf))
        since = [ticket for ticket in self.under_way if ticket.row == row and ticket.sent >= shown]
        requests = report.running + report.waiting + len(since)
        left = report.free_tokens - report.queued_tokens - sum(ticket.tokens for ticket in since)
        return -left / requests if requests else -math.inf


def poll(balancer: Balancer, row: int, *, sent: float = 0.0, now: float = 0.002, **figures: Any) -> LoadReport:
    report = make_report(boot_id=f"engine-{row}", **figures)
    balancer.polled(row, msgspec.json.encode(report), sent=sent, now=now, max_model_len=report.max_model_len)
    return report


@pytest.mark.parametrize("name", LAB_ONLY)
@given(script=SCRIPT, seed=st.integers(0, 3))
def test_a_rule_picks_a_row_with_the_lowest_load(  # noqa: C901 (a branch per action)
    name: str, script: list[tuple[str, int, int]], seed: int
) -> None:
    balancer, model = make_balancer(name, CONFIG, rng=random.Random(seed)), Model()
    load: Loads = getattr(model, name)
    now = 0.0
    for action, first, second in script:
        now += 0.01
        if action == "join":
            balancer.join(model.rows, now=now)
            model.rows += 1
        elif action == "pick" and not model.rows:
            with pytest.raises(NoEndpointError):
                balancer.pick(first, now=now)
        elif action == "pick":
            least = min(load(row) for row in range(model.rows))
            lowest = [row for row in range(model.rows) if load(row) == least]
            ticket = balancer.pick(first, now=now)
            assert ticket.row in lowest
            assert (ticket.tokens, ticket.sent) == (round(first / 4), now)
            model.under_way.append(ticket)
            model.prefilling.append(ticket)
        elif action == "first" and model.prefilling:
            balancer.first_token(model.prefilling.pop(first % len(model.prefilling)))
        elif action == "close" and model.under_way:
            ticket = model.under_way.pop(first % len(model.under_way))
            balancer.close(ticket, now=now)
            if ticket in model.prefilling:  # refused, or its only token was its last
                model.prefilling.remove(ticket)
        elif action == "poll" and model.rows:
            row = first % model.rows
            _, before = model.reports.get(row, (None, -math.inf))
            age = min(0.01 * second, now - before)  # an engine's snapshots do not go back
            figures = {"running": second, "waiting": first % 3, "queued_tokens": 500 * second, "age": age}
            model.reports[row] = poll(balancer, row, sent=now, now=now, **figures), max(before, now - age)
        assert balancer._loads == [load(row) for row in range(model.rows)]
    for ticket in model.under_way:
        balancer.close(ticket, now=now)
    if name != "Llumnix":
        assert balancer._loads == [0.0] * model.rows


def test_prompt_tokens_are_taken_off_once_at_the_first_token_or_at_the_end() -> None:
    balancer = make_balancer("LeastTokens", CONFIG, rng=random.Random(0))
    balancer.join(0, now=0.0)
    answered, refused = balancer.pick(4_000, now=0.0), balancer.pick(8_000, now=0.0)
    loads = [balancer._loads[0]]  # type: ignore[attr-defined]
    for call in (balancer.first_token, balancer.first_token):
        call(answered)
        loads.append(balancer._loads[0])  # type: ignore[attr-defined]
    for ticket in (answered, refused):
        balancer.close(ticket, now=1.0)
        loads.append(balancer._loads[0])  # type: ignore[attr-defined]
    assert loads == [3_000, 2_000, 2_000, 2_000, 0]


def ties(name: str, rows: int, seed: int) -> int:
    """Which of equal rows is picked."""
    balancer = make_balancer(name, CONFIG, rng=random.Random(seed))
    for row in range(rows):
        balancer.join(row, now=0.0)
        if balancer.source is not None:
            poll(balancer, row)
    return balancer.pick(4_000, now=0.01).row


@pytest.mark.parametrize("name", [name for name in BALANCERS if name != "RoundRobin"])
def test_ties_are_broken_at_random_not_by_position(name: str) -> None:
    seen = Counter(ties(name, 4, seed) for seed in range(200))
    assert set(seen) == {0, 1, 2, 3}
    assert min(seen.values()) > 20  # 50 each


@pytest.mark.parametrize("name", BALANCERS)
def test_equal_generators_give_equal_picks(name: str) -> None:
    def picks(seed: int) -> list[int]:
        balancer = make_balancer(name, CONFIG, rng=random.Random(seed))
        for row in range(5):
            balancer.join(row, now=0.0)
        tickets = []
        for turn in range(40):
            tickets.append(balancer.pick(1 + 997 * turn % 5_000, now=0.1 * turn))
            if turn % 3 == 0:
                balancer.close(tickets[turn // 3], now=0.1 * turn)
        return [ticket.row for ticket in tickets]

    assert picks(1) == picks(1)
    if name != "RoundRobin":
        assert picks(1) != picks(2)


def test_round_robin_takes_turns() -> None:
    balancer = make_balancer("RoundRobin", CONFIG, rng=random.Random(0))
    for row in range(3):
        balancer.join(row, now=0.0)
    assert [balancer.pick(100, now=0.0).row for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_least_request_is_two_choices_not_the_fewest_of_all() -> None:
    balancer = make_balancer("LeastRequest", CONFIG, rng=random.Random(0))
    for row in range(20):
        balancer.join(row, now=0.0)
    tickets = [balancer.pick(100, now=0.0) for _ in range(20)]
    assert 1 < max(Counter(ticket.row for ticket in tickets).values()) < 6
    for ticket in tickets:
        balancer.close(ticket, now=1.0)
    fewest = make_balancer("LeastOutstanding", CONFIG, rng=random.Random(0))
    for row in range(20):
        fewest.join(row, now=0.0)
    assert len({fewest.pick(100, now=0.0).row for _ in range(20)}) == 20


def sal(*engines: dict[str, int]) -> Balancer:
    balancer = make_balancer("SAL", CONFIG, rng=random.Random(0))
    for row, figures in enumerate(engines):
        balancer.join(row, now=0.0)
        poll(balancer, row, **figures)
    return balancer


def test_sal_picks_the_shortest_queue_of_tokens_and_charges_it() -> None:
    # A step takes 1,000 tokens, the request has 1,000: (5+1, 2+1, 3+1) steps.
    balancer = sal({"queued_tokens": 5_000}, {"queued_tokens": 2_000, "waiting": 9}, {"queued_tokens": 3_000})
    first = balancer.pick(4_000, now=0.01)
    assert (first.row, first.tokens) == (1, 1_000)
    # Now (6, 4, 4); of the two equal ones that with fewer requests.
    assert balancer.pick(4_000, now=0.01).row == 2
    balancer.close(first, now=0.02)  # (6, 3, 5) again
    assert balancer.pick(4_000, now=0.03).row == 1


def test_sal_rather_queues_than_lacks_memory() -> None:
    # Row 1 lacks 500 tokens: β · 500 = 1,000; row 0 has 91 steps to do, row 2 has 101.
    full = {"free_tokens": 500, "running": 3}
    assert sal({"queued_tokens": 90_000}, full, {"queued_tokens": 100_000}).pick(4_000, now=0.01).row == 0
    # 40 tokens are 80 steps.
    short = {"free_tokens": 960, "running": 3}
    assert sal({"queued_tokens": 90_000}, short, {"queued_tokens": 100_000}).pick(4_000, now=0.01).row == 1


ENGINES = st.lists(
    st.fixed_dictionaries(
        {
            "queued_tokens": st.integers(0, 20_000),
            "free_tokens": st.integers(0, 12_000),
            "running": st.integers(0, 9),
            "max_tokens_per_batch": st.sampled_from([512, 1_000, 2_048]),
        }
    ),
    min_size=1,
    max_size=6,
)


@given(engines=ENGINES, tokens=st.integers(1, 9_000))
def test_sal_picks_the_lowest_score_whatever_engines_say(engines: list[dict[str, int]], tokens: int) -> None:
    def score(engine: dict[str, int]) -> float:
        steps = (engine["queued_tokens"] + tokens) / engine["max_tokens_per_batch"]
        return max(BETA * (tokens - engine["free_tokens"]), steps)

    picked = engines[sal(*engines).pick(4 * tokens, now=0.01).row]
    assert (score(picked), picked["running"]) == min((score(engine), engine["running"]) for engine in engines)


def test_who_waits_is_charged_until_a_report_can_show_it() -> None:
    for name in ("SAL", "Llumnix"):
        balancer = make_balancer(name, CONFIG, rng=random.Random(0))
        for row in range(2):
            balancer.join(row, now=0.0)
            poll(balancer, row, sent=0.0)
        first = balancer.pick(40_000, now=0.5).row
        poll(balancer, first, sent=0.49, now=0.51)  # it left before the pick
        assert balancer.pick(400, now=0.52).row != first
        poll(balancer, 1 - first, sent=0.9, now=0.9, running=1, queued_tokens=10_100)
        poll(balancer, first, sent=0.9, now=0.9)  # the engine has done all
        assert balancer.pick(400, now=0.91).row == first


def test_pickers_poll_only_what_their_policy_needs() -> None:
    polling = {name for name in BALANCERS if make_balancer(name, CONFIG, rng=random.Random(0)).source is not None}
    assert polling == {"SAL", "SALPlus", "Llumnix"}


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown balancer 'P2C'; known are .*Llumnix \(P2C is LeastRequest\)"):
        make_balancer("P2C", CONFIG, rng=random.Random(0))
