"""List and watch of one kind of Kubernetes object, on the client of kubernetes.aio.

The answers stay plain dictionaries: the typed models of the client cost far more than they tell here. Its own Watch is
not used because it resumes on errors where a fresh list is the only safe way on.
"""

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import structlog

from halffull_extproc.errors import InputError

Object = dict[str, Any]

WATCH_FOR: Final = 60  # s until the server ends a watch; then it is resumed where it was
_SLACK: Final = 10.0  # s of silence beyond that before the connection is taken for dead
_LIST_WITHIN: Final = 30.0  # s
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0  # s of back-off
_BUFFER: Final = 16 * 1024 * 1024  # bytes of one event; the API server's own limit is far below

_log = structlog.get_logger(__name__)


class KubeError(InputError):
    """The API did not do what was asked; one line. `gone`: the version asked for is too old, list again."""

    def __init__(self, message: str, *, gone: bool = False) -> None:
        """Keep the message and the kind."""
        super().__init__(message)
        self.gone = gone


@asynccontextmanager
async def connect() -> AsyncIterator[Any]:
    """An ApiClient of kubernetes.aio, in a pod from its service account, else from the kubeconfig.

    Raises:
        KubeError: neither is there.
    """
    # Imported here: it takes two seconds, and a picker with a file of endpoints does without.
    from kubernetes.aio import client, config  # noqa: PLC0415

    configuration = client.Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            in_cluster: Any = config.load_incluster_config
            in_cluster(client_configuration=configuration)
        else:
            kubeconfig: Any = config.load_kube_config
            await kubeconfig(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise KubeError(f"no access to a Kubernetes API: {error}") from error
    async with client.ApiClient(configuration) as api:
        yield api


def own_namespace() -> str | None:
    """The namespace of the pod that this runs in, if it does."""
    try:
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip() or None
    except OSError:
        return None


class Watcher:
    """Keeps a collection in step with the API server and tells every change with the whole of it."""

    def __init__(
        self,
        api: Any,
        path: str,
        *,
        changed: Callable[[list[Object]], None],
        trouble: Callable[[str], None],
        label_selector: str = "",
        field_selector: str = "",
        wait: float = _FIRST_WAIT,
    ) -> None:
        """Nothing is asked before `run`.

        Args:
            api: an ApiClient of kubernetes.aio.
            path: the collection's, such as `/api/v1/namespaces/default/pods`.
            changed: called with every object, in the order of their names.
            trouble: called with one line when the API does not answer as it should, and with "" when it does again.
            label_selector: as the API takes it.
            field_selector: as the API takes it.
            wait: seconds before the first repetition; doubles up to half a minute.
        """
        self._api = api
        self._path = path
        self._changed = changed
        self._trouble = trouble
        self._selectors = [
            (name, value)
            for name, value in (("labelSelector", label_selector), ("fieldSelector", field_selector))
            if value
        ]
        self._wait = wait
        self._objects: dict[str, Object] = {}
        self._version = ""

    async def run(self) -> None:
        """List and watch until cancelled."""
        wait = self._wait
        while True:
            try:
                await self._list()
                self._trouble("")
                while True:
                    began = asyncio.get_running_loop().time()
                    await self._watch()
                    if asyncio.get_running_loop().time() - began >= 1.0:
                        wait = self._wait
                    else:  # a server that ends every watch at once must not be asked in a tight loop
                        await asyncio.sleep(wait)
                        wait = min(wait * 2, _LONGEST_WAIT)
            except KubeError as error:
                if error.gone:
                    _log.info("the watch is too old, listing again", path=self._path)
                else:
                    self._trouble(f"Kubernetes API, {self._path}: {error}")
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self._trouble(f"Kubernetes API, {self._path}: {str(error) or type(error).__name__}")
            await asyncio.sleep(wait * random.uniform(0.8, 1.2))
            wait = min(wait * 2, _LONGEST_WAIT)

    async def _get(self, query: list[tuple[str, str]], within: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        method, url, headers, _, _ = await self._api.param_serialize(
            "GET",
            self._path,
            query_params=[*self._selectors, *query],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = await self._api.rest_client.request(method, url, headers=headers, _request_timeout=within)
        response: aiohttp.ClientResponse = answer.response
        if response.status != 200:
            async with response:
                raise _error(response.status, await response.content.read(64 * 1024))
        return response

    async def _list(self) -> None:
        async with await self._get([], aiohttp.ClientTimeout(total=_LIST_WITHIN)) as response:
            answer = _decoded(await response.read())
        metadata, items = answer.get("metadata"), answer.get("items") or []
        if not isinstance(metadata, Mapping) or not isinstance(items, list):
            raise KubeError("the answer is not a list of objects")
        self._version = str(metadata.get("resourceVersion", ""))
        self._objects = {_key(item): item for item in items}
        self._tell()

    async def _watch(self) -> None:
        query = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._version),
            ("timeoutSeconds", str(WATCH_FOR)),
        ]
        within = aiohttp.ClientTimeout(total=None, sock_connect=_SLACK, sock_read=WATCH_FOR + _SLACK)
        async with await self._get(query, within) as response:
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                if len(buffer) > _BUFFER:
                    raise KubeError(f"an event of more than {_BUFFER} bytes")
                events = [self._apply(_decoded(line)) for line in lines if line.strip()]
                if any(events):
                    self._tell()  # once for all that came together

    def _apply(self, event: Object) -> bool:
        """Take in one event; True when an object changed."""
        kind, item = event.get("type"), event.get("object")
        if kind == "ERROR" and isinstance(item, Mapping):
            raise _error(int(item.get("code") or 0), json.dumps(item).encode())
        if kind not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK") or not isinstance(item, dict):
            raise KubeError(f"an event of type {str(kind)[:40]!r}")
        metadata = item.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, Mapping) else None
        self._version = str(version) if version else self._version
        if kind == "BOOKMARK":
            return False
        if kind == "DELETED":
            self._objects.pop(_key(item), None)
        else:
            self._objects[_key(item)] = item
        return True

    def _tell(self) -> None:
        self._changed([self._objects[key] for key in sorted(self._objects)])


def _key(item: Object) -> str:
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        raise KubeError("an object without a name")
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def _decoded(data: bytes) -> Object:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise KubeError("an answer that is not JSON") from error
    if not isinstance(value, dict):
        raise KubeError("an answer that is not an object")
    return value


def _error(status: int, body: bytes) -> KubeError:
    try:
        message = _decoded(body).get("message", "")
    except KubeError:
        message = ""
    hint = " (is the picker's Role there?)" if status in (401, 403) else ""
    return KubeError(f"status {status} {str(message)[:300]}".rstrip() + hint, gone=status == 410)
