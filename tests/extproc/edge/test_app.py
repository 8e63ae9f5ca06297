from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from halffull_extproc.app import Picker
from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.policies import Policy
from halffull_extproc.settings import load_settings
from halffull_extproc.wiring import ConfigSource, gateway_config, picker_address, picker_tls, ready_address
from halffull_extproc.xds.resources import ENDPOINTS, LISTENER, ROUTE

SMALLEST = "version: 1\npolicy: SAL\nendpoints: {file: endpoints.yaml}\n"
FIRST, SECOND = Endpoint(address="10.0.0.1:80"), Endpoint(address="10.0.0.2:80")


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logged() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


@pytest.fixture
def picker(clock: Clock, logged: list[Any]) -> Picker:
    return Picker(load_settings(SMALLEST, source="p"), source=ConfigSource(name="picker.yaml"), clock=clock)


def versions(picker: Picker) -> dict[str, str]:
    return {kind: told.version for kind, told in picker.ads._told.items()}


def pick(picker: Picker) -> tuple[str, ...]:
    picked = picker._pick(body_bytes=100, subset=None)
    return picked.addresses if picked else ()


def test_pool_poller_and_envoy_know_the_same_endpoints_from_the_same_instant(picker: Picker) -> None:
    assert ENDPOINTS not in picker.ads._told
    assert not picker.known.is_set()
    picker.reconcile([FIRST, SECOND])
    assert picker.known.is_set()
    assert set(pick(picker)) == set(picker.poller.status()) == {"10.0.0.1:80", "10.0.0.2:80"}
    assert b"10.0.0.2" in picker.ads._told[ENDPOINTS].resources["engines"]
    picker.reconcile([FIRST])
    assert pick(picker) == ("10.0.0.1:80",)
    assert b"10.0.0.2" not in picker.ads._told[ENDPOINTS].resources["engines"]
    picker.reconcile([Endpoint(address="10.0.0.1:80", health=Health.DRAINING)])
    assert pick(picker) == ()


def test_nobody_is_known_too(picker: Picker) -> None:
    picker.reconcile([])
    assert picker.known.is_set()
    assert ENDPOINTS in picker.ads._told


def test_the_same_list_changes_nothing(picker: Picker, logged: list[Any]) -> None:
    picker.reconcile([FIRST])
    before, lines = versions(picker), len(logged)
    picker.reconcile([FIRST])
    assert (versions(picker), len(logged)) == (before, lines)


def test_a_live_edit_applies_everywhere_by_the_route_alone(picker: Picker) -> None:
    picker.reconcile([FIRST])
    before = versions(picker)
    picker.reconfigure(SMALLEST.replace("SAL", "LeastRequest") + "poll: {interval: 50ms}\nfailureMode: FailClose\n")
    assert picker.pool.config.policy is Policy.LeastRequest
    assert picker.pool.config.poll_interval == picker.poller.config.interval == 0.05
    after = versions(picker)
    assert {kind for kind in after if after[kind] != before[kind]} == {ROUTE}
    assert picker.snapshot().policy == "LeastRequest"
    assert picker.snapshot().failure_mode == "FailClose"


def test_a_bad_edit_changes_nothing_and_shows_until_it_is_mended(picker: Picker, logged: list[Any]) -> None:
    picker.reconfigure(SMALLEST.replace("SAL", "Random"))
    picker.reconfigure(SMALLEST.replace("SAL", "Best"))
    assert picker.pool.config.policy is Policy.Random
    reason = picker.snapshot().config_error
    assert reason.startswith("picker.yaml:2: policy: 'Best' does not fit; allowed: SAL")
    assert any(line["log_level"] == "error" and line["reason"] == reason for line in logged)
    assert picker.snapshot().config_errors == 1
    picker.reconfigure(SMALLEST)
    assert (picker.snapshot().config_error, picker.snapshot().config_errors) == ("", 1)
    assert picker.pool.config.policy is Policy.SAL


def test_what_is_read_at_start_is_reported_and_not_applied(picker: Picker, logged: list[Any]) -> None:
    before = versions(picker)
    picker.reconfigure(SMALLEST + "gateway: {listen: '[::]:8080'}\nload: {metrics: {}}\n")
    assert "gateway.listen" in picker.snapshot().config_at_start
    assert versions(picker)[LISTENER] == before[LISTENER]
    assert picker.settings.gateway.listen == "[::]:8000"
    warned = [line for line in logged if line["log_level"] == "warning"]
    picker.reconfigure(SMALLEST + "gateway: {listen: '[::]:8080'}\nload: {metrics: {}}\npoll: {interval: 1s}\n")
    assert [line for line in logged if line["log_level"] == "warning"] == warned
    assert picker.poller.config.interval == 1.0
    picker.reconfigure(SMALLEST)
    assert picker.snapshot().config_at_start == ()


def test_the_rehearsal_of_a_pick_leaves_no_trace(picker: Picker) -> None:
    picker.reconcile([FIRST, SECOND])
    pick(picker)
    before = picker.status_json()
    for _ in range(5):
        assert picker.rehearse()
    assert picker.status_json() == before
    assert picker.snapshot().pool.unpicked == 0


def test_the_rehearsal_works_without_endpoints_and_under_every_policy(picker: Picker) -> None:
    for policy in Policy:
        picker.reconfigure(SMALLEST.replace("SAL", policy.value))
        for endpoints in ([], [FIRST, SECOND]):
            picker.reconcile(endpoints)
            assert picker.rehearse()


def test_a_pool_that_can_not_pick_is_not_alive(picker: Picker) -> None:
    picker.reconcile([FIRST])
    picker.pool._figures.columns = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        picker.rehearse()


def test_trouble_is_logged_when_it_begins_changes_and_ends(picker: Picker, logged: list[Any]) -> None:
    say = picker.trouble("endpoints")
    for line in ("", "a", "a", "b", "", ""):
        say(line)
    assert [(line["event"], line.get("reason")) for line in logged] == [
        ("trouble", "a"), ("trouble", "b"), ("trouble is over", None),
    ]  # fmt: skip
    assert picker.snapshot().config_errors == 2
    assert picker.snapshot().troubles == {"endpoints": "", "polling": ""}


def test_settings_become_what_the_parts_are_given() -> None:
    text = (
        "gateway:\n  listen: '127.0.0.1:8000'\n  tls: {certFile: /t/c, keyFile: /t/k}\n  maxRequestBytes: 5\n"
        "  timeouts: {request: 10m, idle: 1500ms}\nlisten: {grpc: 'unix:p.sock', tls: selfSigned}\n"
    )
    settings = load_settings(SMALLEST + text, source="p")
    config = gateway_config(settings)
    assert config.tls is not None
    assert (config.tls.cert_file, config.max_request_bytes, config.request_timeout, config.idle_timeout) == (
        "/t/c", 5, 600.0, 1.5,
    )  # fmt: skip
    assert type(picker_tls(settings)).__name__ == "SelfSigned"
    assert picker_address(settings).startswith("unix:/")
    assert ready_address(settings, 9) == "127.0.0.1:9"
    smallest = load_settings(SMALLEST, source="p")
    assert (gateway_config(smallest).tls, gateway_config(smallest).max_request_bytes, picker_tls(smallest)) == (
        None,
    ) * 3
    assert ready_address(smallest, 9) == "[::]:9"
    assert picker_address(smallest) == "[::]:9002"


def test_files_that_the_configuration_names_lie_beside_it() -> None:
    assert (
        str(ConfigSource(name="/etc/halffull/picker.yaml").beside("endpoints.yaml")) == "/etc/halffull/endpoints.yaml"
    )
    assert str(ConfigSource(name="/etc/halffull/picker.yaml").beside("/data/e.yaml")) == "/data/e.yaml"
    assert str(ConfigSource(name="picker", namespace="ns").beside("e.yaml")) == "e.yaml"


def test_an_empty_list_of_endpoints_is_trouble(picker: Picker) -> None:
    picker.reconcile([])
    assert "empty" in picker.snapshot().troubles["engines"]
    picker.reconcile([FIRST])
    assert not picker.snapshot().troubles["engines"]
