"""Events come in the order of their times, and of their setting when times are equal."""

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_lab.simulation.clock import VirtualClock


@given(times=st.lists(st.integers(0, 8).map(float), max_size=30))
def test_events_come_in_order_and_equal_ones_as_they_were_set(times: list[float]) -> None:
    clock = VirtualClock()
    seen: list[tuple[float, int]] = []

    def happen(place: int) -> None:
        seen.append((clock.now, place))

    for place, time in enumerate(times):
        clock.at(time, happen, place)
    clock.run()
    assert seen == sorted((time, place) for place, time in enumerate(times))
    assert clock.now == max(times, default=0.0)


@given(plan=st.recursive(st.just([]), lambda inner: st.lists(st.tuples(st.integers(0, 3), inner), max_size=4)))
def test_so_do_events_that_events_set(plan: list[tuple[int, list[object]]]) -> None:
    clock = VirtualClock()
    order, set_at = count(), {}
    seen: list[tuple[float, int]] = []

    def set_all(events: list[tuple[int, list[object]]]) -> None:
        for delay, inner in events:
            number = next(order)
            set_at[number] = clock.now + delay
            clock.at(clock.now + delay, happen, number, inner)

    def happen(number: int, inner: list[tuple[int, list[object]]]) -> None:
        assert clock.now == set_at[number]
        seen.append((clock.now, number))
        set_all(inner)

    set_all(plan)
    clock.run()
    assert seen == sorted(seen)
    assert len(seen) == next(order)


def test_the_past_is_refused_and_now_is_not() -> None:
    clock = VirtualClock()
    seen = []

    def late() -> None:
        with pytest.raises(ValueError, match=r"1\.5 s is in the past: it is 2\.0 s"):
            clock.at(1.5, late)
        clock.at(2.0, seen.append, "now")

    clock.at(2.0, late)
    clock.run()
    assert seen == ["now"]
