"""TLS of the gRPC port, in the form that grpc takes."""

from typing import Any

import grpc

from halffull_extproc.tls import KeyPair, Reloading, self_signed
from halffull_extproc.tls_config import SelfSigned, TlsFiles


def credentials(tls: TlsFiles | SelfSigned) -> Any:
    """Credentials of a grpc server; given files are looked at before each handshake.

    Raises:
        halffull_extproc.tls.TlsError: they cannot be used.
    """
    if isinstance(tls, SelfSigned):
        pair = self_signed()
        return grpc.ssl_server_credentials([(pair.key, pair.certificate)])
    files = Reloading(tls)

    def changed() -> Any:  # grpc asks from its own thread before each handshake
        pair = files.changed()
        return None if pair is None else _configuration(pair)

    return grpc.dynamic_ssl_server_credentials(_configuration(files.pair), changed, require_client_authentication=False)


def _configuration(pair: KeyPair) -> Any:
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)])
