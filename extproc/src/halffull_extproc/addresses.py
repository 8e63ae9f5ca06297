"""Addresses as people write them in configuration: IP literals with ports, IPv6 in brackets, unix sockets."""

import ipaddress
import re
from typing import Final

_PAIR: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*):([0-9]{1,5})")
_MAX_UNIX_PATH: Final = 107  # sockaddr_un.sun_path without its closing zero


def format_address(host: str, port: int) -> str:
    """`10.0.0.1:8000` or `[::1]:8000`, the IP in its canonical spelling.

    Raises:
        ValueError: not an IP literal.
    """
    ip = ipaddress.ip_address(host)
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def split_address(text: str) -> tuple[str, int]:
    """Host (without brackets, canonical) and port of an IP literal with a port.

    Raises:
        ValueError: with one line that says what is allowed.
    """
    match = _PAIR.fullmatch(text)
    if match is None:
        hint = " (an IPv6 address needs brackets)" if text.count(":") > 1 and "[" not in text else ""
        raise ValueError(f"{text[:60]!r} is not IP:PORT{hint}; allowed: 10.0.0.1:8000 or [fd00::1]:8000")
    host, port = match[1], int(match[2])
    bracketed = host.startswith("[")
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise ValueError(
            f"{host[:60]!r} is not an IP address, and host names are not resolved; "
            "allowed: 10.0.0.1:8000 or [fd00::1]:8000"
        ) from None
    if (ip.version == 6) != bracketed:
        raise ValueError(f"{text[:60]!r}: brackets belong around IPv6 addresses, and only there")
    if isinstance(ip, ipaddress.IPv6Address) and ip.scope_id is not None:
        raise ValueError(f"{text[:60]!r}: an address with a zone (%) is not reachable by Envoy")
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is not from 1 to 65535")
    return str(ip), port


def endpoint_address(text: str) -> str:
    """The canonical form of an engine's address: an IP literal that can be dialled, and a port.

    Raises:
        ValueError: with one line that says what is allowed.
    """
    host, port = split_address(text)
    ip = ipaddress.ip_address(host)
    if ip.is_unspecified or ip.is_multicast:
        raise ValueError(f"{text[:60]!r} is not the address of one engine")
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        raise ValueError(f"{text[:60]!r} is an IPv4 address in IPv6 clothes, write {ip.ipv4_mapped}:{port}")
    return format_address(host, port)


def listen_address(text: str, *, unix: bool = False) -> str:
    """Check an address to listen on; `unix:PATH` too where `unix` says so. Returns it as it was.

    Raises:
        ValueError: with one line that says what is allowed.
    """
    if unix and text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path or "\0" in path or len(path.encode()) > _MAX_UNIX_PATH:
            raise ValueError(
                f"the path of a unix socket has 1 to {_MAX_UNIX_PATH} bytes, this one {len(path.encode())}"
            )
        return text
    split_address(text)
    return text
