"""Is the operator alive: it renews a Lease and sees the renewal come back through the watch.

That a process answers on its port says little: a watch that has silently died leaves it deaf (kopf#1276). The age of
the last event says nothing in a quiet cluster, and bookmarks do not reach handlers. So there is one object of our own
that changes every 20 s.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from halffull_operator import kinds
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Manifest

EVERY: Final = 20.0  # s
PATIENCE: Final = 120.0  # s; kopf notices a dead watch after 70
MANAGER: Final = "halffull-operator-heartbeat"

_log = structlog.get_logger(__name__)


class Heartbeat:
    """Renews the Lease, and judges by what comes back."""

    def __init__(
        self,
        *,
        name: str,
        namespace: str,
        holder: str,
        apply: Callable[..., Awaitable[Manifest]],
        clock: Callable[[], float],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Nothing is renewed before `run`.

        Args:
            name: of the Lease.
            namespace: of the Lease.
            holder: who we are; another holder's renewals are not ours.
            apply: server-side apply (cluster.Cluster.apply).
            clock: seconds, monotonic.
            now: the time that is written.
        """
        self.name = name
        self.namespace = namespace
        self._holder = holder
        self._apply = apply
        self._clock = clock
        self._now = now
        self._tried = clock()
        self._unseen: dict[str, float] = {}
        """renewTime → when it was written; emptied when it, or a later one, is seen."""
        self.seen_at: float | None = None
        """When a renewal last came back."""

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            await self.renew()
            await asyncio.sleep(EVERY)

    async def renew(self) -> None:
        """Renew once; a failure is logged, and the next renewal is not far."""
        self._tried = self._clock()
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        lease: Manifest = {
            "apiVersion": kinds.LEASE.api_version,
            "kind": kinds.LEASE.kind,
            "metadata": {"name": self.name, "namespace": self.namespace},
            "spec": {
                "holderIdentity": self._holder,
                "renewTime": stamp,
                "leaseDurationSeconds": int(PATIENCE),
            },
        }
        self._unseen[stamp] = self._clock()  # before the call: the watch may be faster than the answer
        try:
            await self._apply(lease, manager=MANAGER)
        except ApiError as error:
            self._unseen.pop(stamp, None)
            _log.warning("the heartbeat could not be written", reason=error.reason, message=error.message)

    def see(self, lease: Manifest) -> None:
        """Take in what the watch tells of the Lease."""
        spec: dict[str, Any] = lease.get("spec") or {}
        if lease["metadata"].get("namespace") != self.namespace or spec.get("holderIdentity") != self._holder:
            return
        written = self._unseen.get(str(spec.get("renewTime")))
        if written is not None:
            self._unseen = {stamp: at for stamp, at in self._unseen.items() if at > written}
            self.seen_at = self._clock()

    def trouble(self) -> str:
        """Why this process should be started anew; "" while all is well, also while the API server is away."""
        now = self._clock()
        if now - self._tried > PATIENCE:
            return f"no heartbeat for {now - self._tried:.0f} s: the process is stuck"
        oldest = min(self._unseen.values(), default=now)
        if now - oldest > PATIENCE:
            return f"a heartbeat written {now - oldest:.0f} s ago did not come back: the watch is dead"
        return ""
