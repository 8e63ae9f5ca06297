"""How to reach the API server: from the pod's service account, else from the kubeconfig.

One configuration serves both clients, ours and kopf's. kopf gets a session of ours, in which every request reads the
token that is valid now (a service account's changes every hour), and through which we see which lists it asks for.
"""

import os
from collections.abc import Callable
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config

from halffull_operator.errors import InputError

Seen = Callable[[str, str, bool], None]
"""Told of each request of kopf's: method, path, whether it is a watch."""

_READ_BUFFER: Final = 2**21
"""Bytes; an event may be larger than aiohttp's default."""


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
    return configuration


def kopf_session(configuration: Any, *, seen: Seen, user_agent: str) -> aiohttp.ClientSession:
    """An HTTP session for kopf, with the access of `configuration`."""

    async def authorize(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        token = await configuration.get_api_key_with_prefix("BearerToken")
        if token:
            request.headers["Authorization"] = token
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
        trust_env=True,
        read_bufsize=_READ_BUFFER,
    )
