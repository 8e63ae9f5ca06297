"""ADS, state of the world: the picker tells every Envoy that connects what contract 3 says, and what changes of it.

`Session` is one Envoy's stream as a state machine, bytes in, bytes out; `AdsServer` holds what is to be told and the
open sessions. Two rules that others broke:

- A response of clusters is always followed by one of endpoints with a new nonce: a cluster that warms again waits for
  it, and serves nothing meanwhile (istio/istio#28402, envoyproxy/go-control-plane#1035).
- What an Envoy says of versions and nonces on a new stream is another process's: its first request of a type is
  answered, whatever it carries.
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.message import DecodeError

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.policies import Policy
from halffull_extproc.xds.encoding import encode
from halffull_extproc.xds.gateway_config import GatewayConfig
from halffull_extproc.xds.json_form import Resource
from halffull_extproc.xds.listener import listener
from halffull_extproc.xds.resources import (
    CLUSTER,
    ENDPOINTS,
    LISTENER,
    ROUTE,
    SECRET,
    clusters,
    load_assignments,
    route,
    secret,
)

_log = structlog.get_logger(__name__)

_PUSH_ORDER: Final = (CLUSTER, ENDPOINTS, SECRET, LISTENER, ROUTE)
"""Make before break: what others refer to goes first."""


def short_type(type_url: str) -> str:
    """`Cluster` of `type.googleapis.com/envoy.config.cluster.v3.Cluster`."""
    return type_url.rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Told:
    """All resources of one type, serialised, under one version."""

    version: str
    resources: Mapping[str, bytes]
    """By name, each an encoded Any."""


@dataclass(slots=True)
class _Subscription:
    names: frozenset[str]
    """Empty: all."""
    version: str | None = None
    """Last sent; None: nothing yet."""
    nonce: str | None = None


class MalformedRequestError(ValueError):
    """The bytes are no DiscoveryRequest."""


@dataclass(slots=True)
class Session:
    """One Envoy's ADS stream. `told` is shared with the server and changes under it; then call `refresh`."""

    told: Mapping[str, Told]
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(type, `sent` | `accepted` | `rejected` | `ignored`) → number."""
    rejection: str | None = None
    """What Envoy last refused, and why."""
    _subscriptions: dict[str, _Subscription] = field(default_factory=dict)
    _nonces: Iterable[int] = field(default_factory=itertools.count)

    def receive(self, data: bytes) -> list[bytes]:
        """Take one DiscoveryRequest; return the responses to send, in order.

        Raises:
            MalformedRequestError: `data` is none. The stream should be ended.
        """
        try:
            request: Any = discovery_pb2.DiscoveryRequest.FromString(data)
        except DecodeError as error:
            raise MalformedRequestError(str(error)) from error
        type_url = request.type_url
        if type_url not in _PUSH_ORDER:
            self._count(type_url, "ignored")
            return []
        names = frozenset(request.resource_names) - {"*"}
        subscription = self._subscriptions.get(type_url)
        if subscription is None:
            self._subscriptions[type_url] = _Subscription(names)
            return self._respond(type_url)
        if request.response_nonce and request.response_nonce != subscription.nonce:
            self._count(type_url, "ignored")  # speaks of a response that a newer one has replaced
            return []
        if request.HasField("error_detail"):
            self._reject(type_url, subscription, request.error_detail.message)
        elif request.response_nonce:
            self._count(type_url, "accepted")
        wanted_more = bool(names - subscription.names) or (bool(subscription.names) and not names)
        subscription.names = names
        return self._respond(type_url) if wanted_more or not request.response_nonce else []

    def refresh(self) -> list[bytes]:
        """Return what this Envoy subscribed to and does not have in its newest version."""
        responses: list[bytes] = []
        for type_url in _PUSH_ORDER:
            subscription, told = self._subscriptions.get(type_url), self.told.get(type_url)
            if subscription is not None and told is not None and subscription.version != told.version:
                responses += self._respond(type_url)
        return responses

    def _respond(self, type_url: str) -> list[bytes]:
        told = self.told.get(type_url)
        if told is None:  # not known yet: keep Envoy waiting (or on what it has) rather than tell it "none"
            return []
        subscription = self._subscriptions[type_url]
        subscription.nonce = str(next(iter(self._nonces)))
        subscription.version = told.version
        self._count(type_url, "sent")
        response: Any = discovery_pb2.DiscoveryResponse(
            version_info=told.version, type_url=type_url, nonce=subscription.nonce
        )
        for name, resource in told.resources.items():
            if not subscription.names or name in subscription.names:
                response.resources.add().MergeFromString(resource)
        responses = [response.SerializeToString(deterministic=True)]
        if type_url == CLUSTER and ENDPOINTS in self._subscriptions:
            responses += self._respond(ENDPOINTS)
        return responses

    def _reject(self, type_url: str, subscription: _Subscription, reason: str) -> None:
        self._count(type_url, "rejected")
        self.rejection = f"{short_type(type_url)}: {reason}"
        _log.error(
            "Envoy rejected its configuration; it keeps what it had",
            type=short_type(type_url),
            version=subscription.version,
            reason=reason,
        )

    def _count(self, type_url: str, what: str) -> None:
        self.counts[short_type(type_url) if type_url in _PUSH_ORDER else "other", what] += 1


class AdsServer:
    """What every connected Envoy is told. All methods belong to one event loop.

    Endpoints are unknown until `set_endpoints` is first called, and until then no Envoy is told that there are none: a
    restarted picker must not empty the clusters of an Envoy that is serving.
    """

    def __init__(self, config: GatewayConfig, *, policy: Policy, fail_open: bool) -> None:
        self._config = config
        self._run = uuid.uuid4().hex[:12]  # versions of two processes never collide
        self._changes = itertools.count(1)
        self._told: dict[str, Told] = {}
        self._wake: set[asyncio.Event] = set()
        self._closed = False
        self.counts: Counter[tuple[str, str]] = Counter()
        """(type, `sent` | `accepted` | `rejected` | `ignored`) → number, over all Envoys since the start."""
        self.rejection: str | None = None
        """What an Envoy last refused, and why; for the status page."""
        self._tell(CLUSTER, clusters(), key="name")
        self._tell(LISTENER, [listener(config)], key="name")
        if config.tls is not None:
            self._tell(SECRET, [secret(config.tls)], key="name")
        self.set_route(policy=policy, fail_open=fail_open)

    @property
    def connected(self) -> int:
        """Envoys with an open stream."""
        return len(self._wake)

    def set_route(self, policy: Policy, fail_open: bool) -> None:  # noqa: FBT001 - the interface that the parts agreed on
        """Change the load-balancing policy or the failure mode, by the route alone."""
        self._tell(ROUTE, [route(self._config, policy=policy, fail_open=fail_open)], key="name")

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Change the engines or their health. Tell the pool in the same step: no pick may name a host that is down."""
        self._tell(ENDPOINTS, load_assignments(endpoints), key="cluster_name")

    def close(self) -> None:
        """End every stream, also those to come; one that is being written to ends after its message.

        Not by cancelling: grpc cannot end a stream whose message is still on its way.
        """
        self._closed = True
        self._wake_all()

    def _wake_all(self) -> None:
        for wake in self._wake:
            wake.set()

    def _tell(self, type_url: str, resources: list[Resource], *, key: str) -> None:
        encoded = {resource[key]: encode(resource) for resource in resources}
        known = self._told.get(type_url)
        if known is not None and known.resources == encoded:
            return
        self._told[type_url] = Told(version=f"{self._run}-{next(self._changes)}", resources=encoded)
        self._wake_all()

    async def stream(self, _requests: Any, context: Any) -> None:
        """Serve one Envoy: the handler of StreamAggregatedResources, raw bytes in and out."""
        session = Session(self._told, counts=self.counts)
        wake = asyncio.Event()
        self._wake.add(wake)
        _log.info("Envoy connected", peer=context.peer(), envoys=self.connected)
        read: asyncio.Future[Any] = asyncio.ensure_future(context.read())
        woken: asyncio.Future[Any] = asyncio.ensure_future(wake.wait())
        try:
            while not self._closed:
                await asyncio.wait((read, woken), return_when=asyncio.FIRST_COMPLETED)
                responses: list[bytes] = []
                if read.done():
                    data = read.result()
                    if not isinstance(data, bytes):  # grpc's end of stream
                        return
                    responses += session.receive(data)
                    self.rejection = session.rejection or self.rejection
                    read = asyncio.ensure_future(context.read())
                if woken.done():
                    wake.clear()
                    responses += session.refresh()
                    woken = asyncio.ensure_future(wake.wait())
                for response in responses:
                    await context.write(response)
        except MalformedRequestError as error:
            _log.warning("an Envoy sent what is no discovery request", peer=context.peer(), reason=str(error))
        finally:
            self._wake.discard(wake)
            read.cancel()
            woken.cancel()
            _log.info("Envoy disconnected", peer=context.peer(), envoys=self.connected)
