"""Prometheus metrics of the picker: read from a snapshot at scrape time, and counted from Envoy's access log.

Labels are bounded: endpoints that discovery knows, and words of this module; never what a client sent. An endpoint's
series end with it.
"""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from halffull_extproc.pool_status import EndpointStatus
from halffull_extproc.status import Snapshot
from halffull_extproc.xds.access_log import AccessLogEntry

_PREFIX: Final = "halffull_picker_"
_DURATIONS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)  # s

# Envoy's response flags → what a person needs to know; the first that is set counts.
_FLAGS: Final = (
    ("client_left", ("downstream_connection_termination", "downstream_remote_reset")),
    ("no_endpoint", ("no_healthy_upstream", "no_cluster_found", "no_route_found")),
    ("overload", ("upstream_overflow", "overload_manager", "rate_limited")),
    ("timeout", ("upstream_request_timeout", "stream_idle_timeout", "duration_timeout")),
    ("connect", ("upstream_connection_failure",)),
    (
        "engine_broke",
        (
            "upstream_connection_termination",
            "upstream_remote_reset",
            "upstream_protocol_error",
            "upstream_retry_limit_exceeded",
        ),
    ),
)
_WORD_OF_FLAG: Final = {flag: word for word, flags in _FLAGS for flag in flags}
_RANK: Final = {word: rank for rank, (word, _) in enumerate(_FLAGS)}
_STATUS: Final = {0: "none", 1: "1xx", 2: "2xx", 3: "3xx", 4: "4xx", 5: "5xx"}

_ENDPOINT_GAUGES: Final[tuple[tuple[str, str, Callable[[EndpointStatus], float | None]], ...]] = (
    ("queued_tokens", "Prompt tokens queued, charges included", lambda e: e.queued),
    ("free_tokens", "Free KV cache in tokens, charges included", lambda e: e.free),
    ("total_tokens", "KV cache in tokens", lambda e: e.total),
    ("running_requests", "Requests running, as last reported", lambda e: e.running),
    ("waiting_requests", "Requests waiting, as last reported", lambda e: e.waiting),
    ("charged_tokens", "Tokens of picks that the last report can not contain", lambda e: e.charged_tokens),
    ("charged_requests", "Picks that the last report can not contain", lambda e: e.charged_requests),
    ("open_picks", "Picks whose stream has not ended", lambda e: e.open_picks),
    ("report_age_seconds", "Seconds since it last answered a poll", lambda e: e.report_age),
    ("speed", "How much slower it steps than the pool's model (kappa); 1 for the fastest", lambda e: e.speed),
    ("failures_in_a_row", "Requests that failed in a row", lambda e: e.failures),
)


class AccessLogMetrics:
    """Counters and histograms of finished requests, as Envoy's access log tells them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register everything."""
        self._requests = Counter(
            _PREFIX + "requests",
            "Requests that ended, by status class and what Envoy says went wrong",
            ("status", "flag"),
            registry=registry,
        )
        self._refused = Counter(
            _PREFIX + "refused_paths", "Requests for a path that is not let through", registry=registry
        )
        self._duration = Histogram(
            _PREFIX + "request_duration_seconds",
            "From the request's first byte to the response's last",
            buckets=_DURATIONS,
            registry=registry,
        )
        self._first_byte = Histogram(
            _PREFIX + "response_first_byte_seconds",
            "To the response's first byte; a stream's headers come at once, so this is no TTFT",
            buckets=_DURATIONS,
            registry=registry,
        )
        self._retried = Counter(
            _PREFIX + "retried_requests", "Requests that a second endpoint was tried for", registry=registry
        )
        self._disobeyed = Counter(
            _PREFIX + "picks_not_obeyed", "Requests that did not go where they were picked to go", registry=registry
        )
        self._obeyed = Counter(
            _PREFIX + "picks_obeyed", "Requests that went where they were picked to go", registry=registry
        )
        self._request_bytes = Counter(_PREFIX + "request_bytes", "Bytes of request bodies", registry=registry)
        self._response_bytes = Counter(_PREFIX + "response_bytes", "Bytes of response bodies", registry=registry)
        self._children: dict[tuple[int, str], Counter] = {}

    def record(self, entry: AccessLogEntry) -> None:
        """Count one finished request."""
        if not entry.method_path_ok:
            self._refused.inc()
            return
        key = (entry.status // 100, flag_word(entry.flags))
        child = self._children.get(key)
        if child is None:
            child = self._requests.labels(_STATUS.get(key[0], "other"), key[1])
            if key[0] in _STATUS:
                self._children[key] = child
        child.inc()
        self._duration.observe(entry.duration_s)
        if entry.ttfb_s is not None:
            self._first_byte.observe(entry.ttfb_s)
        if entry.attempts > 1:
            self._retried.inc()
        if entry.obeyed is not None:
            (self._obeyed if entry.obeyed else self._disobeyed).inc()
        self._request_bytes.inc(entry.request_bytes)
        self._response_bytes.inc(entry.response_bytes)


def flag_word(flags: tuple[str, ...]) -> str:
    """Fold Envoy's flags into one of a few words."""
    words = [_WORD_OF_FLAG.get(flag, "other") for flag in flags]
    return min(words, key=lambda word: _RANK.get(word, len(_RANK))) if words else "none"


class SnapshotCollector(Collector):
    """Everything that is known at scrape time."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """`snapshot` is called at each scrape."""
        self._snapshot = snapshot

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not take a snapshot."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families."""
        snapshot = self._snapshot()
        yield from _endpoint_families(snapshot)
        yield from _pool_families(snapshot)
        yield from _process_families(snapshot)


def _gauge(name: str, text: str, value: float | None) -> Iterator[Metric]:
    if value is not None:  # unknown is absent, never zero
        yield GaugeMetricFamily(_PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_PREFIX + name, text, value=value)


def _endpoint_families(snapshot: Snapshot) -> Iterator[Metric]:
    endpoints = snapshot.pool.endpoints
    for name, text, read in _ENDPOINT_GAUGES:
        gauge = GaugeMetricFamily(f"{_PREFIX}endpoint_{name}", text, labels=["endpoint"])
        for endpoint in endpoints:
            value = read(endpoint)
            if value is not None:
                gauge.add_metric([endpoint.address], value)
        yield gauge
    state = GaugeMetricFamily(f"{_PREFIX}endpoint_state", "1 for its state", labels=["endpoint", "state"])
    picks = CounterMetricFamily(f"{_PREFIX}endpoint_picks", "Picks since it was discovered", labels=["endpoint"])
    answers = CounterMetricFamily(f"{_PREFIX}polls_answered", "Polls answered", labels=["endpoint"])
    failures = CounterMetricFamily(f"{_PREFIX}poll_failures", "Polls that failed, by kind", labels=["endpoint", "kind"])
    for endpoint in endpoints:
        state.add_metric([endpoint.address, endpoint.state], 1)
        picks.add_metric([endpoint.address], endpoint.picks)
        poll = snapshot.polls.get(endpoint.address)
        if poll is not None:
            answers.add_metric([endpoint.address], poll.answers)
            for kind, number in sorted(poll.failures.items()):
                failures.add_metric([endpoint.address, kind], number)
    yield from (state, picks, answers, failures)


def _pool_families(snapshot: Snapshot) -> Iterator[Metric]:
    pool = snapshot.pool
    states = GaugeMetricFamily(f"{_PREFIX}endpoints", "Endpoints in each state", labels=["state"])
    for state, number in sorted(pool.states.items()):
        states.add_metric([state], number)
    yield states
    policy = GaugeMetricFamily(f"{_PREFIX}policy", "1 for the policy in force", labels=["policy"])
    policy.add_metric([snapshot.policy], 1)
    yield policy
    yield _counter("picks", "Requests picked for", pool.picks)
    yield _counter("unpicked", "Requests for which no endpoint was eligible", pool.unpicked)
    yield _counter("probes", "Requests sent to a failing endpoint to see whether it has healed", pool.probes)
    for name, text, value in (
        ("beta", "Weight of missing memory in SAL", pool.beta),
        ("bytes_per_token", "Learned size of a token in a request's body", pool.bytes_per_token),
        ("estimate_error", "Median relative error of the prompt estimates", pool.estimate_error),
        ("prompt_tokens_mean", "Prompt tokens of a finished request", pool.mean_prompt_tokens),
        ("generation_tokens_mean", "Tokens generated by a finished request", pool.mean_generated_tokens),
        ("engine_ttft_seconds_mean", "From arrival at an engine to its first token", pool.mean_ttft),
    ):
        yield from _gauge(name, text, value)


def _process_families(snapshot: Snapshot) -> Iterator[Metric]:
    info = GaugeMetricFamily(f"{_PREFIX}info", "1; the version is a label", labels=["version"])
    info.add_metric([snapshot.version], 1)
    yield info
    yield _counter("config_errors", "Edits of the configuration that were refused", snapshot.config_errors)
    yield from _gauge("config_refused", "1 while the last edit is refused", float(bool(snapshot.config_error)))
    yield from _gauge(
        "config_waiting_keys", "Keys that were edited and wait for the next start", len(snapshot.config_at_start)
    )
    trouble = GaugeMetricFamily(
        f"{_PREFIX}trouble", "1 while there is one; the status page says more", labels=["about"]
    )
    for about, text in sorted(snapshot.troubles.items()):
        trouble.add_metric([about], float(bool(text)))
    yield trouble
    yield from _gauge("envoys", "Envoys connected by ADS", snapshot.envoys)
    yield from _gauge("streams", "Open gRPC streams: requests in flight, ADS and access logs", snapshot.streams)
    ads = CounterMetricFamily(f"{_PREFIX}ads_responses", "ADS responses by what Envoy did", labels=["type", "result"])
    for (kind, result), number in sorted(snapshot.ads.items()):
        ads.add_metric([kind, result], number)
    yield ads
    failed = CounterMetricFamily(f"{_PREFIX}grpc_failures", "Streams and entries that failed", labels=["call", "why"])
    for (call, why), number in sorted(snapshot.grpc_failures.items()):
        failed.add_metric([call, why], number)
    yield failed


class Metrics:
    """The registry of this picker, apart from the library's global one."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        """`snapshot` is called at each scrape."""
        self.registry = CollectorRegistry()
        self.requests = AccessLogMetrics(self.registry)
        self.registry.register(SnapshotCollector(snapshot))
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self.registry)
