"""Keeps the cache in step with the cluster: kopf's watches, and a list of our own after each of kopf's.

kopf says nothing of what is missing from a list, and a list is what follows when a watch cannot go on ("410 Gone": the
API server was restarted, or we were cut off for long). Its HTTP session is ours, so we see when it lists, and spare it
what is in the list (access.py).
"""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

import kopf
import structlog

from halffull_operator import access, handlers, kinds, labels
from halffull_operator.cache import Cache, News, ObjectKey, object_key
from halffull_operator.cluster import Cluster
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Kind, Manifest
from halffull_operator.version import user_agent

_SETTLE: Final = 1.0  # s after kopf's list until ours; it is a burst over all kinds, usually
_TRY_AGAIN: Final = 5.0  # s

_log = structlog.get_logger(__name__)

Place = tuple[Kind, str | None]
"""A collection: a kind, in a namespace or in all."""


class Feed:
    """Watches, and tells what changed."""

    def __init__(
        self,
        *,
        cache: Cache,
        cluster: Cluster,
        configuration: Any,
        namespaces: Collection[str],
        children: Collection[Kind],
        lease: str,
        news: Callable[[News], None],
        beat: Callable[[Manifest], None],
    ) -> None:
        """Nothing is watched before `run`.

        Args:
            cache: what is kept in step.
            cluster: for our lists.
            configuration: of kubernetes.aio, for kopf.
            namespaces: to watch; none: all.
            children: kinds that are watched by our label.
            lease: name of the Lease of the heartbeat.
            news: told of each change that concerns an LLMServing.
            beat: told of each change of that Lease.
        """
        self._cache = cache
        self._cluster = cluster
        self._configuration = configuration
        self._namespaces = tuple(namespaces)
        self._children = tuple(children)
        self._lease = lease
        self._news = news
        self._beat = beat
        places = [
            (kind, namespace)
            for kind in (kinds.SERVING, *self._children)
            for namespace in (self._namespaces or (None,))
        ]
        self._places: dict[str, Place] = {kind.path(namespace): (kind, namespace) for kind, namespace in places}
        self._never_listed: set[Place] = set(places)
        self._to_list: set[Place] = set()
        self._asked = asyncio.Event()
        self._stop = asyncio.Event()
        self.complete = asyncio.Event()
        """Everything has been listed: what is not in the cache is not there."""
        self.lost = asyncio.Event()
        """An optional kind that was watched is not served at this moment."""

    def missing(self) -> list[str]:
        """What has not been listed yet."""
        return sorted(kind.plural for kind, _ in self._never_listed)

    async def watch(self) -> None:
        """Kopf's part, until `stop`; raises what ends kopf."""
        registry = handlers.registry(
            watched=(kinds.SERVING, *self._children, kinds.LEASE), tell=self._tell, login=self._login
        )
        await kopf.operator(
            registry=registry,
            settings=handlers.settings(children=self._children, lease=self._lease),
            standalone=True,
            clusterwide=not self._namespaces,
            namespaces=self._namespaces,
            stop_flag=self._stop,
        )

    def stop(self) -> None:
        """End the watches."""
        self._stop.set()

    async def keep_listing(self) -> None:
        """List what kopf has listed, until cancelled."""
        while True:
            await self._asked.wait()
            await asyncio.sleep(_SETTLE)
            self._asked.clear()
            for kind, namespace in sorted(self._to_list, key=lambda place: (place[0].plural, place[1] or "")):
                # Before ours begins: kopf may list again meanwhile, and what it saw then ours may not have seen.
                self._to_list.discard((kind, namespace))
                try:
                    await self._list(kind, namespace)
                except ApiError as error:
                    self._to_list.add((kind, namespace))
                    _log.warning("could not list", kind=kind.kind, reason=error.reason, message=error.message)
                    self._asked.set()
                    await asyncio.sleep(_TRY_AGAIN)
                    break
                self._never_listed.discard((kind, namespace))
            if not self._never_listed:
                self.complete.set()

    async def _list(self, kind: Kind, namespace: str | None) -> None:
        """Take in all there is; page by page, as all of a kind at once could be more than what is kept of all kinds."""
        listed, version = set[ObjectKey](), ""
        selector = "" if kind is kinds.SERVING else labels.CHILD_SELECTOR
        async for page in self._cluster.pages(kind, namespace=namespace, label_selector=selector):
            items, version = page
            for item in items:
                listed.add(object_key(kind, item))
                if (one := self._cache.see(kind, item)) is not None:
                    self._news(one)
        for one in self._cache.retain(kind, listed, version=version, namespace=namespace):
            self._news(one)

    def _tell(self, kind: Kind, body: Manifest, gone: bool) -> None:  # noqa: FBT001  kopf's event has one type
        if kind is kinds.LEASE:
            if not gone:
                self._beat(body)
            return
        one = self._cache.lose(kind, body) if gone else self._cache.see(kind, body)
        if one is not None:
            self._news(one)

    async def _login(self) -> kopf.AiohttpSession:
        session = access.kopf_session(
            self._configuration, seen=self._seen, absent=self._is_lost, user_agent=f"{user_agent()} kopf"
        )
        return kopf.AiohttpSession(server=self._configuration.host, aiohttp_session=session)

    def _is_lost(self, path: str) -> bool:
        place = self._places.get(path)
        if place is None or not place[0].optional:
            return False
        self.lost.set()
        return True

    def _seen(self, method: str, path: str, is_watch: bool) -> None:  # noqa: FBT001  access.Seen
        place = self._places.get(path)
        if method == "GET" and not is_watch and place is not None:
            self._to_list.add(place)
            self._asked.set()
