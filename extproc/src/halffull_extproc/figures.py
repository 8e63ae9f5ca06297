"""The members of the pool and their figures: one row of columns each, kept up to date event by event."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress
from statistics import median

from halffull_extproc import views
from halffull_extproc.columns import Columns
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.learning import Learning
from halffull_extproc.members import Member, State
from halffull_extproc.policies import Policy, sal_line, sal_plus_line
from halffull_extproc.pool_config import PoolConfig

PRIOR_TOTAL = 150_000.0
"""KV cache of an engine when nothing is known of any, tokens."""
_NORMAL = frozenset({State.OK, State.NEW, State.STALE})
_LAST = frozenset({State.NOT_PROGRESSING, State.FAILING})


@dataclass(frozen=True, slots=True)
class _Medians:
    """A typical endpoint of the pool: what a new one counts as."""

    at: float
    view: views.View
    total: float
    budget: float
    speed: float


class Figures:
    """Who is in the pool, and what the policies see of each."""

    __slots__ = (
        "_config",
        "_fresh_open",
        "_fresh_queued",
        "_learning",
        "_medians",
        "all_normal",
        "columns",
        "least_capacity",
        "members",
        "rows",
    )

    def __init__(self, config: PoolConfig, learning: Learning) -> None:
        self._config = config
        self._learning = learning
        self._medians: _Medians | None = None
        # ΣQ and Σ#open of the healthy, kept up: the sums of 1,000 endpoints would take too long for each refresh.
        self._fresh_queued = 0.0
        self._fresh_open = 0.0
        self.members: dict[str, Member] = {}
        """By address."""
        self.rows: list[Member] = []
        """By row."""
        self.columns = Columns()
        self.all_normal = True
        """Everyone may be picked, and nobody ranks last."""
        self.least_capacity = math.inf
        """A prompt of so many tokens fits everywhere."""

    def configure(self, config: PoolConfig) -> None:
        """Another configuration holds from now on."""
        self._config = config
        self._medians = None
        self.speeds_changed()

    def update(self, endpoints: Iterable[Endpoint], *, now: float) -> list[Member]:
        """Take in discovery's list; who left, with nothing charged to it any more, is returned."""
        wanted = {endpoint.address: endpoint for endpoint in endpoints}
        kept: list[Member] = []
        left: list[Member] = []
        for member in self.rows:
            endpoint = wanted.get(member.endpoint.address)
            if endpoint is None or not member.is_same(endpoint):
                member.ledger.abandon()
                left.append(member)
                del self.members[member.endpoint.address]
            else:
                member.endpoint = endpoint
                kept.append(member)
        arrived = [Member(endpoint, now=now) for address, endpoint in wanted.items() if address not in self.members]
        self.columns.keep([member.row for member in kept], added=len(arrived))
        self.rows = kept + arrived
        self.members = {member.endpoint.address: member for member in self.rows}
        self._medians = None
        for row, member in enumerate(self.rows):
            member.row = row
        for member in arrived:
            self._write_limits(member)
            self._write_state(member)
        self._states_changed()
        for member in self.rows:
            self.refresh(member, now)
        self._limits_changed()
        return left

    def refresh(self, member: Member, now: float) -> None:
        """Bring an endpoint's row up to date. What depends on time is as old as the last event of that endpoint."""
        config, columns, row, ledger = self._config, self.columns, member.row, member.ledger
        silent = member.is_silent(now=now, stale_after=config.stale_after)
        state = member.judge(now=now, silent=silent)
        if state is not member.state:
            member.state = state
            member.since = now
            self._write_state(member)
            self._states_changed()
        if silent:
            total = self._total(member, now)
            view = views.stale(ledger, now=now, total=total, typical=self._typical())
            columns.total[row] = total
        elif member.report is not None:
            view = views.reported(member.report, ledger)
        elif member.sample is not None:
            total = self._total(member, now)
            view = views.sampled(
                member.sample,
                ledger,
                now=now,
                total=total,
                pickers=config.pickers,
                rate=member.prefill_rate.value,
                step=member.mean_step,
                typical=self._typical(),
            )
            columns.total[row] = total
        else:
            view = self._as_the_median(member, now)
        if columns.fresh[row]:
            self._fresh_queued += view.queued - columns.queued[row]
            self._fresh_open += ledger.open_count - columns.open[row]
        columns.queued[row], columns.free[row], columns.kv[row], columns.requests[row] = view
        columns.open[row] = ledger.open_count
        self._write_line(row)

    def answered(
        self,
        member: Member,
        *,
        total: float | None,
        max_model_len: float | None,
        max_tokens_per_batch: float,
        now: float,
    ) -> None:
        """A poll was answered with these limits; None: unknown."""
        limits = (
            member.total if total is None else total,
            member.max_model_len if max_model_len is None else max_model_len,
            max_tokens_per_batch,
        )
        if limits != (member.total, member.max_model_len, member.max_tokens_per_batch):
            member.total, member.max_model_len, member.max_tokens_per_batch = limits
            self._medians = None
            self._write_limits(member)
            self._limits_changed()
        self.refresh(member, now)

    def speeds_changed(self) -> None:
        """κ of the endpoints, or whether it counts, is another."""
        for member in self.rows:
            self._write_speed(member)
            self._write_line(member.row)

    def _as_the_median(self, member: Member, now: float) -> views.View:
        medians = self._median(now)
        columns, row, ledger = self.columns, member.row, member.ledger
        columns.total[row], columns.budget[row], columns.speed[row] = medians.total, medians.budget, medians.speed
        charges, view = ledger.charged_tokens, medians.view
        return views.View(
            view.queued + charges,
            view.free - charges,
            view.kv + charges,
            view.requests + ledger.charged_count,
        )

    def _write_state(self, member: Member) -> None:
        columns, row, state = self.columns, member.row, member.state
        columns.fresh[row] = state is State.OK
        columns.normal[row] = state in _NORMAL
        columns.last[row] = state in _LAST
        self._write_speed(member)

    def _states_changed(self) -> None:
        columns = self.columns
        self.all_normal = all(columns.normal)
        self._fresh_queued = sum(compress(columns.queued, columns.fresh))
        self._fresh_open = sum(compress(columns.open, columns.fresh))

    def _write_limits(self, member: Member) -> None:
        columns, row = self.columns, member.row
        columns.total[row] = max(1.0, PRIOR_TOTAL if member.total is None else member.total)
        columns.budget[row] = member.max_tokens_per_batch or self._config.max_tokens_per_batch
        columns.capacity[row] = member.capacity

    def _limits_changed(self) -> None:
        self.least_capacity = min(self.columns.capacity, default=math.inf)
        lengths = [member.max_model_len for member in self.rows if member.max_model_len is not None]
        totals = [member.capacity for member in self.rows if member.total is not None]
        self._learning.sizes.longest = max(lengths, default=max(totals, default=PRIOR_TOTAL))

    def _write_speed(self, member: Member) -> None:
        self.columns.speed[member.row] = member.pace.kappa if self._config.learn_speed else 1.0

    def _write_line(self, row: int) -> None:
        """What the policy in force reads at every pick, made of what changes between them."""
        columns, config = self.columns, self._config
        queued, free, budget = columns.queued[row], columns.free[row], columns.budget[row]
        if config.policy is Policy.SALPlus:
            line = sal_plus_line(
                queued=queued,
                free=free,
                total=columns.total[row],
                kv=columns.kv[row],
                speed=columns.speed[row],
                max_tokens_per_batch=budget,
                kv_weight=config.kv_weight,
            )
        else:
            line = sal_line(queued=queued, free=free, max_tokens_per_batch=budget)
        columns.work[row], columns.pace[row], columns.limit[row] = line

    def _total(self, member: Member, now: float) -> float:
        return max(1.0, self._median(now).total if member.total is None else member.total)

    def _median(self, now: float) -> _Medians:
        """A typical endpoint with fresh figures, at most one poll old."""
        medians = self._medians
        if medians is not None and 0.0 <= now - medians.at < self._config.poll_interval:
            return medians
        columns = self.columns
        totals = [member.total for member in self.rows if member.total is not None]
        total = max(1.0, median(totals) if totals else PRIOR_TOTAL)
        if any(columns.fresh):
            names = (columns.queued, columns.free, columns.kv, columns.requests, columns.budget, columns.speed)
            queued, free, kv, requests, budget, speed = (median(compress(column, columns.fresh)) for column in names)
            medians = _Medians(now, views.View(queued, free, kv, requests), total, budget, speed)
        else:
            budget = float(self._config.max_tokens_per_batch)
            medians = _Medians(now, views.View(0.0, total, 0.0, 0.0), total, budget, 1.0)
        self._medians = medians
        return medians

    def _typical(self) -> views.Typical:
        lengths = self._learning.lengths
        queued = self._fresh_queued / self._fresh_open if self._fresh_open else 0.0
        return views.Typical(lengths.ttft.value, lengths.kv_per_request, lengths.prompt.value, queued)
