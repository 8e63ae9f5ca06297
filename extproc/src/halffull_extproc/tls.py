"""TLS of the picker's gRPC port: given files, read anew when they change, or a self-signed certificate."""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from halffull_extproc.tls_config import SelfSigned, TlsError, TlsFiles

__all__ = ["KeyPair", "Reloading", "SelfSigned", "TlsError", "TlsFiles", "read", "self_signed"]

_log = structlog.get_logger(__name__)

_NAME = "halffull-extproc"
_VALID = dt.timedelta(days=3650)  # made anew at every start
_BACKDATED = dt.timedelta(hours=1)  # clocks of two machines differ


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its key, both PEM."""

    certificate: bytes
    key: bytes


def self_signed() -> KeyPair:
    """Make a certificate for localhost and loopback addresses."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = dt.datetime.now(dt.UTC)
    names = [
        x509.DNSName(_NAME),
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("::1")),
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, SHA256())
    )
    return KeyPair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def read(files: TlsFiles) -> KeyPair:
    """Read and check a pair.

    Raises:
        TlsError: a file is missing or no PEM, or the key is another certificate's.
    """
    pair = KeyPair(certificate=_bytes(files.cert_file), key=_bytes(files.key_file))
    try:
        certificate = x509.load_pem_x509_certificates(pair.certificate)[0]
    except ValueError as error:
        raise TlsError(f"{files.cert_file}: no certificate in PEM form") from error
    try:
        key: Any = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError) as error:
        raise TlsError(f"{files.key_file}: no unencrypted key in PEM form") from error
    if key.public_key() != certificate.public_key():
        raise TlsError(f"{files.key_file}: not the key of {files.cert_file}")
    return pair


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsError(f"{path}: {error.strerror}") from error


class Reloading:
    """A given pair of files, looked at whenever somebody asks, and read anew when they changed.

    A pair that cannot be used (half written, say) leaves the last good one in place, with a warning.

    Raises:
        TlsError: the files cannot be used at start.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen = self._look()
        self.pair = read(files)

    def changed(self) -> KeyPair | None:
        """Return the new pair, once; None while there is none."""
        seen = self._look()
        if seen == self._seen:
            return None
        self._seen = seen
        try:
            pair = read(self._files)
        except TlsError as error:
            _log.warning("certificate not reloaded", reason=str(error))
            return None
        if pair == self.pair:
            return None
        self.pair = pair
        _log.info("certificate reloaded", cert_file=self._files.cert_file)
        return pair

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Identity of both files: a link moved elsewhere shows as another inode."""
        return tuple(_identity(Path(path)) for path in (self._files.cert_file, self._files.key_file))


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
