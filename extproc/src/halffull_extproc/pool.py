"""The pool: endpoints, what they report, what is charged to them, and the pick.

Pure: time comes in as `now` (seconds of a monotonic clock), randomness as a generator, and nothing is read or written.
"""

import math
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from halffull_extproc import policies
from halffull_extproc.charges import Pick
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.figures import Figures
from halffull_extproc.learning import Learning
from halffull_extproc.load_report import LoadReport
from halffull_extproc.members import FAILURES, PROBE_INTERVAL, Member, State
from halffull_extproc.policies import Mask, Policy
from halffull_extproc.pool_config import PoolConfig, Source
from halffull_extproc.pool_status import PoolStatus, pool_status
from halffull_extproc.stock_metrics import StockSample

__all__ = ["Outcome", "Pick", "Policy", "Pool", "PoolConfig", "Source"]

SOLVE_INTERVAL = 1.0
"""Seconds between two solutions of the step fit."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished request as Envoy saw it."""

    picked: str | None
    served: str | None
    failed: tuple[str, ...]
    """Endpoints that failed it (5xx, reset, refused); never client errors or disconnects."""
    succeeded: str | None
    """The endpoint that answered it below 500."""


class Pool:
    """Picks endpoints for requests and keeps account of them."""

    def __init__(self, config: PoolConfig, *, rng: random.Random) -> None:
        """An empty pool; `rng` breaks ties."""
        self._config = config
        self._rng = rng
        self._learning = Learning()
        self._figures = Figures(config, self._learning)
        self._failing: dict[Member, None] = {}
        self._solved_at = -math.inf
        self._turn = -1
        self._picks = 0
        self._unpicked = 0
        self._probes = 0

    @property
    def config(self) -> PoolConfig:
        """The configuration; assign another to change policy and figures live.

        Raises:
            ValueError: on assigning another source, which is read at start.
        """
        return self._config

    @config.setter
    def config(self, config: PoolConfig) -> None:
        if config.source is not self._config.source:
            raise ValueError("the source of load is read at start and can not change while running")
        self._config = config
        self._figures.configure(config)

    def update_endpoints(self, endpoints: Iterable[Endpoint], *, now: float) -> None:
        """Discovery's list. Who is not on it leaves, and what was charged to it is forgotten.

        The same address under another pod name is another engine: the old one left and the new one came.
        """
        had_their_turn = self._figures.rows[: self._turn + 1]
        left = self._figures.update(endpoints, now=now)
        for member in left:
            self._failing.pop(member, None)
        # Rows move up: who is next in turn stays next.
        self._turn = len(had_their_turn) - sum(member in left for member in had_their_turn) - 1

    # Requests

    def pick(self, *, body_bytes: int | None, now: float, subset: Collection[str] | None = None) -> Pick | None:
        """Choose endpoints for a request and charge it to the first, in the same step.

        Args:
            body_bytes: Content-Length; None for a chunked request.
            now: seconds.
            subset: addresses to which the choice is limited; None: no limit.

        Returns:
            The pick, to be closed when the request's stream ends; None when no endpoint is eligible.
        """
        learning, members = self._learning, self._figures.rows
        tokens = learning.sizes.estimate(body_bytes, mean=learning.lengths.prompt.value)
        rows = self._choose(tokens, subset)
        if not rows:
            self._unpicked += 1
            return None
        if self._failing:
            rows = self._probe(rows, tokens, now, subset)
        first = members[rows[0]]
        if len(rows) > 1:
            addresses: tuple[str, ...] = (first.endpoint.address, members[rows[1]].endpoint.address)
        else:
            addresses = (first.endpoint.address,)
        pick = Pick(addresses, tokens, now, body_bytes, first.ledger)
        first.ledger.add(pick)
        first.picks += 1
        self._picks += 1
        self._figures.refresh(first, now)
        return pick

    def close(self, pick: Pick, *, now: float, body_bytes: int | None = None) -> None:
        """The request's stream ended, however. A second call, or one after the endpoint left, does nothing.

        Args:
            pick: what `pick` returned.
            now: seconds.
            body_bytes: the body's size where it was counted, as for a chunked request.
        """
        if not pick.ledger.close(pick):
            return
        member = self._figures.members[pick.addresses[0]]
        size = pick.body_bytes if body_bytes is None else body_bytes
        if size:
            self._learning.sizes.ended(member.sizes, body_bytes=size, estimate=pick.tokens)
        self._figures.refresh(member, now)

    def outcome(self, outcome: Outcome, *, now: float) -> None:
        """How a request ended: 5 failures in a row make an endpoint failing, any success heals it."""
        members = self._figures.members
        for address in dict.fromkeys(outcome.failed):
            member = members.get(address)
            if member is None:
                continue
            member.failures += 1
            if member.failures == FAILURES:
                member.next_probe = now + PROBE_INTERVAL
                self._failing[member] = None
                self._figures.refresh(member, now)
        if outcome.succeeded is not None:
            member = members.get(outcome.succeeded)
            if member is not None and member.failures:
                member.failures = 0
                self._failing.pop(member, None)
                self._figures.refresh(member, now)

    # Polls

    def report(self, address: str, report: LoadReport, *, sent: float, now: float) -> None:
        """A load report arrived; `sent` is when the poll left. Unknown endpoints and overtaken answers are ignored."""
        member = self._figures.members.get(address)
        if member is None or sent < member.sent:
            return
        self._learning.report(member, report)
        member.report = report
        member.ledger.contain(before=sent - report.age - 2.0 * member.mean_step)
        member.sent = sent
        member.answered_at = now
        member.last_error = ""
        self._figures.answered(
            member,
            total=report.total_tokens,
            max_model_len=report.max_model_len,
            max_tokens_per_batch=report.max_tokens_per_batch,
            now=now,
        )
        self._solve(now)

    def sample(self, address: str, sample: StockSample, *, sent: float, now: float) -> None:
        """Stock metrics arrived; as `report`."""
        member = self._figures.members.get(address)
        if member is None or sent < member.sent:
            return
        member.max_tokens_per_batch = self._config.max_tokens_per_batch
        self._learning.sample(member, sample, sent=sent, now=now)
        member.sample = sample
        # It shows the engine at some time after the poll left; which older picks it lacks is a matter of counting.
        member.ledger.contain(before=sent)
        member.sent = sent
        member.answered_at = now
        member.last_error = ""
        self._figures.answered(
            member,
            total=sample.total_tokens,
            max_model_len=sample.max_model_len,
            max_tokens_per_batch=self._config.max_tokens_per_batch,
            now=now,
        )
        self._solve(now)

    def silent(self, address: str, reason: str, *, now: float) -> None:
        """A poll failed or timed out; `reason` is one line for people."""
        member = self._figures.members.get(address)
        if member is not None:
            member.last_error = reason
            self._figures.refresh(member, now)

    def _solve(self, now: float) -> None:
        if 0.0 <= now - self._solved_at < SOLVE_INTERVAL:
            return
        self._solved_at = now
        self._learning.fit.solve([member.pace for member in self._figures.rows])
        self._figures.speeds_changed()

    # The choice

    def _choose(self, tokens: float, subset: Collection[str] | None) -> list[int]:
        """Rows in order of preference, two at most."""
        scores = self._scores(tokens)
        rows: list[int] = []
        for mask in self._tiers(tokens, subset):
            rows += self._rank(scores, mask, 2 - len(rows))
            if len(rows) >= 2:
                break
        return rows

    def _scores(self, tokens: float) -> list[float] | None:
        """By row, lower is better; None for policies that need none."""
        config, columns = self._config, self._figures.columns
        if config.policy is Policy.SAL:
            beta = self._learning.lengths.beta if config.beta is None else config.beta

            def exact(row: int) -> float:
                return policies.sal(
                    tokens,
                    queued=columns.queued[row],
                    free=columns.free[row],
                    max_tokens_per_batch=columns.budget[row],
                    beta=beta,
                )
        elif config.policy is Policy.SALPlus:

            def exact(row: int) -> float:
                return policies.sal_plus(
                    tokens,
                    queued=columns.queued[row],
                    free=columns.free[row],
                    total=columns.total[row],
                    kv=columns.kv[row],
                    speed=columns.speed[row],
                    max_tokens_per_batch=columns.budget[row],
                    kv_weight=config.kv_weight,
                    knee=config.knee,
                )
        else:
            return None
        return policies.scores(tokens, work=columns.work, pace=columns.pace, limit=columns.limit, exact=exact)

    def _tiers(self, tokens: float, subset: Collection[str] | None) -> Iterator[Mask | None]:
        """Masks of who may be picked, the better ones first; None: everyone."""
        figures = self._figures
        columns, members = figures.columns, figures.members
        normal, last = columns.normal, columns.last
        if subset is not None:
            rows = {members[address].row for address in subset if address in members}
            normal, last = ([may and row in rows for row, may in enumerate(mask)] for mask in (normal, last))
        elif figures.all_normal and tokens <= figures.least_capacity:
            yield None
            return
        if tokens <= figures.least_capacity:
            yield normal
            yield last
            return
        fits = [capacity >= tokens for capacity in columns.capacity]
        for fitting in (True, False):
            for mask in (normal, last):
                yield [may and fit is fitting for may, fit in zip(mask, fits, strict=True)]

    def _rank(self, scores: list[float] | None, mask: Mask | None, count: int) -> list[int]:
        columns, rng = self._figures.columns, self._rng
        if scores is not None:
            return policies.lowest(scores, requests=columns.requests, rng=rng, mask=mask, count=count)
        match self._config.policy:
            case Policy.LeastRequest:
                return policies.least_request(in_flight=columns.open, rng=rng, mask=mask, count=count)
            case Policy.RoundRobin:
                rows = policies.round_robin(after=self._turn, length=len(columns), mask=mask, count=count)
                if rows and count == 2:
                    self._turn = rows[0]
                return rows
            case _:
                return policies.uniform(length=len(columns), rng=rng, mask=mask, count=count)

    def _probe(self, rows: list[int], tokens: float, now: float, subset: Collection[str] | None) -> list[int]:
        """A failing endpoint whose turn it is goes first, the best one second."""
        due = [
            member
            for member in self._failing
            if member.next_probe <= now
            and member.state is State.FAILING
            and not member.is_stuck(now=now)
            and (tokens <= member.capacity or tokens > self._figures.columns.capacity[rows[0]])
            and (subset is None or member.endpoint.address in subset)
        ]
        if not due:
            return rows
        probed = min(due, key=lambda member: member.next_probe)
        probed.next_probe = now + PROBE_INTERVAL
        self._probes += 1
        return [probed.row, *[row for row in rows if row != probed.row][:1]]

    # Figures for people

    def status(self, *, now: float) -> PoolStatus:
        """Everything that a person may want to know, of the pool and of every endpoint."""
        for member in self._figures.rows:
            self._figures.refresh(member, now)
        return pool_status(
            self._config,
            self._figures,
            self._learning,
            now=now,
            picks=self._picks,
            unpicked=self._unpicked,
            probes=self._probes,
        )
