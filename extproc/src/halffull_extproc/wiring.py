"""Settings → what the parts are given. Pure."""

from dataclasses import dataclass
from pathlib import Path

from halffull_extproc.addresses import split_address
from halffull_extproc.pool_config import Source
from halffull_extproc.settings import Settings, TlsFiles, seconds
from halffull_extproc.tls_config import SelfSigned
from halffull_extproc.tls_config import TlsFiles as PemFiles
from halffull_extproc.xds.gateway_config import GatewayConfig


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """Where the configuration comes from: a file, or a ConfigMap when `namespace` is set."""

    name: str
    """The file's path, or the ConfigMap's name."""
    namespace: str = ""

    def __str__(self) -> str:
        """What messages call it."""
        return f"ConfigMap {self.namespace}/{self.name}" if self.namespace else self.name

    def beside(self, file: str) -> Path:
        """A path that the configuration names: relative to the configuration's own folder where that is a file."""
        return Path(file) if self.namespace else Path(self.name).parent / file


def gateway_config(settings: Settings) -> GatewayConfig:
    """What shapes the managed Envoy's listener and route."""
    gateway = settings.gateway
    largest = gateway.max_request_bytes
    return GatewayConfig(
        listen=gateway.listen,
        tls=gateway_tls(settings),
        paths=gateway.paths,
        max_request_bytes=largest if isinstance(largest, int) else None,
        retry_buffer_bytes=gateway.retry_buffer_bytes,
        request_timeout=seconds(gateway.timeouts.request),
        idle_timeout=seconds(gateway.timeouts.idle),
    )


def gateway_tls(settings: Settings) -> PemFiles | None:
    """The certificate of the managed Envoy's listener, if it has one."""
    tls = settings.gateway.tls
    return _pem_files(tls) if isinstance(tls, TlsFiles) else None


def picker_tls(settings: Settings) -> PemFiles | SelfSigned | None:
    """How the gRPC port is encrypted."""
    tls = settings.listen.tls
    if isinstance(tls, TlsFiles):
        return _pem_files(tls)
    return SelfSigned() if tls == "selfSigned" else None


def ranks_polled(settings: Settings) -> int | None:
    """Load reports of each engine; None where stock metrics are read instead."""
    return settings.ranks if settings.source is Source.REPORT else None


def picker_address(settings: Settings) -> str:
    """What Envoy dials: a unix socket by its absolute path, because Envoy may have another working directory."""
    grpc = settings.listen.grpc
    return f"unix:{Path(grpc.removeprefix('unix:')).absolute()}" if grpc.startswith("unix:") else grpc


def ready_address(settings: Settings, port: int) -> str:
    """Where Envoy's own readiness is served: the same interfaces as the gateway's."""
    host, _ = split_address(settings.gateway.listen)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _pem_files(files: TlsFiles) -> PemFiles:
    return PemFiles(cert_file=files.cert_file, key_file=files.key_file)
