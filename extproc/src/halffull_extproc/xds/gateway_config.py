"""The part of the picker's configuration that shapes the managed Envoy."""

from dataclasses import dataclass

from halffull_extproc.tls_config import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """The part of the picker's configuration that shapes Envoy, read at start."""

    listen: str = "[::]:8000"
    """IP literal and port; [::] takes IPv4 too."""
    tls: TlsFiles | None = None
    """Files as Envoy sees them; replaced on disk, they are read anew without a listener change."""
    paths: tuple[str, ...] = ("/v1/*", "/health")
    """What is let through: an exact path, or all below one that ends with `*`."""
    max_request_bytes: int | None = None
    """Requests whose Content-Length is larger are refused with 413; a chunked body does not say its size."""
    retry_buffer_bytes: int = 1024 * 1024
    """A request whose body is larger is not tried again on the second choice."""
    request_timeout: float = 0.0
    """s from the end of the request to the end of the response; 0: none. A long answer takes minutes."""
    idle_timeout: float = 0.0
    """s without a byte in either direction; 0: none. A long prefill is silent for minutes."""
