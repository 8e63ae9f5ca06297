"""The real-time loop: virtual times are exact whatever the machine does, and its lateness shows."""

import asyncio

import pytest

from halffull_lab.engine_loop import EngineLoop
from halffull_lab.engine_requests import Output, Prompt
from tests.lab.engine.virtual import Arrival, make_engine, run


class Clock:
    """Stands still, and can be moved on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Driven:
    def __init__(self, speed: float = 1.0) -> None:
        self.clock = Clock()
        self.outputs: list[Output] = []
        self.engine = make_engine()
        self.loop = EngineLoop(self.engine, speed=speed, deliver=self.outputs.extend, clock=self.clock)

    def submit(self, name: str, prompt: int, output: int) -> None:
        self.loop.submit(name, at=self.loop.now(), prompt=Prompt(prompt), output_tokens=output)

    async def rounds(self, count: int = 20) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def advance(self, virtual: float) -> None:
        """Move on in small strides; each gives the event loop a chance."""
        target = self.clock.now + virtual / self.loop.speed
        while self.clock.now < target:
            self.clock.now = min(target, self.clock.now + 0.002 / self.loop.speed)
            self.loop._cancel()  # what the timer would do, without waiting for it
            self.loop._tick()
            await self.rounds(3)


@pytest.mark.parametrize("speed", [1.0, 50.0])
async def test_virtual_times_are_those_of_the_model(speed: float) -> None:
    driven = Driven(speed)
    driven.submit("0", 2_500, 40)
    await driven.rounds()
    await driven.advance(3.0)
    (expected,) = run(make_engine(), [Arrival(0.0, 2_500, 40)])
    (first, last) = (output.request for output in driven.outputs)
    assert first is last
    assert first.first_token_at == pytest.approx(expected.first_token_at)
    assert first.finished_at == pytest.approx(expected.finished_at)


async def test_a_late_machine_changes_nothing_but_the_lateness() -> None:
    driven = Driven()
    driven.submit("0", 500, 10)
    await driven.rounds()
    driven.clock.now += 30.0  # the machine was away
    driven.submit("1", 500, 10)
    driven.loop._cancel()
    driven.loop._tick()
    await driven.rounds()
    alone, _ = run(make_engine(), [Arrival(0.0, 500, 10), Arrival(30.0, 500, 10)])
    done = driven.outputs[-1].request
    assert done.request_id == "0"
    assert done.finished_at == pytest.approx(alone.finished_at)
    assert driven.loop.late_max == pytest.approx(30.0, abs=0.1)
    await driven.advance(2.0)
    other = driven.outputs[-1].request
    assert other.request_id == "1"
    assert other.finished_at == pytest.approx(30.0 + (alone.finished_at or 0))


async def test_an_arrival_waits_for_the_step_in_flight() -> None:
    driven = Driven()
    driven.submit("0", 1_000, 5)
    await driven.rounds()
    end = driven.loop._end
    driven.clock.now += 0.01
    driven.submit("1", 100, 5)
    await driven.rounds()
    assert driven.engine.snapshot.running == 1
    assert driven.engine.snapshot.waiting == 0  # it is not the scheduler's yet
    await driven.advance(0.2)
    second = next(output.request for output in driven.outputs if output.request.request_id == "1")
    assert end is not None
    assert (second.first_token_at or 0) > end


async def test_a_wedge_stops_it_and_healing_loses_the_time() -> None:
    driven = Driven()
    driven.submit("0", 100, 50)
    await driven.rounds()
    driven.loop.wedge()
    taken = driven.engine.snapshot.taken
    driven.clock.now += 60.0
    driven.submit("1", 100, 5)
    await driven.rounds()
    assert driven.engine.snapshot.taken == taken
    assert driven.loop.now() - taken == pytest.approx(60.0)
    driven.loop.heal()
    await driven.advance(3.0)
    assert {output.request.request_id for output in driven.outputs if output.finished} == {"0", "1"}
    assert driven.loop.late_max < 1.0


async def test_a_wedge_while_idle_holds_arrivals_back() -> None:
    driven = Driven()
    driven.loop.wedge()
    driven.submit("0", 10, 1)
    await driven.rounds()
    assert not driven.engine.requests
    driven.loop.heal()
    driven.loop.heal()
    await driven.advance(0.1)
    assert driven.outputs[-1].finished


async def test_aborts_reach_a_request_wherever_it_is() -> None:
    driven = Driven()
    driven.submit("0", 100, 50)
    await driven.rounds()
    driven.submit("1", 100, 50)  # not seen by a step
    driven.loop.abort("1")
    driven.loop.abort("0")
    driven.loop.abort("unknown")
    await driven.advance(0.2)
    assert not driven.engine.requests
    assert not driven.outputs or not driven.outputs[-1].finished
    assert driven.engine.snapshot.free_tokens == driven.engine.snapshot.total_tokens


def test_speed_is_checked() -> None:
    with pytest.raises(ValueError, match="speed"):
        EngineLoop(make_engine(), speed=0.0, deliver=lambda _: None)
