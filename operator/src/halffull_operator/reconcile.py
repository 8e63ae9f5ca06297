"""One reconcile of one LLMServing: what is seen → what should be → what to do → do it → say how it is.

It keeps nothing that matters between two runs, so that it converges from wherever it was killed.
"""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import structlog

from halffull_operator import kinds, labels
from halffull_operator.cache import Cache
from halffull_operator.children import build
from halffull_operator.cluster import Cluster
from halffull_operator.conditions import Event, events
from halffull_operator.config import OperatorConfig
from halffull_operator.errors import ApiError
from halffull_operator.execute import Execution, Executor
from halffull_operator.kinds import Manifest
from halffull_operator.lookups import Lookups
from halffull_operator.metrics import Metrics
from halffull_operator.names import Names
from halffull_operator.observed import Observed, controller_uid, key_of
from halffull_operator.plan import FULL, Action, Apply, OrphanAndRecreate, after_apply, plan
from halffull_operator.spec import LLMServing, SpecError, outline, parse
from halffull_operator.status import Outcome, invalid, status_of

if TYPE_CHECKING:
    from halffull_operator.compare import Difference

FULL_EVERY: Final = 3600.0  # s between two applies of every child
_SHORTEST: Final = 1.0  # s
_EVENT_NAME: Final = 200  # characters
_REFUSED_AGAIN: Final = 30.0  # s until what a quota or another object refused is tried again
_WRONG_AGAIN: Final = 600.0  # s until what is wrong in itself is tried again; an edit comes at once
_WRONG: Final = frozenset({"Invalid", "BadRequest"})
_PATIENCE: Final = 3  # runs in a row in which the API server fails, until its words are told in a condition

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile went."""

    again: float | None = None
    """Seconds until the next one, if nothing happens before."""
    repaired: bool = False
    """Children were changed though the LLMServing was not."""
    gone: bool = False
    """There is nothing to reconcile any more."""
    label: str = "ok"


class Reconciler:
    """Reconciles whatever LLMServing it is asked to."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        cache: Cache,
        config: OperatorConfig,
        apis: frozenset[str],
        metrics: Metrics,
        now: Callable[[], datetime],
        clock: Callable[[], float],
        rng: random.Random | None = None,
    ) -> None:
        """Make one for the life of the operator.

        Args:
            cluster: the API server.
            cache: what the watches told.
            config: what the chart says.
            apis: the optional APIs that the cluster serves.
            metrics: where changes are counted.
            now: the time for conditions.
            clock: seconds, monotonic.
            rng: spreads the hourly passes.
        """
        self._cluster = cluster
        self._cache = cache
        self._config = config
        self._apis = apis
        self._now = now
        self._clock = clock
        self._rng = rng or random.Random()
        self._executor = Executor(cluster=cluster, cache=cache, metrics=metrics)
        self._lookups = Lookups(cluster=cluster, clock=clock, now=now)
        self._full_due: dict[str, float] = {}
        self._generation: dict[str, int] = {}
        """The generation that the last run that reached the end was for."""
        self._settled: dict[str, dict[tuple[str, str], frozenset[Difference]]] = {}
        self._passed: dict[str, set[tuple[str, str]]] = {}
        """What the full pass under way has applied."""
        self._ill: dict[str, int] = {}
        """Runs in a row in which the API server failed."""
        self.missing: dict[str, bool] = {}
        """Whose children lack an optional API."""

    def forget(self, uid: str) -> None:
        """An LLMServing is gone."""
        for kept in (self._full_due, self._generation, self._settled, self._passed, self._ill, self.missing):
            kept.pop(uid, None)
        self._lookups.forget(uid)

    async def reconcile(self, uid: str) -> Result:  # noqa: PLR0911  each step may find that there is nothing to do
        """Bring one LLMServing and its children in step.

        Raises:
            ApiError: the API server is ill, or something is in the way for a moment; try again later.
        """
        body = self._cache.serving(uid)
        if body is None or body["metadata"].get("deletionTimestamp"):
            return Result(gone=True)
        full = self._clock() >= self._full_due.get(uid, float("-inf"))
        try:
            serving = parse(body)
            children = build(serving, self._config, self._apis)
        except SpecError as error:
            return await self._say_invalid(body, error)
        observed = await self._observe(body, serving)
        actions = self._left(uid, plan(serving, children, observed, full=full))
        execution = Execution()
        if actions:
            fresh = await self._cluster.get(
                kinds.SERVING, body["metadata"]["name"], namespace=body["metadata"]["namespace"]
            )
            if fresh is None or fresh["metadata"]["uid"] != uid or fresh["metadata"].get("deletionTimestamp"):
                return Result(gone=True)  # never make children for what is gone: their garbage collection starts a loop
            if fresh["metadata"].get("generation") != body["metadata"].get("generation"):
                self._cache.see(kinds.SERVING, fresh)
                return Result(again=0.0)
            execution = await self._executor.run(actions, owner=body, observed=observed)
            if execution.over:
                return Result(gone=True)
            self._note(uid, execution, full=full)
            if (failed := execution.retry) is not None and failed.unreachable and not self._lasts(uid, failed):
                raise failed
            observed = await self._observe(body, serving)
        self.missing[uid] = bool(children.missing)
        outcome = Outcome(failures=(*execution.failures, *execution.ill))
        pending = None if actions or full else ()
        wanted, look = status_of(serving, children, observed, outcome, now=self._now(), pending=pending)
        if (over := await self._say(body, wanted)) is not None:
            return over
        if execution.retry is not None:
            raise execution.retry
        return self._ended(body, full=full, execution=execution, look=look)

    def _left(self, uid: str, actions: tuple[Action, ...]) -> list[Action]:
        """Without what an interrupted full pass has applied already: each of its runs gets further than the last."""
        passed = self._passed.get(uid, set())
        return [
            action
            for action in actions
            if not (isinstance(action, Apply) and action.why == FULL and key_of(action.manifest) in passed)
        ]

    async def _observe(self, body: Manifest, serving: LLMServing) -> Observed:
        uid = body["metadata"]["uid"]
        members = self._cache.members(uid)
        observed = Observed(
            children=members.children,
            pods=members.pods,
            claims=members.claims,
            body=self._cache.serving(uid) or body,
            settled=self._settled.get(uid, {}),
        )
        return await self._lookups.complete(uid, observed, uri=serving.spec.model.uri)

    def _note(self, uid: str, execution: Execution, *, full: bool) -> None:
        """Remember what the API server made of our applies, and whether it got us further."""
        self._ill[uid] = self._ill.get(uid, 0) + 1 if execution.ill else 0
        if execution.retry is not None:
            execution.retry.progress = bool(execution.done)
        settled = self._settled.setdefault(uid, {})
        for action, answer in execution.done:
            if answer is not None and isinstance(action, Apply | OrphanAndRecreate):
                settled[key_of(action.manifest)] = after_apply(action.manifest, answer)
                if full:
                    self._passed.setdefault(uid, set()).add(key_of(action.manifest))

    def _lasts(self, uid: str, error: ApiError) -> bool:
        """Whether the server has failed for long enough that a person should see it: a webhook may be down."""
        return error.status == 500 and self._ill[uid] >= _PATIENCE

    async def _say(self, body: Manifest, wanted: Manifest) -> Result | None:
        """Write the status where it differs, and an Event for each transition; a result: there is no more to do."""
        metadata = body["metadata"]
        old = (self._cache.serving(metadata["uid"]) or body).get("status") or {}
        if old == wanted:
            return None
        try:
            answer = await self._cluster.apply_status(
                kinds.SERVING,
                name=metadata["name"],
                namespace=metadata["namespace"],
                uid=metadata["uid"],
                status=wanted,
            )
        except ApiError as error:
            if error.status in (404, 409) and await self._is_gone(metadata):
                return Result(gone=True)
            raise
        news = self._cache.see(kinds.SERVING, answer)
        for event in events(old, wanted):
            await self._emit(body, event)
        # An edit that came just before: to the cache it is known now, and what the watch tells of it is no news.
        return Result(again=0.0) if news is not None and news.edited else None

    async def _is_gone(self, metadata: Manifest) -> bool:
        """Whether there is none, or another one, of that name: a refused status alone may as well be a race."""
        fresh = await self._cluster.get(kinds.SERVING, metadata["name"], namespace=metadata["namespace"])
        return fresh is None or fresh["metadata"]["uid"] != metadata["uid"]

    async def _emit(self, body: Manifest, event: Event) -> None:
        """Write an Event; that it fails is logged, and stops nothing."""
        metadata, at = body["metadata"], self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            await self._cluster.create(
                {
                    "apiVersion": kinds.EVENT.api_version,
                    "kind": kinds.EVENT.kind,
                    "metadata": {
                        "generateName": f"{metadata['name'][:_EVENT_NAME]}.",
                        "namespace": metadata["namespace"],
                    },
                    "involvedObject": {
                        "apiVersion": kinds.SERVING.api_version,
                        "kind": kinds.SERVING.kind,
                        "name": metadata["name"],
                        "namespace": metadata["namespace"],
                        "uid": metadata["uid"],
                        "resourceVersion": metadata.get("resourceVersion", ""),
                    },
                    "type": event.type,
                    "reason": event.reason,
                    "message": event.message,
                    "count": 1,
                    "firstTimestamp": at,
                    "lastTimestamp": at,
                    "source": {"component": labels.OPERATOR},
                    "reportingComponent": f"{labels.GROUP}/operator",
                    "reportingInstance": labels.OPERATOR,
                }
            )
        except ApiError as error:
            _log.warning("an Event is lost", about=event.reason, reason=error.reason, message=error.message)

    async def _say_invalid(self, body: Manifest, error: SpecError) -> Result:
        """The children stay as they are; an edit brings the next run. How their pods are is told all the same."""
        uid, now = body["metadata"]["uid"], self._now()
        before, names = self._cache.members(uid).children, Names.of(body["metadata"]["name"])
        made = before.get(("StatefulSet", names.engine))
        found, look = None, None
        if made is not None and controller_uid(made) == uid:
            with suppress(SpecError):
                gateway = _gateway_mode(before.get(("Deployment", names.gateway)))
                serving = outline(body, replicas=made["spec"].get("replicas", 1), gateway=gateway)
                children = build(serving, self._config, self._apis)
                observed = await self._observe(body, serving)
                found, look = status_of(serving, children, observed, Outcome(), now=now, pending=())
        wanted = invalid(body, field=error.field, message=error.message, now=now, found=found)
        if (over := await self._say(body, wanted)) is not None:
            return over
        waits = [wait for wait in (look, self._lookups.wait(uid)) if wait is not None]
        return Result(again=max(_SHORTEST, min(waits)) if waits else None, label="invalid")

    def _ended(self, body: Manifest, *, full: bool, execution: Execution, look: float | None) -> Result:
        uid = body["metadata"]["uid"]
        if full:
            self._passed.pop(uid, None)
            # The first pass of all of them is at start; the next ones are spread over an hour, and stay so.
            share = 1.0 if uid in self._full_due else self._rng.uniform(0.1, 1.0)
            self._full_due[uid] = self._clock() + FULL_EVERY * share
        generation = int(body["metadata"].get("generation") or 0)
        # What is refused again and again costs as much as a fight over a field, and is held back like one.
        repaired = (bool(execution.done) and self._generation.get(uid) == generation and not full) or bool(
            execution.failures
        )
        self._generation[uid] = generation
        waits = [self._full_due.get(uid, self._clock() + FULL_EVERY) - self._clock()]
        if execution.failures:
            wrong = all(failure.reason in _WRONG for failure in execution.failures)
            waits.append(_WRONG_AGAIN if wrong else _REFUSED_AGAIN)
        waits += [wait for wait in (look, self._lookups.wait(uid)) if wait is not None]
        label = "refused" if execution.failures else "ok"
        return Result(again=max(_SHORTEST, min(waits)), repaired=repaired, label=label)


def _gateway_mode(deployment: Manifest | None) -> str:
    """The gateway.mode that brought this Deployment: with an Envoy, or of pickers alone."""
    if deployment is None:
        return "None"
    containers = deployment["spec"]["template"]["spec"]["containers"]
    return "Managed" if any(one["name"] == "envoy" for one in containers) else "InferencePool"
