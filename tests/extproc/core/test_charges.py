from halffull_extproc.charges import Ledger, Pick


def add(ledger: Ledger, at: float, tokens: float) -> Pick:
    pick = Pick(("a",), tokens, at, None, ledger)
    ledger.add(pick)
    return pick


def figures(ledger: Ledger) -> tuple[int, float, int, float]:
    return ledger.open_count, ledger.open_tokens, ledger.charged_count, ledger.charged_tokens


def test_a_pick_is_open_and_charged() -> None:
    ledger = Ledger()
    add(ledger, 1.0, 100.0)
    assert figures(ledger) == (1, 100.0, 1, 100.0)


def test_contained_is_what_was_picked_before() -> None:
    ledger = Ledger()
    add(ledger, 1.0, 100.0)
    add(ledger, 2.0, 10.0)
    ledger.contain(before=2.0)
    assert figures(ledger) == (2, 110.0, 1, 10.0)


def test_dropped_exactly_once() -> None:
    ledger = Ledger()
    first, second = add(ledger, 1.0, 100.0), add(ledger, 2.0, 10.0)
    assert ledger.close(second)
    assert not ledger.close(second)
    ledger.contain(before=9.0)
    ledger.contain(before=9.0)
    assert figures(ledger) == (1, 100.0, 0, 0.0)
    assert ledger.close(first)
    assert not ledger.close(first)
    assert figures(ledger) == (0, 0.0, 0, 0.0)


def test_nothing_is_owed_to_an_endpoint_that_left() -> None:
    ledger = Ledger()
    pick = add(ledger, 1.0, 100.0)
    ledger.abandon()
    assert not ledger.close(pick)
    assert figures(ledger) == (0, 0.0, 0, 0.0)


def test_newest_first() -> None:
    ledger = Ledger()
    for at, tokens in [(1.0, 1.0), (2.0, 20.0), (3.0, 300.0)]:
        add(ledger, at, tokens)
    assert [pick.at for pick in ledger.newest()] == [3.0, 2.0, 1.0]
    assert [ledger.newest_tokens(count) for count in range(5)] == [0.0, 300.0, 320.0, 321.0, 321.0]
    assert ledger.tokens_since(2.0) == 320.0
    assert ledger.tokens_since(3.5) == 0.0


def test_a_silent_endpoint_costs_no_memory() -> None:
    """Without a report to contain them, charges leave with their streams."""
    ledger = Ledger()
    for number in range(10_000):
        ledger.close(add(ledger, float(number), 7.0))
    assert figures(ledger) == (0, 0.0, 0, 0.0)
    assert not list(ledger.newest())
