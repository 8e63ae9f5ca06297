"""A trace through engines behind pickers, under a virtual clock, with the code that ships. Pure.

The engines are vLLM's scheduler (`vllm_engine`) or its emulated equal (`engine`), the pickers the product's own pool
(`balancers`); what an engine says of its load is rendered and decoded by the product's code, and takes as long on its
way as a request does. Nothing here decides anything about scheduling or routing.
"""

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from halffull_extproc.pool import Source
from halffull_lab.engine import Engine
from halffull_lab.engine_metrics import exposition
from halffull_lab.engine_requests import Prompt, PromptRefusedError
from halffull_lab.figures import Outcomes
from halffull_lab.simulation.balancers import BYTES_PER_TOKEN, Balancer, Ticket
from halffull_lab.simulation.clock import VirtualClock
from halffull_lab.traces import Trace
from halffull_larry.report import Identity, render

HOP: Final = 0.001
"""s from client to engine, from engine to client, and for each half of a poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One engine of the cluster."""

    engine: Engine | Any
    """Or a `vllm_engine.VLLMEngine`, whose import needs vLLM."""
    name: str = "FCFS"
    """Of its scheduler, as its load report says."""
    joins: float = 0.0
    """s: nobody knows of it before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a simulation gave."""

    outcomes: Outcomes
    rows: NDArray[np.int64]
    """int64[n]: which engine took the request; −1: it was refused, as too large."""
    preemptions: int
    busy: tuple[float, ...]
    """s in steps, per engine."""
    arriving: float
    """s until the last request arrived."""
    seconds: float
    """Of virtual time, until the last request was over."""


def simulate(
    trace: Trace,
    *,
    members: Sequence[Member],
    balancers: Sequence[Balancer],
    seed: int,
    poll_interval: float = 0.1,
    size_error: float = 0.0,
    body_bytes: NDArray[np.int64] | None = None,
) -> Run:
    """Play the whole trace to the end of its last request.

    Args:
        trace: arrivals and lengths.
        members: the engines, new ones.
        balancers: the pickers, new ones; each request meets one of them at random and none sees the others' requests.
        seed: of that choice, of the body sizes and of when polls happen; equal seeds give equal runs.
        poll_interval: s between two polls of an engine by a picker.
        size_error: σ of the logarithm of a body's bytes per token, mean 4: how wrong a size can be as a length.
        body_bytes: int64[n], sizes of the bodies that were really sent, instead of drawn ones.

    Raises:
        ValueError: no balancer, no engine from the start, or one that joins before an engine that stands before it.
    """
    if not balancers or not members or members[0].joins > 0:
        raise ValueError("at least one balancer, and one engine from the start, are needed")
    if any(before.joins > after.joins for before, after in itertools.pairwise(members)):
        raise ValueError("engines stand in the order in which they join")
    return _Simulation(
        trace,
        members,
        balancers,
        seed=seed,
        poll_interval=poll_interval,
        size_error=size_error,
        body_bytes=body_bytes,
    ).run()


@dataclass(slots=True, eq=False)
class _Flight:
    """A request between its arrival and its end."""

    index: int
    balancer: Balancer
    ticket: Ticket


class _Simulation:
    def __init__(
        self,
        trace: Trace,
        members: Sequence[Member],
        balancers: Sequence[Balancer],
        *,
        seed: int,
        poll_interval: float,
        size_error: float,
        body_bytes: NDArray[np.int64] | None,
    ) -> None:
        self._clock = VirtualClock()
        self._members = members
        self._balancers = balancers
        rng = np.random.default_rng(seed)
        count = len(trace)
        self._trace = trace
        self._arrivals, self._prompts, self._outputs = (
            values.tolist() for values in (trace.arrival, trace.prompt_tokens, trace.output_tokens)
        )
        noise = np.exp(size_error * rng.standard_normal(count) - size_error**2 / 2)
        drawn = np.maximum(1, np.rint(trace.prompt_tokens * BYTES_PER_TOKEN * noise)).astype(np.int64)
        self._bytes = (drawn if body_bytes is None else body_bytes).tolist()
        self._meets = rng.integers(0, len(balancers), size=count).tolist()
        self._phases = random.Random(seed)
        self._ttft = np.full(count, math.inf)
        self._tgt = np.full(count, math.inf)
        self._rows = np.full(count, -1, dtype=np.int64)
        self._flights: dict[str, _Flight] = {}
        self._stepping = [False] * len(members)
        self._identities = [
            Identity(
                scheduler=member.name,
                max_tokens_per_batch=member.engine.limits.max_tokens_per_batch,
                max_model_len=member.engine.limits.max_model_len,
                boot_id=f"engine-{row}",
            )
            for row, member in enumerate(members)
        ]
        self._left = count
        self._ended = 0.0
        self._poll_interval = poll_interval

    def run(self) -> Run:
        for row, member in enumerate(self._members):
            if member.joins <= 0:
                self._join(row)
            else:
                self._clock.at(member.joins, self._join, row)
        self._clock.at(self._arrivals[0], self._arrive, 0)
        self._clock.run()
        engines = [member.engine for member in self._members]
        return Run(
            outcomes=Outcomes(
                prompt_tokens=self._trace.prompt_tokens,
                output_tokens=self._trace.output_tokens,
                ttft=self._ttft,
                tgt=self._tgt,
            ),
            rows=self._rows,
            preemptions=sum(engine.totals.preemptions for engine in engines),
            busy=tuple(engine.snapshot.busy_seconds for engine in engines),
            arriving=self._arrivals[-1],
            seconds=self._ended,
        )

    # Requests

    def _arrive(self, index: int) -> None:
        now = self._clock.now
        if index + 1 < len(self._arrivals):
            self._clock.at(self._arrivals[index + 1], self._arrive, index + 1)
        balancer = self._balancers[self._meets[index]]
        flight = _Flight(index, balancer, balancer.pick(self._bytes[index], now=now))
        self._clock.at(now + HOP, self._reach, flight)

    def _reach(self, flight: _Flight) -> None:
        """It is at its engine."""
        index, row = flight.index, flight.ticket.row
        try:
            self._members[row].engine.add(
                str(index),
                prompt=Prompt(self._prompts[index]),
                output_tokens=self._outputs[index],
                arrival=self._clock.now,
            )
        except PromptRefusedError:
            self._clock.at(self._clock.now + HOP, self._over, flight)
            return
        self._rows[index] = row
        self._flights[str(index)] = flight
        if not self._stepping[row]:
            self._step(row)

    def _first_token(self, flight: _Flight) -> None:
        self._ttft[flight.index] = self._clock.now - self._arrivals[flight.index]
        flight.balancer.first_token(flight.ticket)

    def _answered_whole(self, flight: _Flight) -> None:
        self._tgt[flight.index] = self._clock.now - self._arrivals[flight.index]
        self._over(flight)

    def _over(self, flight: _Flight) -> None:
        flight.balancer.close(flight.ticket, now=self._clock.now)
        self._left -= 1
        self._ended = self._clock.now  # polls, and engines that join late, may come after the last

    # Engines

    def _step(self, row: int) -> None:
        plan = self._members[row].engine.step_begin(self._clock.now)
        self._stepping[row] = plan is not None
        if plan is not None:
            self._clock.at(self._clock.now + plan.duration, self._stepped, row)

    def _stepped(self, row: int) -> None:
        now = self._clock.now
        for output in self._members[row].engine.step_end(now):
            flight = self._flights[output.request.request_id]
            if output.generated == 1:
                self._clock.at(now + HOP, self._first_token, flight)
            if output.finished:
                del self._flights[output.request.request_id]
                self._clock.at(now + HOP, self._answered_whole, flight)
        self._step(row)

    def _join(self, row: int) -> None:
        for balancer in self._balancers:
            balancer.join(row, now=self._clock.now)
            if balancer.source is not None:
                first = self._clock.now + self._phases.uniform(0, self._poll_interval)
                self._clock.at(first, self._poll, balancer, row)

    # Polls

    def _poll(self, balancer: Balancer, row: int) -> None:
        now = self._clock.now
        self._clock.at(now + HOP, self._asked, balancer, row, now)
        if self._left:
            self._clock.at(now + self._poll_interval, self._poll, balancer, row)

    def _asked(self, balancer: Balancer, row: int, sent: float) -> None:
        engine = self._members[row].engine
        if balancer.source is Source.REPORT:
            body = render(self._identities[row], engine.snapshot, now=self._clock.now)
        else:
            body = exposition(
                model="model",
                limits=engine.limits,
                snapshot=engine.snapshot,
                totals=engine.totals,
                started=0.0,
                late=(0.0, 0.0),
            ).encode()
        self._clock.at(self._clock.now + HOP, self._answered, balancer, row, body, sent)

    def _answered(self, balancer: Balancer, row: int, body: bytes, sent: float) -> None:
        longest = self._members[row].engine.limits.max_model_len
        balancer.polled(row, body, sent=sent, now=self._clock.now, max_model_len=longest)
