"""What is wrong with a pod, in a word and a sentence that a person can act on. Pure.

The words are Kubernetes' own where it has one. They must not change while nothing happens: a container that crashes is
in CrashLoopBackOff also while it runs for the next attempt; a pull that fails is one trouble, tried or waiting to be.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from halffull_operator.conditions import Clock, one_line, parse_time
from halffull_operator.labels import COMPONENT, ENGINE

__all__ = ["REASONS", "Health", "health", "latest_event", "worst"]

REASONS: Final = (
    "CrashLoopBackOff",
    "OOMKilled",
    "ImagePullBackOff",
    "CreateContainerConfigError",
    "ContainerFailed",
    "Evicted",
    "PodFailed",
    "VolumeNotMounted",
    "SandboxFailed",
    "StuckTerminating",
    "Unschedulable",
    "NotReady",
    "ModelLoading",
    "Starting",
)
"""Worst first: what a person has to see to before what may pass."""
_RANK: Final = {reason: rank for rank, reason in enumerate(REASONS)}

_PULL: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_CREATING: Final = frozenset({"ContainerCreating", "PodInitializing", "", None})
_VOLUME_EVENTS: Final = frozenset({"FailedAttachVolume", "FailedMount", "FailedMapVolume"})
_ERROR_LINE: Final = re.compile(r"^[\w.]*(?:Error|Exception|Exit|Interrupt|Killed)\b.*:")
_STAMP: Final = re.compile(
    r"^(?:\([^)]*\)\s*)?(?:[A-Z]+ )?\d{2,4}[-/]\d{2}(?:[-/]\d{2})?[ T][\d:.,]+(?:Z)?\s*|\(\w+ pid=\d+\)\s*"
)
_TEXT: Final = 300
_GRACE: Final = 60.0  # s beyond the deletion's own; the kubelet needs a few
_FIRST_PROBES: Final = 30.0  # s in which a container that has just started may still fail its readiness probe


@dataclass(frozen=True, slots=True)
class Health:
    """How one pod is."""

    name: str
    ready: bool
    """It answers, and is not being deleted."""
    leaving: bool
    """It is being deleted."""
    revision: str
    """controller-revision-hash or pod-template-hash: which template it was made from."""
    reason: str
    """One of REASONS; empty: nothing is wrong."""
    message: str
    since: str
    """RFC 3339; since when it is not ready."""


def worst(pods: Iterable[Health]) -> tuple[Health, ...]:
    """Those that are not well, worst first."""
    return tuple(sorted((pod for pod in pods if pod.reason), key=lambda pod: (_RANK[pod.reason], pod.name)))


def health(pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]], clock: Clock) -> Health:
    """How a pod is.

    Args:
        pod: As the API server sent it.
        events: Warnings about any pods.
        clock: Tells for how long a model has been loading.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    ready = conditions.get("Ready", {}).get("status") == "True"
    leaving = bool(metadata.get("deletionTimestamp"))
    reason, message = _trouble(pod, conditions, events, clock) if leaving or not ready else ("", "")
    return Health(
        name=metadata["name"],
        ready=ready and not leaving,
        leaving=leaving,
        revision=labels.get("controller-revision-hash") or labels.get("pod-template-hash") or "",
        reason=reason,
        message=one_line(message, _TEXT),
        since=conditions.get("Ready", {}).get("lastTransitionTime") or metadata.get("creationTimestamp") or "",
    )


def _trouble(
    pod: Mapping[str, Any],
    conditions: Mapping[Any, Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
    clock: Clock,
) -> tuple[str, str]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    if (end := parse_time(metadata.get("deletionTimestamp"))) is not None:
        if clock.passed(end, _GRACE):
            node = pod.get("spec", {}).get("nodeName") or "its node"
            return "StuckTerminating", f"does not end; if {node} is lost for good: kubectl delete pod --force"
        return "", ""
    if status.get("phase") == "Failed":
        return ("Evicted" if status.get("reason") == "Evicted" else "PodFailed"), status.get("message") or "failed"
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return "Unschedulable", scheduled.get("message") or "no node was found"
    since = parse_time(conditions.get("Ready", {}).get("lastTransitionTime"))
    found = sorted(_containers(pod, since, clock), key=lambda trouble: _RANK[trouble[0]])
    reason, message = found[0] if found else _not_its_containers(pod, conditions)
    if reason == "Starting" and (event := latest_event(events, metadata)) is not None:
        return event
    return reason, message


def _not_its_containers(pod: Mapping[str, Any], conditions: Mapping[Any, Mapping[str, Any]]) -> tuple[str, str]:
    """Why a pod is not ready none of whose containers says why."""
    if not (pod.get("status") or {}).get("containerStatuses"):
        return "Starting", "waits for its node"
    # All of them are ready: a readiness gate, or a node that has fallen silent, of which Kubernetes says no more.
    node = (pod.get("spec") or {}).get("nodeName") or "its node"
    return "NotReady", conditions.get("Ready", {}).get("message") or f"{node} is not heard from: is it down?"


def latest_event(events: Iterable[Mapping[str, Any]], metadata: Mapping[str, Any]) -> tuple[str, str] | None:
    """The newest warning about a pod that has not started, if it says why."""
    found = []
    for event in events:
        about = event.get("involvedObject") or {}
        if about.get("name") != metadata["name"] or about.get("uid") not in {None, metadata.get("uid")}:
            continue
        reason = event.get("reason")
        word = (
            "VolumeNotMounted"
            if reason in _VOLUME_EVENTS
            else "SandboxFailed"
            if reason == "FailedCreatePodSandBox"
            else ""
        )
        if word:
            at = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp") or ""
            found.append((str(at), word, event.get("message") or str(reason)))
    return max(found)[1:] if found else None


def _containers(pod: Mapping[str, Any], since: datetime | None, clock: Clock) -> Iterator[tuple[str, str]]:
    """`since`: the pod is not ready."""
    status = pod.get("status") or {}
    engine = (pod["metadata"].get("labels") or {}).get(COMPONENT) == ENGINE
    init = (pod.get("spec") or {}).get("initContainers") or ()
    sidecars = {one.get("name") for one in init if one.get("restartPolicy") == "Always"}
    for one in status.get("initContainerStatuses") or ():
        done = (one.get("state") or {}).get("terminated")
        if not one.get("ready") and not (done and done.get("exitCode") == 0):
            name = one.get("name", "")
            yield _container(one, "container " + name, since, clock, loads=False, stays=name in sidecars)
    for one in status.get("containerStatuses") or ():
        if not one.get("ready"):
            main = engine and one.get("name") == ENGINE
            name = "" if main else "container " + one.get("name", "")
            yield _container(one, name, since, clock, loads=main, stays=True)


def _container(
    one: Mapping[str, Any], which: str, since: datetime | None, clock: Clock, *, loads: bool, stays: bool
) -> tuple[str, str]:
    """`loads`: it loads the model. `stays`: it may have a probe; one that does not ends before the others start."""
    state = one.get("state") or {}
    waiting, running, ended = state.get("waiting"), state.get("running"), state.get("terminated")
    prefix = f"{which}: " if which else ""
    reason = (waiting or {}).get("reason")
    text = (waiting or {}).get("message") or ""
    if reason in _PULL:
        return "ImagePullBackOff", f"{prefix}image {one.get('image')} cannot be pulled{_pull_error(text)}"
    last = ended or (one.get("lastState") or {}).get("terminated")
    if last is not None:
        word = "OOMKilled" if last.get("reason") == "OOMKilled" else "CrashLoopBackOff"
        return word, prefix + _last_words(last)
    if reason not in _CREATING:
        known = reason == "CreateContainerConfigError"
        return (str(reason), prefix + text) if known else ("ContainerFailed", f"{prefix}{reason}: {text}")
    started = running is not None and one.get("started")
    if running is not None and started and stays and not _settles(running, since, clock, loads=loads):
        return "NotReady", prefix + "runs, and its readiness probe fails"
    if running is not None and loads and not started:
        return "ModelLoading", f"loads the model {clock.elapsed(parse_time(running.get('startedAt')))}"
    return "Starting", prefix + ("is being created" if running is None else "starts")


def _settles(running: Mapping[str, Any], since: datetime | None, clock: Clock, *, loads: bool) -> bool:
    """Whether a container that has started may still fail its readiness probe."""
    begun = parse_time(running.get("startedAt"))
    if begun is None:
        return False
    # An engine's startup probe asks what its readiness probe asks: once that is through, this takes a moment.
    return not clock.passed(begun, _FIRST_PROBES) or (loads and since is not None and since <= begun)


def _pull_error(text: str) -> str:
    """What went wrong, in the same words while it is tried and between two attempts."""
    _, marked, detail = text.rpartition("ErrImagePull: ")
    if not marked and text.startswith("Back-off"):
        return ""
    return f": {detail}" if detail else ""


def _last_words(ended: Mapping[str, Any]) -> str:
    """Exit code and the line of the log that says most (terminationMessagePolicy FallbackToLogsOnError)."""
    if ended.get("reason") == "OOMKilled":
        text = "out of memory: raise engine.resources.limits.memory (this is the host's, not the GPU's)"
    else:
        text = f"exit code {ended.get('exitCode')}"
    lines = [_STAMP.sub("", line).strip() for line in str(ended.get("message") or "").splitlines()]
    lines = [_STAMP.sub("", line).strip() for line in lines if line]
    telling = [line for line in lines if _ERROR_LINE.match(line)] or lines
    return f"{text}: {telling[-1]}" if telling else text
