"""Messages of a gateway, built with the protobuf classes themselves, and a pool that keeps account."""

from collections.abc import Collection
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from halffull_extproc.pool import Outcome, Pick
from halffull_extproc.protocol import Stream

MODE = processing_mode_pb2.ProcessingMode
NONE, STREAMED, BUFFERED, DUPLEX = MODE.NONE, MODE.STREAMED, MODE.BUFFERED, MODE.FULL_DUPLEX_STREAMED


def headers(values: dict[str, str] | None = None, *, end: bool = False) -> Any:
    items = [base_pb2.HeaderValue(key=key, raw_value=value.encode()) for key, value in (values or {}).items()]
    return pb.HttpHeaders(headers=base_pb2.HeaderMap(headers=items), end_of_stream=end)


def request(
    values: dict[str, str] | None = None,
    *,
    end: bool = False,
    modes: tuple[int, int] | None = (NONE, NONE),
    **kwargs: Any,
) -> bytes:
    """The request's headers, as the first message of a stream."""
    message = pb.ProcessingRequest(request_headers=headers(values, end=end))
    return _with(message, modes=modes, **kwargs)


def response(values: dict[str, str] | None = None, **kwargs: Any) -> bytes:
    return _with(pb.ProcessingRequest(response_headers=headers({":status": "200", **(values or {})})), **kwargs)


def body(data: bytes, *, end: bool = False, of: str = "request") -> bytes:
    message = pb.ProcessingRequest(**{f"{of}_body": pb.HttpBody(body=data, end_of_stream=end)})
    return message.SerializeToString()


def trailers(of: str = "request") -> bytes:
    return pb.ProcessingRequest(**{f"{of}_trailers": pb.HttpTrailers()}).SerializeToString()


def _with(
    message: Any, *, modes: tuple[int, int] | None = None, subset: Any = None, served: str | None = None
) -> bytes:
    if modes is not None:
        message.protocol_config.request_body_mode, message.protocol_config.response_body_mode = modes
    spaces = message.metadata_context.filter_metadata
    if subset is not None:
        spaces["envoy.lb.subset_hint"].update({"x-gateway-destination-endpoint-subset": subset})
    if served is not None:
        spaces["envoy.lb"].update({"x-gateway-destination-endpoint-served": served})
    data: bytes = message.SerializeToString()
    return data


def decoded(answers: list[bytes]) -> list[Any]:
    return [pb.ProcessingResponse.FromString(answer) for answer in answers]


def fake_pick(*addresses: str) -> Pick:
    """A pick that charges nothing."""
    return Pick(addresses=addresses, tokens=1.0, at=0.0, body_bytes=None, ledger=None)


class Account:
    """Picks what it is given and writes down what it is asked."""

    def __init__(self, *addresses: str, error: Exception | None = None) -> None:
        self.addresses = addresses
        self.error = error
        self.asked: list[tuple[int | None, Collection[str] | None]] = []
        self.picked: list[Pick] = []
        self.closed: list[tuple[Pick, int | None]] = []
        self.outcomes: list[Outcome] = []

    def pick(self, *, body_bytes: int | None, subset: Collection[str] | None) -> Pick | None:
        self.asked.append((body_bytes, subset))
        if self.error is not None:
            raise self.error
        eligible = tuple(a for a in self.addresses if subset is None or a in subset)
        if not eligible:
            return None
        self.picked.append(fake_pick(*eligible))
        return self.picked[-1]

    def close(self, pick: Pick, *, body_bytes: int | None) -> None:
        self.closed.append((pick, body_bytes))

    def stream(self) -> Stream:
        return Stream(pick=self.pick, close=self.close, outcome=self.outcomes.append)
