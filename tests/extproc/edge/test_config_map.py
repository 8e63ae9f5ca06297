import asyncio
from typing import Any

import pytest

from halffull_extproc.discovery.config_map import ConfigMapText, first_text, text_of
from halffull_extproc.discovery.kube import KubeError

from .kube_api import kube_api
from .waiting import until

MAPS = "/api/v1/namespaces/ns/configmaps"


def config_map(text: str | None, name: str = "picker") -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {} if text is None else {"picker.yaml": text}}


async def test_another_text_is_told_at_once_and_what_is_missing_keeps_the_last() -> None:
    texts: list[str] = []
    troubles: list[str] = [""]
    async with kube_api() as (fake, api):
        fake.put(MAPS, config_map("a"))
        fake.put(MAPS, config_map("theirs", name="other"))
        source = ConfigMapText(
            api=api, namespace="ns", name="picker", changed=texts.append, trouble=troubles.append, seen="a"
        )
        task = asyncio.create_task(source.run())
        try:
            await until(lambda: fake.watching)
            assert fake.lists == [{"fieldSelector": "metadata.name=picker"}]
            assert fake.watches[0]["fieldSelector"] == "metadata.name=picker"
            assert texts == []
            fake.put(MAPS, config_map("b"))
            await until(lambda: texts == ["b"])
            fake.put(MAPS, config_map(None))
            await until(lambda: troubles[-1] == "ConfigMap ns/picker has no key picker.yaml")
            fake.delete(MAPS, "picker")
            await until(lambda: troubles[-1] == "ConfigMap ns/picker does not exist")
            fake.put(MAPS, config_map("c"))
            await until(lambda: texts == ["b", "c"] and troubles[-1] == "")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_the_first_text_is_waited_for() -> None:
    async with kube_api() as (fake, api):
        waiting = asyncio.create_task(first_text(api, namespace="ns", name="picker", within=10))
        await until(lambda: fake.watching)
        fake.put(MAPS, config_map("hello"))
        assert await waiting == "hello"


async def test_a_text_that_does_not_come_is_an_error_that_says_why() -> None:
    async with kube_api() as (_, api):
        with pytest.raises(KubeError, match="ConfigMap ns/picker does not exist"):
            await first_text(api, namespace="ns", name="picker", within=3)


def test_a_key_of_another_type_is_no_text() -> None:
    with pytest.raises(KubeError, match="no key"):
        text_of([{"metadata": {"name": "x"}, "data": None}], namespace="ns", name="x")
