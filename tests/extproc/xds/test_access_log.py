"""From Envoy's access log to outcomes: who failed, who did not, and who left."""

import time
from typing import Any

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf import wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.xds.access_log import AccessLogEntry, entries

A, B, C = "10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.3:8000"


def logged(
    *,
    picked: str | None = f"{A},{B}",
    served: str | None = A,
    status: int = 200,
    flags: tuple[str, ...] = (),
    attempts: int = 1,
    route: str = "engines",
) -> Any:
    entry = accesslog_pb2.HTTPAccessLogEntry()
    common = entry.common_properties
    if picked is not None:
        common.metadata.filter_metadata["envoy.lb"].update({"x-gateway-destination-endpoint": picked})
    if served is not None:
        host, _, port = served.rpartition(":")
        common.upstream_remote_address.socket_address.address = host.strip("[]")
        common.upstream_remote_address.socket_address.port_value = int(port)
    for flag in flags:
        setattr(common.response_flags, flag, True)
    common.upstream_request_attempt_count = attempts
    common.route_name = route
    common.duration.FromMilliseconds(1500)
    common.time_to_first_upstream_rx_byte.FromMilliseconds(250)
    if status:
        entry.response.response_code.CopyFrom(wrappers_pb2.UInt32Value(value=status))
    entry.request.request_body_bytes = 10
    entry.response.response_body_bytes = 20
    return entry


def message(*found: Any) -> bytes:
    data: bytes = als_pb2.StreamAccessLogsMessage(
        http_logs=als_pb2.StreamAccessLogsMessage.HTTPAccessLogEntries(log_entry=found)
    ).SerializeToString()
    return data


def read(**kwargs: Any) -> AccessLogEntry:
    (entry,) = entries(message(logged(**kwargs)))
    return entry


def test_figures() -> None:
    entry = read()
    assert (
        entry.status,
        entry.duration_s,
        entry.ttfb_s,
        entry.request_bytes,
        entry.response_bytes,
        entry.attempts,
    ) == (
        200,
        1.5,
        0.25,
        10,
        20,
        1,
    )
    assert (entry.outcome.picked, entry.outcome.served, entry.outcome.failed, entry.outcome.succeeded) == (A, A, (), A)
    assert entry.obeyed is True
    assert entry.method_path_ok
    assert not read(route="refused", picked=None, served=None, status=404).method_path_ok


@pytest.mark.parametrize(
    ("case", "failed", "succeeded"),
    [
        ({}, (), A),
        ({"status": 404}, (), A),
        ({"status": 429}, (), A),
        ({"status": 500}, (A,), None),
        ({"status": 503}, (A,), None),
        ({"status": 503, "flags": ("upstream_connection_failure",)}, (A,), None),
        ({"status": 200, "flags": ("upstream_connection_termination",)}, (A,), None),
        ({"status": 200, "flags": ("upstream_remote_reset",)}, (A,), None),
        ({"status": 504, "flags": ("upstream_request_timeout",)}, (A,), None),
        # The client left: nobody's failure, whatever else is said of it.
        ({"status": 200, "flags": ("downstream_connection_termination",)}, (), A),
        ({"status": 0, "flags": ("downstream_connection_termination",)}, (), None),
        ({"status": 499, "flags": ("downstream_connection_termination",)}, (), None),
        ({"status": 0, "flags": ("downstream_remote_reset",)}, (), None),
        ({"status": 503, "flags": ("downstream_connection_termination", "upstream_remote_reset")}, (), None),
        # Envoy's own refusals: the engine was not asked.
        ({"status": 503, "served": None, "flags": ("no_healthy_upstream",)}, (), None),
        ({"status": 503, "served": None}, (), None),
        ({"status": 503, "flags": ("upstream_overflow",)}, (), None),
        ({"status": 404, "served": None, "picked": None, "route": "refused"}, (), None),
        # A second attempt that went elsewhere: the first failed.
        ({"served": B, "attempts": 2}, (A,), B),
        ({"served": C, "attempts": 2}, (A,), C),
        ({"served": B, "attempts": 2, "status": 503}, (A, B), None),
        ({"served": A, "attempts": 2}, (), A),
        ({"served": B, "attempts": 2, "status": 0, "flags": ("downstream_connection_termination",)}, (A,), None),
        # No pick: who failed first is not told.
        ({"served": B, "attempts": 2, "picked": None}, (), B),
        ({"served": B, "attempts": 1}, (), B),
    ],
)
def test_who_is_blamed(case: dict[str, Any], failed: tuple[str, ...], succeeded: str | None) -> None:
    outcome = read(**case).outcome
    assert (outcome.failed, outcome.succeeded) == (failed, succeeded)


@pytest.mark.parametrize(
    ("case", "obeyed"),
    [
        ({}, True),
        ({"served": B}, False),
        ({"served": C}, False),
        ({"served": B, "attempts": 2}, True),
        ({"served": C, "attempts": 2}, False),
        ({"served": C, "attempts": 2, "picked": A}, True),  # the list was used up
        ({"picked": None}, None),
        ({"served": None}, None),
    ],
)
def test_whether_the_pick_was_obeyed(case: dict[str, Any], *, obeyed: bool | None) -> None:
    assert read(**case).obeyed is obeyed


def test_flags_by_their_names() -> None:
    flags = ("upstream_connection_failure", "upstream_retry_limit_exceeded")
    assert read(status=503, flags=flags).flags == flags


def test_batches_in_order_and_other_logs_passed_over() -> None:
    batch = message(*(logged(status=status) for status in (200, 201, 202)))
    assert [entry.status for entry in entries(batch)] == [200, 201, 202]
    tcp = als_pb2.StreamAccessLogsMessage()
    tcp.tcp_logs.log_entry.add()
    assert list(entries(tcp.SerializeToString())) == []
    assert list(entries(b"")) == []


@given(st.binary(max_size=200))
def test_malformed_bytes_are_no_entries_and_no_error(data: bytes) -> None:
    list(entries(data))


def test_an_empty_entry_blames_nobody() -> None:
    (entry,) = entries(message(accesslog_pb2.HTTPAccessLogEntry()))
    assert (entry.outcome.failed, entry.outcome.succeeded, entry.obeyed, entry.ttfb_s) == ((), None, None, None)


def test_an_entry_is_cheap() -> None:
    batch = message(*(logged() for _ in range(200)))
    best = min(_timed(batch) for _ in range(5))
    assert best / 200 < 100e-6  # 7 µs on the machine it was made for


def _timed(batch: bytes) -> float:
    start = time.process_time()
    list(entries(batch))
    return time.process_time() - start
