"""One ext_proc stream: the rule, message by message."""

import json

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from halffull_extproc.protocol import NO_ENDPOINT, NONE_ELIGIBLE, State
from halffull_extproc.wire import MAX_CHUNK_BYTES, MalformedMessageError
from tests.extproc.protocol.messages import (
    BUFFERED,
    DUPLEX,
    NONE,
    STREAMED,
    Account,
    body,
    decoded,
    request,
    response,
    trailers,
)

A, B, C = "10.0.0.1:8000", "[fd00::1]:8000", "10.0.0.3:8000"


def test_one_message_is_answered_with_header_and_metadata() -> None:
    account = Account(A, B)
    stream = account.stream()
    (answer,) = decoded(stream.receive(request({"content-length": "1234"})))
    assert answer.WhichOneof("response") == "request_headers"
    mutation = answer.request_headers.response.header_mutation
    (header,) = mutation.set_headers
    assert (header.header.key, header.header.raw_value) == ("x-gateway-destination-endpoint", f"{A},{B}".encode())
    assert header.header.value == ""  # raw_value alone: Envoy refuses both
    assert header.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    lb = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    assert lb.fields["x-gateway-destination-endpoint"].string_value == f"{A},{B}"
    assert account.asked == [(1234, None)]
    assert stream.state is State.PICKED
    assert account.closed == []
    stream.closed()
    assert account.closed == [(account.picked[0], None)]


def test_client_sent_control_headers_are_overwritten_or_removed() -> None:
    stream = Account(A).stream()
    sent = {"x-gateway-destination-endpoint": "1.2.3.4:5", "x-gateway-destination-endpoint-subset": "1.2.3.4:5"}
    (answer,) = decoded(stream.receive(request(sent)))
    mutation = answer.request_headers.response.header_mutation
    assert [header.header.key for header in mutation.set_headers] == ["x-gateway-destination-endpoint"]
    assert set(mutation.remove_headers) == {
        "x-gateway-destination-endpoint-subset",
        "x-gateway-destination-endpoint-served",
    }


def test_transfer_encoding_is_never_touched() -> None:
    """Echoed, it cuts HTTP/2 streams."""
    stream = Account(A).stream()
    answers = stream.receive(request({"transfer-encoding": "chunked"}, modes=(DUPLEX, DUPLEX)))
    answers += stream.receive(body(b"x", end=True)) + stream.receive(response({"transfer-encoding": "chunked"}))
    for answer in decoded(answers):
        assert "transfer-encoding" not in str(answer)
        assert "content-length" not in str(answer)


@pytest.mark.parametrize(
    ("sent", "end", "size"),
    [
        ({"content-length": "0"}, False, 0),
        ({"content-length": "20971520"}, False, 20971520),
        ({}, True, 0),
        ({}, False, None),
        ({"transfer-encoding": "chunked"}, False, None),
        ({"content-length": "5", "transfer-encoding": "chunked"}, False, None),
        ({"transfer-encoding": "chunked", "content-length": "5"}, False, None),
        ({"content-length": "-5"}, False, None),
        ({"content-length": "+5"}, False, None),
        ({"content-length": "5, 5"}, False, None),
        ({"content-length": "٥"}, False, None),
        ({"content-length": ""}, False, None),
        ({"content-length": "9" * 400}, False, None),
        ({"content-length": "nonsense"}, True, None),
    ],
)
def test_size_is_what_the_headers_say(sent: dict[str, str], *, end: bool, size: int | None) -> None:
    account = Account(A)
    account.stream().receive(request(sent, end=end))
    assert account.asked == [(size, None)]


def test_size_in_the_field_of_older_envoys() -> None:
    account = Account(A)
    message = pb.ProcessingRequest.FromString(request())
    message.request_headers.headers.headers.add(key="content-length", value="77")
    account.stream().receive(message.SerializeToString())
    assert account.asked == [(77, None)]


def test_no_endpoint_is_503_not_429_in_the_api_s_own_form() -> None:
    account = Account()
    stream = account.stream()
    (answer,) = decoded(stream.receive(request()))
    assert answer.immediate_response.status.code == 503
    assert json.loads(answer.immediate_response.body) == {
        "error": {"message": NO_ENDPOINT, "type": "ServiceUnavailableError", "param": None, "code": 503}
    }
    (header,) = answer.immediate_response.headers.set_headers
    assert (header.header.key, header.header.raw_value) == ("content-type", b"application/json")
    assert stream.state is State.REFUSED
    assert stream.receive(body(b"x", end=True)) == []  # nobody's any more
    assert stream.receive(request()) == []
    stream.closed()
    assert account.closed == []
    assert len(account.asked) == 1


@pytest.mark.parametrize(
    ("hint", "allowed"),
    [
        ([A], {A}),
        ([A, B], {A, B}),
        (A, {A}),
        (f"{A},{B}", {A, B}),
        (f" {A} , {B},", {A, B}),
        ([f"{A},{B}"], {A, B}),
        ([A, 7.0, None], {A}),
    ],
)
def test_subset_hint_as_list_or_comma_string(hint: object, allowed: set[str]) -> None:
    account = Account(A, B, C)
    (answer,) = decoded(account.stream().receive(request(subset=hint)))
    assert account.asked == [(None, allowed)]
    lb = answer.dynamic_metadata.fields["envoy.lb"].struct_value
    assert set(lb.fields["x-gateway-destination-endpoint"].string_value.split(",")) == allowed


@pytest.mark.parametrize("hint", [[], "", " ", ",", [""], {"a": "b"}, 7.0, True, ["10.9.9.9:1"]])
def test_subset_hint_that_allows_nothing_is_503(hint: object) -> None:
    account = Account(A, B)
    (answer,) = decoded(account.stream().receive(request(subset=hint)))
    assert answer.immediate_response.status.code == 503
    assert json.loads(answer.immediate_response.body)["error"]["message"] == NONE_ELIGIBLE
    assert account.picked == []


def test_repeated_request_headers_are_charged_once() -> None:
    account = Account(A, B)
    stream = account.stream()
    first = stream.receive(request())
    account.addresses = (C,)
    assert stream.receive(request()) == first
    stream.closed()
    stream.closed()
    assert len(account.picked) == len(account.closed) == 1


def test_pick_that_raises_fails_the_stream_and_nothing_else() -> None:
    account = Account(error=ZeroDivisionError("beta"))
    stream = account.stream()
    assert stream.receive(request()) == []
    assert stream.state is State.FAILED
    assert isinstance(stream.failure, ZeroDivisionError)
    assert stream.receive(request()) == []
    stream.closed()
    assert (len(account.asked), account.closed) == (1, [])


def test_outcome_hook_that_raises_still_closes_the_pick() -> None:
    account = Account(A)
    stream = account.stream()
    stream._outcome = lambda _outcome: 1 / 0  # type: ignore[assignment,return-value]
    stream.receive(request())
    assert stream.receive(response(served=A)) == []
    assert stream.state is State.FAILED
    stream.closed()
    assert len(account.closed) == 1


def test_malformed_bytes_fail_the_stream() -> None:
    account = Account(A)
    stream = account.stream()
    stream.receive(request())
    assert stream.receive(b"\xff\xff\xff") == []
    assert isinstance(stream.failure, MalformedMessageError)
    stream.closed()
    assert len(account.closed) == 1


@pytest.mark.parametrize(
    "message", [b"", b"\xc2\x3e\x00", pb.ProcessingRequest(observability_mode=True).SerializeToString()]
)
def test_messages_of_a_newer_gateway_are_passed_over(message: bytes) -> None:
    stream = Account(A).stream()
    assert stream.receive(message) == []
    assert stream.state is State.OPEN
    assert len(stream.receive(request())) == 1


def _streamed(answers: list[bytes], of: str = "request") -> list[tuple[bytes, bool]]:
    parts = [getattr(answer, f"{of}_body").response.body_mutation.streamed_response for answer in decoded(answers)]
    return [(part.body, part.end_of_stream) for part in parts]


@pytest.mark.parametrize("of", ["request", "response"])
@pytest.mark.parametrize(
    "size", [0, 1, MAX_CHUNK_BYTES - 1, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 128 * 1024, 5 * MAX_CHUNK_BYTES]
)
def test_full_duplex_sends_every_byte_back(of: str, size: int) -> None:
    stream = Account(A).stream()
    stream.receive(request(modes=(DUPLEX, DUPLEX)))
    stream.receive(response())
    data = bytes(i % 251 for i in range(size))
    for end in (False, True):
        parts = _streamed(stream.receive(body(data, end=end, of=of)), of)
        assert b"".join(part for part, _ in parts) == data
        assert all(len(part) <= MAX_CHUNK_BYTES for part, _ in parts)
        assert [last for _, last in parts] == [False] * (len(parts) - 1) + [end]
        assert all(part for part, _ in parts) or len(parts) == 1


@pytest.mark.parametrize("of", ["request", "response"])
def test_duplicate_end_of_stream_chunk_is_ignored(of: str) -> None:
    """It can follow bodies of about 1 MB (envoyproxy/envoy#46237)."""
    stream = Account(A).stream()
    stream.receive(request(modes=(DUPLEX, DUPLEX)))
    assert len(stream.receive(body(b"x", end=True, of=of))) == 1
    assert stream.receive(body(b"", end=True, of=of)) == []
    assert stream.receive(body(b"x", end=False, of=of)) == []
    other = "response" if of == "request" else "request"
    assert len(stream.receive(body(b"x", end=True, of=other))) == 1


def test_full_duplex_answers_in_order() -> None:
    stream = Account(A).stream()
    messages = [
        request(modes=(DUPLEX, DUPLEX)),
        body(b"a"),
        body(b"b"),
        trailers(),
        response(),
        body(b"c", of="response"),
        body(b"", end=True, of="response"),
        trailers("response"),
    ]
    kinds = [decoded(stream.receive(message))[0].WhichOneof("response") for message in messages]
    assert kinds == [
        "request_headers",
        "request_body",
        "request_body",
        "request_trailers",
        "response_headers",
        "response_body",
        "response_body",
        "response_trailers",
    ]


@pytest.mark.parametrize("mode", [NONE, BUFFERED, STREAMED])
def test_other_body_modes_are_waved_through_without_a_copy(mode: int) -> None:
    stream = Account(A).stream()
    stream.receive(request(modes=(mode, mode)))
    for of in ("request", "response"):
        (answer,) = decoded(stream.receive(body(b"x" * 200_000, end=True, of=of)))
        assert answer.WhichOneof("response") == f"{of}_body"
        assert answer.ByteSize() <= 4


def test_each_direction_has_its_own_mode() -> None:
    stream = Account(A).stream()
    stream.receive(request(modes=(BUFFERED, DUPLEX)))
    assert decoded(stream.receive(body(b"x", end=True)))[0].ByteSize() <= 4
    assert _streamed(stream.receive(body(b"x", end=True, of="response")), "response") == [(b"x", True)]


def test_gateway_that_does_not_say_its_mode_gets_its_bytes_back() -> None:
    stream = Account(A).stream()
    stream.receive(request(modes=None))
    assert _streamed(stream.receive(body(b"x", end=True))) == [(b"x", True)]


@pytest.mark.parametrize(("mode", "end", "size"), [(DUPLEX, True, 7), (BUFFERED, True, 7), (DUPLEX, False, None)])
def test_close_tells_the_body_s_true_size_when_it_passed_whole(mode: int, *, end: bool, size: int | None) -> None:
    account = Account(A)
    stream = account.stream()
    stream.receive(request(modes=(mode, mode)))
    if mode == DUPLEX:
        stream.receive(body(b"abc"))
        stream.receive(body(b"defg", end=end))
    else:
        stream.receive(body(b"abcdefg", end=end))
    stream.closed()
    assert account.closed == [(account.picked[0], size)]


@pytest.mark.parametrize(("status", "failed", "succeeded"), [("200", (), B), ("404", (), B), ("503", (B,), None)])
def test_served_feedback(status: str, failed: tuple[str, ...], succeeded: str | None) -> None:
    account = Account(A, B)
    stream = account.stream()
    stream.receive(request())
    (answer,) = decoded(stream.receive(response({":status": status}, served=B)))
    assert answer.WhichOneof("response") == "response_headers"
    (outcome,) = account.outcomes
    assert (outcome.picked, outcome.served, outcome.failed, outcome.succeeded) == (A, B, failed, succeeded)


def test_response_without_feedback_or_without_a_pick_has_no_outcome() -> None:
    account = Account(A)
    stream = account.stream()
    assert len(stream.receive(response(served=A))) == 1
    stream.receive(request())
    stream.receive(response())
    stream.receive(response({":status": "nonsense"}, served=A))
    stream.receive(response(served=""))
    assert account.outcomes == []


def test_settled_only_when_nobody_would_miss_the_stream() -> None:
    stream = Account(A).stream()
    assert not stream.settled
    stream.receive(request())
    assert stream.settled
    stream = Account(A).stream()
    stream.receive(request(modes=(NONE, DUPLEX)))
    assert not stream.settled
