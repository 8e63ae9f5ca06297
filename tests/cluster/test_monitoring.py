"""Monitoring on the node: every target answers, every panel has data, and each alert fires when its fault is made."""

import contextlib
import json
import os
import re
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import pytest

from halffull_operator import labels
from halffull_operator.kinds import Kind
from tests.cluster import prometheus
from tests.cluster.conftest import MakeNamespace
from tests.cluster.load import SteadyLoad
from tests.cluster.node import RELEASE, SLOW, SYSTEM, Cluster
from tests.cluster.prometheus import FASTER, INTERVAL, Manifest, Prometheus, is_number
from tests.cluster.servings import Serving, emulated, processes
from tests.operator.chart import optional_apis
from tests.operator.kube import wait_until

KINDS: Final = (
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"),
    Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules"),
)
NO_FAULT_HERE: Final = {
    "HalffullLarryInactive": "needs a vLLM outside the plugin's range; the emulated engine never steps aside",
    "HalffullOperatorErrors": "needs a mistake in the operator",
}
"""promtool tells of these (tests/operator/chart/test_alerts.py)."""
LONGEST: Final = 30 * 60 // FASTER
"""s; the longest range and `for` of an alert, both together."""


@dataclass(frozen=True)
class Monitored:
    """A serving under load, and who watches it."""

    serving: Serving
    prometheus: Prometheus
    rules: Manifest
    dashboard: Manifest
    load: SteadyLoad

    def firing(self) -> set[str]:
        """Names of the alerts that fire; those of another's serving are none of ours."""
        ours = {self.serving.namespace, SYSTEM, ""}
        return {alert for alert, namespace in self.prometheus.firing() if namespace in ours}


@pytest.fixture(scope="module")
def serving(cluster: Cluster, namespaces: MakeNamespace) -> Iterator[Serving]:
    """The chart with all that it has for monitoring, and a serving that is watched and takes faults.

    The CRDs stay in the cluster: the operator would start anew when they went, in the midst of another module's tests.
    """
    for kind in KINDS:
        crd = optional_apis.crd(kind)
        cluster.apply(crd, namespace=SYSTEM)
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}", f"--timeout={SLOW}s")
    enabled = ("podMonitor", "prometheusRule", "grafanaDashboard")
    cluster.install("--set", ",".join(f"{one}.enabled=true" for one in enabled))
    manifest = emulated(monitoring={"podMonitor": {"enabled": True}})
    manifest["spec"]["engine"]["args"].append("--allow-faults")
    made = Serving.apply(cluster, namespaces("watched"), manifest)
    try:
        made.settled()
        yield made
    finally:
        cluster.kubectl("delete", "llms", made.name, f"--timeout={SLOW}s", namespace=made.namespace)
        cluster.install()


@pytest.fixture(scope="module")
def monitored(cluster: Cluster, serving: Serving, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    monitors = [
        cluster.get(f"podmonitor {RELEASE}", namespace=SYSTEM),
        *cluster.get("podmonitors", namespace=serving.namespace),
    ]
    rules = cluster.get(f"prometheusrule {RELEASE}", namespace=SYSTEM)
    shown = cluster.get(f"configmap {RELEASE}-dashboard", namespace=SYSTEM)["data"]["halffull.json"]
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        prometheus.running(cluster, monitors, rules, folder=folder) as watching,
        serving.load() as load,
    ):
        yield Monitored(serving, watching, rules, json.loads(shown), load)


def test_every_target_is_scraped(cluster: Cluster, monitored: Monitored) -> None:
    operators = cluster.get("pods", namespace=SYSTEM, selector=f"app.kubernetes.io/instance={RELEASE}")
    parts = (
        (operators, {"metrics"}),
        (monitored.serving.gateways(), {"metrics", "envoy"}),
        (monitored.serving.engines(), {"http", "load"}),
    )
    wanted = {(pod["metadata"]["name"], port) for pods, ports in parts for pod in pods for port in ports}

    def look() -> bool:
        targets = monitored.prometheus.targets()
        down = [(one["labels"], one["lastError"]) for one in targets if one["health"] != "up"]
        assert not down, down
        found = [(one["labels"]["pod"], one["labels"]["endpoint"]) for one in targets]
        assert sorted(found) == sorted(wanted), "each once, and no other"
        return True

    wait_until("every target is up", look, within=SLOW)
    for pods, series in (
        (operators, "halffull_operator_servings"),
        (monitored.serving.gateways(), "halffull_picker_info"),
        (monitored.serving.gateways(), "envoy_cluster_upstream_rq_total"),
        (monitored.serving.engines(), "halffull_larry_active"),
        (monitored.serving.engines(), "vllm:num_requests_running"),
    ):
        found = {one["metric"]["pod"] for one in monitored.prometheus.query(f"count by (pod) ({series})")}
        assert found == {pod["metadata"]["name"] for pod in pods}, series


def test_every_panel_has_data_under_load(monitored: Monitored) -> None:
    namespace = monitored.serving.namespace
    (variable,) = (one for one in monitored.dashboard["templating"]["list"] if one["name"] == "namespace")
    series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()  # type: ignore[union-attr]
    wait_until("it is to be chosen", lambda: _values(monitored, series, label) == {namespace}, within=SLOW)
    engines = {f"{pod['status']['podIP']}:8000" for pod in monitored.serving.engines()}
    for panel in monitored.dashboard["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"].replace("$namespace", namespace).replace("$__rate_interval", f"{4 * INTERVAL}s")
            legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))

            def look(query: str = query, legend: set[str] = legend, title: str = panel["title"]) -> bool:
                found = monitored.prometheus.query(query)
                assert found, f"{title}: nothing from {query}"
                assert all(legend <= set(one["metric"]) for one in found), f"{title}: no {legend} in {found}"
                if "endpoint" in legend:  # the picker's, not the one that the Prometheus Operator gives each target
                    assert {one["metric"]["endpoint"] for one in found} == engines, f"{title}: {found}"
                assert any(is_number(one) for one in found), f"{title}: {found} from {query}"
                return True

            wait_until(f"{panel['title']} has data", look, within=60)
    counted = f'sum(rate(halffull_picker_requests_total{{namespace="{namespace}"}}[{10 * INTERVAL}s]))'
    rate = pytest.approx(monitored.load.rate, rel=0.3)
    wait_until(
        "as many are counted as are sent", lambda: monitored.prometheus.query(counted)[0]["value"] == rate, within=SLOW
    )


def test_nothing_fires_while_all_is_well(monitored: Monitored) -> None:
    """For longer than the longest alert takes."""
    end, failed = monitored.prometheus.evaluations() + LONGEST, len(monitored.load.failed())
    while monitored.prometheus.evaluations() < end:
        assert not monitored.firing()
        monitored.load.more(1)
    assert len(monitored.load.failed()) == failed


def _values(monitored: Monitored, series: str, label: str) -> set[str]:
    return {one["metric"][label] for one in monitored.prometheus.query(f"count by ({label}) ({series})")}


# Faults, each undone at its end.


@contextlib.contextmanager
def engine_has(serving: Serving, kind: str) -> Iterator[None]:
    """A fault of the emulated engine in one of the engines."""
    url = f"http://{serving.engines()[0]['status']['podIP']}:8000/fault"

    def post(kind: str) -> None:
        with urllib.request.urlopen(url, data=json.dumps({"kind": kind}).encode(), timeout=30) as answer:
            assert answer.status == 200

    post(kind)
    try:
        yield
    finally:
        post("none")


@contextlib.contextmanager
def picker_stands_still(serving: Serving) -> Iterator[None]:
    """One picker is stopped, as one that gets no CPU at all."""
    (process,) = processes(serving.gateways()[0], program="python")
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # Kubernetes has killed it
            os.kill(process, signal.SIGCONT)


@contextlib.contextmanager
def pickers_are_starved(serving: Serving) -> Iterator[None]:
    """Every picker runs for a fifth of the time: most requests wait the 100 ms that Envoy gives it, and take P2C.

    No stop is as long as the second after which an engine's report is stale.
    """
    stopped = [process for pod in serving.gateways() for process in processes(pod, program="python")]
    ended = threading.Event()

    def starve() -> None:
        while not ended.is_set():
            for number, seconds in ((signal.SIGSTOP, 0.4), (signal.SIGCONT, 0.1)):
                for process in stopped:
                    os.kill(process, number)
                ended.wait(seconds)
        for process in stopped:
            os.kill(process, signal.SIGCONT)

    thread = threading.Thread(target=starve, name="starve", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def picker_reads(serving: Serving, data: dict[str, str | None]) -> Iterator[None]:
    """Somebody edits the pickers' ConfigMap while the operator is told to look away."""
    serving.kubectl("annotate", "llms", serving.name, f"{labels.PAUSED}=true")
    try:
        serving.kubectl(
            *("patch", "configmap", f"{serving.name}-picker", "--type", "merge", "--patch", json.dumps({"data": data}))
        )
        yield
    finally:
        serving.kubectl("annotate", "llms", serving.name, f"{labels.PAUSED}-")


@contextlib.contextmanager
def operator_is_away(serving: Serving) -> Iterator[None]:
    cluster = serving.cluster
    cluster.kubectl("scale", f"deployment/{RELEASE}", "--replicas=0", namespace=SYSTEM)
    try:
        yield
    finally:
        cluster.kubectl("scale", f"deployment/{RELEASE}", "--replicas=1", namespace=SYSTEM)
        cluster.rolled_out(f"deployment/{RELEASE}", namespace=SYSTEM)


Fault = Callable[[Serving], AbstractContextManager[None]]
FAULTS: Final[dict[str, Fault]] = {
    "HalffullEngineStale": lambda serving: engine_has(serving, "hang_load"),
    "HalffullEngineNotProgressing": lambda serving: engine_has(serving, "wedge"),
    "HalffullEngineFailing": lambda serving: engine_has(serving, "fail"),
    "HalffullPickerDown": picker_stands_still,
    "HalffullPickerBypassed": pickers_are_starved,
    "HalffullPickerConfigRefused": lambda serving: picker_reads(serving, {"picker.yaml": "version: 1\npolicy: Best\n"}),
    "HalffullPickerTrouble": lambda serving: picker_reads(serving, {"picker.yaml": None}),
    "HalffullOperatorNotWatching": operator_is_away,
}


@pytest.mark.parametrize("alert", FAULTS)
def test_an_alert_fires_when_its_fault_is_made_and_ends_with_it(monitored: Monitored, alert: str) -> None:
    wait_until("nothing fires", lambda: not monitored.firing(), within=SLOW)
    with FAULTS[alert](monitored.serving):
        wait_until(f"{alert} fires", lambda: alert in monitored.firing(), within=SLOW)
        assert monitored.firing() == {alert}
    wait_until("it ends", lambda: not monitored.firing(), within=SLOW)
    monitored.serving.settled()


def test_every_alert_has_a_fault_or_a_reason(monitored: Monitored) -> None:
    names = {rule["alert"] for group in monitored.rules["spec"]["groups"] for rule in group["rules"]}
    assert names == set(FAULTS) | set(NO_FAULT_HERE)
