"""An engine's stand-in that costs next to nothing: a bare protocol that answers, streams, and reports its load."""

import asyncio
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Self, cast

import httptools

_TOTAL = 4_000_000  # tokens of KV cache


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: list[tuple[str, str]] = field(default_factory=list)
    size: int = 0
    sha256: str = ""


class Upstream:
    """Serves `/load`, answers anything else with what arrived, and holds `/v1/stream` open until `finish`.

    `/v1/slow` answers after `delay` seconds.
    """

    def __init__(self, *, delay: float = 0.3) -> None:
        self.delay = delay
        self.requests: list[Seen] = []
        self.streams: set[_Connection] = set()
        self.connections: set[_Connection] = set()
        self.address = ""
        self._server: asyncio.Server | None = None
        self._port = 0
        self._boot = time.monotonic()

    async def start(self, host: str = "127.0.0.1") -> Self:
        """Listen on a free port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, 0, backlog=4096)
        self._port = self._server.sockets[0].getsockname()[1]
        self.address = f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}"
        return self

    async def stop(self) -> None:
        """Drop every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # transports report their end in the next turn

    def entry(self) -> dict[str, object]:
        """Its entry in endpoints.yaml."""
        return {"address": self.address, "loadPort": self._port}

    def finish(self) -> None:
        """End every open stream, as an engine that is done."""
        for connection in list(self.streams):
            connection.finish()

    def load(self) -> bytes:
        """A load report: what it holds open runs; nothing waits."""
        running, finished = len(self.streams), len(self.requests) - len(self.streams)
        steps = int((time.monotonic() - self._boot) * 30)
        return json.dumps(
            {
                "version": 1,
                "boot_id": f"{self._boot}",
                "rank": 0,
                "scheduler": "FCFS",
                "age": 0.0,
                "queued_tokens": 0,
                "free_tokens": _TOTAL - 200 * running,
                "total_tokens": _TOTAL,
                "running": running,
                "waiting": 0,
                "max_tokens_per_batch": 8192,
                "max_model_len": 131_072,
                "steps": steps,
                "busy_seconds": steps * 0.03,
                "computed_tokens": steps,
                "first_tokens": finished,
                "ttft_seconds": finished * 0.1,
                "prompt_tokens": finished * 50,
                "generation_tokens": finished * 100,
                "requests": finished,
            }
        ).encode()


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._upstream.connections.add(self)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._upstream.connections.discard(self)
        self._upstream.streams.discard(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def on_message_begin(self) -> None:
        self._seen = Seen("")
        self._hash = hashlib.sha256()

    def on_url(self, url: bytes) -> None:
        self._seen.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._seen.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, body: bytes) -> None:
        self._seen.size += len(body)
        self._hash.update(body)

    def on_message_complete(self) -> None:
        seen = self._seen
        if seen.path == "/load":
            self._answer(self._upstream.load())
            return
        seen.sha256 = self._hash.hexdigest()
        self._upstream.requests.append(seen)
        told = json.dumps({"engine": self._upstream.address, "bytes": seen.size, "sha256": seen.sha256}).encode()
        if seen.path == "/v1/stream":
            self._upstream.streams.add(self)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self._write(head + b"d\r\ndata: first\n\n\r\n")
        elif seen.path == "/v1/slow":
            asyncio.get_running_loop().call_later(self._upstream.delay, self._answer, told)
        else:
            self._answer(told)

    def finish(self) -> None:
        self._upstream.streams.discard(self)
        self._write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    def _answer(self, body: bytes) -> None:
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
        )

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)
