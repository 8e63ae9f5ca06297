"""The picker's configuration, picker.yaml (Halffull contract 2): types, defaults, checks, and what may change live."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from halffull_extproc.addresses import listen_address
from halffull_extproc.policies import Policy
from halffull_extproc.pool_config import PoolConfig, Source
from halffull_extproc.yaml_text import Document, Path, SettingsError, convert, dotted, parse_yaml

__all__ = ["Changes", "FailureMode", "Settings", "SettingsError", "changes", "load_settings", "seconds"]

VERSION: Final = 1
MAX_BYTES: Final = 256 * 1024
LIVE: Final = ("policy", "failureMode", "sal", "salPlus", "poll")
"""Keys whose change is applied while running; every other key is read at start."""

_UNITS: Final = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)"
_FASTEST, _SLOWEST = 0.01, 60.0  # s between two polls
_MIN_STALE = 1.0  # s, what staleAfter: auto never goes below

Duration = Annotated[str, Meta(pattern=f"^{_DURATION}$", description="a duration such as 100ms, 1s, 5m or 1h")]
Interval = Annotated[
    str, Meta(pattern=f"^{_DURATION}$", description="a duration from 10ms to 60s, such as 100ms, 1s or 0.5m")
]
StaleAfter = Annotated[
    str,
    Meta(
        pattern=f"^(auto|{_DURATION})$",
        description="auto (3 intervals, at least 1s) or a duration of at least 3 intervals, such as 2s",
    ),
]
Port = Annotated[int, Meta(ge=1, le=65535)]
Name = Annotated[
    str,
    Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$", description="a name of Kubernetes: a-z, 0-9, '-' and '.'"),
]
FilePath = Annotated[str, Meta(min_length=1, max_length=4096, description="the path of a file")]
Listen = Annotated[
    str, Meta(max_length=128, description="IP:PORT such as '[::]:9090', or 0.0.0.0:9090 where the host has no IPv6")
]
GrpcListen = Annotated[
    str, Meta(max_length=128, description="unix:PATH, or IP:PORT such as '[::]:9002' (0.0.0.0 where there is no IPv6)")
]
PathPattern = Annotated[
    str,
    Meta(
        pattern=r"^/[^*?#\s]*\*?$",
        max_length=256,
        description="a path such as /health, or all below one such as /v1/*",
    ),
]
_ONE: Final[dict[str, Any]] = {"minProperties": 1, "maxProperties": 1}


class FailureMode(StrEnum):
    """What Envoy does with requests while no picker answers."""

    FailOpen = "FailOpen"
    FailClose = "FailClose"


class _Strict(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Every key is known, spelled in camelCase."""


class ServiceEndpoints(_Strict, frozen=True):
    """Endpoints of a Kubernetes Service, from its EndpointSlices."""

    namespace: Name
    name: Name
    port: Annotated[str | Port, Meta(description="the name of a port in the EndpointSlices, or its number, 1 to 65535")]


class PoolEndpoints(_Strict, frozen=True):
    """Endpoints of an InferencePool, from its selector and target ports."""

    namespace: Name
    name: Name


class Endpoints(_Strict, frozen=True):
    """Where the engines are found: exactly one of the three."""

    file: FilePath | UnsetType = UNSET
    service: ServiceEndpoints | UnsetType = UNSET
    inference_pool: PoolEndpoints | UnsetType = UNSET


class ReportLoad(_Strict, frozen=True):
    """Engines with the plugin: load reports."""

    port: Annotated[Port, Meta(description="port of the first rank's load report")] = 9400
    ranks: Annotated[int, Meta(ge=1, le=256, description="data-parallel ranks of an engine")] = 1


class MetricsLoad(_Strict, frozen=True):
    """Engines without the plugin: stock vLLM metrics on the engine's own port."""

    path: Annotated[str, Meta(pattern=r"^/[\x21-\x7e]*$", max_length=256, description="a path such as /metrics")] = (
        "/metrics"
    )
    max_tokens_per_batch: Annotated[int, Meta(ge=1, le=2**31, description="the engines' token budget of a step")] = 8192
    pickers: Annotated[int, Meta(ge=1, le=1000, description="how many pickers share these engines")] = 1


class Load(_Strict, frozen=True):
    """How the engines say their load: exactly one of the two, for the whole pool."""

    report: ReportLoad | UnsetType = UNSET
    metrics: MetricsLoad | UnsetType = UNSET


class Poll(_Strict, frozen=True):
    """How often the engines are asked, and when silence makes one stale."""

    interval: Interval = "100ms"
    stale_after: StaleAfter = "auto"


class Sal(_Strict, frozen=True):
    """The weight of missing memory against the queue."""

    beta: Annotated[
        Literal["auto"] | Annotated[float, Meta(gt=0, le=1e6)],
        Meta(description="auto (learned from the engines' counters) or a number above 0 to 1000000"),
    ] = "auto"


class SalPlus(_Strict, frozen=True):
    """Constants of SALPlus."""

    kv_weight: Annotated[float, Meta(ge=0, le=100, description="weight of a token in the KV cache")] = 0.03
    knee: Annotated[float, Meta(ge=0, le=1e4, description="strength of the memory knee")] = 3.0
    speed: Literal["auto", "none"] = "auto"


class TlsFiles(_Strict, frozen=True):
    """A certificate chain and its key, PEM."""

    cert_file: FilePath
    key_file: FilePath


class Timeouts(_Strict, frozen=True):
    """Envoy's timeouts for requests; 0s is none, because a prefill may be silent for minutes."""

    request: Duration = "0s"
    idle: Duration = "0s"


class GatewaySettings(_Strict, frozen=True):
    """The managed Envoy's listener."""

    listen: Listen = "[::]:8000"
    tls: TlsFiles | UnsetType = UNSET
    paths: Annotated[
        tuple[PathPattern, ...], Meta(min_length=1, max_length=64, description="a list of 1 to 64 paths such as /v1/*")
    ] = ("/v1/*", "/health")
    max_request_bytes: Annotated[
        int | UnsetType,
        Meta(description="largest request body in bytes, from 1 to 4294967295; without it there is no limit"),
    ] = UNSET
    retry_buffer_bytes: Annotated[
        int, Meta(ge=0, le=2**32 - 1, description="a request up to this size can be retried, in bytes")
    ] = 1024 * 1024
    timeouts: Timeouts = Timeouts()


class ListenSettings(_Strict, frozen=True):
    """Where the picker itself listens."""

    grpc: GrpcListen = "[::]:9002"
    tls: Annotated[
        Literal["none", "selfSigned"] | TlsFiles, Meta(description="none, selfSigned, or the keys certFile and keyFile")
    ] = "none"
    health: Listen = "[::]:9003"
    metrics: Listen = "[::]:9090"


class Settings(_Strict, frozen=True):
    """All of picker.yaml."""

    version: Literal[1]
    policy: Policy
    endpoints: Annotated[
        Endpoints, Meta(description="exactly one of the keys file, service, inferencePool", extra_json_schema=_ONE)
    ]
    failure_mode: FailureMode = FailureMode.FailOpen
    load: Annotated[Load, Meta(description="exactly one of the keys report, metrics", extra_json_schema=_ONE)] = field(
        default=Load(report=ReportLoad())
    )
    poll: Poll = Poll()
    sal: Sal = Sal()
    sal_plus: SalPlus = SalPlus()
    gateway: GatewaySettings = GatewaySettings()
    listen: ListenSettings = ListenSettings()

    @property
    def poll_interval(self) -> float:
        """Seconds between two polls of an engine."""
        return seconds(self.poll.interval)

    @property
    def stale_after(self) -> float:
        """Seconds of silence that make an endpoint stale."""
        if self.poll.stale_after == "auto":
            return max(_MIN_STALE, 3 * self.poll_interval)
        return seconds(self.poll.stale_after)

    @property
    def ranks(self) -> int:
        """How many load reports make one engine's."""
        return self.load.report.ranks if isinstance(self.load.report, ReportLoad) else 1

    @property
    def load_port(self) -> int:
        """Port of the first rank's report where an endpoint does not say its own."""
        return self.load.report.port if isinstance(self.load.report, ReportLoad) else ReportLoad().port

    @property
    def source(self) -> Source:
        """Load reports or stock metrics."""
        return Source.METRICS if isinstance(self.load.metrics, MetricsLoad) else Source.REPORT

    @property
    def fail_open(self) -> bool:
        """Whether requests pass unpicked while no picker answers."""
        return self.failure_mode is FailureMode.FailOpen

    def pool_config(self) -> PoolConfig:
        """What the pool needs of it."""
        metrics = self.load.metrics if isinstance(self.load.metrics, MetricsLoad) else MetricsLoad()
        return PoolConfig(
            policy=self.policy,
            source=self.source,
            beta=None if self.sal.beta == "auto" else float(self.sal.beta),
            kv_weight=self.sal_plus.kv_weight,
            knee=self.sal_plus.knee,
            learn_speed=self.sal_plus.speed == "auto",
            poll_interval=self.poll_interval,
            stale_after=self.stale_after,
            pickers=metrics.pickers,
            max_tokens_per_batch=metrics.max_tokens_per_batch,
        )


def seconds(duration: str) -> float:
    """`100ms` → 0.1."""
    match = re.fullmatch(_DURATION, duration)
    if match is None:
        raise ValueError(f"{duration!r} is no duration")
    return float(match[1]) * _UNITS[match[2]]


def load_settings(text: str, *, source: str) -> Settings:
    """Read a configuration; `source` is what messages call it.

    Raises:
        SettingsError: one line with the source, the line, the key, and what is allowed.
    """
    document = parse_yaml(text, source=source, max_bytes=MAX_BYTES)
    if isinstance(document.value, dict):
        version = document.value.get("version")
        if version is not None and (isinstance(version, bool) or version != VERSION):
            raise document.error(("version",), f"{version!r:.40} is not supported; allowed: the number {VERSION}")
    settings = convert(document, Settings)
    for path, problem in _problems(settings, document):
        raise document.error(path, problem)
    return settings


def mistake(text: str, *, source: str, key: Path, problem: str) -> SettingsError:
    """An error at the line of a key in a text that was read without one; for what only its use shows."""
    return parse_yaml(text, source=source, max_bytes=MAX_BYTES).error(key, problem)


def _problems(settings: Settings, document: Document) -> Iterator[tuple[Path, str]]:
    """What no type can say, in the order of the keys."""
    for key, allowed in (("endpoints", "file, service, inferencePool"), ("load", "report, metrics")):
        given = list(document.value.get(key, {"default": None}))
        if len(given) != 1:
            what = f"{' and '.join(given)} stand together" if given else "nothing is given"
            yield (key,), f"{what}; allowed: exactly one of {allowed}"
    if settings.load_port + settings.ranks - 1 > 65535:
        yield ("load", "report", "ranks"), f"rank {settings.ranks - 1} would be asked on a port above 65535"
    yield from _poll_problems(settings)
    largest = settings.gateway.max_request_bytes
    if isinstance(largest, int) and not 1 <= largest < 2**32:
        yield ("gateway", "maxRequestBytes"), f"{largest} does not fit; allowed: a whole number from 1 to 4294967295"
    addresses: list[tuple[Path, str, bool]] = [
        (("gateway", "listen"), settings.gateway.listen, False),
        (("listen", "grpc"), settings.listen.grpc, True),
        (("listen", "health"), settings.listen.health, False),
        (("listen", "metrics"), settings.listen.metrics, False),
    ]
    taken: dict[str, Path] = {}
    for path, address, unix in addresses:
        try:
            listen_address(address, unix=unix)
        except ValueError as error:
            yield path, f"{error}{' or unix:PATH' if unix else ''}"
        if address in taken:
            yield path, f"{address} is {dotted(taken[address])} already"
        taken[address] = path


def _poll_problems(settings: Settings) -> Iterator[tuple[Path, str]]:
    interval = settings.poll_interval
    if not _FASTEST <= interval <= _SLOWEST:
        yield ("poll", "interval"), f"{settings.poll.interval} does not fit; allowed: 10ms to 60s"
    # A hair of tolerance: 3 × 0.1 s is more than 0.3 s in binary.
    if settings.stale_after < 3 * interval * (1 - 1e-9):
        short = f"{settings.poll.stale_after} is less than 3 intervals of {settings.poll.interval}"
        yield ("poll", "staleAfter"), f"{short}; allowed: auto, or at least {3 * interval:g}s"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a new configuration changes in a running picker."""

    settings: Settings
    """The running configuration from now on: the new one's live part, and the rest as it was at start."""
    live: tuple[str, ...]
    """Keys that changed and apply at once."""
    at_start: tuple[str, ...]
    """Keys that were edited and are not applied before the next start."""


def changes(old: Settings, new: Settings) -> Changes:
    """Split an edit into what applies now and what a restart would apply."""
    before, after = _flat(msgspec.to_builtins(old)), _flat(msgspec.to_builtins(new))
    edited = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    live = tuple(key for key in edited if key.split(".")[0] in LIVE)
    merged = msgspec.structs.replace(
        old,
        policy=new.policy,
        failure_mode=new.failure_mode,
        sal=new.sal,
        sal_plus=new.sal_plus,
        poll=new.poll,
    )
    return Changes(settings=merged, live=live, at_start=tuple(key for key in edited if key not in live))


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            flat |= _flat(inner, f"{prefix}{key}.")
        else:
            flat[prefix + key] = inner
    return flat


def picker_schema() -> dict[str, Any]:
    """JSON Schema of picker.yaml, as checked into schemas/picker.schema.json."""
    schema = msgspec.json.schema(Settings)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Halffull picker", **schema}
