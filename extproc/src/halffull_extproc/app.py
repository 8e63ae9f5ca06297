"""The running picker: discovery, polling, the pool, Envoy's configuration and the gRPC port, wired together.

Everything runs in one event loop, and one step of it applies a change everywhere: the pool, the poller and Envoy never
differ about who is an endpoint.
"""

import asyncio
import contextlib
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import structlog

from halffull_extproc.discovery.config_map import ConfigMapText
from halffull_extproc.discovery.file import EndpointsFile, WatchedFile
from halffull_extproc.discovery.inference_pool import PoolPods
from halffull_extproc.discovery.kube import connect
from halffull_extproc.discovery.slices import ServiceSlices
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.http_server import StatusServer, listening_socket
from halffull_extproc.metrics import Metrics
from halffull_extproc.poll import PollConfig, Poller
from halffull_extproc.pool import Outcome, Pick, Pool
from halffull_extproc.server import Hooks, Server
from halffull_extproc.settings import MAX_BYTES, MetricsLoad, Settings, SettingsError, changes, load_settings
from halffull_extproc.status import Snapshot, status_json
from halffull_extproc.version import own_version
from halffull_extproc.watchdog import watch
from halffull_extproc.wiring import ConfigSource, gateway_config, picker_tls, ranks_polled
from halffull_extproc.xds.ads import AdsServer

DRAIN: Final = 10.0  # s that open streams may take after SIGTERM; Envoy fails open when they are cut
_NOBODY: Final[frozenset[str]] = frozenset()
_REMIND: Final = 30.0  # s between two lines while the start waits for endpoints
_RESTART: Final = 1.0  # s before a part that raised is started again

_log = structlog.get_logger(__name__)


class Picker:
    """The picker without its ports: what is known, and how a change of it is applied."""

    def __init__(
        self, settings: Settings, *, source: ConfigSource, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Nothing runs before `run`."""
        self.settings = settings
        self.clock = clock
        self.endpoints: list[Endpoint] | None = None
        """None until discovery has answered."""
        self.known = asyncio.Event()
        self.pool = Pool(settings.pool_config(), rng=random.Random())
        metrics = settings.load.metrics
        self.poller = Poller(
            self.pool,
            PollConfig(
                source=settings.source,
                interval=settings.poll_interval,
                ranks=settings.ranks,
                metrics_path=metrics.path if isinstance(metrics, MetricsLoad) else MetricsLoad().path,
            ),
            clock=clock,
        )
        self.ads = AdsServer(gateway_config(settings), policy=settings.policy, fail_open=settings.fail_open)
        self.metrics = Metrics(self.snapshot)
        self.server = Server(
            hooks=Hooks(
                pick=self._pick,
                close=self._close,
                outcome=self._outcome,
                access_log=self.metrics.requests.record,
                alive=self.rehearse,
                ready=self.known.is_set,
            ),
            listen=settings.listen.grpc,
            ads=self.ads,
            tls=picker_tls(settings),
            health_listen=settings.listen.health,
        )
        self._source = source
        self._started = clock()
        self._rehearsals = 0
        self._config_error = ""
        self._config_errors = 0
        self._at_start: tuple[str, ...] = ()
        self._troubles: dict[str, str] = {}

    # What the gRPC port calls

    def _pick(self, *, body_bytes: int | None, subset: Any) -> Pick | None:
        return self.pool.pick(body_bytes=body_bytes, subset=subset, now=self.clock())

    def _close(self, pick: Pick, *, body_bytes: int | None) -> None:
        self.pool.close(pick, body_bytes=body_bytes, now=self.clock())

    def _outcome(self, outcome: Outcome) -> None:
        self.pool.outcome(outcome, now=self.clock())

    def rehearse(self) -> bool:
        """Rank all endpoints as for a request, and pick none of them: nothing is charged. Raises when ranking does."""
        self._rehearsals += 1
        return self.pool.pick(body_bytes=None, subset=_NOBODY, now=self.clock()) is None

    # Changes

    def reconcile(self, endpoints: list[Endpoint]) -> None:
        """Make these the endpoints, everywhere in one step."""
        if endpoints == self.endpoints:
            return
        before = {endpoint.address for endpoint in self.endpoints or ()}
        after = {endpoint.address for endpoint in endpoints}
        self.endpoints = endpoints
        self.pool.update_endpoints(endpoints, now=self.clock())
        self.ads.set_endpoints(endpoints)
        self.poller.update(endpoints)
        self.known.set()
        self.trouble("engines")("" if endpoints else "the list of endpoints is empty: every request is refused")
        _log.info(
            "endpoints changed",
            endpoints=len(after),
            added=sorted(after - before)[:20],
            gone=sorted(before - after)[:20],
        )

    def reconfigure(self, text: str) -> None:
        """Apply the live part of a new configuration; a bad one changes nothing."""
        try:
            wanted = load_settings(text, source=str(self._source))
        except SettingsError as error:
            self._config_error = str(error)
            self._config_errors += 1
            _log.error("the new configuration is refused, the last good one stands", reason=str(error))
            return
        self._config_error = ""
        edit = changes(self.settings, wanted)
        if edit.at_start and edit.at_start != self._at_start:
            _log.warning("edited keys are applied at the next start only", keys=list(edit.at_start))
        self._at_start = edit.at_start
        if not edit.live:
            return
        self.settings = edit.settings
        self.pool.config = edit.settings.pool_config()
        self.poller.set_interval(edit.settings.poll_interval)
        self.ads.set_route(edit.settings.policy, edit.settings.fail_open)
        _log.info("configuration changed", keys=list(edit.live), policy=edit.settings.policy.value)

    def trouble(self, about: str) -> Callable[[str], None]:
        """A function that takes a line about one part, or "" when that part is well."""
        self._troubles.setdefault(about, "")

        def say(line: str) -> None:
            if line != self._troubles[about]:
                self._troubles[about] = line
                if line:
                    if about == "endpoints":
                        self._config_errors += 1
                    _log.warning("trouble", about=about, reason=line)
                else:
                    _log.info("trouble is over", about=about)

        return say

    def snapshot(self) -> Snapshot:
        """Everything for metrics and status page."""
        now = self.clock()
        pool = self.pool.status(now=now)
        return Snapshot(
            version=own_version(),
            uptime=now - self._started,
            policy=self.settings.policy.value,
            failure_mode=self.settings.failure_mode.value,
            config_source=str(self._source),
            config_error=self._config_error,
            config_errors=self._config_errors,
            config_at_start=self._at_start,
            troubles={**self._troubles, "polling": self.poller.problem},
            envoys=self.ads.connected,
            streams=self.server.streams,
            ads=self.ads.counts,
            ads_rejection=self.ads.rejection or "",
            grpc_failures=self.server.counts,
            polls=self.poller.status(),
            pool=replace(pool, unpicked=pool.unpicked - self._rehearsals),
        )

    def status_json(self) -> bytes:
        """The snapshot for the status page."""
        return status_json(self.snapshot())


async def run(settings: Settings, *, source: ConfigSource, text: str) -> None:
    """Run the picker until SIGTERM or SIGINT; a second signal ends it at once.

    Args:
        settings: the configuration to start with.
        source: where it came from, and is watched.
        text: its text, so that only later edits count as changes.

    Raises:
        ListenError: a port of HTTP cannot be listened on.
        RuntimeError: the gRPC address cannot be.
        KubeError: no Kubernetes API is configured and one is needed.
    """
    stopping, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        (hurry if stopping.is_set() else stopping).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    picker = Picker(settings, source=source)
    http = StatusServer(metrics=picker.metrics.text, status=picker.status_json)
    async with AsyncExitStack() as stack:
        stack.callback(asyncio.create_task(watch(picker.rehearse)).cancel)
        # The port last, so that whoever finds it open finds all of it.
        listening = stack.enter_context(
            contextlib.closing(listening_socket(settings.listen.metrics, key="listen.metrics"))
        )
        stack.push_async_callback(http.stop)
        await http.start(listening)
        await stack.enter_async_context(_sources(picker, source, text))
        stack.push_async_callback(picker.poller.stop)
        picker.poller.start()
        stop_waiting = asyncio.ensure_future(stopping.wait())
        stack.callback(stop_waiting.cancel)
        await _until_known(picker, stop_waiting)
        if not stopping.is_set():
            await picker.server.start()
            _log.info("serving", grpc=settings.listen.grpc, policy=settings.policy.value, version=own_version())
            await stop_waiting
            _log.info("stopping: open streams may end", streams=picker.server.streams, within=DRAIN)
            await _drained(picker.server, hurry)
    _log.info("stopped")


async def _until_known(picker: Picker, stopping: "asyncio.Future[Any]") -> None:
    """Wait for the first endpoints: a picker without any would refuse requests that Envoy can still place."""
    known = asyncio.ensure_future(picker.known.wait())
    try:
        while not known.done() and not stopping.done():
            await asyncio.wait((known, stopping), timeout=_REMIND, return_when=asyncio.FIRST_COMPLETED)
            if not known.done() and not stopping.done():
                _log.warning("waiting for the first list of endpoints; nothing is served before")
    finally:
        known.cancel()


async def _drained(server: Server, hurry: asyncio.Event) -> None:
    """Stop within the bound, or at once on a second signal."""
    stop = asyncio.ensure_future(server.stop(DRAIN))
    hurried = asyncio.ensure_future(hurry.wait())
    await asyncio.wait((stop, hurried), return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        await server.stop(0.0)
    hurried.cancel()
    await stop


@contextlib.asynccontextmanager
async def _sources(picker: Picker, source: ConfigSource, text: str) -> AsyncIterator[None]:
    """Watch endpoints and configuration while the context lasts."""
    settings = picker.settings
    async with AsyncExitStack() as stack:
        api: Any = None
        if source.namespace or not isinstance(settings.endpoints.file, str):
            api = await stack.enter_async_context(connect())
        parts = [
            ("configuration", _watch_config(picker, source, text, api)),
            ("endpoints", _watch_endpoints(picker, source, api)),
        ]
        tasks = [asyncio.create_task(_supervised(name, run), name=name) for name, run in parts]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _watch_config(picker: Picker, source: ConfigSource, text: str, api: Any) -> Callable[[], Awaitable[None]]:
    trouble = picker.trouble("configuration")
    if source.namespace:
        return ConfigMapText(
            api=api,
            namespace=source.namespace,
            name=source.name,
            changed=picker.reconfigure,
            trouble=trouble,
            seen=text,
        ).run
    return WatchedFile(
        path=Path(source.name), max_bytes=MAX_BYTES, changed=picker.reconfigure, trouble=trouble, seen=text
    ).run


def _watch_endpoints(picker: Picker, source: ConfigSource, api: Any) -> Callable[[], Awaitable[None]]:
    settings, changed, trouble = picker.settings, picker.reconcile, picker.trouble("endpoints")
    endpoints = settings.endpoints
    if isinstance(endpoints.file, str):
        return EndpointsFile(
            path=source.beside(endpoints.file),
            load_port=settings.load_port,
            ranks=ranks_polled(settings),
            changed=changed,
            trouble=trouble,
        ).run
    if endpoints.service:
        return ServiceSlices(
            api=api,
            namespace=endpoints.service.namespace,
            name=endpoints.service.name,
            port=endpoints.service.port,
            load_port=settings.load_port,
            changed=changed,
            trouble=trouble,
        ).run
    assert endpoints.inference_pool  # noqa: S101 (settings hold exactly one of the three)
    return PoolPods(
        api=api,
        namespace=endpoints.inference_pool.namespace,
        name=endpoints.inference_pool.name,
        load_port=settings.load_port,
        ranks=settings.ranks,
        changed=changed,
        trouble=trouble,
    ).run


async def _supervised(name: str, part: Callable[[], Awaitable[None]]) -> None:
    """Run a part for ever; what it raises is a bug, to be seen and survived."""
    while True:
        try:
            await part()
        except Exception:  # noqa: BLE001 (a bug in one part must not end the others; it is logged whole)
            _log.exception("a part of the picker failed and is started again", part=name)
        await asyncio.sleep(_RESTART)
