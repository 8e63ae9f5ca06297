"""Carries out the actions of a plan, one by one. Whatever moment it is killed at, the next plan finds the rest."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from halffull_operator import kinds, labels
from halffull_operator.cache import Cache
from halffull_operator.cluster import Cluster
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Kind, Manifest
from halffull_operator.metrics import Metrics
from halffull_operator.observed import Observed, controller_uid, key_of, terminating
from halffull_operator.plan import Action, Apply, Delete, GrowClaim, OrphanAndRecreate
from halffull_operator.status import Failure

_GONE_WITHIN: Final = 20.0  # s for an orphaning delete; the garbage collector strips the pods' owners meanwhile
_LOOK_EVERY: Final = 0.25  # s
_WAIT_FOR_DELETION: Final = 2.0  # s

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Execution:
    """What came of a plan."""

    done: list[tuple[Action, Manifest | None]] = field(default_factory=list)
    """Actions that succeeded, each with the API server's answer."""
    failures: list[Failure] = field(default_factory=list)
    """What a person should know."""
    retry: ApiError | None = None
    """Why to try again soon."""
    ill: list[Failure] = field(default_factory=list)
    """What failed in the server; a person should know if it goes on failing."""
    over: bool = False
    """The namespace is being deleted: there is nothing to do any more."""


class Executor:
    """Makes the calls of one operator."""

    def __init__(self, *, cluster: Cluster, cache: Cache, metrics: Metrics) -> None:
        """Answers go into the cache, so that the next plan knows them before the watch does."""
        self._cluster = cluster
        self._cache = cache
        self._metrics = metrics

    async def run(self, actions: Iterable[Action], *, owner: Manifest, observed: Observed) -> Execution:
        """Carry out what can be; the rest is in the result.

        Args:
            actions: in their order.
            owner: the LLMServing.
            observed: what the plan was made from.
        """
        result = Execution()
        log = _log.bind(namespace=owner["metadata"]["namespace"], name=owner["metadata"]["name"])
        for action in actions:
            try:
                answer = await self._perform(action, owner, observed)
            except ApiError as error:
                log.warning("not done", **_told(action), reason=error.reason, message=error.message)
                if error.reason == "NamespaceTerminating":
                    result.over = True
                    return result
                if error.retryable:
                    result.retry = _longer(result.retry, error)
                if not error.retryable or error.reason == "BeingDeleted":
                    result.failures.append(Failure(action, error.reason, error.message))
                if error.retryable and error.unreachable:
                    if error.status == 500:
                        result.ill.append(Failure(action, error.reason, error.message))
                    if len(result.ill) != 1:  # one may be a webhook's, which concerns one kind alone
                        return result  # else the next call would fare no better, and an ill server needs rest
            else:
                log.info("done", **_told(action))
                self._metrics.actions.labels(_told(action)["action"], _told(action)["kind"]).inc()
                result.done.append((action, answer))
        return result

    async def _perform(self, action: Action, owner: Manifest, observed: Observed) -> Manifest | None:
        namespace = owner["metadata"]["namespace"]
        match action:
            case Apply(manifest=manifest, aside=aside):
                await self._check_ours(manifest, owner, observed)
                if aside:
                    await self._cluster.edit(kinds.kind_of(manifest), manifest["metadata"]["name"], aside, namespace)
                return await self._apply(manifest)
            case Delete(kind=kind, api_version=api_version, name=name):
                known = observed.children.get((kind, name))
                uid = known["metadata"]["uid"] if known is not None else None
                await self._cluster.delete(kinds.named(api_version, kind), name, namespace=namespace, uid=uid)
                return None
            case OrphanAndRecreate(manifest=manifest):
                known = observed.children.get(key_of(manifest))
                if known is not None:
                    await self._orphan(known)
                return await self._apply(manifest)
            case GrowClaim(name=name, size=size):
                claim = await self._cluster.merge(
                    kinds.CLAIM, name, {"spec": {"resources": {"requests": {"storage": size}}}}, namespace=namespace
                )
                self._cache.see(kinds.CLAIM, claim)
                return claim

    async def _apply(self, manifest: Manifest) -> Manifest:
        answer = await self._cluster.apply(manifest)
        self._cache.see(kinds.kind_of(manifest), answer)
        return answer

    async def _check_ours(self, manifest: Manifest, owner: Manifest, observed: Observed) -> None:
        """A forced apply takes over whatever has the name, so look whose it is."""
        known = observed.children.get(key_of(manifest))
        kind, name = kinds.kind_of(manifest), manifest["metadata"]["name"]
        if known is None:  # nothing with our labels
            known = await self._cluster.get(kind, name, namespace=manifest["metadata"]["namespace"])
        if known is None:
            return
        if terminating(known):
            raise _being_deleted(kind, known)
        controller = controller_uid(known)
        if controller == owner["metadata"]["uid"]:
            return
        if controller is None:
            if _labelled(known, manifest):
                return  # an orphan of this LLMServing, or of one of this name before it: its pods go on
            whose = "was not made by Halffull"
        else:
            reference = next(ref for ref in known["metadata"]["ownerReferences"] if ref.get("uid") == controller)
            if reference.get("kind") == labels.KIND and reference.get("name") == owner["metadata"]["name"]:
                raise _being_deleted(kind, known)  # of an LLMServing of this name that is gone
            whose = f"belongs to {reference.get('kind')} {reference.get('name')}"
        raise ApiError(
            "NameTaken", f"there is a {kind.kind} {name} that {whose}: delete or rename it, or rename the LLMServing"
        )

    async def _orphan(self, known: Manifest) -> None:
        """Delete a StatefulSet and keep its pods; the new one adopts them by their labels."""
        metadata = known["metadata"]
        kind = kinds.kind_of(known)
        name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
        await self._cluster.delete(kind, name, namespace=namespace, uid=uid, orphan=True)
        try:
            async with asyncio.timeout(_GONE_WITHIN):
                while (found := await self._cluster.get(kind, name, namespace=namespace)) is not None:
                    if found["metadata"]["uid"] != uid:
                        return
                    await asyncio.sleep(_LOOK_EVERY)
        except TimeoutError:
            raise _being_deleted(kind, known) from None


def _labelled(known: Mapping[str, Any], manifest: Manifest) -> bool:
    have, want = known["metadata"].get("labels") or {}, manifest["metadata"].get("labels") or {}
    return all(have.get(label) == want.get(label) for label in (labels.MANAGED_BY, labels.SERVING))


def _being_deleted(kind: Kind, known: Manifest) -> ApiError:
    held = ", ".join(known["metadata"].get("finalizers") or ())
    return ApiError(
        "BeingDeleted",
        f"the {kind.kind} {known['metadata']['name']} is still being deleted" + (f" (held by {held})" if held else ""),
        status=409,
        retry_after=_WAIT_FOR_DELETION,
        retryable=True,
    )


def _longer(one: ApiError | None, other: ApiError) -> ApiError:
    """Of two reasons to try again the one that asks for the longer wait."""
    if one is None or (other.retry_after or 0.0) > (one.retry_after or 0.0):
        return other
    return one


def _told(action: Action) -> dict[str, str]:
    """An action, for logs and metrics."""
    match action:
        case Apply(manifest=manifest, why=why):
            return {"action": "apply", "kind": manifest["kind"], "child": manifest["metadata"]["name"], "why": why}
        case Delete(kind=kind, name=name, why=why):
            return {"action": "delete", "kind": kind, "child": name, "why": why}
        case OrphanAndRecreate(manifest=manifest, fields=fields):
            return {
                "action": "recreate",
                "kind": manifest["kind"],
                "child": manifest["metadata"]["name"],
                "why": "immutable: " + ", ".join(fields),
            }
        case GrowClaim(name=name, size=size):
            return {"action": "grow", "kind": "PersistentVolumeClaim", "child": name, "why": f"to {size}"}
