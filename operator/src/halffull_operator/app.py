"""The running operator: watches → cache → queue → reconciles, with heartbeat, metrics and a graceful end.

Start: the CRD is raised, kopf begins to watch, our own lists complete the cache; only then is anything reconciled, all
of it once in full. A child that is merely not known yet must not be taken for one that is missing.

End: on SIGTERM what is being reconciled is finished. The process also ends, to be started anew by its Deployment, when
kopf dies, when an optional API that some LLMServing waits for has appeared (kopf must watch its objects too), and when
one that is watched is served no more.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import structlog

from halffull_operator import access, kinds, raise_crd
from halffull_operator.cache import Cache, News
from halffull_operator.cluster import Cluster, connect
from halffull_operator.config import OperatorConfig
from halffull_operator.crd import build as own_crd
from halffull_operator.errors import ApiError, InputError
from halffull_operator.feed import Feed
from halffull_operator.heartbeat import Heartbeat
from halffull_operator.kinds import Kind
from halffull_operator.metrics import Metrics, Port
from halffull_operator.queue import WorkQueue
from halffull_operator.reconcile import Reconciler
from halffull_operator.version import own_version

WORKERS: Final = 8
LEASE: Final = "halffull-operator"
GRACE: Final = 20.0  # s for the reconciles under way at SIGTERM
KNOWN_WITHIN: Final = 180.0  # s from the start of the watches
_REMIND: Final = 30.0  # s
_LOOK_FOR_APIS: Final = (10.0, 60.0)  # s until the first look and, doubled, the most between two, while one is missing
_SETTLE: Final = 2.0  # s
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_log = structlog.get_logger(__name__)


class Operator:
    """One process' worth of state."""

    def __init__(
        self,
        config: OperatorConfig,
        *,
        cluster: Cluster,
        configuration: Any,
        served: frozenset[Kind],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing runs before `run`.

        Args:
            config: what the chart says.
            cluster: the API server, for our calls.
            configuration: of kubernetes.aio, for kopf's.
            served: the optional kinds that the cluster serves.
            metrics: what is counted.
            clock: seconds, monotonic.
        """
        self._cluster = cluster
        self._served = served
        self._metrics = metrics
        self._clock = clock
        self._cache = Cache()
        self._queue = WorkQueue(clock=clock)
        self._reconciler = Reconciler(
            cluster=cluster,
            cache=self._cache,
            config=config,
            apis=frozenset(f"{kind.group}/{kind.kind}" for kind in served),
            metrics=metrics,
            now=lambda: datetime.now(UTC),
            clock=clock,
        )
        namespaces = tuple(config.watch.namespaces)
        self._heartbeat = Heartbeat(
            name=LEASE,
            namespace=_lease_namespace(namespaces),
            holder=f"{socket.gethostname()}-{os.getpid()}-{random.getrandbits(32):08x}",
            apply=cluster.apply,
            clock=clock,
        )
        standard = [kind for kind in kinds.CHILDREN if not kind.optional]
        self._feed = Feed(
            cache=self._cache,
            cluster=cluster,
            configuration=configuration,
            namespaces=namespaces,
            children=(*standard, *sorted(served, key=lambda kind: kind.kind), kinds.POD, kinds.CLAIM),
            lease=LEASE,
            news=self._take,
            beat=self._heartbeat.see,
        )
        self._stop = asyncio.Event()
        self._gauges()

    def trouble(self) -> str:
        """Why the process should be started anew; "" while it should not."""
        return self._heartbeat.trouble()

    def waiting_for(self) -> str:
        """What is missing before anything is reconciled; "" once nothing is."""
        return "" if self._feed.complete.is_set() else "not listed yet: " + ", ".join(self._feed.missing())

    def stop(self) -> None:
        """End gracefully."""
        self._stop.set()

    async def run(self) -> None:
        """Until `stop`, or until the process should be started anew.

        Raises:
            InputError: a person has to do something first.
        """
        workers = [asyncio.create_task(self._work(), name=f"worker {number}") for number in range(WORKERS)]
        keepers = [
            asyncio.create_task(self._heartbeat.run(), name="heartbeat"),
            asyncio.create_task(self._feed.keep_listing(), name="lists"),
            asyncio.create_task(self._begin(), name="begin"),
            asyncio.create_task(self._look_for_apis(), name="optional APIs"),
        ]
        stopping = asyncio.create_task(self._stop.wait(), name="stop")
        # The last one: at its end kopf cancels every task that was made after it.
        watching = asyncio.create_task(self._feed.watch(), name="kopf")
        everything = [*workers, *keepers, stopping, watching]
        try:
            await _first(stopping, watching, *keepers, *workers)
            self._queue.close()
            _log.info("stopping", under_way=self._queue.active)
            await asyncio.wait(workers, timeout=GRACE)
            self._feed.stop()
            await asyncio.wait((watching,), timeout=GRACE)
        finally:
            for task in everything:
                task.cancel()
            await asyncio.gather(*everything, return_exceptions=True)
        if not watching.cancelled() and (error := watching.exception()) is not None:
            _log.error("kopf has ended", exc_info=error)
            raise InputError(f"the watches have ended: {str(error) or type(error).__name__}") from error
        for task in everything:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if not self._stop.is_set():
            raise InputError("kopf has ended without an error")

    async def _begin(self) -> None:
        """Wait until everything is known, then reconcile everything; waits on so that its end ends nothing."""
        began = self._clock()
        while not self._feed.complete.is_set():
            try:
                async with asyncio.timeout(_REMIND):
                    await self._feed.complete.wait()
            except TimeoutError:
                missing = ", ".join(self._feed.missing())
                _log.warning("still waiting for lists; is the operator's ClusterRole there?", missing=missing)
                if self._clock() - began > KNOWN_WITHIN:
                    raise InputError(f"could not list {missing} within {KNOWN_WITHIN:.0f} s") from None
        handle_signals(self._stop.set)  # kopf has put its own there
        _log.info("everything is known", servings=len(self._cache.uids()), objects=len(self._cache))
        for uid in self._cache.uids():
            self._queue.add(uid)
        await asyncio.Event().wait()

    async def _work(self) -> None:
        await self._feed.complete.wait()
        while (uid := await self._queue.get()) is not None:
            began = self._clock()
            label = await self._reconcile(uid)
            self._metrics.reconciles.labels(label).inc()
            self._metrics.reconcile_seconds.observe(self._clock() - began)

    async def _reconcile(self, uid: str) -> str:
        """Reconcile one and say when it is due again. Returns the result, for the metric."""
        try:
            result = await self._reconciler.reconcile(uid)
        except ApiError as error:
            delay = self._queue.failed(uid, at_least=error.retry_after or 0.0, progress=error.progress)
            _log.warning("again", uid=uid, reason=error.reason, message=error.message, seconds=round(delay, 1))
            return "retry"
        except Exception:  # noqa: BLE001  one LLMServing must not stop the others
            delay = self._queue.failed(uid)
            _log.exception("a bug; again", uid=uid, seconds=round(delay, 1))
            return "error"
        if result.gone:
            self._queue.forget(uid)
            self._reconciler.forget(uid)
        self._queue.done(uid, again=result.again, repaired=result.repaired)
        return result.label

    def _take(self, news: News) -> None:
        if news.gone:
            self._queue.forget(news.uid)
            self._reconciler.forget(news.uid)
        else:
            # At start everything is new, and nobody waits for it.
            self._queue.add(news.uid, urgent=news.edited and self._feed.complete.is_set())

    async def _look_for_apis(self) -> None:
        lost, (wait, longest) = self._feed.lost, _LOOK_FOR_APIS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await lost.wait()
            wait = min(wait * 2, longest)
            if not lost.is_set() and not any(self._reconciler.missing.values()):
                continue
            await asyncio.sleep(_SETTLE)  # several come, or go, together
            lost.clear()
            try:
                served = await self._cluster.served(kinds.OPTIONAL)
            except ApiError as error:
                _log.warning("could not look for APIs", reason=error.reason, message=error.message)
                continue
            if served != self._served:
                new, gone = _named(served - self._served), _named(self._served - served)
                _log.info("ending, to be started anew with what the cluster serves now", new=new, gone=gone)
                self._stop.set()
                return

    def _gauges(self) -> None:
        gauge, clock, heartbeat = self._metrics.gauge, self._clock, self._heartbeat
        gauge("halffull_operator_servings", "LLMServings known.", lambda: len(self._cache.uids()))
        gauge("halffull_operator_objects", "Objects in the cache.", lambda: len(self._cache))
        gauge("halffull_operator_queue_due", "LLMServings due for a reconcile.", self._queue.overdue)
        gauge(
            "halffull_operator_heartbeat_age_seconds",
            "Since a heartbeat last came back through the watch; NaN: not yet.",
            lambda: float("nan") if heartbeat.seen_at is None else clock() - heartbeat.seen_at,
        )


async def run(config: OperatorConfig, *, port: int) -> None:
    """The whole operator, until SIGTERM.

    Args:
        config: what the chart says.
        port: of /metrics, /healthz and /readyz.

    Raises:
        InputError: no access to the cluster, the CRD cannot be read or raised, the port is taken.
    """
    metrics = Metrics()
    state: dict[str, Operator] = {}
    waiting = ["the API server"]
    server = Port(
        metrics=metrics,
        trouble=lambda: state["operator"].trouble() if state else "",
        ready=lambda: state["operator"].waiting_for() if state else waiting[0],
    )
    configuration = await access.load()
    try:
        await server.start("", port)
    except OSError as error:
        raise InputError(f"cannot listen on port {port}: {error.strerror}") from error
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  (inside a coroutine there is one)
    handle_signals(task.cancel)
    try:
        async with connect(configuration, count=metrics.count_request) as cluster:
            served = await _prepare(cluster, waiting)
            _log.info("starting", version=own_version(), optional=sorted(kind.kind for kind in served))
            operator = state["operator"] = Operator(
                config, cluster=cluster, configuration=configuration, served=served, metrics=metrics
            )
            handle_signals(operator.stop)
            await operator.run()
    except asyncio.CancelledError:
        if state:
            raise
        _log.info("stopped while waiting", waiting_for=waiting[0])
    finally:
        await server.stop()


async def _prepare(cluster: Cluster, waiting: list[str]) -> frozenset[Kind]:
    """Raise the CRD and find the optional kinds that the cluster serves."""

    def said(problem: str) -> None:
        if waiting[0] != problem:
            waiting[0] = problem
            _log.warning("waiting", problem=problem)

    while True:
        try:
            await raise_crd.ensure(cluster, own_crd(), said=said)
            return await cluster.served(kinds.OPTIONAL)
        except ApiError as error:
            if not error.retryable:
                raise InputError(f"the cluster cannot be used: {error}") from error
            said(str(error))
            await asyncio.sleep(1.0)


def handle_signals(stop: Callable[[], Any]) -> None:
    """Call `stop` on SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


async def _first(*tasks: asyncio.Task[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _named(some: frozenset[Kind]) -> str:
    return ", ".join(sorted(kind.kind for kind in some))


def _lease_namespace(namespaces: tuple[str, ...]) -> str:
    """Our own, if it is watched; else the first one that is: the heartbeat must come back through the watch."""
    try:
        own = _NAMESPACE_FILE.read_text().strip()
    except OSError:
        own = os.environ.get("POD_NAMESPACE", "default")
    return own if not namespaces or own in namespaces else namespaces[0]
