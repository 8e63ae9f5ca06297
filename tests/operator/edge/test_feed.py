"""kopf and our lists together keep the cache in step, whatever happens to the watches."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from kubernetes.aio import client

from halffull_operator import feed as module
from halffull_operator import kinds
from halffull_operator.cache import Cache, News
from halffull_operator.cluster import Cluster
from halffull_operator.feed import Feed
from halffull_operator.kinds import Manifest
from tests.operator.edge.conftest import until
from tests.operator.edge.fake_api import FakeApi, refused
from tests.operator.edge.test_cache import SERVICE, child, serving

CHILDREN = (*(kind for kind in kinds.CHILDREN if not kind.optional), kinds.POD, kinds.CLAIM)


class Fed:
    def __init__(self, feed: Feed, cache: Cache, news: list[News], beats: list[Manifest]) -> None:
        self.feed, self.cache, self.news, self.beats = feed, cache, news, beats

    def names(self) -> set[str]:
        return {name for uid in self.cache.uids() for _, name in self.cache.members(uid).children}


Start = Callable[[], AbstractAsyncContextManager[Fed]]


@pytest.fixture
def start(
    api: FakeApi, cluster: Cluster, configuration: client.Configuration, monkeypatch: pytest.MonkeyPatch
) -> Start:
    """A feed that runs, to be entered in the test itself: at its end kopf cancels every task younger than it."""
    monkeypatch.setattr(module, "_SETTLE", 0.05)
    monkeypatch.setattr(module, "_TRY_AGAIN", 0.05)

    @asynccontextmanager
    async def running() -> AsyncIterator[Fed]:
        cache, news, beats = Cache(), list[News](), list[Manifest]()
        feed = Feed(
            cache=cache,
            cluster=cluster,
            configuration=configuration,
            namespaces=(),
            children=CHILDREN,
            lease="halffull-operator",
            news=news.append,
            beat=beats.append,
        )
        fed = Fed(feed, cache, news, beats)
        listing = asyncio.create_task(feed.keep_listing())
        watching = asyncio.create_task(feed.watch())
        try:
            yield fed
        finally:
            feed.stop()
            await asyncio.sleep(0.05)
            api.cut()  # kopf waits for every task younger than it, and this server's are
            await watching
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)

    return running


async def test_it_is_complete_once_everything_was_listed(api: FakeApi, start: Start) -> None:
    async with start() as fed:
        assert not fed.feed.complete.is_set()
        assert len(fed.feed.missing()) == len(CHILDREN) + 1
        await until("complete", fed.feed.complete.is_set)
        assert fed.feed.missing() == []


async def test_long_lists_are_complete(api: FakeApi, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halffull_operator.cluster.PAGE", 2)
    api.put(serving())
    names = {api.put(child(name))["metadata"]["name"] for name in "abcdefg"}
    async with start() as fed:
        await until("complete", fed.feed.complete.is_set)
        assert fed.names() == names
        assert api.count("GET", "/services") >= 4


async def test_changes_are_told(api: FakeApi, start: Start) -> None:
    async with start() as fed:
        await until("complete", fed.feed.complete.is_set)
        uid = api.put(serving())["metadata"]["uid"]
        await until("it is known", lambda: fed.cache.uids() == [uid])
        assert fed.news == [News(uid, edited=True)]
        api.put(child())
        await until("the child is known", lambda: fed.names() == {"llama-gateway"})
        api.remove(SERVICE, "llama-gateway", "ns")
        await until("the child is gone", lambda: fed.names() == set())
        assert fed.news[1:] == [News(uid), News(uid)]


async def test_kopf_leaves_no_trace(api: FakeApi, start: Start) -> None:
    async with start() as fed:
        await until("complete", fed.feed.complete.is_set)
        api.put(serving())
        await until("it is known", lambda: fed.news)
        await asyncio.sleep(0.2)
        assert not [one for one in api.requests if one[0] != "GET"]
        (body,) = api.all(kinds.SERVING)
        assert "annotations" not in body["metadata"]
        assert "finalizers" not in body["metadata"]


@pytest.mark.parametrize("others", [True, False], ids=["one of two", "the last one of its kind"])
async def test_what_was_deleted_while_the_watch_was_away_is_noticed(
    api: FakeApi, start: Start, *, others: bool
) -> None:
    async with start() as fed:
        await until("complete", fed.feed.complete.is_set)
        uid = api.put(serving())["metadata"]["uid"]
        api.put(child("gone"))
        if others:
            api.put(child("stays"))
        await until("they are known", lambda: "gone" in fed.names() and len(fed.names()) == 1 + others)
        fed.news.clear()
        api.remove(SERVICE, "gone", "ns", silently=True)
        api.expire(SERVICE)
        await until("it is gone", lambda: "gone" not in fed.names())
        assert fed.names() == ({"stays"} if others else set())
        assert fed.news == [News(uid)]


async def test_a_serving_deleted_while_the_watch_was_away(api: FakeApi, start: Start) -> None:
    async with start() as fed:
        await until("complete", fed.feed.complete.is_set)
        uid = api.put(serving())["metadata"]["uid"]
        await until("it is known", lambda: fed.news)
        api.remove(kinds.SERVING, "llama", "ns", silently=True)
        api.expire()
        await until("it is gone", lambda: fed.cache.uids() == [])
        assert fed.news[-1] == News(uid, gone=True)


async def test_a_list_that_fails_is_tried_again(api: FakeApi, start: Start) -> None:
    async with start() as fed:
        failures = iter([True] * 3)
        api.fault = lambda request: (
            refused(500, "InternalError")
            if "kopf" not in request.headers["User-Agent"] and "services" in request.path and next(failures, False)
            else None
        )
        await until("complete", fed.feed.complete.is_set)


async def test_the_lease_is_told_and_nobody_elses(api: FakeApi, start: Start) -> None:
    async with start() as fed:
        await until("complete", fed.feed.complete.is_set)
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "halffull-operator", "namespace": "x"},
        }
        api.put(lease)
        await until("told", lambda: fed.beats)
        assert fed.news == []


async def test_what_kopf_lists_while_our_list_is_under_way_is_listed_again(
    api: FakeApi, start: Start, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object may go between our list and kopf's, and neither tells: kopf's next watch begins after it."""
    api.put(serving())
    api.put(child("llama-engine"))
    pages, meanwhile = cluster.pages, list[str]()

    async def then_it_goes(kind: kinds.Kind, **options: str | None) -> AsyncIterator[tuple[list[Manifest], str]]:
        async for page in pages(kind, **options):  # type: ignore[arg-type]  # as they were given
            if kind is SERVICE and meanwhile == ["armed"]:
                meanwhile.append("gone")
                api.remove(SERVICE, "llama-engine", "ns", silently=True)
                fed.feed._seen("GET", SERVICE.path(), False)
            yield page

    monkeypatch.setattr(cluster, "pages", then_it_goes)
    async with start() as fed:
        await until("it is known", lambda: "llama-engine" in fed.names())
        meanwhile.append("armed")
        fed.feed._seen("GET", SERVICE.path(), False)
        await until("it is not known any more", lambda: "llama-engine" not in fed.names())
