"""Every name and message of the ext_proc protocol that the picker uses, and nothing else of it.

The protobuf classes publish no types, so this module is where `Any` ends: functions take and return plain Python.
Names are those of the Gateway API Inference Extension, proposal 004 (endpoint-picker protocol), and of Envoy's
`envoy.service.ext_proc.v3`.
"""

import enum
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc_pb2
from envoy.type.v3 import http_status_pb2
from google.protobuf.message import DecodeError, Message

EXT_PROC_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
ADS_SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
ACCESS_LOG_SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"

DESTINATION: Final = "x-gateway-destination-endpoint"
"""Header and metadata key of a pick: `ip:port[,ip:port…]`, first choice first."""
SERVED: Final = "x-gateway-destination-endpoint-served"
SUBSET: Final = "x-gateway-destination-endpoint-subset"
CONTROL_HEADERS: Final = (DESTINATION, SERVED, SUBSET)
"""Only gateway and picker may say these: a client's are removed."""
LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"

MAX_CHUNK_BYTES: Final = 62_000
"""Largest `streamed_response` chunk: Envoy reads messages of 64 KiB at most from a processor."""

_MAX_DIGITS: Final = 18  # of a Content-Length that fits 64 bits


class Kind(enum.Enum):
    """What a message from the gateway carries; values are the names in its oneof."""

    REQUEST_HEADERS = "request_headers"
    REQUEST_BODY = "request_body"
    REQUEST_TRAILERS = "request_trailers"
    RESPONSE_HEADERS = "response_headers"
    RESPONSE_BODY = "response_body"
    RESPONSE_TRAILERS = "response_trailers"


_KINDS: Final = {kind.value: kind for kind in Kind}


class MalformedMessageError(ValueError):
    """The bytes are no ProcessingRequest."""


class Request:
    """One message from the gateway. Fields are read when asked for: our own Envoy's need two of them."""

    __slots__ = ("_message", "kind")

    def __init__(self, data: bytes) -> None:
        """Decode `data`; raise MalformedMessageError when it is no ProcessingRequest."""
        try:
            self._message: Any = ext_proc_pb2.ProcessingRequest.FromString(data)
        except DecodeError as error:
            raise MalformedMessageError(str(error)) from error
        self.kind: Kind | None = _KINDS.get(self._message.WhichOneof("request"))
        """None: empty, or of a kind that this version does not know."""

    def content_bytes(self) -> int | None:
        """Size of the request's body by its headers, bytes; None when they do not say (chunked, or nonsense)."""
        http = self._message.request_headers
        length: int | None = None
        for header in http.headers.headers:
            key = header.key
            if key == "content-length":
                length = _digits(header.raw_value or header.value.encode())
                if length is None:
                    return None
            elif key == "transfer-encoding":
                return None
        if length is None and http.end_of_stream:
            return 0
        return length

    def subset(self) -> frozenset[str] | None:
        """The only endpoints that may be picked; None when the gateway gave no hint.

        A hint that is set but empty, or of a type that names no endpoint, restricts to nothing.
        """
        value = self._metadata(SUBSET_NAMESPACE, SUBSET)
        if value is None:
            return None
        items = [item.string_value for item in value.list_value.values] if value.HasField("list_value") else []
        text = ",".join([*items, value.string_value])
        return frozenset(filter(None, map(str.strip, text.split(","))))

    def served(self) -> str | None:
        """The endpoint that answered, as a gateway reports it with the response's headers."""
        value = self._metadata(LB_NAMESPACE, SERVED)
        return (value.string_value.strip() or None) if value is not None else None

    def response_status(self) -> int | None:
        """The response's HTTP status."""
        for header in self._message.response_headers.headers.headers:
            if header.key == ":status":
                return _digits(header.raw_value or header.value.encode())
        return None

    def body(self) -> tuple[bytes, bool]:
        """A body message's bytes, and whether they are the last."""
        part = self._message.request_body if self.kind is Kind.REQUEST_BODY else self._message.response_body
        return part.body, part.end_of_stream

    def body_is_streamed_back(self) -> tuple[bool, bool] | None:
        """Whether (request, response) bodies must be sent back chunk by chunk; None when this message does not say."""
        if not self._message.HasField("protocol_config"):
            return None
        config = self._message.protocol_config
        duplex = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
        return config.request_body_mode == duplex, config.response_body_mode == duplex

    def sends_headers_only(self) -> bool:
        """Whether the gateway says that it sends no body either way."""
        if not self._message.HasField("protocol_config"):
            return False
        config = self._message.protocol_config
        none = processing_mode_pb2.ProcessingMode.NONE
        return bool(config.request_body_mode == none and config.response_body_mode == none)

    def _metadata(self, namespace: str, key: str) -> Any:
        if not self._message.HasField("metadata_context"):
            return None
        spaces = self._message.metadata_context.filter_metadata
        if namespace not in spaces or key not in spaces[namespace].fields:
            return None
        return spaces[namespace].fields[key]


def _digits(value: bytes) -> int | None:
    return int(value) if value.isdigit() and len(value) <= _MAX_DIGITS else None


def _encoded(**fields: Any) -> bytes:
    message: Message = ext_proc_pb2.ProcessingResponse(**fields)
    return message.SerializeToString(deterministic=True)


GO_ON: Final = {
    Kind.REQUEST_HEADERS: _encoded(request_headers=ext_proc_pb2.HeadersResponse()),
    Kind.REQUEST_BODY: _encoded(request_body=ext_proc_pb2.BodyResponse()),
    Kind.REQUEST_TRAILERS: _encoded(request_trailers=ext_proc_pb2.TrailersResponse()),
    Kind.RESPONSE_HEADERS: _encoded(response_headers=ext_proc_pb2.HeadersResponse()),
    Kind.RESPONSE_BODY: _encoded(response_body=ext_proc_pb2.BodyResponse()),
    Kind.RESPONSE_TRAILERS: _encoded(response_trailers=ext_proc_pb2.TrailersResponse()),
}
"""The answer that changes nothing, to each kind of message."""


class _PickAnswer:
    """The answer that names endpoints, built once: to fill in the value costs a tenth of building it anew."""

    def __init__(self) -> None:
        self._answer: Any = ext_proc_pb2.ProcessingResponse()
        mutation = self._answer.request_headers.response.header_mutation
        mutation.remove_headers.extend((SERVED, SUBSET))
        option = mutation.set_headers.add(append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key = DESTINATION
        self._header: Any = option.header
        namespace = self._answer.dynamic_metadata.fields[LB_NAMESPACE].struct_value
        self._metadata: Any = namespace.fields[DESTINATION]

    def encode(self, value: str) -> bytes:
        self._header.raw_value = value.encode()
        self._metadata.string_value = value
        data: bytes = self._answer.SerializeToString()
        return data


_PICK_ANSWER: Final = _PickAnswer()


@lru_cache(maxsize=8192)
def pick_answer(addresses: tuple[str, ...]) -> bytes:
    """Encode the answer to the request's headers that names the endpoints, first choice first.

    Header and dynamic metadata say the same (proposal 004). The header overwrites a client's; `content-length` and
    `transfer-encoding` stay untouched.
    """
    return _PICK_ANSWER.encode(",".join(addresses))


UNTIL_THE_END: Final = _encoded(
    mode_override=processing_mode_pb2.ProcessingMode(
        response_header_mode=processing_mode_pb2.ProcessingMode.SKIP,
        response_trailer_mode=processing_mode_pb2.ProcessingMode.SEND,
    )
)
"""To append to a pick's answer: keep the stream open until the response has ended, and do not send its headers.

Envoy Gateway cannot be configured so, but allows the override; an Envoy that does not allow it ignores it (measured).
Only for gateways that send no bodies, because the override would switch those off.
"""


def error_body(message: str, *, kind: str, status: int) -> str:
    """Write a refusal in the error format of the OpenAI API, as vLLM does."""
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})


@lru_cache(maxsize=8)
def unavailable_answer(message: str) -> bytes:
    """Encode the answer that ends the request with 503 and says why."""
    header = base_pb2.HeaderValueOption(
        header=base_pb2.HeaderValue(key="content-type", raw_value=b"application/json"),
        append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    return _encoded(
        immediate_response=ext_proc_pb2.ImmediateResponse(
            status=http_status_pb2.HttpStatus(code=http_status_pb2.ServiceUnavailable),
            headers=ext_proc_pb2.HeaderMutation(set_headers=[header]),
            body=error_body(message, kind="ServiceUnavailableError", status=503).encode(),
            details="halffull_no_endpoint",
        )
    )


def streamed_body(kind: Kind, body: bytes, *, end_of_stream: bool) -> list[bytes]:
    """Encode a body as it came, in chunks of at most MAX_CHUNK_BYTES; the last carries `end_of_stream`."""
    return [
        _encoded(
            **{
                kind.value: ext_proc_pb2.BodyResponse(
                    response=ext_proc_pb2.CommonResponse(
                        body_mutation=ext_proc_pb2.BodyMutation(
                            streamed_response=ext_proc_pb2.StreamedBodyResponse(body=chunk, end_of_stream=last)
                        )
                    )
                )
            }
        )
        for chunk, last in _chunks(body, end_of_stream=end_of_stream)
    ]


def _chunks(body: bytes, *, end_of_stream: bool) -> Iterable[tuple[bytes, bool]]:
    for start in range(0, max(1, len(body)), MAX_CHUNK_BYTES):
        yield body[start : start + MAX_CHUNK_BYTES], end_of_stream and start + MAX_CHUNK_BYTES >= len(body)
