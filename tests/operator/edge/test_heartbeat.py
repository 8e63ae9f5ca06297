"""Liveness: judged by the renewals that come back through the watch, and by nothing else."""

from datetime import UTC, datetime, timedelta

from halffull_operator.errors import ApiError
from halffull_operator.heartbeat import EVERY, PATIENCE, Heartbeat
from halffull_operator.kinds import Manifest


class World:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.leases: list[Manifest] = []
        self.down = False
        self.heartbeat = Heartbeat(
            name="halffull-operator",
            namespace="system",
            holder="me",
            apply=self.apply,
            clock=lambda: self.seconds,
            now=lambda: datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds),
        )

    async def apply(self, lease: Manifest, *, manager: str) -> Manifest:  # noqa: ARG002  as Cluster.apply
        if self.down:
            raise ApiError("Unreachable", "…", retryable=True)
        self.leases.append(lease)
        return lease


async def test_alive_while_renewals_come_back() -> None:
    world = World()
    for _ in range(50):
        await world.heartbeat.renew()
        world.heartbeat.see(world.leases[-1])
        assert world.heartbeat.trouble() == ""
        world.seconds += EVERY
    assert world.heartbeat.seen_at == world.seconds - EVERY


async def test_a_deaf_operator_is_started_anew_but_only_when_kopf_had_time_to_notice() -> None:
    world = World()
    while world.seconds <= PATIENCE:
        await world.heartbeat.renew()
        assert world.heartbeat.trouble() == ""
        world.seconds += EVERY
    assert "the watch is dead" in world.heartbeat.trouble()
    world.heartbeat.see(world.leases[-1])
    assert world.heartbeat.trouble() == ""


async def test_while_the_api_server_is_away_there_is_no_use_in_a_restart() -> None:
    world = World()
    await world.heartbeat.renew()
    world.heartbeat.see(world.leases[-1])
    world.down = True
    for _ in range(100):
        await world.heartbeat.renew()
        assert world.heartbeat.trouble() == ""
        world.seconds += EVERY
    world.down = False
    await world.heartbeat.renew()
    world.heartbeat.see(world.leases[-1])
    assert world.heartbeat.trouble() == ""


async def test_a_stuck_process_is_started_anew() -> None:
    world = World()
    await world.heartbeat.renew()
    world.heartbeat.see(world.leases[-1])
    world.seconds += PATIENCE + 1
    assert "stuck" in world.heartbeat.trouble()


async def test_a_renewal_that_comes_back_before_its_answer_counts() -> None:
    world = World()

    async def apply(lease: Manifest, *, manager: str) -> Manifest:
        world.heartbeat.see(lease)
        return lease

    world.heartbeat._apply = apply
    await world.heartbeat.renew()
    world.seconds += PATIENCE - 1
    assert world.heartbeat.trouble() == ""
    assert world.heartbeat.seen_at == 0.0


async def test_other_holders_and_other_namespaces_are_not_ours() -> None:
    world = World()
    await world.heartbeat.renew()
    ours = world.leases[-1]
    world.heartbeat.see({**ours, "spec": {**ours["spec"], "holderIdentity": "another"}})
    world.heartbeat.see({**ours, "metadata": {**ours["metadata"], "namespace": "elsewhere"}})
    world.heartbeat.see({**ours, "spec": {}})
    assert world.heartbeat.seen_at is None


async def test_a_skipped_renewal_is_seen_with_the_next_one() -> None:
    """A watch that reconnects tells the newest state only."""
    world = World()
    for _ in range(3):
        await world.heartbeat.renew()
        world.seconds += EVERY
    world.heartbeat.see(world.leases[-1])
    world.seconds += PATIENCE - EVERY - 1
    assert world.heartbeat.trouble() == ""


async def test_an_old_renewal_that_comes_back_says_nothing_about_the_newer_ones() -> None:
    world = World()
    await world.heartbeat.renew()
    world.seconds += 1
    await world.heartbeat.renew()
    world.heartbeat.see(world.leases[0])
    while world.seconds <= PATIENCE + 1:
        await world.heartbeat.renew()
        world.seconds += EVERY
    assert "the watch is dead" in world.heartbeat.trouble()
