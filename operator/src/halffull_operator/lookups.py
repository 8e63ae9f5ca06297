"""What no watch tells, asked only where a serving is in trouble: Events about its pods, a claim of a person's own.

Watching all Events of a cluster to read the few about engines would cost more than the rest of the operator. The
scheduler's words, image errors and crashes are in the pods' status; only refused pods (quota, admission) and volumes
that do not attach are told by Events alone.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog

from halffull_operator import kinds, labels
from halffull_operator.claims import source_claim
from halffull_operator.cluster import Cluster
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Manifest
from halffull_operator.observed import Observed, terminating

PODS_MISSING_FOR: Final = 5.0  # s; the StatefulSet controller takes less, unless it is refused
CREATING_FOR: Final = 30.0  # s
AGAIN: Final = 30.0  # s between two looks at the same thing

_WAITING: Final = frozenset({"ContainerCreating", "PodInitializing", "Init:0/1"})


_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Look:
    at: float
    found: tuple[Manifest, ...]


class Lookups:
    """Completes what the cache knows about one LLMServing."""

    def __init__(self, *, cluster: Cluster, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        """Nothing is asked before `complete`."""
        self._cluster = cluster
        self._clock = clock
        self._now = now
        self._missing_since: dict[str, float] = {}
        self._looks: dict[tuple[str, str], _Look] = {}
        self._waits: dict[str, float] = {}

    def forget(self, uid: str) -> None:
        """An LLMServing is gone."""
        self._missing_since.pop(uid, None)
        self._waits.pop(uid, None)
        for key in [key for key in self._looks if key[0] == uid]:
            del self._looks[key]

    def wait(self, uid: str) -> float | None:
        """Seconds after which to look again; None: nothing is in trouble that no watch would tell of."""
        return self._waits.get(uid)

    async def complete(self, uid: str, observed: Observed, *, uri: str) -> Observed:
        """The same with events, and with the claim that the model lies on.

        Args:
            uid: of the LLMServing.
            observed: what the cache holds.
            uri: spec.model.uri.

        Raises:
            ApiError: the API server is ill.
        """
        namespace = observed.body["metadata"]["namespace"]
        self._waits.pop(uid, None)
        found: list[Manifest] = []
        for subject in self._in_trouble(uid, observed):
            self._waits[uid] = AGAIN
            found += await self._look(uid, subject, partial(self._events, subject, namespace))
        claims = observed.claims
        if (name := source_claim(uri)) is not None:
            claims = (*claims, *await self._look(uid, "claim " + name, partial(self._claim, name, namespace)))
        return replace(observed, pod_events=tuple(found), claims=claims)

    async def _look(
        self, uid: str, subject: str, ask: Callable[[], Awaitable[tuple[Manifest, ...]]]
    ) -> tuple[Manifest, ...]:
        look = self._looks.get((uid, subject))
        if look is None or self._clock() - look.at >= AGAIN:
            try:
                found = await ask()
            except ApiError as error:
                if error.retryable:
                    raise
                _log.warning("could not look", subject=subject, reason=error.reason, message=error.message)
                found = ()  # the status says less then; everything else goes on
            look = self._looks[uid, subject] = _Look(self._clock(), found)
        return look.found

    async def _events(self, subject: str, namespace: str) -> tuple[Manifest, ...]:
        items, _ = await self._cluster.list(
            kinds.EVENT, namespace=namespace, field_selector=f"involvedObject.uid={subject},type=Warning"
        )
        return tuple(items)

    async def _claim(self, name: str, namespace: str) -> tuple[Manifest, ...]:
        claim = await self._cluster.get(kinds.CLAIM, name, namespace=namespace)
        return () if claim is None else (claim,)

    def _in_trouble(self, uid: str, observed: Observed) -> Iterator[str]:
        """The uids of a StatefulSet whose pods are not made, and of the first pod whose containers are not."""
        engines = [pod for pod in observed.pods if _is_engine(pod) and not terminating(pod)]
        for (kind, _), child in observed.children.items():
            if kind == "StatefulSet" and not terminating(child):
                if len(engines) >= int(child.get("spec", {}).get("replicas") or 0):
                    self._missing_since.pop(uid, None)
                    continue
                since = self._missing_since.setdefault(uid, self._clock())
                if self._clock() - since >= PODS_MISSING_FOR:
                    yield child["metadata"]["uid"]
                else:
                    self._waits[uid] = PODS_MISSING_FOR
        for pod in observed.pods:
            if _is_creating(pod):
                if self._age(pod) >= CREATING_FOR:
                    yield pod["metadata"]["uid"]
                else:
                    self._waits.setdefault(uid, CREATING_FOR)
                return

    def _age(self, pod: Mapping[str, Any]) -> float:
        """Seconds since its node took it."""
        started = pod.get("status", {}).get("startTime")
        try:
            at = datetime.strptime(str(started), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        except ValueError:
            return 0.0
        return (self._now() - at).total_seconds()


def _is_engine(pod: Mapping[str, Any]) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(labels.COMPONENT) == labels.ENGINE)


def _is_creating(pod: Mapping[str, Any]) -> bool:
    """Whether it has a node, and no container yet."""
    status = pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return bool(every) and all((one.get("state") or {}).get("waiting", {}).get("reason") in _WAITING for one in every)
