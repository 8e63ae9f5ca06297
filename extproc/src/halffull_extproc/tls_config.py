"""How a port is encrypted, as the configuration says it. The work is in `tls`, which loads cryptography."""

from dataclasses import dataclass

from halffull_extproc.errors import InputError


class TlsError(InputError, ValueError):
    """Certificate and key cannot be used; the message says which file, and why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of a certificate chain and its key, both PEM."""

    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class SelfSigned:
    """A certificate that nobody can check: the traffic is encrypted, as endpoint pickers do by default."""
