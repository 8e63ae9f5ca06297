"""What the policies take as Q, F, KV and B of an endpoint: with a report, without, stale (Halffull design notes)."""

from itertools import islice
from typing import NamedTuple

from halffull_extproc.charges import Ledger
from halffull_extproc.load_report import LoadReport
from halffull_extproc.stock_metrics import StockSample

RESIDUE_SECONDS = 3.0
"""Picks older than this have no prefill left, whatever the arithmetic says."""


class View(NamedTuple):
    """The figures that depend on load."""

    queued: float
    """Q: prompt tokens not yet computed."""
    free: float
    """F: free KV cache, tokens; negative when more is charged than there is."""
    kv: float
    """KV: tokens in the cache or to come into it."""
    requests: float
    """B: requests there."""


def reported(report: LoadReport, ledger: Ledger) -> View:
    """Q = queued + charges, F = free − charges, KV = total − free + Q, B = running + waiting + charges."""
    charges = ledger.charged_tokens
    queued = report.queued_tokens + charges
    free = report.free_tokens
    return View(
        queued,
        free - charges,
        report.total_tokens - free + queued,
        report.running + report.waiting + ledger.charged_count,
    )


class Typical(NamedTuple):
    """What the arithmetic of views takes from the estimates; seconds and tokens."""

    ttft: float
    """The pool's mean TTFT."""
    kv_per_request: float
    """μ_in + μ_out/2."""
    mean_prompt: float
    """μ_in."""
    queued_per_open: float
    """ΣQ/Σ#open of the healthy endpoints; 0 when Σ#open = 0."""


def own_queue(ledger: Ledger, *, now: float, typical: Typical) -> float:
    """Q by the picker's own lights: max(n(own open picks younger than the TTFT), #open·ΣQ/Σ#open of the healthy)."""
    return max(ledger.tokens_since(now - typical.ttft), ledger.open_count * typical.queued_per_open)


def stale(ledger: Ledger, *, now: float, total: float, typical: Typical) -> View:
    """Without news: Q as in `own_queue`, KV = #open·(μ_in + μ_out/2), F = total − KV, B = #open.

    Trusting the last report instead makes a black hole of an engine that went silent while idle.
    """
    kv = ledger.open_count * typical.kv_per_request
    return View(own_queue(ledger, now=now, typical=typical), total - kv, kv, float(ledger.open_count))


def uncontained(sample: StockSample, ledger: Ledger, *, pickers: int) -> int:
    """C = max(#picks since the poll, round(#open − (W + R)/G)): the newest picks, which the sample can not contain.

    Without W or R only the picks since the poll are known to be missing.
    """
    since_poll = ledger.charged_count
    if sample.waiting is None or sample.running is None:
        return since_poll
    return max(since_poll, round(ledger.open_count - (sample.waiting + sample.running) / pickers))


def sampled(
    sample: StockSample,
    ledger: Ledger,
    *,
    now: float,
    total: float,
    pickers: int,
    rate: float,
    step: float,
    typical: Typical,
) -> View:
    """From stock metrics: what the sample can not contain, what waits, and the rest of prefills in progress.

    Q = n(newest c) + wait + residue, F = total·(1 − usage) − n(newest c), KV = total·usage + Q, B = W + R + c.
    What is unknown is replaced: W by `own_queue`, R by the picks that the sample contains beyond W, usage by
    R·(μ_in + μ_out/2).

    Args:
        sample: the last one.
        ledger: the own picks; its charges are those since the sample was asked for.
        now: seconds.
        total: KV cache in tokens.
        pickers: G, how many pickers send to this engine.
        rate: prefill tokens per second.
        step: mean inter-token latency, seconds.
        typical: estimates of the pool.
    """
    count = uncontained(sample, ledger, pickers=pickers)
    unseen = ledger.newest_tokens(count)
    contained = max(0, ledger.open_count - count)
    if sample.waiting is None:
        queued = max(unseen, own_queue(ledger, now=now, typical=typical))
        waiting = 0.0
    else:
        waiting = sample.waiting
        queued = unseen + _wait_and_residue(
            ledger, count, now=now, waiting=waiting, pickers=pickers, rate=rate, step=step, typical=typical
        )
    running = max(0.0, contained * pickers - waiting) if sample.running is None else sample.running
    if sample.kv_usage is None:
        used = min(total, running * typical.kv_per_request)
    else:
        used = total * min(1.0, sample.kv_usage)
    return View(queued, total - used - unseen, used + queued, waiting + running + count)


def _wait_and_residue(
    ledger: Ledger, newest: int, *, now: float, waiting: float, pickers: int, rate: float, step: float, typical: Typical
) -> float:
    """Tokens of the W waiting requests, and of prefills in progress.

    Stock vLLM is first come, first served: with one picker the W newest picks of those that the sample contains are
    the waiting ones. Waiting requests beyond the own picks (someone else's) count as the mean prompt.
    """
    open_count = ledger.open_count
    mean = ledger.open_tokens / open_count if open_count else typical.mean_prompt
    if waiting == 0:
        queued, skip = 0.0, newest
    elif pickers == 1:
        count = round(waiting)
        own = min(count, max(0, open_count - newest))
        skip = newest + own
        queued = sum(pick.tokens for pick in islice(ledger.newest(), newest, skip)) + (count - own) * mean
    else:
        # Which picks wait is not known: they count at the mean size, and the residue goes over all contained ones.
        queued, skip = waiting * mean, newest
    youngest = now - RESIDUE_SECONDS
    for pick in islice(ledger.newest(), skip, None):
        if pick.at <= youngest:
            break
        left = pick.tokens - rate * max(0.0, now - pick.at - 2.0 * step)
        if left > 0.0:
            queued += left
    return queued
