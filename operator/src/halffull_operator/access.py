"""How to reach the API server: from the pod's service account, else from the kubeconfig.

One configuration serves both clients, ours and kopf's. kopf gets a session of ours, in which every request reads the
token that is valid now (a service account's changes every hour), and through which we see which lists it asks for.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
from kubernetes.aio import client, config

from halffull_operator import nesting
from halffull_operator.errors import InputError

Seen = Callable[[str, str, bool], None]
"""Told of each request of kopf's: method, path, whether it is a watch."""
Absent = Callable[[str], bool]
"""Told of a path that kopf asked for and that is not served. True: to be asked for again, kopf not knowing."""

_ABSENT_AGAIN: Final = 5.0  # s

_READ_BUFFER: Final = 2**21
"""Bytes; an event may be larger than aiohttp's default."""
_HARMLESS: Final = 800
"""Brackets in an event that cannot be nested too deeply for Python, however they stand."""


class _Lines:
    """The body of a watch, in whole lines none of which is nested too deeply."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """As of a StreamReader."""
        rest = b""
        async for chunk in self._content.iter_chunked(size):
            *lines, rest = (rest + chunk).split(b"\n")
            if lines:
                yield b"".join(_readable(line) + b"\n" for line in lines)
        if rest:
            yield _readable(rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


def _readable(line: bytes) -> bytes:
    return line if line.count(b"{") + line.count(b"[") < _HARMLESS else nesting.shallow(line)


class _Response(aiohttp.ClientResponse):
    """Reads what others write, at whatever depth."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Begin to read."""
        await super().start(connection)
        if "watch" in self.url.query:
            self.content = _Lines(self.content)  # type: ignore[assignment]  # as far as kopf and aiohttp use it
        return self

    async def json(self, **_: Any) -> Any:
        """The whole body; of a list only its version, from which the watch goes on.

        What is listed the feed lists itself. kopf would take milliseconds for each object, and a minute of a core for
        those of a thousand LLMServings, in which nobody's edit is seen.
        """
        body = nesting.loads(await self.read())
        if isinstance(body, dict) and "items" in body:
            version = (body.get("metadata") or {}).get("resourceVersion")
            return {**body, "metadata": {"resourceVersion": version}, "items": []}
        return body


async def load() -> Any:
    """The kubernetes.aio Configuration of this process.

    Raises:
        InputError: there is neither a service account nor a kubeconfig that can be used.
    """
    configuration = client.Configuration()
    try:
        if os.environ.get("KUBERNETES_SERVICE_HOST"):
            in_cluster: Any = config.load_incluster_config
            in_cluster(client_configuration=configuration)
        else:
            kubeconfig: Any = config.load_kube_config
            await kubeconfig(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise InputError(f"no access to a Kubernetes API: {error}") from error
    configuration.retries = None  # the work queue retries, and says so
    configuration.proxy = configuration.proxy or _proxy(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def _proxy(url: str) -> str | None:
    """The way to a server, as the environment says. Asked once: aiohttp would ask in a thread at each call."""
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def kopf_session(
    configuration: Any, *, seen: Seen, absent: Absent = lambda _: False, user_agent: str
) -> aiohttp.ClientSession:
    """An HTTP session for kopf, with the access of `configuration`."""

    async def authorize(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        token = await configuration.get_api_key_with_prefix("BearerToken")
        if token:
            request.headers["Authorization"] = token
        response = await handler(request)
        while response.status == 404 and absent(request.url.path):  # kopf would end all its watches over one
            response.release()
            await asyncio.sleep(_ABSENT_AGAIN)
            response = await handler(request)
        if response.status < 300:
            seen(request.method, request.url.path, "watch" in request.url.query)
        return response

    # The TLS context of the client that made it from the configuration: certificates are read in one place.
    context = client.rest.RESTClientObject(configuration).ssl_context
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context),
        headers={"User-Agent": user_agent},
        middlewares=(authorize,),
        response_class=_Response,
        proxy=configuration.proxy,
        read_bufsize=_READ_BUFFER,
    )
