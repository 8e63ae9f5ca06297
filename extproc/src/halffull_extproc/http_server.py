"""The metrics port: /metrics, /status and /status.json, read-only; / leads to /status."""

import base64
import hashlib
import socket
from collections.abc import Callable
from typing import Final

from aiohttp import web

from halffull_extproc.addresses import split_address
from halffull_extproc.errors import InputError
from halffull_extproc.status import status_page

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_ELSEWHERE: Final = "Nothing is here; there are /status, /status.json and /metrics.\n"
_BACKLOG: Final = 128


class ListenError(InputError, OSError):
    """An address that cannot be listened on; one line that says which key and what to do."""


def listening_socket(address: str, *, key: str) -> socket.socket:
    """A TCP socket that listens there; [::] takes IPv4 too.

    Args:
        address: IP:PORT.
        key: the configuration key that the address comes from, for the message.

    Raises:
        ListenError: the address is taken, is not this host's, or the host has no IPv6.
    """
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ListenError(f"{key}: {address}: {error.strerror}; a host without IPv6 needs 0.0.0.0:{port}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        hint = f"; a host without IPv6 needs 0.0.0.0:{port}" if host == "::" and not socket.has_ipv6 else ""
        raise ListenError(f"{key}: cannot listen on {address}: {error.strerror}{hint}") from error
    return listening


class StatusServer:
    """Serves metrics and status on one port."""

    def __init__(self, *, metrics: Callable[[], bytes], status: Callable[[], bytes]) -> None:
        """Take the functions that write the exposition and the JSON; both are called at each request."""
        self._metrics = metrics
        self._status = status
        self._page = status_page()
        script = self._page.partition("<script>")[2].partition("</script>")[0]
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        self._headers = {
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; "
            f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
        }
        self._runner: web.AppRunner | None = None

    async def start(self, listening: socket.socket) -> None:
        """Serve on a listening socket, which is closed by `stop`."""
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._get_metrics)
        app.router.add_get("/status", self._get_page)
        app.router.add_get("/status.json", self._get_status)
        app.router.add_get("/", self._to_status)
        app.router.add_get("/{elsewhere:.*}", self._elsewhere)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _to_status(self, _request: web.Request) -> web.Response:
        return web.Response(status=307, headers={**self._headers, "Location": "/status"})

    async def _elsewhere(self, _request: web.Request) -> web.Response:
        return web.Response(status=404, text=_ELSEWHERE, headers=self._headers)

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={**self._headers, "Content-Type": _TEXT})

    async def _get_status(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._status(), headers={**self._headers, "Content-Type": "application/json"})

    async def _get_page(self, _request: web.Request) -> web.Response:
        return web.Response(text=self._page, content_type="text/html", headers=self._headers)
