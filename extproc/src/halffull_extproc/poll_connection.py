"""One kept-alive HTTP/1.1 connection of the poller: a request's bytes out, a bounded response in.

A bare asyncio.Protocol on purpose: a poll costs a fraction of what an HTTP client library takes, and there are ten
thousand a second with a thousand engines.
"""

import asyncio
from typing import Final, Protocol, cast

import httptools

_HEADER_BYTES: Final = 64 * 1024


class Owner(Protocol):
    """Who asked; called at most once for each request."""

    def on_response(self, connection: "Connection", status: int, body: bytes) -> None:
        """The whole answer is there. The connection can be used again if `connection.reusable`."""

    def on_lost(self, connection: "Connection", reason: str, *, retriable: bool) -> None:
        """The connection is gone. `retriable`: it had worked before, and nothing of this answer had come."""


class Connection(asyncio.Protocol):
    """A connection that carries one request at a time."""

    def __init__(self, owner: Owner) -> None:
        """For one owner; the event loop makes the connection itself."""
        self._owner: Owner | None = owner
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._limit = 0
        self._received = 0
        self._answered = 0
        self._body: list[bytes] = []
        self.busy = False

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent on it."""
        return self._transport is not None and not self._transport.is_closing() and not self.busy

    def request(self, data: bytes, *, limit: int) -> None:
        """Send a request; its answer's body may have up to `limit` bytes."""
        assert self._transport is not None, "a request before the connection was made"  # noqa: S101 (a bug here, not input)
        self.busy = True
        self._limit = limit
        self._received = 0
        self._body.clear()
        self._transport.write(data)

    def close(self) -> None:
        """Close at once and tell nobody."""
        self._owner = None
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast("asyncio.Transport", transport)
        if self._owner is None:
            self._transport.abort()  # closed while it was being opened

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer."""
        if not self.busy:
            self._fail("sent something unasked")
            return
        self._received += len(data)
        if self._received > self._limit + _HEADER_BYTES:
            self._fail(f"answered with more than {self._limit} bytes")
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("answered with a protocol upgrade")
        except httptools.HttpParserError as error:
            self._fail(f"did not answer in HTTP/1.1: {str(error)[:100]}")

    def eof_received(self) -> bool:
        """The other side sends no more: close ours too."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone, by whichever side."""
        transport, self._transport = self._transport, None
        owner, self._owner = self._owner, None
        if owner is None or transport is None:
            return
        if self._received and self.busy:
            reason = "closed the connection in the middle of an answer"
        else:
            reason = "reset the connection" if exc is not None else "closed the connection"
        owner.on_lost(self, reason, retriable=bool(self._answered) and self._received == 0)

    # What httptools calls

    def on_body(self, chunk: bytes) -> None:
        """A piece of the body; the size was checked before it was parsed."""
        self._body.append(chunk)

    def on_message_complete(self) -> None:
        """The whole answer."""
        status = self._parser.get_status_code()
        if status < 200 or self._owner is None:  # an interim answer, such as 103
            self._body.clear()
            return
        if not self.busy:
            self._fail("answered twice")
            return
        body = b"".join(self._body)
        self._body.clear()
        self.busy = False
        self._answered += 1
        self._received = 0
        owner = self._owner
        if len(body) > self._limit:
            self._fail(f"answered with more than {self._limit} bytes")
            return
        if not self._parser.should_keep_alive():
            self._owner = None
            if self._transport is not None:
                self._transport.close()
        owner.on_response(self, status, body)

    def _fail(self, reason: str) -> None:
        owner, self._owner = self._owner, None
        if self._transport is not None:
            self._transport.abort()
        if owner is not None:
            owner.on_lost(self, reason, retriable=False)
