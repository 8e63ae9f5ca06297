"""Small traffic, few engines, and a balancer that writes down what it sees."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from halffull_extproc.load_report import LoadReport, decode_load_report
from halffull_extproc.policies import Policy
from halffull_extproc.pool import PoolConfig, Source
from halffull_lab.simulation.balancers import Balancer, Ticket, make_balancer
from halffull_lab.simulation.cluster import Member, Run, simulate
from halffull_lab.traces import Trace
from tests.lab.engine.virtual import make_engine

SMALLEST_STEP = make_engine().latency.step_seconds(prefill_tokens=1, decodes=0, decode_context=0)


def drawn(count: int, *, rate: float, seed: int = 0, longest: int = 3_000) -> Trace:
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, size=count)
    return Trace(
        name="drawn",
        arrival=np.cumsum(gaps) - gaps[0],
        prompt_tokens=rng.integers(1, longest, size=count),
        output_tokens=rng.integers(1, 60, size=count),
    )


def rows(*of: tuple[float, int, int]) -> Trace:
    """Arrival, prompt and output tokens of each request."""
    arrival, prompt, output = zip(*of, strict=True)
    return Trace("rows", np.array(arrival, dtype=float), np.array(prompt), np.array(output))


def members(count: int, policy: str = "FCFS", *, joins: Sequence[float] = (), **limits: int) -> list[Member]:
    late = [0.0] * (count - len(joins)) + list(joins)
    return [Member(engine=make_engine(policy, **limits), name=policy, joins=when) for when in late]


def pickers(name: str, count: int = 1, *, source: Source = Source.REPORT, seed: int = 0) -> list[Balancer]:
    config = PoolConfig(policy=Policy.SAL, source=source, pickers=count, max_tokens_per_batch=1_024)
    return [make_balancer(name, config, rng=random.Random(f"{seed}/{place}")) for place in range(count)]


def play(trace: Trace, engines: list[Member], balancers: Sequence[Balancer], *, seed: int = 0, **options: Any) -> Run:
    return simulate(trace, members=engines, balancers=balancers, seed=seed, **options)


class Witness(Balancer):
    """Takes turns, and remembers."""

    def __init__(self, *, source: Source | None = Source.REPORT) -> None:
        self.source = source
        self.joined: list[tuple[int, float]] = []
        self.picked: list[tuple[float, int, Ticket]] = []
        """When, bytes, and what was given."""
        self.first: list[Ticket] = []
        self.closed: list[tuple[float, Ticket]] = []
        self.polls: list[tuple[int, float, float, bytes]] = []
        """Row, when it left and when it was answered, and the answer."""

    def join(self, row: int, *, now: float) -> None:
        self.joined.append((row, now))

    def pick(self, body_bytes: int, *, now: float) -> Ticket:
        ticket = Ticket(len(self.picked) % len(self.joined), body_bytes / 4, now)
        self.picked.append((now, body_bytes, ticket))
        return ticket

    def first_token(self, ticket: Ticket) -> None:
        self.first.append(ticket)

    def close(self, ticket: Ticket, *, now: float) -> None:
        self.closed.append((now, ticket))

    def polled(self, row: int, body: bytes, *, sent: float, now: float, max_model_len: int) -> None:
        assert max_model_len > 0
        self.polls.append((row, sent, now, body))

    def reports(self, row: int) -> list[LoadReport]:
        return [decode_load_report(body) for polled, _, _, body in self.polls if polled == row]
