"""`halffull-extproc check`: whether a configuration is valid, and what would be used."""

import argparse
import sys
from collections.abc import Iterator

from halffull_extproc.commands import source
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.pool_config import Source
from halffull_extproc.settings import Settings, TlsFiles
from halffull_extproc.tls_config import TlsFiles as PemFiles
from halffull_extproc.wiring import ConfigSource, gateway_tls, picker_tls

_LISTED = 10  # endpoints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `check`."""
    source.add_arguments(parser)


def main(options: argparse.Namespace) -> int:
    """Print what would be used.

    Raises:
        InputError: configuration, endpoints or certificates cannot be used.
    """
    settings, where, text = source.load(options)
    listed = source.endpoints(settings, where, text)
    _check_certificates(settings)
    for name, value in (*_lines(settings, where), *_endpoint_lines(settings, where, listed)):
        sys.stdout.write(f"{name + ':' if name else '':17}{value}\n")
    return 0


def _check_certificates(settings: Settings) -> None:
    pairs = [pair for pair in (gateway_tls(settings), picker_tls(settings)) if isinstance(pair, PemFiles)]
    if pairs:
        # Imported here: most configurations have none, and cryptography takes its time.
        from halffull_extproc.tls import read  # noqa: PLC0415

        for pair in pairs:
            read(pair)


def _lines(settings: Settings, where: ConfigSource) -> Iterator[tuple[str, str]]:
    poll = f"every {settings.poll_interval * 1000:g} ms, stale after {settings.stale_after:g} s"
    gateway, listen = settings.gateway, settings.listen
    yield "configuration", f"{where} is valid"
    yield "policy", f"{settings.policy.value}, {settings.failure_mode.value}"
    if settings.source is Source.REPORT:
        yield "load", f"load reports, port {settings.load_port}, {settings.ranks} rank(s), {poll}"
    else:
        yield "load", f"stock vLLM metrics, {poll}"
    encrypted = " with TLS" if isinstance(gateway.tls, TlsFiles) else ""
    yield "gateway", f"{gateway.listen}{encrypted}, {' '.join(gateway.paths)}"
    yield "gRPC", f"{listen.grpc}, tls {'from files' if isinstance(listen.tls, TlsFiles) else listen.tls}"
    yield "health", listen.health
    yield "metrics, status", listen.metrics


def _endpoint_lines(
    settings: Settings, where: ConfigSource, listed: list[Endpoint] | None
) -> Iterator[tuple[str, str]]:
    service, pool = settings.endpoints.service, settings.endpoints.inference_pool
    if listed is not None:
        yield "endpoints", f"{len(listed)} from {where.beside(str(settings.endpoints.file))}"
        for endpoint in listed[:_LISTED]:
            port = f", load port {endpoint.load_port}" if settings.source is Source.REPORT else ""
            yield "", endpoint.address + port
        if len(listed) > _LISTED:
            yield "", f"and {len(listed) - _LISTED} more"
        if not listed:
            yield "warning", "no engine is listed: until one is, the picker can route no request"
    elif service:
        yield "endpoints", f"Service {service.namespace}/{service.name}, port {service.port}"
    elif pool:
        yield "endpoints", f"InferencePool {pool.namespace}/{pool.name}"
