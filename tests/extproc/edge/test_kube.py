import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from halffull_extproc.discovery.kube import KubeError, Watcher, connect, own_namespace
from tests.ports import free_port

from .kube_api import FakeApi, client_of, kube_api
from .waiting import until

PODS = "/api/v1/namespaces/ns/pods"


def pod(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns"}, **more}


class Told:
    def __init__(self) -> None:
        self.states: list[list[str]] = []
        self.trouble = ""
        self.troubles: list[str] = []

    def changed(self, objects: list[dict[str, Any]]) -> None:
        self.states.append([item["metadata"]["name"] for item in objects])

    def say(self, line: str) -> None:
        self.trouble = line
        self.troubles.append(line)

    @property
    def last(self) -> list[str] | None:
        return self.states[-1] if self.states else None


@contextlib.asynccontextmanager
async def watching(api: Any, **more: Any) -> AsyncIterator[Told]:
    told = Told()
    watcher = Watcher(api, PODS, changed=told.changed, trouble=told.say, wait=0.01, **more)
    task = asyncio.create_task(watcher.run())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def world() -> AsyncIterator[tuple[FakeApi, Any]]:
    async with kube_api() as pair:
        yield pair


async def test_lists_and_then_follows_every_event(world: Any) -> None:
    fake, api = world
    fake.put(PODS, pod("b"))
    async with watching(api, label_selector="app=vllm") as told:
        await until(lambda: fake.watching)
        assert told.states == [["b"]]
        fake.put(PODS, pod("a"))
        await until(lambda: told.last == ["a", "b"])
        fake.put(PODS, pod("a", status={"phase": "Running"}))
        await until(lambda: len(told.states) == 3)
        fake.delete(PODS, "b")
        await until(lambda: told.last == ["a"])
    assert fake.lists == [{"labelSelector": "app=vllm"}]
    (watch,) = fake.watches
    assert (watch["labelSelector"], watch["resourceVersion"], watch["allowWatchBookmarks"]) == (
        "app=vllm",
        "101",
        "true",
    )
    assert int(watch["timeoutSeconds"]) > 0
    assert fake.headers[0]["Authorization"] == "bearer of good news"


async def test_a_watch_that_ends_is_resumed_where_it_was_and_not_listed_again(world: Any) -> None:
    fake, api = world
    async with watching(api) as told:
        await until(lambda: fake.watching)
        fake.put(PODS, pod("a"))
        await until(lambda: told.last == ["a"])
        fake.event(PODS, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "555"}}})
        fake.raw(PODS, b"\n")
        fake.end(PODS)
        await until(lambda: len(fake.watches) == 2 and fake.watching)
        fake.put(PODS, pod("b"))
        await until(lambda: told.last == ["a", "b"])
    assert fake.watches[1]["resourceVersion"] == "555"
    assert len(fake.lists) == 1
    assert not any(told.troubles)


async def test_a_server_that_ends_every_watch_at_once_is_not_asked_in_a_tight_loop(world: Any) -> None:
    fake, api = world
    loop = asyncio.get_running_loop()
    pause = 0.0  # doubles from 0.01 s; begins anew after a watch of a second, as on a machine that stands still
    async with watching(api):
        for count in range(1, 20):
            await until(lambda count=count: len(fake.watches) == count and fake.watching)
            fake.end(PODS)
            began = loop.time()
            await until(lambda count=count: len(fake.watches) > count)
            pause = loop.time() - began
            if pause > 0.1:
                break
    assert pause > 0.1


async def test_a_dropped_connection_lists_again_and_misses_nothing(world: Any) -> None:
    fake, api = world
    async with watching(api) as told:
        await until(lambda: fake.watching)
        fake.disconnect(PODS)
        await until(lambda: not fake.watching)
        fake.objects[PODS] = {"missed": pod("missed")}  # while nobody watched
        await until(lambda: told.last == ["missed"])
        assert len(fake.lists) >= 2


@pytest.mark.parametrize("within_the_stream", [True, False])
async def test_a_version_that_is_too_old_lists_again_without_being_trouble(
    world: Any,
    within_the_stream: bool,
) -> None:
    fake, api = world
    fake.put(PODS, pod("a"))
    async with watching(api) as told:
        await until(lambda: fake.watching)
        fake.delete(PODS, "a")
        await until(lambda: told.last == [])
        if within_the_stream:
            fake.objects[PODS] = {"new": pod("new")}
            fake.event(PODS, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}})
        else:
            fake.fail_with = 410
            fake.disconnect(PODS)
            await until(lambda: not fake.watching)
            fake.objects[PODS] = {"new": pod("new")}
            fake.fail_with = 0
        await until(lambda: told.last == ["new"])
        assert len(fake.lists) >= 2
        if within_the_stream:
            assert not any(told.troubles)


@pytest.mark.parametrize(
    ("status", "words"),
    [(403, "status 403 not today (is the picker's Role there?)"), (500, "status 500"), (404, "404")],
)
async def test_a_refusal_is_trouble_the_last_state_stands_and_it_heals(world: Any, status: int, words: str) -> None:
    fake, api = world
    fake.put(PODS, pod("a"))
    async with watching(api) as told:
        await until(lambda: fake.watching)
        fake.fail_with = status
        fake.disconnect(PODS)
        await until(lambda: words in told.trouble)
        assert PODS in told.trouble
        assert told.states == [["a"]]
        fake.fail_with = 0
        await until(lambda: told.trouble == "" and fake.watching)


async def test_refusals_are_repeated_ever_more_slowly(world: Any) -> None:
    fake, api = world
    fake.fail_with = 500
    async with watching(api) as told:
        await until(lambda: len(told.troubles) >= 4)
        began = len(fake.headers)
        await asyncio.sleep(0.1)
        assert len(fake.headers) - began < 5


@pytest.mark.parametrize(
    "data",
    [b"not json\n", b"[]\n", b'{"type":"ADDED"}\n', b'{"type":"ADDED","object":{}}\n', b'{"type":"NEW","object":{}}\n',
     b'{"type":"ERROR","object":{"code":500,"message":"etcd is away"}}\n',
     b'{"type":"ADDED","object":{"metadata":5}}\n'],
)  # fmt: skip
async def test_events_that_make_no_sense_lead_to_a_fresh_list(world: Any, data: bytes) -> None:
    fake, api = world
    fake.put(PODS, pod("a"))
    async with watching(api) as told:
        await until(lambda: fake.watching)
        fake.raw(PODS, data)
        await until(lambda: len(fake.lists) >= 2 and told.last == ["a"])
        assert any(told.troubles)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"metadata":{},"items":5}', b'{"metadata":{},"items":[{}]}', b"\xff"]
)
async def test_lists_that_make_no_sense_are_trouble(world: Any, body: bytes) -> None:
    fake, api = world
    fake.body = body
    async with watching(api) as told:
        await until(lambda: told.trouble)
        assert told.states == []
        fake.body = None
        await until(lambda: told.states == [[]])


async def test_an_event_in_pieces_and_events_together_are_told_right(world: Any) -> None:
    fake, api = world
    async with watching(api) as told:
        await until(lambda: fake.watching)
        data = b"".join(
            b'{"type":"ADDED","object":{"metadata":{"name":"%s","resourceVersion":"7"}}}\n' % name
            for name in (b"x", b"y")
        )
        for start in range(0, len(data), 30):
            fake.raw(PODS, data[start : start + 30])
        await until(lambda: told.last == ["x", "y"])


async def test_a_big_object_is_no_trouble(world: Any) -> None:
    fake, api = world
    async with watching(api) as told:
        await until(lambda: fake.watching)
        fake.put(PODS, pod("big", data="x" * 3_000_000))
        await until(lambda: told.last == ["big"])
        assert not any(told.troubles)


async def test_an_api_that_is_not_there_is_trouble() -> None:
    port = free_port()
    async with client_of(port) as api, watching(api) as told:
        await until(lambda: f"Cannot connect to host 127.0.0.1:{port}" in told.trouble)
        assert told.states == []


async def test_without_any_configuration_of_kubernetes_the_error_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    with pytest.raises(KubeError, match="no access to a Kubernetes API"):
        async with connect():
            pass


def test_outside_a_pod_there_is_no_own_namespace() -> None:
    assert own_namespace() is None
