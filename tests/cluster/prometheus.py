"""Prometheus on this machine, watching what PodMonitors and a PrometheusRule of the cluster say.

There is no Prometheus Operator on the node: `scrape_configs` translates PodMonitors as its `promcfg.go` does (the parts
that ours use; anything else is an error). Debian's Prometheus is built without discovery in Kubernetes: `discovered`
says what that says of pods (`discovery/kubernetes/pod.go`), and a file brings it. Times are shortened: targets are
scraped every `INTERVAL` seconds, rules evaluated every second, and durations in minutes (`for`, ranges) divided by
`FASTER`. Thresholds stay.
"""

import contextlib
import json
import math
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tests.cluster.images import REPOSITORY
from tests.cluster.node import Cluster, CommandError, run
from tests.operator.kube import wait_until
from tests.ports import free_port

Manifest = dict[str, Any]
INTERVAL: Final = 2
"""s between two scrapes."""
FASTER: Final = 30
"""By this, a `for` of 10 minutes takes 20 s: ten scrapes, so that one that is late is no fault."""

_REFRESH: Final = 3
"""s between two looks at the pods."""
_PODS: Final = "pods.json"


def scrape_configs(monitors: list[Manifest]) -> list[Manifest]:
    """Prometheus' own configuration for these PodMonitors."""
    return [
        _job(monitor, number, endpoint)
        for monitor in monitors
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def _job(monitor: Manifest, number: int, endpoint: Manifest) -> Manifest:
    namespace, name = monitor["metadata"]["namespace"], monitor["metadata"]["name"]
    assert set(monitor["spec"]) == {"selector", "podMetricsEndpoints"}, "more is not translated"
    assert set(monitor["spec"]["selector"]) == {"matchLabels"}, "more is not translated"
    assert set(endpoint) <= {"port", "path", "interval", "honorLabels"}, "more is not translated"
    relabelings: list[Manifest] = [
        {"action": "keep", "source_labels": ["__meta_kubernetes_namespace"], "regex": namespace},
        {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
    ]
    for label, value in sorted(monitor["spec"]["selector"]["matchLabels"].items()):
        sources = [f"__meta_kubernetes_pod_{what}_{_plain(label)}" for what in ("label", "labelpresent")]
        relabelings.append({"action": "keep", "source_labels": sources, "regex": f"({re.escape(value)});true"})
    relabelings += [
        {
            "action": "keep",
            "source_labels": ["__meta_kubernetes_pod_container_port_name"],
            "regex": endpoint["port"],
        },
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        {"target_label": "job", "replacement": f"{namespace}/{name}"},
        {"target_label": "endpoint", "replacement": endpoint["port"]},
    ]
    return {
        "job_name": f"podMonitor/{namespace}/{name}/{number}",
        "honor_labels": endpoint.get("honorLabels", False),
        "metrics_path": endpoint["path"],
        "file_sd_configs": [{"files": [_PODS]}],
        "relabel_configs": relabelings,
    }


def _plain(label: str) -> str:
    return re.sub(r"\W", "_", label)


def discovered(pods: list[Manifest]) -> list[Manifest]:
    """Target groups of these pods, one for each named port."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
                "__meta_kubernetes_pod_name": pod["metadata"]["name"],
                "__meta_kubernetes_pod_phase": pod["status"]["phase"],
                "__meta_kubernetes_pod_container_name": container["name"],
                "__meta_kubernetes_pod_container_port_name": port["name"],
                **{f"__meta_kubernetes_pod_label_{_plain(label)}": value for label, value in _labels(pod).items()},
                **{f"__meta_kubernetes_pod_labelpresent_{_plain(label)}": "true" for label in _labels(pod)},
            },
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ()))
        for port in container.get("ports", ())
        if port.get("name")
    ]


def _labels(pod: Manifest) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"].get("labels", {})
    return found


def faster(rules: Manifest) -> Manifest:
    """The `spec` of a PrometheusRule with every duration in minutes shortened."""

    def seconds(found: re.Match[str]) -> str:
        return f"{int(found[1]) * 60 // FASTER}s"

    groups = [
        {
            **group,
            "rules": [
                {
                    **rule,
                    "expr": re.sub(r"\b(\d+)m\b", seconds, rule["expr"]),
                    **({"for": re.sub(r"^(\d+)m$", seconds, rule["for"])} if "for" in rule else {}),
                }
                for rule in group["rules"]
            ],
        }
        for group in rules["groups"]
    ]
    return {"groups": groups}


@dataclass(frozen=True)
class Prometheus:
    """One that runs."""

    url: str

    def query(self, expression: str) -> list[Manifest]:
        """The samples of an instant query: `metric`, its labels, and `value`, a number (which may be NaN).

        Raises:
            AssertionError: it is not answered.
        """
        data = self._get("query", query=expression)
        assert data["resultType"] == "vector", data
        return [{"metric": one["metric"], "value": float(one["value"][1])} for one in data["result"]]

    def targets(self) -> list[Manifest]:
        """What is scraped."""
        found: list[Manifest] = self._get("targets", state="active")["activeTargets"]
        return found

    def firing(self) -> set[tuple[str, str]]:
        """(alert, namespace) of all alerts that fire; the namespace may be ""."""
        return {
            (one["labels"]["alertname"], one["labels"].get("namespace", ""))
            for one in self._get("alerts")["alerts"]
            if one["state"] == "firing"
        }

    def evaluations(self) -> float:
        """How often the rules were evaluated."""
        text = self._read("/metrics").decode()
        (count,) = re.findall(r"^prometheus_rule_group_iterations_total\{.*\} (\S+)$", text, re.MULTILINE)
        return float(count)

    def _get(self, what: str, **parameters: str) -> Manifest:
        data: Manifest = json.loads(self._read(f"/api/v1/{what}?{urllib.parse.urlencode(parameters)}"))["data"]
        return data

    def _read(self, path: str) -> bytes:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:  # noqa: S310  on this machine
                text: bytes = answer.read()
        except OSError as error:
            raise AssertionError(f"{self.url}{path}: {error}") from error
        return text


def is_number(sample: Manifest) -> bool:
    """Whether a sample is one that a panel can draw."""
    return math.isfinite(sample["value"])


@contextlib.contextmanager
def running(cluster: Cluster, monitors: list[Manifest], rules: Manifest, *, folder: Path) -> Iterator[Prometheus]:
    """Prometheus with these PodMonitors and this PrometheusRule; its data and its log go to `folder`."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(faster(rules["spec"])))
    times = {"scrape_interval": f"{INTERVAL}s", "scrape_timeout": f"{INTERVAL}s", "evaluation_interval": "1s"}
    configuration = {"global": times, "rule_files": ["rules.yaml"], "scrape_configs": scrape_configs(monitors)}
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    program = run([REPOSITORY / "hack" / "prometheus", "prometheus"]).strip()
    port = free_port()
    prometheus = Prometheus(f"http://127.0.0.1:{port}")
    places = [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("w") as log, _discovering(cluster, folder):
        process = subprocess.Popen([program, *places, f"--web.listen-address=127.0.0.1:{port}"], stderr=log)
        try:
            wait_until("Prometheus answers", lambda: _answers(prometheus, process, folder), within=60)
            yield prometheus
        finally:
            process.terminate()
            process.wait()


def _answers(prometheus: Prometheus, process: subprocess.Popen[bytes], folder: Path) -> bool:
    if process.poll() is not None:
        raise CommandError((folder / "log").read_text()[-2000:])
    return bool(prometheus.query("vector(1)"))


@contextlib.contextmanager
def _discovering(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Keeps the file of targets as the pods are."""
    ended = threading.Event()

    def look() -> None:
        pods = json.loads(cluster.kubectl("get", "pods", "--all-namespaces", "--output", "json"))["items"]
        (folder / "new").write_text(json.dumps(discovered(pods)))
        (folder / "new").rename(folder / _PODS)

    def look_again() -> None:
        while not ended.wait(_REFRESH):
            with contextlib.suppress(CommandError):  # what is known stands, as with Prometheus' own
                look()

    look()
    thread = threading.Thread(target=look_again, name="discovery", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
