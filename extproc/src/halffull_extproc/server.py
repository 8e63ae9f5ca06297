"""The gRPC edge: ext_proc, ADS, access log and health on one port.

Messages stay bytes on both sides (no generated stubs): what a pick costs is nearly all grpc's stream set-up, and typed
messages would add to it.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halffull_extproc import wire
from halffull_extproc.protocol import CloseHook, OutcomeHook, PickHook, State, Stream
from halffull_extproc.tls_config import SelfSigned, TlsFiles
from halffull_extproc.xds.access_log import AccessLogEntry, entries
from halffull_extproc.xds.ads import AdsServer

_log = structlog.get_logger(__name__)

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Largest message taken: a gateway that buffers bodies sends each in one, and grpc's default of 4 MiB cuts images."""

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_concurrent_streams", 2**31 - 1),  # one per request in flight
    ("grpc.so_reuseport", 0),  # a second picker on the port is a mistake that should show
)
_WATCH_INTERVAL = 1.0  # s
_ENTRIES_AT_ONCE = 64  # of the access log, about 1 ms
_LOG_INTERVAL = 1.0  # s between two tracebacks: writing one takes as long as many picks, and picks wait 100 ms at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What the picker does, for the server to call. All run in the event loop and return at once."""

    pick: PickHook
    close: CloseHook
    outcome: OutcomeHook
    access_log: Callable[[AccessLogEntry], None]
    alive: Callable[[], bool]
    """A trial pick, charged to nobody: False or an exception means that the process should be restarted."""
    ready: Callable[[], bool]
    """Whether endpoints are known."""


class Server:
    """The picker's gRPC port, and a second one for health alone when asked for.

    `counts`: (`pick`, `failed` | `malformed`) and (`access_log`, `failed`) → number since the start.
    """

    def __init__(
        self,
        *,
        hooks: Hooks,
        listen: str,
        ads: AdsServer | None = None,
        tls: TlsFiles | SelfSigned | None = None,
        health_listen: str | None = None,
    ) -> None:
        """Take addresses as `unix:PATH` or `IP:PORT`; port 0 takes a free one. The health port is never encrypted."""
        self.counts: Counter[tuple[str, str]] = Counter()
        self.port: int | None = None
        self.health_port: int | None = None
        self._hooks = hooks
        self._listen = listen
        self._health_listen = health_listen
        self._ads = ads
        self._tls = tls
        self._stopping = False
        self._streams: dict[asyncio.Task[Any], Stream | None] = {}  # None: an access log's
        self._reading: set[asyncio.Task[Any]] = set()  # those that wait for the gateway
        self._servers: list[Any] = []
        self._logged_at = -math.inf

    @property
    def streams(self) -> int:
        """Requests in flight, and the streams of Envoys' ADS and access logs."""
        return len(self._streams) + (0 if self._ads is None else self._ads.connected)

    async def start(self) -> None:
        """Listen. Call it when the endpoints are known: until then a request is better off unpicked.

        Raises:
            RuntimeError: the address is taken or not this host's.
            halffull_extproc.tls.TlsError: the certificate cannot be used.
        """
        main = grpc.aio.server(options=_OPTIONS)
        health = _Health(alive=self._alive, ready=self._ready)
        main.add_generic_rpc_handlers(self._handlers())
        health_pb2_grpc.add_HealthServicer_to_server(health, main)
        if self._tls is None:
            self.port = main.add_insecure_port(self._listen)
        else:
            # Imported here: cryptography is a tenth of a start, and most pickers listen on a socket beside their Envoy.
            from halffull_extproc.grpc_credentials import credentials  # noqa: PLC0415

            self.port = main.add_secure_port(self._listen, credentials(self._tls))
        self._servers.append(main)
        if self._health_listen is not None:
            second = grpc.aio.server(options=_OPTIONS)
            health_pb2_grpc.add_HealthServicer_to_server(health, second)
            self.health_port = second.add_insecure_port(self._health_listen)
            self._servers.append(second)
        for server in self._servers:
            await server.start()

    async def stop(self, grace: float) -> None:
        """Take no new stream; end at once those that nobody waits for; give the others `grace` seconds.

        A stream whose pick was answered is ended as done, not as broken: a gateway that fails closed would cut the
        response with it.
        """
        self._stopping = True
        if self._ads is not None:
            self._ads.close()
        for task, stream in list(self._streams.items()):
            # Not one that is writing: grpc cannot end a stream whose message is still on its way.
            if stream is None or (stream.settled and task in self._reading):
                task.cancel()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))
        self._servers.clear()

    def _handlers(self) -> tuple[Any, ...]:
        raw: dict[str, Any] = {"request_deserializer": None, "response_serializer": None}
        handlers = [
            (wire.EXT_PROC_SERVICE, "Process", grpc.stream_stream_rpc_method_handler(self._process, **raw)),
            (
                wire.ACCESS_LOG_SERVICE,
                "StreamAccessLogs",
                grpc.stream_unary_rpc_method_handler(self._access_log, **raw),
            ),
        ]
        if self._ads is not None:
            ads = grpc.stream_stream_rpc_method_handler(self._ads.stream, **raw)
            handlers.append((wire.ADS_SERVICE, "StreamAggregatedResources", ads))
        return tuple(grpc.method_handlers_generic_handler(service, {name: call}) for service, name, call in handlers)

    async def _process(self, _requests: Any, context: Any) -> None:
        hooks = self._hooks
        stream = Stream(pick=hooks.pick, close=hooks.close, outcome=hooks.outcome)
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - grpc runs each handler in a task
        self._streams[task] = stream
        read, write, end = context.read, context.write, grpc.aio.EOF
        try:
            while True:
                self._reading.add(task)
                message = await read()
                self._reading.discard(task)
                if message is end:
                    break
                for answer in stream.receive(message):
                    await write(answer)
                if stream.state is State.FAILED:
                    await self._fail(stream, context)
                if self._stopping and stream.settled:  # `stop` met it while it wrote
                    break
        except asyncio.CancelledError:
            if not self._stopping or not stream.settled:
                raise  # the client left, or grace ran out
        finally:
            self._reading.discard(task)
            del self._streams[task]
            try:
                stream.closed()
            except Exception as error:  # noqa: BLE001 - the pool's bug must not end the server's task
                self._failed("pick", "closing a pick failed", error)

    async def _fail(self, stream: Stream, context: Any) -> None:
        """End the stream with an error, so that the gateway's failure mode decides about the request."""
        if isinstance(stream.failure, wire.MalformedMessageError):
            self.counts["pick", "malformed"] += 1
            _log.warning("a gateway sent what is no ProcessingRequest", peer=context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a ProcessingRequest")
        self._failed("pick", "a pick failed; the gateway's failure mode decides", stream.failure)
        await context.abort(grpc.StatusCode.INTERNAL, "the pick failed")

    async def _access_log(self, requests: Any, _context: Any) -> bytes:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - grpc runs each handler in a task
        if self._stopping:  # an Envoy asks anew at once, and `stop` has gone by
            return b""
        self._streams[task] = None
        try:
            async for message in requests:
                for number, entry in enumerate(entries(message), start=1):
                    self._take(entry)
                    if number % _ENTRIES_AT_ONCE == 0:
                        await asyncio.sleep(0)  # picks come first
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            del self._streams[task]
        return b""

    def _take(self, entry: AccessLogEntry) -> None:
        try:
            self._hooks.outcome(entry.outcome)
            self._hooks.access_log(entry)
        except Exception as error:  # noqa: BLE001 - one odd entry must not end the stream of all
            self._failed("access_log", "an access log entry was not taken", error)

    def _failed(self, what: str, message: str, error: Exception | None) -> None:
        self.counts[what, "failed"] += 1
        now = asyncio.get_running_loop().time()
        if now - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = now
            _log.error(message, exc_info=error, failures=self.counts[what, "failed"])

    def _alive(self) -> bool:
        return self._holds(self._hooks.alive, "liveness")

    def _ready(self) -> bool:
        return not self._stopping and self._alive() and self._holds(self._hooks.ready, "readiness")

    def _holds(self, check: Callable[[], bool], name: str) -> bool:
        try:
            return check()
        except Exception:  # noqa: BLE001 - logged, and an answer in itself
            _log.exception("a health check raised", check=name)
            return False


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # no types published
    """grpc.health.v1 with the services of proposal 004. Each answer is found out when it is asked for."""

    def __init__(self, *, alive: Callable[[], bool], ready: Callable[[], bool]) -> None:
        self._checks = {"liveness": alive, "readiness": ready, wire.EXT_PROC_SERVICE: ready, "": ready}

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name for it
        check = self._checks.get(request.service)
        if check is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return health_pb2.HealthCheckResponse(status=self._status(request.service))

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802 - the service's name for it
        last = None
        while True:
            status = self._status(request.service)
            if status != last:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                last = status
            await asyncio.sleep(_WATCH_INTERVAL)

    def _status(self, service: str) -> Any:
        check = self._checks.get(service)
        if check is None:
            return health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        return health_pb2.HealthCheckResponse.SERVING if check() else health_pb2.HealthCheckResponse.NOT_SERVING
