"""What stands in front of simulated engines: the picker's own pool, and the rules of others beside it. Pure.

A balancer knows what its real counterpart would: the size of a request's body, what it sent where and what came back,
and what it polled. Rows number the engines. Times are s of the caller's clock, lengths are tokens.
"""

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Final

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.load_report import LoadReport, decode_load_report
from halffull_extproc.policies import Policy
from halffull_extproc.pool import Pick, Pool, PoolConfig, Source
from halffull_extproc.stock_metrics import parse_stock_metrics

BYTES_PER_TOKEN: Final = 4.0
"""What the rules without a learning estimator take; the picker's pool learns it, beginning with its own prior."""


class NoEndpointError(RuntimeError):
    """Nobody may be picked."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request on its way."""

    row: int
    tokens: float
    """Estimated prompt tokens."""
    sent: float
    """s."""
    pick: Pick | None = None
    prefilling: bool = True
    """No token has come yet."""


class Balancer(ABC):
    """One picker."""

    source: Source | None = None
    """What it polls; None: nothing."""

    @abstractmethod
    def join(self, row: int, *, now: float) -> None:
        """An engine is there from now on; rows come in order."""

    @abstractmethod
    def pick(self, body_bytes: int, *, now: float) -> Ticket:
        """Choose an engine for a request and charge it.

        Raises:
            NoEndpointError: there is none.
        """

    def first_token(self, ticket: Ticket) -> None:  # noqa: B027 (most do not care)
        """Its first token came."""

    @abstractmethod
    def close(self, ticket: Ticket, *, now: float) -> None:
        """It ended."""

    def polled(  # noqa: B027 (most do not poll)
        self, row: int, body: bytes, *, sent: float, now: float, max_model_len: int
    ) -> None:
        """A poll that left at `sent` was answered."""


class Picker(Balancer):
    """The picker's own pool, as shipped; it decodes what engines say with its own code."""

    def __init__(self, config: PoolConfig, *, rng: random.Random) -> None:
        self.source = config.source if config.policy in _NEED_LOAD else None
        self.pool = Pool(config, rng=rng)
        self._endpoints: list[Endpoint] = []
        self._rows: dict[str, int] = {}

    def join(self, row: int, *, now: float) -> None:
        """See `Balancer`."""
        address = f"10.0.{row >> 8}.{row & 255}:8000"
        self._rows[address] = row
        self._endpoints.append(Endpoint(address))
        self.pool.update_endpoints(self._endpoints, now=now)

    def pick(self, body_bytes: int, *, now: float) -> Ticket:
        """See `Balancer`."""
        pick = self.pool.pick(body_bytes=body_bytes, now=now)
        if pick is None:
            raise NoEndpointError
        return Ticket(self._rows[pick.addresses[0]], pick.tokens, now, pick)

    def close(self, ticket: Ticket, *, now: float) -> None:
        """See `Balancer`."""
        assert ticket.pick is not None  # noqa: S101 (it is of this pool)
        self.pool.close(ticket.pick, now=now)

    def polled(self, row: int, body: bytes, *, sent: float, now: float, max_model_len: int) -> None:
        """See `Balancer`."""
        address = self._endpoints[row].address
        if self.source is Source.REPORT:
            self.pool.report(address, decode_load_report(body), sent=sent, now=now)
        else:
            self.pool.sample(address, parse_stock_metrics(body, max_model_len=max_model_len), sent=sent, now=now)


_NEED_LOAD: Final = frozenset({Policy.SAL, Policy.SALPlus})


class _Fewest(Balancer):
    """Picks the row with the smallest load; ties at random."""

    def __init__(self, *, rng: random.Random) -> None:
        self._rng = rng
        self._loads: list[float] = []

    def join(self, row: int, *, now: float) -> None:  # noqa: ARG002 (the interface)
        """See `Balancer`."""
        self._loads.insert(row, 0.0)

    def pick(self, body_bytes: int, *, now: float) -> Ticket:
        """See `Balancer`."""
        if not self._loads:
            raise NoEndpointError
        least = min(self._loads)
        row = self._rng.choice([row for row, load in enumerate(self._loads) if load == least])
        ticket = Ticket(row, round(body_bytes / BYTES_PER_TOKEN), now)
        self._charge(ticket)
        return ticket

    @abstractmethod
    def _charge(self, ticket: Ticket) -> None:
        """Add a request to its row's load."""


class LeastOutstanding(_Fewest):
    """The fewest own requests in flight, over all engines: what P2C samples."""

    def _charge(self, ticket: Ticket) -> None:
        self._loads[ticket.row] += 1

    def close(self, ticket: Ticket, *, now: float) -> None:  # noqa: ARG002 (the interface)
        """See `Balancer`."""
        self._loads[ticket.row] -= 1


class LeastTokens(_Fewest):
    """The fewest own prompt tokens of requests without a first token yet: llm-d's token-load rule."""

    def _charge(self, ticket: Ticket) -> None:
        self._loads[ticket.row] += ticket.tokens

    def first_token(self, ticket: Ticket) -> None:
        """See `Balancer`."""
        if ticket.prefilling:
            ticket.prefilling = False
            self._loads[ticket.row] -= ticket.tokens

    def close(self, ticket: Ticket, *, now: float) -> None:  # noqa: ARG002 (the interface)
        """See `Balancer`."""
        self.first_token(ticket)


@dataclass(slots=True)
class _Instance:
    report: LoadReport | None = None
    since: list[Ticket] = field(default_factory=list)
    """Sent after what the report shows."""

    def freeness(self) -> float:
        """Free KV cache that waiting prompts leave, tokens per request; an idle engine is the freest."""
        running = waiting = left = 0
        if self.report is not None:
            running, waiting = self.report.running, self.report.waiting
            left = self.report.free_tokens - self.report.queued_tokens
        requests = running + waiting + len(self.since)
        return (left - sum(ticket.tokens for ticket in self.since)) / requests if requests else math.inf


class Llumnix(_Fewest):
    """The highest freeness, (free − what waiting requests will take) ÷ requests (arXiv 2406.03243).

    Dispatch only: nothing migrates between engines here, which is the other half of Llumnix. Its code's load
    `remaining_steps`, in tokens instead of blocks. What was sent since an engine's last report counts as waiting, as it
    does for SAL: without, every picker would send all requests of a poll interval to one engine.
    """

    source = Source.REPORT

    def __init__(self, *, rng: random.Random) -> None:
        super().__init__(rng=rng)
        self._instances: list[_Instance] = []

    def join(self, row: int, *, now: float) -> None:
        """See `Balancer`."""
        super().join(row, now=now)
        self._instances.insert(row, _Instance())
        self._weigh(row)

    def close(self, ticket: Ticket, *, now: float) -> None:  # noqa: ARG002 (the interface)
        """See `Balancer`."""
        since = self._instances[ticket.row].since
        if ticket in since:
            since.remove(ticket)
            self._weigh(ticket.row)

    def polled(self, row: int, body: bytes, *, sent: float, now: float, max_model_len: int) -> None:  # noqa: ARG002
        """See `Balancer`."""
        instance = self._instances[row]
        instance.report = decode_load_report(body)
        shown = sent - instance.report.age
        instance.since = [ticket for ticket in instance.since if ticket.sent >= shown]
        self._weigh(row)

    def _charge(self, ticket: Ticket) -> None:
        self._instances[ticket.row].since.append(ticket)
        self._weigh(ticket.row)

    def _weigh(self, row: int) -> None:
        self._loads[row] = -self._instances[row].freeness()


LAB_ONLY: Final[dict[str, type[_Fewest]]] = {each.__name__: each for each in (LeastOutstanding, LeastTokens, Llumnix)}
BALANCERS: Final = (*(policy.value for policy in Policy), *LAB_ONLY)
"""Every name that `make_balancer` takes."""
KNOWN: Final = f"{', '.join(BALANCERS)} (P2C is LeastRequest)"
"""Those names, for people."""


def make_balancer(name: str, config: PoolConfig, *, rng: random.Random) -> Balancer:
    """One picker by its policy's name; `config` (with whatever policy) is for those of the picker.

    Raises:
        ValueError: an unknown name, with the known ones.
    """
    if name in LAB_ONLY:
        return LAB_ONLY[name](rng=rng)
    if name not in BALANCERS:
        raise ValueError(f"unknown balancer {name!r}; known are {KNOWN}")
    return Picker(replace(config, policy=Policy(name)), rng=rng)
