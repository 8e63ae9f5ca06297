"""The operator's own metrics, for Prometheus, and the port that serves them beside health and readiness."""

from collections.abc import Callable
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What is counted."""

    def __init__(self) -> None:
        """A registry of its own: nothing of the process' other libraries."""
        self.registry = CollectorRegistry()
        self.reconciles = Counter(
            "halffull_operator_reconciles",
            "Reconciles by result: ok, invalid (the spec cannot be used), refused (a child was), retry, error (a bug).",
            ["result"],
            registry=self.registry,
        )
        self.reconcile_seconds = Histogram(
            "halffull_operator_reconcile_seconds", "How long one took.", buckets=_DURATIONS, registry=self.registry
        )
        self.actions = Counter(
            "halffull_operator_actions", "Changes made to children.", ["action", "kind"], registry=self.registry
        )
        self.requests = Counter(
            "halffull_operator_api_requests",
            "Calls to the API server, watches among them; reason is ok or why not.",
            ["verb", "resource", "reason"],
            registry=self.registry,
        )

    def gauge(self, name: str, documentation: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, documentation, registry=self.registry).set_function(value)

    def count_request(self, verb: str, resource: str, reason: str) -> None:
        """Take in a call to the API server."""
        self.requests.labels(verb, resource, reason).inc()

    def exposition(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)


class Port:
    """/metrics, /healthz (start it anew if it fails) and /readyz (the cluster is known)."""

    def __init__(self, *, metrics: Metrics, trouble: Callable[[], str], ready: Callable[[], str]) -> None:
        """Take what answers.

        Args:
            metrics: what /metrics shows.
            trouble: why the process should be started anew; "" when it should not.
            ready: what is waited for; "" when nothing is.
        """
        self._metrics = metrics
        self._checks = {"/healthz": trouble, "/readyz": ready}
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen. Port 0: any; `port` says which.

        Raises:
            OSError: the port is taken.
        """
        app = web.Application(client_max_size=1024)
        app.router.add_get("/metrics", self._get_metrics)
        for path in self._checks:
            app.router.add_get(path, self._get_check)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": _TEXT})

    async def _get_check(self, request: web.Request) -> web.Response:
        problem = self._checks[request.path]()
        return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")
