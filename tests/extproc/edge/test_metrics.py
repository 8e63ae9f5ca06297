from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.metrics import Metrics, flag_word
from halffull_extproc.pool import Outcome
from halffull_extproc.xds.access_log import AccessLogEntry

from .snapshots import pool_of, snapshot_of

if TYPE_CHECKING:
    from halffull_extproc.status import Snapshot

NOBODY = Outcome(picked=None, served=None, failed=(), succeeded=None)


def entry(**changed: Any) -> AccessLogEntry:
    fields: dict[str, Any] = {
        "outcome": NOBODY, "method_path_ok": True, "status": 200, "flags": (), "duration_s": 1.5, "ttfb_s": 0.02,
        "request_bytes": 100, "response_bytes": 1000, "attempts": 1, "obeyed": True,
    }  # fmt: skip
    return AccessLogEntry(**{**fields, **changed})


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample by its name and labels, without the prefix."""
    return {
        sample.name.removeprefix("halffull_picker_")
        + "".join(f" {k}={v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
    }


@pytest.fixture
def metrics() -> Metrics:
    pool = pool_of("10.0.0.1:80", "10.0.0.2:80")
    pool.pick(body_bytes=400, now=1.01)
    return Metrics(lambda: snapshot_of(pool))


def test_every_endpoint_has_its_figures_and_unknown_ones_are_absent(metrics: Metrics) -> None:
    read = samples(metrics)
    assert read["endpoint_running_requests endpoint=10.0.0.1:80"] == 3
    assert read["endpoint_total_tokens endpoint=10.0.0.1:80"] == 8000
    assert read["endpoint_state endpoint=10.0.0.1:80 state=ok"] == 1
    assert read["endpoint_state endpoint=10.0.0.2:80 state=new"] == 1
    assert "endpoint_running_requests endpoint=10.0.0.2:80" not in read
    assert read["endpoint_report_age_seconds endpoint=10.0.0.1:80"] == pytest.approx(0.05)
    assert read["endpoint_speed endpoint=10.0.0.1:80"] == 1
    assert read["polls_answered_total endpoint=10.0.0.1:80"] == 7
    assert read["poll_failures_total endpoint=10.0.0.1:80 kind=timeout"] == 2
    assert sum(read[f"endpoint_picks_total endpoint=10.0.0.{number}:80"] for number in (1, 2)) == 1


def test_the_pool_and_its_learned_figures(metrics: Metrics) -> None:
    read = samples(metrics)
    assert read["picks_total"] == 1
    assert read["unpicked_total"] == 0
    assert read["endpoints state=ok"] == 1
    assert read["endpoints state=stale"] == 0
    assert read["policy policy=SAL"] == 1
    assert read["beta"] > 1
    assert read["bytes_per_token"] > 0
    assert read["ads_responses_total result=rejected type=Listener"] == 1
    assert read["grpc_failures_total call=pick why=malformed"] == 4
    assert read["info version=1.2.3"] == 1
    assert read["envoys"] == 1


def test_the_series_of_an_endpoint_end_with_it() -> None:
    pool = pool_of("10.0.0.1:80", "10.0.0.2:80")
    metrics = Metrics(lambda: snapshot_of(pool))
    assert b"10.0.0.2" in metrics.text()
    pool.update_endpoints([Endpoint(address="10.0.0.1:80", name="engine-0")], now=2.0)
    assert b"10.0.0.2" not in metrics.text()
    assert b"10.0.0.1" in metrics.text()


def test_trouble_and_a_refused_configuration_show() -> None:
    pool = pool_of("10.0.0.1:80")
    states: list[Snapshot] = []
    metrics = Metrics(lambda: states[-1])
    states.append(snapshot_of(pool))
    read = samples(metrics)
    assert (read["trouble about=polling"], read["config_refused"], read["config_waiting_keys"]) == (0, 0, 0)
    states.append(
        snapshot_of(
            pool, troubles={"polling": "check mTLS"}, config_error="line 7", config_errors=3, config_at_start=("a", "b")
        )
    )
    read = samples(metrics)
    assert (read["trouble about=polling"], read["config_refused"], read["config_waiting_keys"]) == (1, 1, 2)
    assert read["config_errors_total"] == 3


def test_finished_requests_are_counted(metrics: Metrics) -> None:
    record = metrics.requests.record
    record(entry())
    record(entry(status=404))
    record(entry(status=503, flags=("no_healthy_upstream",), obeyed=None, ttfb_s=None))
    record(entry(status=0, flags=("downstream_connection_termination",)))
    record(entry(status=200, flags=("upstream_connection_termination",), attempts=2, obeyed=False))
    read = samples(metrics)
    assert read["requests_total flag=none status=2xx"] == 1
    assert read["requests_total flag=none status=4xx"] == 1
    assert read["requests_total flag=no_endpoint status=5xx"] == 1
    assert read["requests_total flag=client_left status=none"] == 1
    assert read["requests_total flag=engine_broke status=2xx"] == 1
    assert (read["picks_obeyed_total"], read["picks_not_obeyed_total"], read["retried_requests_total"]) == (3, 1, 1)
    assert (read["request_duration_seconds_count"], read["request_duration_seconds_sum"]) == (5, 7.5)
    assert read["response_first_byte_seconds_count"] == 4
    assert (read["request_bytes_total"], read["response_bytes_total"]) == (500, 5000)


def test_refused_paths_are_counted_apart_and_never_by_their_name(metrics: Metrics) -> None:
    metrics.requests.record(entry(method_path_ok=False, status=404))
    read = samples(metrics)
    assert read["refused_paths_total"] == 1
    assert not any(name.startswith("requests_total") for name in read)


@given(st.lists(st.tuples(st.integers(0, 5_000_000), st.lists(st.text(max_size=8), max_size=3)), max_size=50))
def test_whatever_is_logged_the_number_of_series_is_bounded(entries: list[tuple[int, list[str]]]) -> None:
    pool = pool_of("10.0.0.1:80")
    metrics = Metrics(lambda: snapshot_of(pool))
    for status, flags in entries:
        metrics.requests.record(entry(status=status, flags=tuple(flags)))
    statuses = {name for name in samples(metrics) if name.startswith("requests_total")}
    assert len(statuses) <= 7 * 2


def test_of_several_flags_the_first_cause_counts() -> None:
    assert flag_word(()) == "none"
    assert flag_word(("upstream_retry_limit_exceeded", "upstream_connection_failure")) == "connect"
    assert flag_word(("upstream_connection_failure", "downstream_remote_reset")) == "client_left"
    assert flag_word(("never_heard_of",)) == "other"
    assert flag_word(("never_heard_of", "upstream_overflow")) == "overload"


def test_every_flag_is_one_of_envoys() -> None:
    from envoy.data.accesslog.v3 import accesslog_pb2  # noqa: PLC0415 (slow to import)

    from halffull_extproc.metrics import _WORD_OF_FLAG  # noqa: PLC0415

    assert set(_WORD_OF_FLAG) <= set(accesslog_pb2.ResponseFlags.DESCRIPTOR.fields_by_name)


def test_two_pickers_in_one_process_do_not_share_metrics() -> None:
    pool = pool_of("10.0.0.1:80")
    one, other = (Metrics(lambda: snapshot_of(pool)) for _ in range(2))
    one.requests.record(entry())
    assert not any(name.startswith("requests_total") for name in samples(other))
