"""The configuration from the key `picker.yaml` of one ConfigMap, watched by the API.

Not mounted as a volume: that lags by one to two minutes.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, Final

from halffull_extproc.discovery import OnText, OnTrouble
from halffull_extproc.discovery.kube import KubeError, Object, Watcher

KEY: Final = "picker.yaml"


def text_of(config_maps: list[Object], *, namespace: str, name: str) -> str:
    """The text under the key.

    Raises:
        KubeError: there is no such ConfigMap, or it has no such key.
    """
    if not config_maps:
        raise KubeError(f"ConfigMap {namespace}/{name} does not exist")
    text = (config_maps[0].get("data") or {}).get(KEY)
    if not isinstance(text, str):
        raise KubeError(f"ConfigMap {namespace}/{name} has no key {KEY}")
    return text


@dataclass(slots=True, kw_only=True)
class ConfigMapText:
    """The text of one ConfigMap's key, watched."""

    api: Any
    namespace: str
    name: str
    changed: OnText
    trouble: OnTrouble
    seen: str | None = None
    """The text that was read before, so that only a change is told."""

    async def run(self) -> None:
        """Watch until cancelled. A missing map or key is trouble, and the last text stands."""
        lacking = ""

        def read(found: list[Object]) -> None:
            nonlocal lacking
            try:
                text = text_of(found, namespace=self.namespace, name=self.name)
            except KubeError as error:
                lacking = str(error)
                self.trouble(lacking)
                return
            lacking = ""
            self.trouble("")
            if text != self.seen:
                self.seen = text
                self.changed(text)

        watcher = Watcher(
            self.api,
            f"/api/v1/namespaces/{self.namespace}/configmaps",
            field_selector=f"metadata.name={self.name}",
            changed=read,
            trouble=lambda line: self.trouble(line or lacking),
        )
        await watcher.run()


async def first_text(api: Any, *, namespace: str, name: str, within: float) -> str:
    """The text to start with, waiting for it up to `within` seconds.

    Raises:
        KubeError: it did not come; the message says why.
    """
    found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    last = "no answer"

    def changed(text: str) -> None:
        if not found.done():
            found.set_result(text)

    def trouble(line: str) -> None:
        nonlocal last
        last = line or last

    watched = ConfigMapText(api=api, namespace=namespace, name=name, changed=changed, trouble=trouble)
    watching = asyncio.create_task(watched.run())
    try:
        return await asyncio.wait_for(found, within)
    except TimeoutError:
        raise KubeError(last) from None
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
