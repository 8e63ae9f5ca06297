"""What Envoy says that it was told, where a test by behaviour would take minutes."""

from typing import Any

import pytest

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.policies import Policy
from tests.extproc.envoy.conftest import StartGateway
from tests.extproc.envoy.stack import eventually


@pytest.fixture
def patient_envoy() -> None:
    """Nothing is picked here, and the timeouts are what is looked at."""


def found(tree: Any, key: str) -> list[Any]:
    """Every value of `key`, wherever it stands."""
    if isinstance(tree, list):
        return [value for item in tree for value in found(item, key)]
    if isinstance(tree, dict):
        here = [tree[key]] if key in tree else []
        return here + [value for item in tree.values() for value in found(item, key)]
    return []


def part(dump: dict[str, Any], kind: str) -> Any:
    return next(config for config in dump["configs"] if config["@type"].endswith("." + kind))


async def test_timeouts_are_not_those_of_web_pages(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    dump = await running.envoy.config_dump()
    route = found(part(dump, "RoutesConfigDump")["dynamic_route_configs"], "route")[0]
    assert (route["timeout"], route["idle_timeout"]) == ("0s", "0s")
    manager = part(dump, "ListenersConfigDump")["dynamic_listeners"]
    assert found(manager, "stream_idle_timeout") == ["0s"]
    assert found(manager, "message_timeout") == ["0.100s"]
    assert found(manager, "request_timeout") == []  # none
    assert found(manager, "max_stream_duration") == []
    assert found(manager, "buffer_flush_interval") == ["0.100s"]


async def test_timeouts_that_are_asked_for_show(gateway: StartGateway) -> None:
    running = await gateway(engines=1, request_timeout=600, idle_timeout=0.25)
    dump = await running.envoy.config_dump()
    route = found(part(dump, "RoutesConfigDump")["dynamic_route_configs"], "route")[0]
    assert (route["timeout"], route["idle_timeout"]) == ("600s", "0.250s")
    assert found(part(dump, "ListenersConfigDump")["dynamic_listeners"], "stream_idle_timeout") == ["0.250s"]


async def test_clusters_close_idle_connections_before_uvicorn_and_never_count_to_1024(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    dump = part(await running.envoy.config_dump(), "ClustersConfigDump")
    clusters = [each["cluster"] for each in dump["dynamic_active_clusters"]]
    assert {cluster["name"] for cluster in clusters} == {"engines", "engines-round-robin", "engines-random"}
    assert len({cluster["eds_cluster_config"]["service_name"] for cluster in clusters}) == 3
    for cluster in clusters:
        assert found(cluster, "idle_timeout") == ["4s"]
        assert cluster["common_lb_config"]["healthy_panic_threshold"] == {}  # 0 %; its absence would be 50 %
        assert cluster["connect_timeout"] == "1s"
    picker = [each["cluster"] for each in dump["static_clusters"] if each["cluster"]["name"] == "picker"]
    for cluster in [*clusters, *picker]:
        for threshold in cluster["circuit_breakers"]["thresholds"]:
            for key in ("max_connections", "max_pending_requests", "max_requests", "max_retries"):
                assert threshold[key] == 4294967295


async def test_only_sizes_leave_envoy(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    listeners = part(await running.envoy.config_dump(), "ListenersConfigDump")["dynamic_listeners"]
    patterns = found(listeners, "allowed_headers")[0]["patterns"]
    assert patterns == [{"exact": "content-length"}, {"exact": "transfer-encoding"}]  # no Authorization, no cookie


async def test_eds_names_every_engine_once_per_cluster(gateway: StartGateway) -> None:
    running = await gateway(engines=0)
    addresses = [f"10.0.0.{n}:8000" for n in range(1, 5)] + ["[fd00::1]:8000", "[fd00::1]:8001"]
    running.picker.set_endpoints([Endpoint(address) for address in addresses])

    async def applied() -> bool:
        return all(
            [
                sorted(await running.envoy.hosts(name)) == sorted(addresses)
                for name in ("engines", "engines-round-robin", "engines-random")
            ]
        )

    await eventually(applied, what="EDS")  # several ports of one host stay several


@pytest.mark.parametrize("policy", list(Policy))
async def test_envoy_accepts_every_resource(gateway: StartGateway, policy: Policy) -> None:
    running = await gateway(engines=1, policy=policy, max_request_bytes=1, paths=("/*", "/v1/*", "/health"))
    assert running.picker.ads is not None
    counts = running.picker.ads.counts
    await running.settled()
    assert {kind for kind, how in counts if how == "accepted"} == {
        "Cluster", "ClusterLoadAssignment", "Listener", "RouteConfiguration",
    }  # fmt: skip
    assert not [key for key in counts if key[1] == "rejected"]
    assert running.picker.ads.rejection is None
    for line in running.envoy.errors().splitlines():
        assert "deprecated" not in line.lower(), line
        assert "rejected" not in line, line
