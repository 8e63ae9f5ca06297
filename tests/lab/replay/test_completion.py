"""What counts as an answer, and which of its events are the first and the last token."""

import json
from typing import Any

import pytest

from halffull_lab.completion import CompletionStream, Failure

DONE = b"data: [DONE]\n\n"


def event(text: str = "x", finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **more}).encode() + b"\n\n"


def usage(tokens: int) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": {"completion_tokens": tokens}}).encode() + b"\n\n"


def read(*chunks: bytes) -> CompletionStream:
    stream = CompletionStream()
    for at, chunk in enumerate(chunks, start=1):
        stream.feed(chunk, float(at))
    return stream


def test_times_are_those_of_the_first_and_the_last_token() -> None:
    stream = read(b": keep-alive\n\n", event(), event(), event(finish="length"), usage(3), DONE)
    assert stream.end(expected_tokens=3) is None
    assert (stream.first_token, stream.last_token, stream.tokens, stream.events) == (2.0, 4.0, 3, 5)


def test_bundled_tokens_count_by_usage() -> None:
    stream = read(event(), event("x" * 16), event("xx", finish="length"), usage(19), DONE)
    assert stream.end(expected_tokens=19) is None


def test_without_usage_every_event_is_a_token() -> None:
    assert read(event(), event(finish="length"), DONE).end(expected_tokens=2) is None


def test_an_empty_piece_ahead_of_the_prefill_is_no_first_token() -> None:
    stream = read(event(""), event("x", finish="length"), usage(1), DONE)
    assert stream.end(expected_tokens=1) is None
    assert stream.first_token == 2.0


@pytest.mark.parametrize(
    ("chunks", "failure"),
    [
        ((), Failure.EMPTY),
        ((DONE,), Failure.EMPTY),
        ((event(""), DONE), Failure.EMPTY),
        ((b"<html>busy</html>",), Failure.EMPTY),
        ((event(), event()), Failure.NO_FINISH_REASON),
        ((event(), event(), usage(2), DONE), Failure.NO_FINISH_REASON),
        ((event(), event(finish="length"), usage(2)), Failure.NO_DONE),
        ((event(), event(finish="stop"), usage(2), DONE), Failure.TOKEN_COUNT),
        ((event(), b'data: {"error": {"message": "engine died"}}\n\n', DONE), Failure.ERROR_EVENT),
        ((event(), b"data: {half\n\n", DONE), Failure.MALFORMED),
        ((event(), b"data: 7\n\n", DONE), Failure.MALFORMED),
        ((event(), b'data: {"choices": [7]}\n\n', DONE), Failure.MALFORMED),
        ((event(), b'data: {"choices": [], "usage": {"completion_tokens": "?"}}\n\n', DONE), Failure.MALFORMED),
    ],
)
def test_what_is_not_whole_is_a_failure(chunks: tuple[bytes, ...], failure: Failure) -> None:
    verdict = read(*chunks).end(expected_tokens=3)
    assert verdict is not None
    assert verdict.kind is failure
