"""The load report, engine → picker: a snapshot of an engine's load, and the HTTP endpoint that serves it.

Standard library only, no vLLM. The scheduler replaces one immutable `Snapshot` after each `schedule()` and after
outputs, finishes and aborts are applied; the endpoint, in a thread of its own, reads whichever is current and adds
its age. A reader never waits for a step and a step never waits for a reader.

The endpoint is `GET /load` over HTTP/1.1 with keep-alive. A client that sends nothing, half a request, too much, or
never reads its answers costs one of a bounded number of connections, for a bounded time; when all are taken, the one
that has been silent longest makes room.
"""

import asyncio
import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from halffull_larry.snapshot import Snapshot

__all__ = ["Identity", "LoadServer", "Snapshot", "listening_socket", "render"]

VERSION: Final = 1
"""Of the contract. A reader refuses any other."""

MAX_CONNECTIONS: Final = 64
MAX_HEAD_BYTES: Final = 8_192
"""Of one request: line and headers."""
IDLE_SECONDS: Final = 75.0
"""A connection without a complete request for so long is closed."""

_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a report says about its engine that does not change while the engine core lives."""

    scheduler: str
    """`LARRY`, `LARRYPlus`, `FCFS`, or `Stock: <reason>` when the plugin stepped aside."""
    max_tokens_per_batch: int
    """Budget of a step."""
    max_model_len: int
    """Longest sequence, tokens."""
    rank: int = 0
    """data_parallel_index."""
    boot_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Changes at every start of the engine core."""


def render(identity: Identity, snapshot: Snapshot, *, now: float) -> bytes:
    """The JSON object that `GET /load` answers, at `now` of the clock that `snapshot.taken` is of."""
    return json.dumps(
        {
            "version": VERSION,
            "boot_id": identity.boot_id,
            "rank": identity.rank,
            "scheduler": identity.scheduler,
            "age": round(max(0.0, now - snapshot.taken), 6),
            "queued_tokens": snapshot.queued_tokens,
            "free_tokens": snapshot.free_tokens,
            "total_tokens": snapshot.total_tokens,
            "running": snapshot.running,
            "waiting": snapshot.waiting,
            "max_tokens_per_batch": identity.max_tokens_per_batch,
            "max_model_len": identity.max_model_len,
            "steps": snapshot.steps,
            "busy_seconds": round(snapshot.busy_seconds, 6),
            "computed_tokens": snapshot.computed_tokens,
            "first_tokens": snapshot.first_tokens,
            "ttft_seconds": round(snapshot.ttft_seconds, 6),
            "prompt_tokens": snapshot.prompt_tokens,
            "generation_tokens": snapshot.generation_tokens,
            "requests": snapshot.requests,
        },
        separators=(",", ":"),
    ).encode()


def listening_socket(host: str, port: int) -> socket.socket:
    """A listening TCP socket; `port` 0 takes a free one.

    `::` (or an empty host) takes IPv4 too, where the machine has both; `::` on a host without IPv6 is 0.0.0.0.

    Raises:
        OSError: the address cannot be bound.
    """
    if host in ("", "::"):
        if socket.has_dualstack_ipv6():
            with contextlib.suppress(OSError):  # IPv6 may be compiled in and yet disabled on this host
                return _bind(socket.AF_INET6, ("::", port), dual_stack=True)
        host = "0.0.0.0"  # noqa: S104  the caller asked for every interface
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return _bind(family, address, dual_stack=False)


def _bind(family: int, address: tuple[Any, ...], *, dual_stack: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not dual_stack))
        sock.bind(address)
        sock.listen()  # only now does a second bind of the port fail
    except OSError:
        sock.close()
        raise
    return sock


class LoadServer:
    """Serves what `body` returns at /load, and what `metrics` returns at /metrics.

    Both are called in the server's thread, once per request, and must not block. `body` returns the JSON text, or None
    to say nothing and leave the connection open (how the lab emulates an engine that hangs); `metrics` Prometheus text.
    """

    def __init__(
        self,
        body: Callable[[], bytes | None],
        metrics: Callable[[], bytes] | None = None,
        *,
        host: str = "::",
        port: int = 9400,
    ) -> None:
        """Binds at once, so that a port in use is the caller's error.

        Raises:
            OSError: the address cannot be bound.
        """
        self._pages: dict[bytes, tuple[bytes, Callable[[], bytes | None]]] = {b"/load": (b"application/json", body)}
        if metrics is not None:
            self._pages[b"/metrics"] = (b"text/plain; version=0.0.4", metrics)
        self._socket = listening_socket(host, port)
        self.port: int = self._socket.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._connections: dict[_Connection, None] = {}  # longest silent first
        self._serving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="halffull-load-report", daemon=True)

    def start(self) -> None:
        """Begin to serve; returns once it does."""
        self._thread.start()
        self._serving.wait()

    def stop(self) -> None:
        """Close every connection and the port; returns when the thread is gone. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        elif not self._loop.is_closed():  # never started
            self._socket.close()
            self._loop.close()

    def _run(self) -> None:
        loop = self._loop
        server = loop.run_until_complete(loop.create_server(lambda: _Connection(self), sock=self._socket))
        loop.call_later(1.0, self._sweep)
        loop.call_soon(self._serving.set)
        try:
            loop.run_forever()
        finally:
            server.close()
            for connection in list(self._connections):
                connection.abort()
            loop.run_until_complete(asyncio.sleep(0))  # lets the transports report their end
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    def _sweep(self) -> None:
        oldest = self._loop.time() - IDLE_SECONDS
        for connection in list(self._connections):
            if connection.last_request > oldest:
                break
            connection.abort()
        self._loop.call_later(1.0, self._sweep)

    # Called by the connections, in the server's thread.

    def opened(self, connection: "_Connection") -> None:
        """Admit a connection, at the cost of the longest silent one when there are too many."""
        connection.last_request = self._loop.time()
        self._connections[connection] = None
        if len(self._connections) > MAX_CONNECTIONS:
            next(iter(self._connections)).abort()

    def closed(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)

    def answer(self, connection: "_Connection", method: bytes, path: bytes) -> "_Answer | None":
        """The answer to one request, or None to stay silent."""
        connection.last_request = self._loop.time()
        self._connections[connection] = self._connections.pop(connection, None)
        page = self._pages.get(path.partition(b"?")[0])
        if page is None:
            return _Answer(404, b'{"error":"the load report is at /load"}')
        if method not in (b"GET", b"HEAD"):
            return _Answer(405, b'{"error":"GET only"}')
        content_type, make = page
        try:
            body = make()
        except Exception as error:  # noqa: BLE001  a report that cannot be made is an answer, not the thread's end
            return _Answer(500, b'{"error":"no report: %s"}' % type(error).__name__.encode())
        return None if body is None else _Answer(200, body, content_type)


class _Answer(NamedTuple):
    status: int
    body: bytes
    content_type: bytes = b"application/json"


class _Connection(asyncio.Protocol):
    """One client. Reads heads only: a request with a body is refused, and its connection closed."""

    def __init__(self, server: LoadServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._paused = False  # the client does not read its answers
        self.last_request = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # a TCP server's transport is a Transport
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        self._transport = None
        self._server.closed(self)

    def abort(self) -> None:
        """Drop the connection, answers not yet sent included."""
        if self._transport is not None:
            self._transport.abort()
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if self._transport is not None:
            self._transport.resume_reading()
        self._serve()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._serve()

    def _serve(self) -> None:
        while not self._paused and self._transport is not None and not self._transport.is_closing():
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if len(head) > MAX_HEAD_BYTES:
                self._send(_Answer(431, b'{"error":"request head too large"}'), close=True)
                return
            if not end:
                return
            self._buffer = rest
            self._request(head.lstrip(b"\r\n"))

    def _request(self, head: bytes) -> None:
        line, _, headers = head.partition(b"\r\n")
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._send(_Answer(400, b'{"error":"not an HTTP/1.1 request"}'), close=True)
            return
        fields = {}
        for header in headers.split(b"\r\n"):
            name, _, value = header.partition(b":")
            fields[name.strip().lower()] = value.strip().lower()
        if fields.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in fields:
            self._send(_Answer(413, b'{"error":"no body, please"}'), close=True)
            return
        answer = self._server.answer(self, words[0], words[1])
        if answer is None:
            return
        connection = fields.get(b"connection", b"")
        close = b"close" in connection or (words[2] == b"HTTP/1.0" and b"keep-alive" not in connection)
        self._send(answer, close=close, head_only=words[0] == b"HEAD")

    def _send(self, answer: _Answer, *, close: bool, head_only: bool = False) -> None:
        if self._transport is None:
            return
        self._transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n%s\r\n%s"
            % (
                answer.status,
                _REASONS[answer.status].encode(),
                answer.content_type,
                len(answer.body),
                b"connection: close\r\n" if close else b"",
                b"" if head_only else answer.body,
            )
        )
        if close:
            self._transport.close()
