"""Envoy's gRPC access log: what became of each request, in batches, a tenth of a second after its end.

This is how the picker learns outcomes: it never sees a response. A few microseconds per entry, so fields are read
straight from the messages and nothing is built that nobody asked for.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError

from halffull_extproc import wire
from halffull_extproc.pool import Outcome

SERVED_ROUTE: Final = "engines"
"""Name of the route's entries that lead to an engine; other entries refuse."""

_CLIENT_LEFT: Final = frozenset({"downstream_connection_termination", "downstream_remote_reset"})
_BROKE_OFF: Final = frozenset(
    {
        "upstream_connection_failure",
        "upstream_connection_termination",
        "upstream_remote_reset",
        "upstream_protocol_error",
    }
)
"""What an engine did wrong, whatever status went out before it."""
_NOT_ASKED: Final = frozenset({"upstream_overflow", "overload_manager", "no_route_found", "no_cluster_found"})
"""Envoy's own refusals: the engine named, if any, never saw the request."""
_FIRST_SERVER_ERROR: Final = 500


class AccessLogEntry(msgspec.Struct, frozen=True, gc=False):
    """One finished request as Envoy saw it."""

    outcome: Outcome
    method_path_ok: bool
    """It was let through: its path is one of the allowed ones."""
    status: int
    """HTTP status that the client got; 0: it left before there was one."""
    flags: tuple[str, ...]
    """Envoy's response flags that were set, by their names in the protocol, such as `upstream_connection_failure`."""
    duration_s: float
    ttfb_s: float | None
    """s until the response's first byte came from the engine. It says nothing of the first token: a stream's headers
    come at once."""
    request_bytes: int
    response_bytes: int
    attempts: int
    """Engines tried."""
    obeyed: bool | None
    """Whether the request went where it was picked to go; None: no pick, or no engine was asked."""


def entries(message: bytes) -> Iterator[AccessLogEntry]:
    """Decode one message of the stream. Nothing comes out of bytes that are no such message, or of TCP entries."""
    try:
        decoded: Any = als_pb2.StreamAccessLogsMessage.FromString(message)
    except DecodeError:
        return
    for logged in decoded.http_logs.log_entry:
        yield _entry(logged)


def _entry(logged: Any) -> AccessLogEntry:
    common, request, response = logged.common_properties, logged.request, logged.response
    status = response.response_code.value
    flags: tuple[str, ...] = ()
    if common.HasField("response_flags"):
        flags = tuple(field.name for field, _ in common.response_flags.ListFields())
    attempts = common.upstream_request_attempt_count
    picked = _picked(common)
    served = _address(common.upstream_remote_address)
    return AccessLogEntry(
        outcome=_outcome(picked, served, status=status, flags=flags, attempts=attempts),
        method_path_ok=common.route_name == SERVED_ROUTE,
        status=status,
        flags=flags,
        duration_s=_seconds(common.duration),
        ttfb_s=_seconds(common.time_to_first_upstream_rx_byte)
        if common.HasField("time_to_first_upstream_rx_byte")
        else None,
        request_bytes=request.request_body_bytes,
        response_bytes=response.response_body_bytes,
        attempts=attempts,
        obeyed=_obeyed(picked, served, attempts=attempts),
    )


def _picked(common: Any) -> tuple[str, ...]:
    namespace = common.metadata.filter_metadata.get(wire.LB_NAMESPACE)
    value = None if namespace is None else namespace.fields.get(wire.DESTINATION)
    return () if value is None else tuple(value.string_value.split(","))


def _address(address: Any) -> str | None:
    socket = address.socket_address
    host = socket.address
    if not host:
        return None
    return f"[{host}]:{socket.port_value}" if ":" in host else f"{host}:{socket.port_value}"


def _seconds(duration: Any) -> float:
    seconds: float = duration.seconds + duration.nanos * 1e-9
    return seconds


def _outcome(
    picked: tuple[str, ...], served: str | None, *, status: int, flags: tuple[str, ...], attempts: int
) -> Outcome:
    """Blame and praise.

    A second attempt that went elsewhere means that the first choice failed. What the client did (left, asked nonsense:
    4xx) and what Envoy refused by itself is nobody's failure.
    """
    first = picked[0] if picked else None
    failed: list[str] = []
    if attempts > 1 and first is not None and first != served:
        failed.append(first)
    succeeded = None
    if served is not None and _NOT_ASKED.isdisjoint(flags):
        client_left = not _CLIENT_LEFT.isdisjoint(flags)
        if not client_left and (status >= _FIRST_SERVER_ERROR or not _BROKE_OFF.isdisjoint(flags)):
            failed.append(served)
        elif 0 < status < _FIRST_SERVER_ERROR and not (client_left and status == 499):
            succeeded = served
    return Outcome(picked=first, served=served, failed=tuple(failed), succeeded=succeeded)


def _obeyed(picked: tuple[str, ...], served: str | None, *, attempts: int) -> bool | None:
    if not picked or served is None:
        return None
    if attempts <= 1:
        return served == picked[0]
    return served in picked or attempts > len(picked)
