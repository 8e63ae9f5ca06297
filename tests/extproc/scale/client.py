"""An HTTP/1.1 client thin enough for thousands of streams at once: one asyncio.Protocol each, no session, no pool."""

import asyncio
from typing import NamedTuple, Self, cast

import httptools


class Answer(NamedTuple):
    """A whole response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client(asyncio.Protocol):
    """A connection that carries one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._begin()

    @classmethod
    async def connect(cls, url: str) -> Self:
        """To `http://HOST:PORT`, IPv6 in brackets."""
        host, _, port = url.removeprefix("http://").rpartition(":")
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, host.strip("[]"), int(port))
        return client

    def send(self, request: bytes) -> None:
        """Begin an exchange; `answered` and `done` are of this one."""
        assert self._transport is not None, "not connected"
        self._begin()
        self._transport.write(request)

    async def ask(self, request: bytes, *, within: float = 60.0) -> Answer:
        """Send a request and wait for all of its answer.

        Raises:
            ConnectionError: the connection ended before the answer did.
            TimeoutError: it took longer than `within` seconds.
        """
        self.send(request)
        async with asyncio.timeout(within):
            return await self.answer()

    async def answer(self) -> Answer:
        """The rest of the exchange that was begun."""
        if not await self.done:
            raise ConnectionError(f"the connection ended after status {self.status} and {len(self.body)} bytes")
        return Answer(self.status, self.headers, bytes(self.body))

    def abort(self) -> None:
        """Leave at once, as a client that is gone."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """Leave between two exchanges."""
        if self._transport is not None:
            self._transport.close()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.answered: asyncio.Future[int] = loop.create_future()
        """The status, once the headers are there; 0 when the connection ended before."""
        self.done: asyncio.Future[bool] = loop.create_future()
        """Whether all of the answer came."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if not self.answered.done():
            self.answered.set_result(0)
        if not self.done.done():
            self.done.set_result(False)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if not self.answered.done():
            self.answered.set_result(self.status)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if not self.done.done():
            self.done.set_result(True)


def post(path: str, body: bytes, *headers: str) -> bytes:
    """The bytes of a POST; `headers` are lines without their end."""
    lines = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def get(path: str, *headers: str) -> bytes:
    """The bytes of a GET."""
    return "\r\n".join([f"GET {path} HTTP/1.1", "host: gateway", *headers, "", ""]).encode("latin-1")
