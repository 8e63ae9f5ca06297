"""One look at what belongs to an LLMServing, with what its status is derived from. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from halffull_operator.conditions import Clock, parse_time
from halffull_operator.labels import COMPONENT, ENGINE, GATEWAY
from halffull_operator.observed import Manifest, Observed, key_of
from halffull_operator.ownership import last_applied
from halffull_operator.plan import Action, Apply, OrphanAndRecreate, plan
from halffull_operator.pods import Health, health, worst
from halffull_operator.rolling import BECAUSE, is_through

if TYPE_CHECKING:
    from halffull_operator.children import Children
    from halffull_operator.spec import LLMServing

__all__ = ["Look"]

_PROGRESS: Final = ("Ready", "PodScheduled", "Initialized", "PodReadyToStartContainers")
_LAST_PART: Final = re.compile(r'error: pods? "[^"]*" is forbidden: ')


@dataclass(frozen=True)
class Look:
    """Desired and observed, and what follows from both."""

    serving: "LLMServing"
    children: "Children"
    observed: Observed
    clock: Clock
    planned: tuple[Action, ...] | None = None
    """`pending`, where it is known already."""
    unwritten: tuple[str, str] | None = None
    """(reason, message) why the engines' StatefulSet could not be written."""

    @cached_property
    def pending(self) -> tuple[Action, ...]:
        """What is still to be done. While there is any, what is observed speaks of an earlier spec."""
        if self.planned is not None:
            return self.planned
        return plan(self.serving, self.children, self.observed, full=False)

    @cached_property
    def stateful_set(self) -> Manifest | None:
        """The engines' StatefulSet as it should be."""
        return self._wanted("StatefulSet")

    @cached_property
    def live_stateful_set(self) -> Mapping[str, Any] | None:
        """The engines' StatefulSet as it is."""
        return self._live(self.stateful_set)

    @cached_property
    def live_deployment(self) -> Mapping[str, Any] | None:
        """The gateway's Deployment as it is."""
        return self._live(self.deployment)

    @cached_property
    def deployment(self) -> Manifest | None:
        """The gateway's Deployment as it should be; None: there is no gateway of ours."""
        return self._wanted("Deployment")

    @cached_property
    def engines(self) -> tuple[Health, ...]:
        """Every pod of an engine."""
        return tuple(self._pods(ENGINE))

    @cached_property
    def gateways(self) -> tuple[Health, ...]:
        """Every pod of the gateway."""
        return tuple(self._pods(GATEWAY))

    @property
    def ready(self) -> int:
        """Engines that answer."""
        return sum(pod.ready for pod in self.engines)

    @cached_property
    def revision(self) -> str | None:
        """The newest revision of the engines; None: the StatefulSet controller has not said yet."""
        live = self.live_stateful_set
        if live is None or not is_seen(live) or self._is_pending("StatefulSet"):
            return None
        return (live.get("status") or {}).get("updateRevision") or None

    @cached_property
    def outdated(self) -> tuple[Health, ...]:
        """Engines that are not at the newest revision."""
        if self.revision is None:
            return ()
        return tuple(pod for pod in self.engines if pod.revision != self.revision)

    @cached_property
    def rolls(self) -> bool:
        """Whether a change of the pod template is not through.

        Its last engine (of one replica: the only one) is replaced when none of before is left.
        """
        live = self.live_stateful_set
        if live is None:
            return False
        because = (live["metadata"].get("annotations") or {}).get(BECAUSE)
        return bool(self.outdated) or (because is not None and not is_through(live, self.observed.pods))

    @cached_property
    def staying(self) -> tuple[Health, ...]:
        """Engines that are not being deleted."""
        return tuple(pod for pod in self.engines if not pod.leaving)

    @cached_property
    def updated(self) -> int:
        """Engines at the newest revision."""
        return 0 if self.revision is None else sum(pod.revision == self.revision for pod in self.staying)

    @property
    def seen(self) -> bool:
        """Whether what is observed speaks of the spec as it is now."""
        live = self.live_stateful_set
        return live is not None and is_seen(live) and not self._is_pending("StatefulSet")

    @cached_property
    def unwell(self) -> tuple[Health, ...]:
        """Engines first, then gateway pods, each the worst first."""
        return (*worst(self.engines), *worst(self.gateways))

    @cached_property
    def refused(self) -> tuple[str, str] | None:
        """(reason, message) why the pods of engines are not made.

        The API server refuses their StatefulSet, or the newest Event about it says why.
        """
        live = self.live_stateful_set
        if live is None:
            return self.unwritten
        if len(self.engines) >= self.serving.spec.replicas:
            return None
        found = [
            (str(event.get("lastTimestamp") or event.get("eventTime") or ""), str(event.get("message") or ""))
            for event in self.observed.pod_events
            if event.get("reason") == "FailedCreate"
            and (event.get("involvedObject") or {}).get("kind") == "StatefulSet"
            and (event.get("involvedObject") or {}).get("name") == live["metadata"]["name"]
        ]
        return _refusal(max(found)[1]) if found else None

    @cached_property
    def gateway_refused(self) -> tuple[str, str] | None:
        """The same for the gateway, as its Deployment says."""
        for one in ((self.live_deployment or {}).get("status") or {}).get("conditions") or ():
            if one.get("type") == "ReplicaFailure" and one.get("status") == "True":
                return _refusal(str(one.get("message") or ""))
        return None

    @property
    def selector(self) -> str | None:
        """The engines' label selector."""
        if self.stateful_set is None:
            return None
        chosen = self.stateful_set["spec"]["selector"]["matchLabels"]
        return ",".join(f"{key}={value}" for key, value in sorted(chosen.items()))

    @property
    def image(self) -> str | None:
        """The engines' image."""
        source = self.live_stateful_set or self.stateful_set
        containers = () if source is None else source["spec"]["template"]["spec"]["containers"]
        return next((str(one["image"]) for one in containers if one["name"] == ENGINE), None)

    @property
    def url(self) -> str | None:
        """A base_url for clients in the cluster; of a gateway of one's own nobody here knows the address."""
        mode = self.serving.spec.gateway.mode
        if mode == "InferencePool":
            return None
        component = GATEWAY if mode == "Managed" else ENGINE
        for manifest in self.children.manifests:
            labels = manifest["metadata"].get("labels") or {}
            if manifest["kind"] == "Service" and labels.get(COMPONENT) == component:
                port = manifest["spec"]["ports"][0]["port"]
                tls = mode == "Managed" and self.serving.spec.gateway.effective.tls is not None
                host = f"{manifest['metadata']['name']}.{manifest['metadata']['namespace']}.svc"
                usual = port == (443 if tls else 80)
                return f"{'https' if tls else 'http'}://{host}{'' if usual else f':{port}'}/v1"
        return None

    @property
    def gateway_moves(self) -> bool:
        """Whether the gateway is not yet all that it is to be: pods are missing, not ready, or of an older template."""
        live = self.live_deployment
        if self.deployment is None:
            return False
        if live is None or not is_seen(live) or not all(pod.ready for pod in self.gateways if not pod.leaving):
            return True
        wanted: int = live["spec"].get("replicas", 1)
        updated: int = (live.get("status") or {}).get("updatedReplicas") or 0
        return updated < wanted

    @cached_property
    def progressed(self) -> datetime:
        """When anything last went forward: an edit of ours, a pod made, a step of a pod."""
        found = [parse_time(self.observed.body.get("metadata", {}).get("creationTimestamp"))]
        for live in (self.live_stateful_set, self.live_deployment):
            if live is not None:
                found += [parse_time(live["metadata"].get("creationTimestamp")), parse_time(last_applied(live))]
        for pod in self.observed.pods:
            found.append(parse_time(pod["metadata"].get("creationTimestamp")))
            found += [
                parse_time(one.get("lastTransitionTime"))
                for one in (pod.get("status") or {}).get("conditions") or ()
                if one.get("type") in _PROGRESS
            ]
        return max((time for time in found if time is not None), default=self.clock.now)

    def _wanted(self, kind: str) -> Manifest | None:
        return next((manifest for manifest in self.children.manifests if manifest["kind"] == kind), None)

    def _live(self, wanted: Manifest | None) -> Mapping[str, Any] | None:
        return None if wanted is None else self.observed.children.get(key_of(wanted))

    def _is_pending(self, kind: str) -> bool:
        return any(
            action.manifest["kind"] == kind for action in self.pending if isinstance(action, Apply | OrphanAndRecreate)
        )

    def _pods(self, component: str) -> Iterator[Health]:
        for pod in self.observed.pods:
            if (pod["metadata"].get("labels") or {}).get(COMPONENT) == component:
                yield health(pod, self.observed.pod_events, self.clock)


def is_seen(live: Mapping[str, Any]) -> bool:
    """Whether its controller has seen its newest spec."""
    seen: int = (live.get("status") or {}).get("observedGeneration") or 0
    generation: int = live["metadata"].get("generation") or 0
    return seen >= generation


def _refusal(message: str) -> tuple[str, str]:
    text = _LAST_PART.split(message)[-1]
    return ("QuotaExceeded" if "exceeded quota" in text else "PodsRefused"), f"pods are refused: {text}"
