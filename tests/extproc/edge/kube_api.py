"""A small Kubernetes API over HTTP: list and watch of any collection, and the ways in which the real one fails."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.aio import client

Object = dict[str, Any]


@dataclass
class FakeApi:
    """Objects by collection path. `put` and `delete` reach open watches as events."""

    objects: dict[str, dict[str, Object]] = field(default_factory=dict)
    version: int = 100
    lists: list[dict[str, str]] = field(default_factory=list)
    watches: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    fail_with: int = 0
    """A status with which every request is refused."""
    body: bytes | None = None
    """Answered to a list instead of the truth."""
    _open: list[tuple[str, asyncio.Queue[bytes | None]]] = field(default_factory=list)

    @property
    def watching(self) -> int:
        return len(self._open)

    def put(self, path: str, item: Object) -> None:
        self.version += 1
        item.setdefault("metadata", {})["resourceVersion"] = str(self.version)
        known = self.objects.setdefault(path, {})
        kind = "MODIFIED" if item["metadata"]["name"] in known else "ADDED"
        known[item["metadata"]["name"]] = item
        self.event(path, {"type": kind, "object": item})

    def delete(self, path: str, name: str) -> None:
        self.version += 1
        self.event(path, {"type": "DELETED", "object": self.objects[path].pop(name)})

    def event(self, path: str, event: Any) -> None:
        self.raw(path, json.dumps(event).encode() + b"\n")

    def raw(self, path: str, data: bytes | None) -> None:
        for at, queue in self._open:
            if at == path:
                queue.put_nowait(data)

    def disconnect(self, path: str) -> None:
        self.raw(path, None)

    def end(self, path: str) -> None:
        """End its watches in order, as after timeoutSeconds."""
        self.raw(path, b"")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.headers.append(dict(request.headers))
        if self.fail_with:
            status = {"kind": "Status", "code": self.fail_with, "message": "not today"}
            return web.json_response(status, status=self.fail_with)
        if query.get("watch") == "true":
            return await self._watch(request, query)
        self.lists.append(query)
        if self.body is not None:
            return web.Response(body=self.body)
        items = [
            item
            for item in self.objects.get(request.path, {}).values()
            if query.get("fieldSelector", f"metadata.name={item['metadata']['name']}").endswith(
                "=" + item["metadata"]["name"]
            )
        ]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        self.watches.append(query)
        response = web.StreamResponse()
        await response.prepare(request)
        entry: tuple[str, asyncio.Queue[bytes | None]] = (request.path, asyncio.Queue())
        self._open.append(entry)
        try:
            while data := await entry[1].get():
                await response.write(data)
        finally:
            self._open.remove(entry)
        if data is None and request.transport is not None:
            request.transport.abort()
        return response


def client_of(port: int) -> Any:
    """An ApiClient of kubernetes.aio for a server on loopback."""
    configuration = client.Configuration(host=f"http://127.0.0.1:{port}")
    configuration.api_key["BearerToken"] = "bearer of good news"
    return client.ApiClient(configuration)


@contextlib.asynccontextmanager
async def kube_api() -> AsyncIterator[tuple[FakeApi, Any]]:
    """The fake, and an ApiClient of kubernetes.aio that talks to it."""
    fake = FakeApi()
    app = web.Application()
    app.router.add_get("/{path:.*}", fake.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with client_of(port) as api:
        try:
            yield fake, api
        finally:
            for path, _ in list(fake._open):
                fake.disconnect(path)
            await runner.cleanup()
