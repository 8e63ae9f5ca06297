"""What breaks or is deleted while requests flow: only requests fail that cannot be saved."""

import json
import os
import signal
import time
from datetime import UTC, datetime
from functools import partial
from typing import Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from halffull_operator.children.gateway_picker import SERVED_AFTER
from tests.cluster.node import RELEASE, SYSTEM, Cluster, CommandError
from tests.cluster.servings import Manifest, Serving, processes, uid
from tests.operator.servings import is_ready

OPERATOR: Final = f"app.kubernetes.io/instance={RELEASE}"


def test_all_pickers_are_killed_at_once(serving: Serving) -> None:
    """Envoy goes on by itself, and each picker is started again in its container: no pod leaves the Service."""
    serving.wait("each has served", lambda: all(_lived(pod) > SERVED_AFTER + 2 for pod in serving.gateways()))
    pods = serving.gateways()
    killed = {uid(pod): processes(pod, program="python") for pod in pods}
    assert all(len(one) == 1 for one in killed.values()), killed
    with serving.load() as load:
        for process in set[int]().union(*killed.values()):
            os.kill(process, signal.SIGKILL)
        load.more()
        for pod in pods:
            serving.wait("it runs again", partial(_others, pod, killed[uid(pod)]))
        serving.settled()
        load.more()
    assert not load.failed(), load.failed()[:5]
    assert [(uid(pod), _restarts(pod, "picker")) for pod in serving.gateways()] == [(uid(pod), 0) for pod in pods]


def test_a_picker_container_is_killed(serving: Serving) -> None:
    """Its pod is unready until the kubelet has started it again; its streams go on, and new requests take the other."""
    first, *_ = serving.gateways()
    with serving.load() as load:
        for process in processes(first, program="bash"):
            os.kill(process, signal.SIGKILL)
        serving.wait("it was started again", lambda: _restarts(serving.gateways()[0], "picker") == 1)
        serving.settled()
        load.more()
    assert not load.failed(), load.failed()[:5]
    assert uid(serving.gateways()[0]) == uid(first)


def test_a_gateway_pod_is_deleted(serving: Serving) -> None:
    gone = serving.gateways()[0]
    with serving.load() as load:
        serving.kubectl("delete", "pod", gone["metadata"]["name"], "--wait=false")
        serving.wait("it has gone", lambda: uid(gone) not in {uid(pod) for pod in serving.gateways()})
        serving.settled()
        load.more()
    assert not load.failed(), load.failed()[:5]


def test_the_operator_is_deleted(cluster: Cluster, serving: Serving) -> None:
    before, pods = serving.generations(), {uid(pod) for pod in serving.engines() + serving.gateways()}
    assert len(before) == 2
    with serving.load() as load:
        cluster.kubectl("delete", "pod", "--selector", OPERATOR, namespace=SYSTEM)
        cluster.rolled_out(f"deployment/{RELEASE}", namespace=SYSTEM)
        servings = len(cluster.get("llmservings --all-namespaces", namespace=SYSTEM))
        serving.wait("it has looked at each", lambda: _reconciles(cluster) >= servings)
        load.more()
    assert not load.failed(), load.failed()[:5]
    assert serving.generations() == before, "a new operator changes nothing"
    assert {uid(pod) for pod in serving.engines() + serving.gateways()} == pods


def test_an_engine_is_deleted_with_grace(serving: Serving) -> None:
    """What it has begun it ends, streams of many seconds too, and nothing new comes to it."""
    gone = serving.engines()[0]
    with serving.load(rate=4, output_tokens=400) as load:
        serving.wait("it serves", lambda: _running(serving, gone) > 0)
        deleted = time.monotonic()
        serving.kubectl("delete", "pod", gone["metadata"]["name"], "--wait=false")
        serving.wait("it has gone", lambda: uid(gone) not in {uid(pod) for pod in serving.engines()})
        serving.settled()
        load.more()
    assert not load.failed(), load.failed()[:5]
    served = serving.served([one.request_id for one in load.outcomes])
    address = gone["status"]["podIP"]
    finished = [one for one in load.outcomes if one.under_way(deleted) and served[one.request_id] == address]
    assert finished, "it had streams under way"


def test_an_engine_is_deleted_without_grace(serving: Serving) -> None:
    """Only its own requests fail: those of its streams, of 14 s, that outlast the 4 s in which the kubelet kills it."""
    gone = serving.engines()[0]
    address = gone["status"]["podIP"]
    with serving.load(rate=4, output_tokens=800) as load:
        serving.wait("it serves", lambda: _running(serving, gone) > 0)
        before = time.monotonic()
        serving.kubectl("delete", "pod", gone["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")
        serving.wait("it has gone", lambda: uid(gone) not in {uid(pod) for pod in serving.engines()})
        serving.settled()
        load.more()
    served = serving.served([one.request_id for one in load.outcomes])
    failed = load.failed()
    assert failed, "it had streams under way, which ended with it"
    others = [one for one in failed if served[one.request_id] != address]
    assert not others, (address, [(one, served[one.request_id]) for one in others[:5]])
    late = [one for one in failed if one.sent > before + 10]
    assert not late, "what is sent after it is known goes elsewhere"


def test_a_drain_stops_before_the_last_gateway_and_engine(cluster: Cluster, serving: Serving) -> None:
    """One node: the budgets let one pod of each part go, whose successor finds no other node."""
    with serving.load() as load:
        try:
            with pytest.raises(CommandError, match="global timeout reached"):
                cluster.kubectl(
                    *("drain", "node", "--pod-selector", f"serving.halffull.dev/name={serving.name}"),
                    *("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=30s"),
                )
            load.more()
            for pods in (serving.engines(), serving.gateways()):
                assert sum(is_ready(pod) for pod in pods) == 1
        finally:
            cluster.kubectl("uncordon", "node")
        serving.settled()
        load.more()
    assert not load.failed(), load.failed()[:5]


def _others(pod: Manifest, killed: set[int]) -> bool:
    """Whether a picker runs that is none of these."""
    return bool(processes(pod, program="python") - killed)


def _restarts(pod: Manifest, container: str) -> int:
    return int(_status(pod, container)["restartCount"])


def _lived(pod: Manifest) -> float:
    """Seconds since a gateway's picker was started."""
    started = datetime.fromisoformat(_status(pod, "picker")["state"]["running"]["startedAt"])
    return (datetime.now(UTC) - started).total_seconds()


def _status(pod: Manifest, container: str) -> Manifest:
    statuses = (*pod["status"]["initContainerStatuses"], *pod["status"]["containerStatuses"])
    return next(one for one in statuses if one["name"] == container)


def _reconciles(cluster: Cluster) -> float:
    """How often the operator that runs has looked at an LLMServing."""
    (pod,) = cluster.get("pods", namespace=SYSTEM, selector=OPERATOR)
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
    families = text_string_to_metric_families(cluster.kubectl("get", "--raw", path))
    samples = [sample for family in families for sample in family.samples]
    return sum(sample.value for sample in samples if sample.name == "halffull_operator_reconciles_total")


def _running(serving: Serving, pod: Manifest) -> int:
    """Requests that an engine runs, by its load report."""
    path = f"/api/v1/namespaces/{serving.namespace}/pods/{pod['metadata']['name']}:9400/proxy/load"
    running: int = json.loads(serving.kubectl("get", "--raw", path))["running"]
    return running
