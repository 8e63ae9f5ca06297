"""Any interleaving of picks, polls, ends and membership, against a model that is too simple to be wrong."""

import random
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.pool import Outcome, Pick, Policy, Pool, PoolConfig, Source
from tests.extproc.core.builders import address, make_report, make_sample

NUMBERS = st.integers(0, 3)


@dataclass(eq=False)
class Owed:
    """One pick as the model sees it."""

    pick: Pick
    at: float
    tokens: float
    stay: int
    open: bool = True
    charged: bool = True


class PoolMachine(RuleBasedStateMachine):
    source = Source.REPORT

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.health: dict[str, Health] = {}
        self.stay: dict[str, int] = {}
        self.stays = 0
        self.owed: list[Owed] = []
        self.sent: dict[int, float] = {}
        self.failures: dict[str, int] = {}
        self.boots = dict.fromkeys(range(4), 0)
        self.steps = dict.fromkeys(range(4), 0)

    @initialize(policy=st.sampled_from(list(Policy)), seed=st.integers(0, 9))
    def start(self, policy: Policy, seed: int) -> None:
        self.pool = Pool(PoolConfig(policy=policy, source=self.source), rng=random.Random(seed))

    def at(self, number: int) -> int | None:
        return self.stay.get(address(number))

    @rule(members=st.dictionaries(NUMBERS, st.sampled_from([Health.HEALTHY, Health.HEALTHY, *Health])))
    def discover(self, members: dict[int, Health]) -> None:
        self.health = {address(number): health for number, health in members.items()}
        self.pool.update_endpoints([Endpoint(a, health=h) for a, h in self.health.items()], now=self.now)
        for gone in set(self.stay) - set(self.health):
            del self.stay[gone]
            self.failures.pop(gone, None)
        for came in set(self.health) - set(self.stay):
            self.stays += 1
            self.stay[came] = self.stays
            self.sent.pop(self.stays, None)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.04, 0.1, 0.5, 1.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(policy=st.sampled_from(list(Policy)))
    def swap(self, policy: Policy) -> None:
        self.pool.config = PoolConfig(policy=policy, source=self.source)

    @rule(
        body=st.none() | st.integers(0, 10**7),
        subset=st.none() | st.sets(NUMBERS),
        burst=st.integers(1, 4),
    )
    def pick(self, body: int | None, subset: set[int] | None, burst: int) -> None:
        named = None if subset is None else [address(number) for number in subset]
        healthy = {a for a, health in self.health.items() if health is Health.HEALTHY}
        eligible = healthy if named is None else healthy & set(named)
        for _ in range(burst):
            pick = self.pool.pick(body_bytes=body, now=self.now, subset=named)
            if not eligible:
                assert pick is None
                return
            assert pick is not None
            assert set(pick.addresses) <= eligible
            assert len(pick.addresses) == len(set(pick.addresses)) == min(2, len(eligible))
            assert pick.tokens >= 1.0
            assert pick.tokens == int(pick.tokens)
            self.owed.append(Owed(pick, self.now, pick.tokens, self.stay[pick.addresses[0]]))
            working = {a for a in eligible if self.failures.get(a, 0) < 5}
            if len(working) >= 2:
                assert pick.addresses[1] in working

    @rule(data=st.data(), size=st.none() | st.integers(0, 10**7))
    def end(self, data: st.DataObject, size: int | None) -> None:
        if self.owed:
            owed = data.draw(st.sampled_from(self.owed))
            self.pool.close(owed.pick, now=self.now, body_bytes=size)
            owed.open = owed.charged = False

    @rule(number=NUMBERS, lag=st.sampled_from([0.0, 0.002, 0.3]), age=st.sampled_from([0.0, 0.02, 0.4, 30.0]))
    def answer(self, number: int, lag: float, age: float) -> None:
        sent, stay = self.now - lag, self.at(number)
        self.steps[number] += 2
        if self.source is Source.METRICS:
            before = sent
            sample = make_sample(
                running=float(self.steps[number] % 5), waiting=1.0, generation_tokens=self.steps[number]
            )
            self.pool.sample(address(number), sample, sent=sent, now=self.now)
        else:
            # Every step takes .0625 s, a fraction that floats hold exactly: so is the mean.
            report = make_report(
                boot_id=f"boot-{self.boots[number]}",
                age=age,
                steps=self.steps[number],
                busy_seconds=self.steps[number] * 0.0625,
                running=1,
                requests=self.steps[number],
                prompt_tokens=900 * self.steps[number],
            )
            before = sent - age - 2 * 0.0625
            self.pool.report(address(number), report, sent=sent, now=self.now)
        if stay is None or sent < self.sent.get(stay, 0.0):
            return
        self.sent[stay] = sent
        for owed in self.owed:
            if owed.stay == stay and owed.at < before:
                owed.charged = False

    @rule(number=NUMBERS, told=st.booleans())
    def restart(self, number: int, told: bool) -> None:
        self.boots[number] += told
        self.steps[number] = 0

    @rule(number=NUMBERS)
    def silence(self, number: int) -> None:
        self.pool.silent(address(number), "timed out", now=self.now)

    @rule(number=NUMBERS, times=st.integers(1, 6))
    def fail(self, number: int, times: int) -> None:
        for _ in range(times):
            outcome = Outcome(picked=None, served=None, failed=(address(number),), succeeded=None)
            self.pool.outcome(outcome, now=self.now)
        if address(number) in self.stay:
            self.failures[address(number)] = self.failures.get(address(number), 0) + times

    @rule(number=NUMBERS)
    def succeed(self, number: int) -> None:
        served = address(number)
        self.pool.outcome(Outcome(picked=served, served=served, failed=(), succeeded=served), now=self.now)
        self.failures.pop(served, None)

    @invariant()
    def accounts_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        status = self.pool.status(now=self.now)
        assert {each.address for each in status.endpoints} == set(self.health)
        for each in status.endpoints:
            mine = [owed for owed in self.owed if owed.stay == self.stay[each.address]]
            assert each.open_picks == sum(owed.open for owed in mine)
            assert each.charged_requests == sum(owed.charged for owed in mine)
            assert each.charged_tokens == sum(owed.tokens for owed in mine if owed.charged)
            assert each.queued >= 0.0
            assert each.kv >= 0.0
            assert each.requests >= 0.0
            assert each.speed >= 1.0
        assert status.mean_prompt_tokens > 0.0
        assert status.bytes_per_token > 0.0

    def teardown(self) -> None:
        """All streams end: nothing is left, exactly."""
        if not hasattr(self, "pool"):
            return
        for owed in self.owed:
            self.pool.close(owed.pick, now=self.now)
        for each in self.pool.status(now=self.now).endpoints:
            assert (each.open_picks, each.charged_requests, each.charged_tokens) == (0.0, 0.0, 0.0)


class StockPoolMachine(PoolMachine):
    source = Source.METRICS


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestStockPool = StockPoolMachine.TestCase
TestStockPool.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
