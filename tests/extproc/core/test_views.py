"""The formulas of Q, F, KV and B, with figures reckoned by hand."""

from collections.abc import Mapping

import pytest

from halffull_extproc.charges import Ledger, Pick
from halffull_extproc.views import Typical, View, reported, sampled, stale, uncontained
from tests.extproc.core.builders import make_report, make_sample

TYPICAL = Typical(ttft=1.0, kv_per_request=1000.0, mean_prompt=900.0, queued_per_open=50.0)


def ledger_of(*picks: tuple[float, float]) -> Ledger:
    """A ledger of (time, tokens), oldest first."""
    ledger = Ledger()
    for at, tokens in picks:
        ledger.add(Pick(("a",), tokens, at, None, ledger))
    return ledger


def view(sample_of: Mapping[str, float | None], ledger: Ledger, *, now: float = 10.0, pickers: int = 1) -> View:
    return sampled(
        make_sample(**sample_of),
        ledger,
        now=now,
        total=100_000.0,
        pickers=pickers,
        rate=10_000.0,
        step=0.05,
        typical=TYPICAL,
    )


def test_with_a_report() -> None:
    report = make_report(queued_tokens=5000, free_tokens=60_000, running=7, waiting=2)
    got = reported(report, ledger_of((1.0, 300.0), (2.0, 200.0)))
    assert got == View(queued=5500.0, free=59_500.0, kv=40_000 + 5500.0, requests=11)


def test_stale_counts_young_picks() -> None:
    got = stale(ledger_of((8.0, 4000.0), (9.5, 300.0)), now=10.0, total=100_000.0, typical=TYPICAL)
    assert got == View(queued=300.0, free=98_000.0, kv=2000.0, requests=2.0)


def test_stale_takes_at_least_what_the_healthy_have_per_open_pick() -> None:
    got = stale(ledger_of((1.0, 10.0), (2.0, 10.0)), now=10.0, total=100_000.0, typical=TYPICAL)
    assert got.queued == 100.0


def test_metrics_idle() -> None:
    assert view({}, Ledger()) == View(0.0, 100_000.0, 0.0, 0.0)


def test_metrics_counts_what_the_sample_can_not_contain() -> None:
    """Three open, one there: the newest two are on their way, whatever the time of the poll."""
    ledger = ledger_of((9.0, 100.0), (9.7, 200.0), (9.8, 400.0))
    ledger.contain(before=9.9)
    sample = make_sample(running=1.0)
    assert uncontained(sample, ledger, pickers=1) == 2
    # nothing of the oldest is left: 100 − 10000·(1 − .1) < 0
    assert view({"running": 1.0, "kv_usage": 0.1}, ledger) == View(600.0, 90_000 - 600.0, 10_000 + 600.0, 3.0)


def test_metrics_counts_picks_since_the_poll_even_when_others_fill_the_engine() -> None:
    ledger = ledger_of((9.0, 100.0), (9.8, 400.0))
    ledger.contain(before=9.5)
    assert uncontained(make_sample(running=30.0), ledger, pickers=1) == 1


def test_metrics_with_several_pickers_shares_the_sample() -> None:
    ledger = ledger_of(*((float(second), 100.0) for second in range(8)))
    ledger.contain(before=9.0)
    assert uncontained(make_sample(running=6.0, waiting=6.0), ledger, pickers=2) == 2  # 8 − 12/2


def test_metrics_waiting_are_the_newest_that_the_sample_contains() -> None:
    ledger = ledger_of((1.0, 1000.0), (2.0, 700.0), (3.0, 500.0), (9.95, 50.0))
    ledger.contain(before=9.9)
    got = view({"running": 1.0, "waiting": 2.0}, ledger)
    assert got.queued == 50.0 + 700.0 + 500.0
    assert got.free == 100_000 - 50.0
    assert got.requests == 4.0


def test_metrics_waiting_of_somebody_else_count_as_the_mean() -> None:
    ledger = ledger_of((1.0, 200.0), (2.0, 400.0))
    ledger.contain(before=9.9)
    assert view({"waiting": 5.0}, ledger).queued == 600.0 + 3 * 300.0
    assert view({"waiting": 5.0}, Ledger()).queued == 5 * 900.0


def test_metrics_waiting_with_several_pickers_counts_as_the_mean() -> None:
    ledger = ledger_of((1.0, 200.0), (2.0, 400.0))
    ledger.contain(before=9.9)
    assert view({"waiting": 4.0}, ledger, pickers=2).queued == 4 * 300.0


def test_metrics_residue_of_prefills_in_progress() -> None:
    """Of 8,000 tokens picked .5 s ago, .4 s at 10,000/s are done after two steps of .05 s."""
    ledger = ledger_of((6.9, 90_000.0), (9.5, 8000.0))
    ledger.contain(before=9.9)
    assert view({"running": 2.0}, ledger).queued == pytest.approx(4000.0)
    ledger = ledger_of((7.1, 90_000.0))  # younger than 3 s: 90000 − 10000·2.8
    ledger.contain(before=9.9)
    assert view({"running": 1.0}, ledger).queued == pytest.approx(62_000.0)


def test_unknown_waiting_is_not_zero() -> None:
    ledger = ledger_of((9.5, 8000.0), (9.95, 100.0))
    ledger.contain(before=9.9)
    got = view({"waiting": None, "running": 1.0}, ledger)
    assert got.queued == 8100.0  # the picker's own view: younger than the TTFT
    assert got.free == 100_000 - 100.0
    assert got.requests == 2.0


def test_unknown_running_is_not_zero() -> None:
    ledger = ledger_of((1.0, 100.0), (2.0, 100.0), (3.0, 100.0))
    ledger.contain(before=9.9)
    got = view({"running": None, "waiting": 1.0}, ledger)
    assert got.requests == 3.0
    assert got.queued == 100.0


def test_unknown_usage_is_reckoned_from_the_running() -> None:
    got = view({"running": 7.0, "kv_usage": None}, Ledger())
    assert got.free == 93_000.0
    assert got.kv == 7000.0
    assert view({"running": 700.0, "kv_usage": None}, Ledger()).free == 0.0


def test_nothing_known_at_all_is_the_own_view() -> None:
    ledger = ledger_of((8.0, 5000.0), (9.5, 200.0))
    ledger.contain(before=9.9)
    nothing = {"running": None, "waiting": None, "kv_usage": None}
    assert view(nothing, ledger) == View(queued=200.0, free=98_000.0, kv=2200.0, requests=2.0)
