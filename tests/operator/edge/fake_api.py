"""A tiny API server for units of the edges: objects in a dict, lists, watches that a test can cut.

No schema, no defaults, no garbage collection: what is claimed about those is shown on the real one.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from halffull_operator import kinds
from halffull_operator.kinds import Kind, Manifest

Fault = Callable[[web.Request], web.Response | None]

_NAMESPACE = Kind("v1", "Namespace", "namespaces", namespaced=False)
_SERVED = (*kinds.CHILDREN, kinds.SERVING, kinds.POD, kinds.CLAIM, kinds.EVENT, kinds.LEASE, kinds.CRD, _NAMESPACE)
"""kopf waits in silence for a server that has no namespaces or no CRDs."""


class FakeApi:
    """Answers like an API server, as far as kopf and the operator ask."""

    def __init__(self, *, without: frozenset[str] = frozenset()) -> None:
        self.kinds = [kind for kind in _SERVED if kind.kind not in without]
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        """(plural, namespace, name) → object."""
        self.version = 100
        self.requests: list[tuple[str, str]] = []
        self.fault: Fault = lambda _: None
        self._watches: list[tuple[str, str | None, asyncio.Queue[Manifest | None]]] = []
        self._uids = 0
        self.url = ""

    # -- what a test does

    def put(self, manifest: Manifest) -> Manifest:
        """Create or change an object, as a person would."""
        kind = kinds.kind_of(manifest)
        metadata = manifest["metadata"]
        key = (kind.plural, metadata.get("namespace", ""), metadata["name"])
        old = self.objects.get(key)
        self.version += 1
        if old is None:
            self._uids += 1
        stored = {
            **manifest,
            "metadata": {
                **metadata,
                "uid": old["metadata"]["uid"] if old else f"uid-{self._uids}",
                "resourceVersion": str(self.version),
                "generation": 1
                if old is None
                else old["metadata"]["generation"] + (old.get("spec") != manifest.get("spec")),
            },
        }
        self.objects[key] = stored
        self._tell(kind, stored, "MODIFIED" if old else "ADDED")
        return stored

    def remove(self, kind: Kind, name: str, namespace: str = "", *, silently: bool = False) -> None:
        """Delete an object; silently: no watch hears of it."""
        gone = self.objects.pop((kind.plural, namespace, name))
        self.version += 1
        gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        if not silently:
            self._tell(kind, gone, "DELETED")

    def expire(self, kind: Kind | None = None) -> None:
        """End watches with 410 Gone, as after a restart: everything has to be listed anew."""
        for plural, _, queue in self._watches:
            if kind is None or plural == kind.plural:
                queue.put_nowait(None)

    def cut(self) -> None:
        """Break every connection."""
        for connection in list(self._runner.server.connections if self._runner.server else ()):
            if connection.transport is not None:
                connection.transport.abort()

    def all(self, kind: Kind) -> list[Manifest]:
        return [one for (plural, _, _), one in self.objects.items() if plural == kind.plural]

    def count(self, method: str, part: str) -> int:
        return sum(one == method and part in path for one, path in self.requests)

    # -- what the server does

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._runner = runner
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            await runner.cleanup()

    def _tell(self, kind: Kind, body: Manifest, type_: str) -> None:
        for plural, namespace, queue in self._watches:
            if plural == kind.plural and namespace in (None, body["metadata"].get("namespace")):
                queue.put_nowait({"type": type_, "object": body})

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path))
        if (fault := self.fault(request)) is not None:
            return fault
        if (discovery := self._discovery(request.path)) is not None:
            return web.json_response(discovery)
        for kind in self.kinds:
            found = _matched(kind, request.path)
            if found is not None:
                return await self._object(request, kind, *found)
        return refused(404, "NotFound")

    def _discovery(self, path: str) -> Manifest | None:
        if path == "/api":
            return {"versions": ["v1"]}
        if path == "/apis":
            groups: dict[str, set[str]] = {}
            for kind in self.kinds:
                if kind.group:
                    groups.setdefault(kind.group, set()).add(kind.version)
            return {
                "groups": [
                    {
                        "name": group,
                        "versions": [{"version": version} for version in versions],
                        "preferredVersion": {"version": min(versions)},
                    }
                    for group, versions in groups.items()
                ]
            }
        resources = [
            {
                "name": kind.plural,
                "kind": kind.kind,
                "singularName": kind.kind.lower(),
                "namespaced": kind.namespaced,
                "verbs": ["get", "list", "watch", "create", "patch", "delete"],
            }
            for kind in self.kinds
            if path in (f"/apis/{kind.api_version}", f"/api/{kind.api_version}")
        ]
        return {"resources": resources} if resources else None

    async def _object(  # noqa: C901, PLR0911  one branch for each verb
        self, request: web.Request, kind: Kind, namespace: str | None, name: str | None, subresource: str | None
    ) -> web.StreamResponse:
        if name is None:
            if request.method == "POST":
                body = await request.json()
                self._uids += 1
                body["metadata"].setdefault("name", body["metadata"].get("generateName", "") + str(self._uids))
                return web.json_response(self.put(body), status=201)
            if request.query.get("watch"):
                return await self._watch(request, kind, namespace)
            items = [one for (_, where, _), one in self._of(kind) if namespace in (None, where)]
            start = int(request.query.get("continue", "0"))
            end = start + int(request.query.get("limit", len(items)))
            more = {"continue": str(end)} if end < len(items) else {}
            metadata = {"resourceVersion": str(self.version), **more}
            return web.json_response({"metadata": metadata, "items": items[start:end]})
        key = (kind.plural, namespace or "", name)
        old = self.objects.get(key)
        if request.method == "PATCH":
            body = await request.json()
            if subresource:
                if old is None:
                    return refused(404, "NotFound")
                body = {**old, subresource: body[subresource]}
            elif old is not None:
                body = {**old, **body, "metadata": {**old["metadata"], **body.get("metadata", {})}}
            return web.json_response(self.put(body))
        if old is None:
            return refused(404, "NotFound")
        if request.method == "DELETE":
            wanted = (await request.json()).get("preconditions", {}).get("uid")
            if wanted not in (None, old["metadata"]["uid"]):
                return refused(409, "Conflict")
            self.remove(kind, name, namespace or "")
        return web.json_response(old)

    def _of(self, kind: Kind) -> list[tuple[tuple[str, str, str], Manifest]]:
        return [(key, one) for key, one in self.objects.items() if key[0] == kind.plural]

    async def _watch(self, request: web.Request, kind: Kind, namespace: str | None) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        queue: asyncio.Queue[Manifest | None] = asyncio.Queue()
        entry = (kind.plural, namespace, queue)
        self._watches.append(entry)
        try:
            since = int(request.query.get("resourceVersion", "0"))
            for (_, where, _), one in self._of(kind):
                if int(one["metadata"]["resourceVersion"]) > since and namespace in (None, where):
                    await response.write(json.dumps({"type": "MODIFIED", "object": one}).encode() + b"\n")
            while (event := await queue.get()) is not None:
                await response.write(json.dumps(event).encode() + b"\n")
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}}
            await response.write(json.dumps(gone).encode() + b"\n")
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._watches.remove(entry)
        return response


def refused(status: int, reason: str, message: str = "", **more: Any) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status, **more}
    return web.json_response(body, status=status)


def _matched(kind: Kind, path: str) -> tuple[str | None, str | None, str | None] | None:
    """(namespace, name, subresource) if the path is of this kind."""
    base = f"/{'apis' if kind.group else 'api'}/{kind.api_version}"
    if not path.startswith(base + "/"):
        return None
    parts = path.removeprefix(base + "/").split("/")
    namespace = None
    if parts[0] == "namespaces" and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    if parts[0] != kind.plural:
        return None
    return namespace, parts[1] if len(parts) > 1 else None, parts[2] if len(parts) > 2 else None
