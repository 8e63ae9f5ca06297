"""What a person may want to know about the pool: a frozen tree of floats, strings and lists, for JSON and metrics.

Unknown figures are None, never zero.
"""

from dataclasses import dataclass

from halffull_extproc.figures import Figures
from halffull_extproc.learning import Learning
from halffull_extproc.members import Member, State
from halffull_extproc.pool_config import PoolConfig


@dataclass(frozen=True, slots=True)
class EndpointStatus:
    """One endpoint. Tokens, requests and seconds."""

    address: str
    name: str
    """The pod's name; empty when discovery gives none."""
    state: str
    """`new`, `ok`, `stale`, `not-progressing`, `failing`, `draining` or `unhealthy`."""
    reason: str
    """Why it is in this state; empty when there is nothing to say."""
    state_seconds: float
    """How long it has been in this state."""
    scheduler: str
    """What orders the engine's queue, as its report says; empty without a report."""
    queued: float
    """Q as the policies see it, charges included."""
    free: float
    """F as the policies see it; may be negative."""
    total: float
    kv: float
    requests: float
    """B as the policies see it."""
    running: float | None
    waiting: float | None
    charged_requests: float
    """Picks that the last report can not contain."""
    charged_tokens: float
    report_age: float | None
    """Seconds since it last answered a poll, which is what makes it stale; None before the first answer.

    Not the age of the engine's last step, which grows without end while it idles.
    """
    open_picks: float
    """Own picks whose stream has not ended."""
    picks: float
    """Picks since the endpoint was discovered."""
    share: float
    """Its share of all picks of the endpoints that are here now, 0 to 1."""
    speed: float
    """κ: how much slower it steps than the pool's model; 1 for the fastest."""
    failures: float
    """Requests that failed in a row."""
    last_error: str
    """Why the last poll failed; empty after an answer."""
    missing: list[str]
    """Metrics that the engine does not offer (source METRICS)."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The pool's figures and every endpoint."""

    policy: str
    source: str
    beta: float
    beta_auto: bool
    mean_prompt_tokens: float
    """μ_in."""
    mean_generated_tokens: float
    """μ_out."""
    mean_ttft: float
    """Seconds from arrival at an engine to its first token."""
    bytes_per_token: float
    estimate_error: float | None
    """Median relative error of the prompt estimates over the last windows; None before there are enough of them."""
    step_coefficients: list[float]
    """Seconds per step, per prefill token, per running request, per token of KV cache."""
    picks: float
    """Requests picked for, ever."""
    unpicked: float
    """Requests for which no endpoint was eligible, ever."""
    probes: float
    """Requests sent to a failing endpoint to see whether it has healed, ever."""
    states: dict[str, float]
    """Endpoints in each state; every state is there."""
    endpoints: list[EndpointStatus]


def pool_status(
    config: PoolConfig,
    figures: Figures,
    learning: Learning,
    *,
    now: float,
    picks: int,
    unpicked: int,
    probes: int,
) -> PoolStatus:
    """The tree for a pool whose figures are up to date."""
    all_picks = sum(member.picks for member in figures.rows)
    states = {str(state): 0.0 for state in State}
    for member in figures.rows:
        states[member.state] += 1.0
    lengths = learning.lengths
    return PoolStatus(
        policy=str(config.policy),
        source=config.source.value,
        beta=lengths.beta if config.beta is None else config.beta,
        beta_auto=config.beta is None,
        mean_prompt_tokens=lengths.prompt.value,
        mean_generated_tokens=lengths.generated.value,
        mean_ttft=lengths.ttft.value,
        bytes_per_token=learning.sizes.bytes_per_token,
        estimate_error=learning.sizes.error,
        step_coefficients=list(learning.fit.coefficients),
        picks=float(picks),
        unpicked=float(unpicked),
        probes=float(probes),
        states=states,
        endpoints=[
            _endpoint_status(member, figures, now=now, stale_after=config.stale_after, all_picks=all_picks)
            for member in figures.rows
        ],
    )


def _endpoint_status(
    member: Member, figures: Figures, *, now: float, stale_after: float, all_picks: int
) -> EndpointStatus:
    columns, row, ledger = figures.columns, member.row, member.ledger
    report, sample = member.report, member.sample
    load = report or sample
    return EndpointStatus(
        address=member.endpoint.address,
        name=member.endpoint.name,
        state=str(member.state),
        reason=member.reason(now=now, stale_after=stale_after),
        state_seconds=now - member.since,
        scheduler=report.scheduler if report else "",
        queued=columns.queued[row],
        free=columns.free[row],
        total=columns.total[row],
        kv=columns.kv[row],
        requests=columns.requests[row],
        running=None if load is None or load.running is None else float(load.running),
        waiting=None if load is None or load.waiting is None else float(load.waiting),
        charged_requests=float(ledger.charged_count),
        charged_tokens=ledger.charged_tokens,
        report_age=None if member.answered_at is None else now - member.answered_at,
        open_picks=float(ledger.open_count),
        picks=float(member.picks),
        share=member.picks / all_picks if all_picks else 0.0,
        speed=member.pace.kappa,
        failures=float(member.failures),
        last_error=member.last_error,
        missing=list(sample.missing) if sample else [],
    )
