"""What people change while requests flow: not one fails."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from halffull_operator import labels
from tests.cluster.images import VERSION
from tests.cluster.node import CHART, RELEASE, SYSTEM, Cluster
from tests.cluster.servings import Manifest, Serving, uid
from tests.operator.servings import says

_NEXT: Final = "99.0.0"


def ready_addresses(serving: Serving) -> set[str]:
    return {pod["status"]["podIP"] for pod in serving.engines() if "deletionTimestamp" not in pod["metadata"]}


def test_a_rolling_update_of_the_engines(serving: Serving) -> None:
    before = {uid(pod) for pod in serving.engines()}
    with serving.load() as load:
        serving.patch(scheduler={"policy": "LARRY", "larry": {"alpha": 500}})
        serving.wait("the engines are new", lambda: not before & {uid(pod) for pod in serving.engines()})
        serving.settled()
        load.more()
    assert not load.failed(), load.failed()[:5]
    for pod in serving.engines():
        assert "--alpha=500" in _commands(serving, pod["metadata"]["name"])


def test_scaling_by_kubectl_scale(serving: Serving) -> None:
    with serving.load() as load:
        for replicas in (4, 1, 2):
            serving.kubectl("scale", "llms", serving.name, f"--replicas={replicas}")
            serving.settled()
            used = set(serving.served([one.request_id for one in load.more()]).values())
            assert used <= ready_addresses(serving), "nobody is sent to an engine that has left"
            assert (len(used) > 1) == (replicas > 1)
    assert not load.failed(), load.failed()[:5]


def test_routing_to_least_request_and_back(serving: Serving) -> None:
    before = {uid(pod) for pod in serving.engines() + serving.gateways()}
    with serving.load() as load:
        for policy in ("LeastRequest", "SAL"):
            serving.patch(routing={"policy": policy})
            for pod in serving.gateways():
                name = pod["metadata"]["name"]
                serving.wait(f"{name} routes by {policy}", partial(_routes_by, serving, name, policy))
            load.more()
    assert not load.failed(), load.failed()[:5]
    assert {uid(pod) for pod in serving.engines() + serving.gateways()} == before, "live: no pod is made anew"


def test_an_upgrade_by_helm_and_the_way_back(cluster: Cluster, serving: Serving, tmp_path: Path) -> None:
    """docs/operations.md: operator and gateways first, engines when they are told to, and back by `helm rollback`.

    The next release is this one under the next release's names.
    """
    cluster.tag_images(_NEXT)
    cluster.helm("package", str(CHART), "--version", _NEXT, "--app-version", _NEXT, "--destination", str(tmp_path))
    try:
        with serving.load() as load:
            engines = {uid(pod) for pod in serving.engines()}
            cluster.install(chart=tmp_path / f"halffull-{_NEXT}.tgz")
            _rolled(serving, serving.gateways, "picker", _NEXT)
            assert {uid(pod) for pod in serving.engines()} == engines, "they stay as they are"
            says(serving.body(), UpdateAvailable="True")
            load.more()

            serving.kubectl("annotate", "llms", serving.name, f"{labels.RESTARTED_AT}=2026-01-01T00:00:00Z")
            _rolled(serving, serving.engines, "larry", _NEXT)
            says(serving.body(), UpdateAvailable="False")
            load.more()

            engines = {uid(pod) for pod in serving.engines()}
            cluster.helm("rollback", RELEASE, "--namespace", SYSTEM)
            cluster.rolled_out(f"deployment/{RELEASE}", namespace=SYSTEM)
            _rolled(serving, serving.gateways, "picker", VERSION)
            assert {uid(pod) for pod in serving.engines()} == engines, "they stay again"
            load.more()
        assert not load.failed(), load.failed()[:5]
    finally:
        cluster.install()


def _rolled(serving: Serving, pods: Callable[[], list[Manifest]], container: str, version: str) -> None:
    """Wait until the pods' init container of that name is of that version in each, and all is settled."""

    def images() -> list[str]:
        return [one["image"] for pod in pods() for one in pod["spec"]["initContainers"] if one["name"] == container]

    serving.wait(f"{container} is {version}", lambda: all(one.endswith(f":{version}") for one in images()))
    serving.settled()


def _commands(serving: Serving, pod: str) -> str:
    """The command lines of an engine's processes."""
    text = serving.kubectl("exec", pod, "--container", "engine", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline")
    return text.replace("\0", " ")


def _routes_by(serving: Serving, pod: str, policy: str) -> bool:
    """Whether that is the policy of a gateway's picker, as its status page says."""
    path = f"/api/v1/namespaces/{serving.namespace}/pods/{pod}:9090/proxy/status.json"
    status = json.loads(serving.cluster.kubectl("get", "--raw", path))
    return bool(status["policy"] == policy)
