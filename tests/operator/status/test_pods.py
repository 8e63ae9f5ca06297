"""Each way for a pod not to be well has one reason, the words of whoever knows, and no flapping."""

from datetime import timedelta
from typing import Any

import pytest

from halffull_operator.conditions import Clock
from halffull_operator.pods import REASONS, health, worst
from tests.operator.plan.world import T0, at, container, engine_pod, gateway_pod


def look(pod: dict[str, Any], *, events: tuple[Any, ...] = (), after: float = 0.0) -> Any:
    return health(pod, events, Clock(T0 + timedelta(seconds=after)))


def waiting(reason: str, message: str = "", **rest: Any) -> dict[str, Any]:
    return engine_pod(
        0, ready=False, containerStatuses=[container(state={"waiting": {"reason": reason, "message": message}}, **rest)]
    )


def well_but(ready: dict[str, Any]) -> dict[str, Any]:
    """Every container is ready, and the pod is what its condition says."""
    return engine_pod(0, conditions=[{"type": "PodScheduled", "status": "True"}, ready])


def init_runs(name: str, *, since: float = 0) -> dict[str, Any]:
    """An engine's pod with the plugin's init container, or a picker as a sidecar, that runs."""
    pod = engine_pod(
        0,
        ready=False,
        initContainerStatuses=[container(name, started=True, state={"running": {"startedAt": at(since)}})],
        containerStatuses=[container(state={"waiting": {"reason": "PodInitializing"}})],
    )
    pod["spec"]["initContainers"] = [{"name": "larry"}, {"name": "picker", "restartPolicy": "Always"}]
    return pod


CRASH = {"terminated": {"exitCode": 1, "reason": "Error", "message": "INFO x\nTraceback\nValueError: no such model\n"}}
SCHEDULER = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available."


@pytest.mark.parametrize(
    ("pod", "reason", "message"),
    [
        (engine_pod(0), "", ""),
        (
            engine_pod(
                0,
                ready=False,
                containerStatuses=[],
                conditions=[
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SCHEDULER}
                ],
            ),
            "Unschedulable",
            SCHEDULER,
        ),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "vllm:1": ErrImagePull: not found'),
            "ImagePullBackOff",
            "image vllm:1 cannot be pulled: not found",
        ),
        (waiting("ErrImagePull", "not found"), "ImagePullBackOff", "image vllm:1 cannot be pulled: not found"),
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "vllm:1"'),
            "ImagePullBackOff",
            "image vllm:1 cannot be pulled",
        ),
        (waiting("InvalidImageName", "bad"), "ImagePullBackOff", "image vllm:1 cannot be pulled: bad"),
        (
            waiting("CreateContainerConfigError", 'secret "hf" not found'),
            "CreateContainerConfigError",
            'secret "hf" not found',
        ),
        (waiting("CreateContainerError", "no such device"), "ContainerFailed", "CreateContainerError: no such device"),
        (
            waiting("CrashLoopBackOff", "back-off 5m", lastState=CRASH),
            "CrashLoopBackOff",
            "exit code 1: ValueError: no such model",
        ),
        (
            engine_pod(0, ready=False, containerStatuses=[container(state=CRASH)]),
            "CrashLoopBackOff",
            "exit code 1: ValueError: no such model",
        ),
        (
            engine_pod(
                0, ready=False, containerStatuses=[container(state={"running": {"startedAt": at(0)}}, lastState=CRASH)]
            ),
            "CrashLoopBackOff",
            "exit code 1: ValueError: no such model",
        ),
        (
            waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}}),
            "OOMKilled",
            "out of memory: raise engine.resources.limits.memory (this is the host's, not the GPU's)",
        ),
        (waiting("ContainerCreating"), "Starting", "is being created"),
        (engine_pod(0, ready=False), "ModelLoading", "loads the model for less than a minute"),
        (
            engine_pod(
                0, ready=False, containerStatuses=[container(started=True, state={"running": {"startedAt": at(-30)}})]
            ),  # it is not ready since 0: it was
            "NotReady",
            "runs, and its readiness probe fails",
        ),
        (
            engine_pod(0, ready=False, phase="Failed", reason="Evicted", message="low on memory"),
            "Evicted",
            "low on memory",
        ),
        (
            engine_pod(0, ready=False, phase="Failed", reason="UnexpectedAdmissionError", message="no GPU"),
            "PodFailed",
            "no GPU",
        ),
        (
            engine_pod(
                0,
                ready=False,
                initContainerStatuses=[
                    container("larry", state={"waiting": {"reason": "ErrImagePull", "message": "x"}})
                ],
                containerStatuses=[container(state={"waiting": {"reason": "PodInitializing"}})],
            ),
            "ImagePullBackOff",
            "container larry: image vllm:1 cannot be pulled: x",
        ),
        (
            engine_pod(
                0,
                ready=False,
                initContainerStatuses=[container("larry", state={"terminated": {"exitCode": 0}})],
                containerStatuses=[container(state={"waiting": {"reason": "PodInitializing"}})],
            ),
            "Starting",
            "is being created",
        ),
        (init_runs("larry"), "Starting", "container larry: starts"),
        (init_runs("picker"), "Starting", "container picker: starts"),
        (init_runs("picker", since=-30), "NotReady", "container picker: runs, and its readiness probe fails"),
        (gateway_pod(0, ready=False), "Starting", "container gateway: starts"),
        # What is left of a pod whose node is lost: Kubernetes sets its Ready alone.
        (well_but({"type": "Ready", "status": "False"}), "NotReady", "node-1 is not heard from: is it down?"),
        (well_but({"type": "Ready", "status": "False", "message": "a gate is shut"}), "NotReady", "a gate is shut"),
    ],
)
def test_reason_and_words(pod: dict[str, Any], reason: str, message: str) -> None:
    found = look(pod)
    assert (found.reason, found.message) == (reason, message)
    assert reason in ("", *REASONS)


def test_of_a_long_error_its_end_is_told_too() -> None:
    why = "dial tcp: lookup registry.example on 10.0.0.10:53: i/o timeout"
    found = look(waiting("ErrImagePull", "failed to resolve reference " + "x" * 400 + why)).message
    assert found.startswith("image vllm:1 cannot be pulled: failed to resolve")
    assert found.endswith(why)
    assert len(found) == 300


def test_loading_time_is_told_in_steps_and_the_next_one_is_known() -> None:
    pod = engine_pod(0, ready=False)
    words = []
    for after in range(0, 7200, 30):
        clock = Clock(T0 + timedelta(seconds=after))
        words.append(health(pod, (), clock).message)
        assert clock.next is not None
        assert clock.next > 0
    assert list(dict.fromkeys(words)) == [
        "loads the model for less than a minute",
        "loads the model for over 1 minute",
        "loads the model for over 2 minutes",
        "loads the model for over 5 minutes",
        "loads the model for over 10 minutes",
        "loads the model for over 15 minutes",
        "loads the model for over 30 minutes",
        "loads the model for over 1 hour",
    ]


def test_an_engine_that_has_loaded_is_not_warned_of_before_its_first_readiness_probe() -> None:
    pod = engine_pod(
        0, ready=False, containerStatuses=[container(started=True, state={"running": {"startedAt": at(5)}})]
    )
    found = look(pod, after=900)
    assert (found.reason, found.message) == ("Starting", "starts")


def test_a_container_may_fail_its_first_probes_and_the_end_of_that_is_known() -> None:
    words = {}
    for after in (0, 20, 30):
        clock = Clock(T0 + timedelta(seconds=after))
        words[after] = health(init_runs("picker"), (), clock).reason, clock.next
    assert words == {0: ("Starting", 30), 20: ("Starting", 10), 30: ("NotReady", None)}


@pytest.mark.parametrize("reason", ["FailedAttachVolume", "FailedMount"])
def test_a_volume_that_does_not_come_is_told_by_its_newest_event(reason: str) -> None:
    pod = waiting("ContainerCreating")
    events = tuple(
        {"reason": reason, "message": text, "lastTimestamp": at(second), "involvedObject": {"name": name, "uid": name}}
        for name, second, text in (
            ("llama-engine-0", 5, "Multi-Attach error"),
            ("llama-engine-0", 1, "older"),
            ("llama-engine-1", 9, "another pod's"),
        )
    )
    found = look(pod, events=events)
    assert (found.reason, found.message) == ("VolumeNotMounted", "Multi-Attach error")
    assert look(waiting("ErrImagePull"), events=events).reason == "ImagePullBackOff"


def test_an_event_of_a_pod_of_the_same_name_before_is_not_believed() -> None:
    events = ({"reason": "FailedMount", "message": "x", "involvedObject": {"name": "llama-engine-0", "uid": "old"}},)
    assert look(waiting("ContainerCreating"), events=events).reason == "Starting"


def test_a_pod_that_is_being_deleted_is_no_trouble_until_it_does_not_end() -> None:
    pod = engine_pod(0)
    pod["metadata"]["deletionTimestamp"] = at(600)
    early, late = look(pod, after=600), look(pod, after=661)
    assert (early.ready, early.leaving, early.reason) == (False, True, "")
    assert late.reason == "StuckTerminating"
    assert "node-1" in late.message


def test_since_is_when_it_stopped_being_ready() -> None:
    assert look(engine_pod(0, ready=False, age=77)).since == at(77)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "(EngineCore pid=12) ERROR 10-05 12:33:01 torch.cuda.OutOfMemoryError: CUDA out of memory",
            "torch.cuda.OutOfMemoryError: CUDA out of memory",
        ),
        (
            "RuntimeError: a\nduring handling\nhalffull_larry.ConfigError: alpha must not be negative\nclosing",
            "halffull_larry.ConfigError: alpha must not be negative",
        ),
        ("only a line", "only a line"),
        ("\x1b[31mred\x00\nlast   line\n\n", "last line"),
        ("", None),
    ],
)
def test_the_line_that_says_most_is_told(message: str, told: str | None) -> None:
    found = look(waiting("CrashLoopBackOff", lastState={"terminated": {"exitCode": 2, "message": message}}))
    assert found.message == ("exit code 2" if told is None else f"exit code 2: {told}")


def test_long_words_are_cut() -> None:
    assert len(look(waiting("CreateContainerConfigError", "x" * 5000)).message) == 300


@pytest.mark.parametrize(
    "junk",
    [
        {},
        {"conditions": None, "containerStatuses": None},
        {"containerStatuses": [{}]},
        {"containerStatuses": [{"state": None}]},
    ],
)
def test_a_status_with_little_in_it_breaks_nothing(junk: dict[str, Any]) -> None:
    pod = engine_pod(0)
    pod["status"] = junk
    assert look(pod).reason == "Starting"


def test_the_worst_comes_first() -> None:
    pods = [look(engine_pod(1, ready=False)), look(engine_pod(0)), look(waiting("CrashLoopBackOff", lastState=CRASH))]
    assert [pod.reason for pod in worst(pods)] == ["CrashLoopBackOff", "ModelLoading"]
