"""One ext_proc stream, that is one HTTP request, as a state machine: a message in, the messages to send back out.

On our own Envoy a stream is one message (the request's headers) and its answer; then it stays open until the response
ends or the client leaves. A foreign gateway chooses its body mode: headers only, BUFFERED (a body is waved through) or
FULL_DUPLEX_STREAMED (every byte must be sent back, facts of Envoy's documentation and measured).

Whatever arrives, in whatever order, `receive` returns; and every pick is closed exactly once.
"""

import enum
from collections.abc import Collection
from typing import Protocol

from halffull_extproc import wire
from halffull_extproc.pool import Outcome, Pick
from halffull_extproc.wire import Kind

NO_ENDPOINT = "No engine is ready to serve this request. Try again later."
NONE_ELIGIBLE = "None of the engines that the gateway allows for this request is ready. Try again later."

_FIRST_SERVER_ERROR = 500


class PickHook(Protocol):
    """Chooses the endpoints of a request and charges them in the same step; None: none is eligible."""

    def __call__(self, *, body_bytes: int | None, subset: Collection[str] | None) -> Pick | None:
        """`body_bytes`: by Content-Length, None when chunked. `subset`: the only addresses allowed, None: all."""


class CloseHook(Protocol):
    """Takes back what a pick charged. `body_bytes` is the body's true size where its bytes passed, else None."""

    def __call__(self, pick: Pick, *, body_bytes: int | None) -> None:
        """Close `pick`; called once."""


class OutcomeHook(Protocol):
    """Learns which endpoint answered."""

    def __call__(self, outcome: Outcome) -> None:
        """Take note."""


class State(enum.Enum):
    """Where a stream stands."""

    OPEN = "open"
    """The request's headers have not come."""
    PICKED = "picked"
    """They are answered with endpoints; the pick is charged."""
    REFUSED = "refused"
    """The request was answered in the gateway's stead; whatever follows is nobody's."""
    FAILED = "failed"
    """Malformed bytes or a pick that raised: the stream must be ended with an error, so that the gateway's failure
    mode decides about the request."""
    CLOSED = "closed"


class Stream:
    """The state of one stream. Not to be used again once `closed` was called."""

    __slots__ = (
        "_body_bytes",
        "_close",
        "_ended",
        "_outcome",
        "_pick",
        "_pick_hook",
        "_request_ended",
        "_streamed_back",
        "failure",
        "state",
    )

    def __init__(self, *, pick: PickHook, close: CloseHook, outcome: OutcomeHook) -> None:
        self._pick_hook = pick
        self._close = close
        self._outcome = outcome
        self._pick: Pick | None = None
        self._streamed_back = (True, True)  # what an endpoint picker may expect of a gateway that does not say
        self._ended: set[Kind] = set()  # directions whose end_of_stream has come
        self._body_bytes = 0
        self.state = State.OPEN
        self.failure: Exception | None = None
        """Why the state is FAILED."""

    @property
    def settled(self) -> bool:
        """The request has its answer and no body comes this way: nobody would miss the stream but the charge."""
        return self.state is State.PICKED and self._streamed_back == (False, False)

    def receive(self, message: bytes) -> list[bytes]:
        """Take one message from the gateway; return what to send, in order. Never raises."""
        if self.state is not State.OPEN and self.state is not State.PICKED:
            return []
        try:
            request = wire.Request(message)
            kind = request.kind
            if kind is Kind.REQUEST_HEADERS:
                return [self._request_headers(request)]
            if kind is None:  # empty, or from a newer Envoy: it asks for nothing that we could answer
                return []
            if kind is Kind.REQUEST_BODY or kind is Kind.RESPONSE_BODY:
                return self._body(request, kind)
            if kind is Kind.RESPONSE_HEADERS:
                self._response_headers(request)
            return [wire.GO_ON[kind]]
        except Exception as error:  # noqa: BLE001 - a bug of the pool must cost one request, not the server
            self.failure = error
            self.state = State.FAILED
            return []

    def closed(self) -> None:
        """Say that the stream has ended, however it did: closes the pick, if there is one. Idempotent."""
        self.state = State.CLOSED
        pick, self._pick = self._pick, None
        if pick is not None:
            whole = Kind.REQUEST_BODY in self._ended
            self._close(pick, body_bytes=self._body_bytes if whole else None)

    def _request_headers(self, request: wire.Request) -> bytes:
        if self._pick is not None:  # repeated: the first pick stands, and is charged once
            return _answer(request, self._pick)
        self._learn_body_modes(request)
        subset = request.subset()
        pick = None
        if subset is None or subset:
            pick = self._pick_hook(body_bytes=request.content_bytes(), subset=subset)
        if pick is None:
            self.state = State.REFUSED
            return wire.unavailable_answer(NO_ENDPOINT if subset is None else NONE_ELIGIBLE)
        self._pick = pick
        self.state = State.PICKED
        return _answer(request, pick)

    def _body(self, request: wire.Request, kind: Kind) -> list[bytes]:
        self._learn_body_modes(request)
        body, last = request.body()
        streamed_back = self._streamed_back[kind is Kind.RESPONSE_BODY]
        if kind in self._ended and streamed_back:
            return []  # a second end_of_stream can follow bodies of about 1 MB (envoyproxy/envoy#46237)
        if kind is Kind.REQUEST_BODY:
            self._body_bytes += len(body)
        if last:
            self._ended.add(kind)
        if streamed_back:
            return wire.streamed_body(kind, body, end_of_stream=last)
        return [wire.GO_ON[kind]]

    def _response_headers(self, request: wire.Request) -> None:
        """Served feedback of proposal 004: which endpoint answered, and whether it did so below 500.

        How many attempts it took is not told, so that the first choice is not blamed when another one served.
        """
        served, status = request.served(), request.response_status()
        if self._pick is None or served is None or status is None:
            return
        answered = status < _FIRST_SERVER_ERROR
        self._outcome(
            Outcome(
                picked=self._pick.addresses[0],
                served=served,
                failed=() if answered else (served,),
                succeeded=served if answered else None,
            )
        )

    def _learn_body_modes(self, request: wire.Request) -> None:
        """Envoy says its body modes with the first message of a stream, whichever that is."""
        modes = request.body_is_streamed_back()
        if modes is not None:
            self._streamed_back = modes


def _answer(request: wire.Request, pick: Pick) -> bytes:
    """Name the endpoints; serialised messages merge when they are joined."""
    answer = wire.pick_answer(pick.addresses)
    return answer + wire.UNTIL_THE_END if request.sends_headers_only() else answer
