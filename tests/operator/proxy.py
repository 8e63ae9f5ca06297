"""A proxy in front of the real API server, in which a test makes faults: refusals, silence, cut connections, a kill."""

import asyncio
import json
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.operator.kube import ControlPlane

_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive", "accept-encoding"})


Answer = tuple[int, dict[str, object], dict[str, str]]
"""Status, body, headers."""


@dataclass(frozen=True)
class Request:
    """What the proxy was asked."""

    number: int
    """Of the requests that were counted (`Rules.counts`), from 1; 0: this one is not."""
    method: str
    path: str
    query: str
    agent: str
    body: bytes = b""

    @property
    def watch(self) -> bool:
        return "watch=true" in self.query

    @property
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD")


@dataclass
class Rules:
    """What to do to requests; a test replaces what it needs. Called in the proxy's thread."""

    counts: Callable[[Request], bool] = lambda _: True
    before: Callable[[Request], Answer | None] = lambda _: None
    """Answer instead of the API server."""
    after: Callable[[Request], None] = lambda _: None
    """Called when the API server has answered, before the answer goes on."""
    stall: bool = False
    """Let nothing through in either direction, and keep every connection open."""
    delay: Callable[[Request], float] = lambda _: 0.0
    """Seconds until the request goes on."""
    after_delay: Callable[[Request], float] = lambda _: 0.0
    """Seconds until the answer goes on; not of a watch."""


@dataclass
class ApiProxy:
    """Plain HTTP on loopback → the API server, with the admin's certificate unless the request has a token."""

    plane: ControlPlane
    rules: Rules = field(default_factory=Rules)
    seen: list[Request] = field(default_factory=list)
    url: str = ""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._go = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def freeze(self) -> None:
        """From now on the watches that are open tell nothing more, and do not end either. New ones do."""
        self._frozen |= self._watches

    def cut(self) -> None:
        """Break every connection."""
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    def reset(self) -> None:
        """Forget the requests and the faults."""
        self.rules = Rules()
        self.seen = []

    async def _start(self) -> None:
        admin = self.plane.admin
        self._tasks: set[asyncio.Task[object]] = set()
        self._watches: set[object] = set()
        self._frozen: set[object] = set()
        # Two: a request with a token must not carry the admin's certificate, which would be asked first.
        self._as_admin = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=admin.context, limit=0), auto_decompress=False
        )
        bare = ssl.create_default_context()
        bare.check_hostname, bare.verify_mode = False, ssl.CERT_NONE
        self._bare = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=bare, limit=0), auto_decompress=False)
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _stop(self) -> None:
        self.rules.stall = False
        await self._cut()
        await self._runner.cleanup()
        await self._as_admin.close()
        await self._bare.close()
        own = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not own]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        await asyncio.sleep(0.3)  # transports close in later steps of the loop, those with TLS in several

    async def _cut(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._runner.server is not None:
            for connection in list(self._runner.server.connections):
                if connection.transport is not None:
                    connection.transport.abort()

    async def _stalled(self) -> None:
        while self.rules.stall:  # noqa: ASYNC110  set from another thread, at any moment
            await asyncio.sleep(0.05)

    async def _handle(self, incoming: web.Request) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._forward(incoming)
        except aiohttp.ClientConnectionResetError:
            raise asyncio.CancelledError from None  # who asked is dead
        finally:
            self._tasks.discard(task)

    async def _forward(self, incoming: web.Request) -> web.StreamResponse:  # noqa: C901  one branch for each fault
        agent = incoming.headers.get("User-Agent", "")
        body = await incoming.read()
        request = Request(0, incoming.method, incoming.path, incoming.query_string, agent, body)
        if self.rules.counts(request):
            request = replace(request, number=1 + sum(one.number > 0 for one in self.seen))
        self.seen.append(request)
        await self._stalled()
        if seconds := self.rules.delay(request):
            await asyncio.sleep(seconds)
        admin = self.plane.admin
        session = self._bare if "Authorization" in incoming.headers else self._as_admin
        headers = {name: value for name, value in incoming.headers.items() if name.lower() not in _HOP}
        url = f"https://{admin.host}:{admin.port}{incoming.raw_path}"
        try:
            if (instead := self.rules.before(request)) is not None:
                status, answer, extra = instead
                return web.Response(
                    status=status, text=json.dumps(answer), content_type="application/json", headers=extra
                )
            async with session.request(
                incoming.method,
                url,
                data=body or None,
                headers=headers,
                skip_auto_headers=("Content-Type",),
                timeout=aiohttp.ClientTimeout(total=None),
            ) as upstream:
                kept = {name: value for name, value in upstream.headers.items() if name.lower() not in _HOP}
                if not request.watch:
                    text = await upstream.read()
                    self.rules.after(request)
                    if seconds := self.rules.after_delay(request):
                        await asyncio.sleep(seconds)
                    await self._stalled()
                    return web.Response(status=upstream.status, body=text, headers=kept)
                response = web.StreamResponse(status=upstream.status, headers=kept)
                await response.prepare(incoming)
                watch = object()
                self._watches.add(watch)
                try:
                    async for chunk in upstream.content.iter_any():
                        await self._stalled()
                        if watch not in self._frozen:
                            await response.write(chunk)
                    while watch in self._frozen:  # noqa: ASYNC110  until cancelled or cut
                        await asyncio.sleep(0.1)
                finally:
                    self._watches.discard(watch)
                return response
        except (aiohttp.ClientError, OSError):
            if incoming.transport is not None:
                incoming.transport.abort()  # as if the API server itself had gone away
            raise


def refusal(status: int, reason: str, message: str = "made by a test", **headers: str) -> Answer:
    """An answer of the API server's that refuses."""
    body: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": status,
    }
    return status, body, {name.replace("_", "-"): value for name, value in headers.items()}
