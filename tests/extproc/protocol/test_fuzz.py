"""Any sequence of valid, mutated and random messages: never an exception, never a leaked or doubled charge."""

import random
from typing import Any

from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_extproc.protocol import State
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

ADDRESSES = ("10.0.0.1:8000", "[::1]:8000")
MODES = st.sampled_from([NONE, STREAMED, BUFFERED, DUPLEX, 3, 5, 17])
SIDES = st.sampled_from(["request", "response"])
HINTS = (
    st.none() | st.text(max_size=30) | st.lists(st.sampled_from([*ADDRESSES, "", "x"]), max_size=3) | st.floats(0, 9)
)

HEADERS = st.dictionaries(
    st.sampled_from(["content-length", "transfer-encoding", ":path", "x-gateway-destination-endpoint", "X-Odd"]),
    st.text(max_size=20),
    max_size=4,
)
VALID = st.one_of(
    st.builds(
        request, HEADERS, end=st.booleans(), modes=st.none() | st.tuples(MODES, MODES), subset=HINTS, served=st.none()
    ),
    st.builds(response, HEADERS, served=st.none() | st.text(max_size=20)),
    st.builds(body, st.binary(max_size=200), end=st.booleans(), of=SIDES),
    st.builds(lambda of: body(b"x" * 130_000, end=True, of=of), SIDES),
    st.builds(trailers, SIDES),
)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(VALID)[:4096])
    for _ in range(draw(st.integers(1, 4))):
        if data:
            position = draw(st.integers(0, len(data) - 1))
            change = draw(st.sampled_from(["flip", "cut", "insert"]))
            if change == "flip":
                data[position] ^= 1 << draw(st.integers(0, 7))
            elif change == "cut":
                del data[position:]
            else:
                data.insert(position, draw(st.integers(0, 255)))
    return bytes(data)


MESSAGES = st.lists(VALID | mutated() | st.binary(max_size=40), max_size=12)


class _Moody(Account):
    """A pool that may refuse or break at any pick."""

    def __init__(self, moods: list[str]) -> None:
        super().__init__(*ADDRESSES)
        self._moods = moods

    def pick(self, **asked: Any) -> Any:
        mood = self._moods.pop() if self._moods else "pick"
        if mood == "raise":
            raise RuntimeError(mood)
        return None if mood == "refuse" else super().pick(**asked)


@settings(deadline=None, max_examples=300)
@given(
    messages=MESSAGES,
    moods=st.lists(st.sampled_from(["pick", "pick", "refuse", "raise"]), max_size=3),
    closings=st.integers(1, 3),
    repeat=st.booleans(),
)
def test_never_raises_and_closes_each_pick_once(
    messages: list[bytes], moods: list[str], closings: int, *, repeat: bool
) -> None:
    account = _Moody(moods)
    stream = account.stream()
    for message in messages * (2 if repeat else 1):
        before = stream.state
        answers = decoded(stream.receive(message))
        if before in (State.REFUSED, State.FAILED):
            assert answers == []
            assert stream.state is before
        for answer in answers:
            assert answer.WhichOneof("response") is not None
            assert answer.ByteSize() < 64 * 1024
            if answer.HasField("immediate_response"):
                assert stream.state is State.REFUSED
        assert (stream.failure is not None) == (stream.state is State.FAILED)
    assert len(account.picked) <= 1  # one request, one charge
    assert account.closed == []
    for _ in range(closings):
        stream.closed()
    assert [pick for pick, _ in account.closed] == account.picked


@settings(deadline=None, max_examples=100)
@given(parts=st.lists(st.binary(max_size=300) | st.just(b"y" * 140_000), max_size=6), of=SIDES, trailing=st.booleans())
def test_full_duplex_is_the_identity(parts: list[bytes], of: str, *, trailing: bool) -> None:
    stream = Account(*ADDRESSES).stream()
    stream.receive(request(modes=(DUPLEX, DUPLEX)))
    back, ends = b"", []
    messages = [body(part, of=of) for part in parts]
    messages.append(trailers(of) if trailing else body(b"", end=True, of=of))
    for message in messages:
        for answer in decoded(stream.receive(message)):
            if answer.WhichOneof("response") == f"{of}_body":
                part = getattr(answer, f"{of}_body").response.body_mutation.streamed_response
                back += part.body
                ends.append(part.end_of_stream)
            else:
                ends.append("trailers")
    assert back == b"".join(parts)
    assert ends[-1] == ("trailers" if trailing else True)
    assert True not in ends[:-1]


def test_a_million_random_bytes() -> None:
    rng = random.Random(1)
    for _ in range(3000):
        account = Account(*ADDRESSES)
        stream = account.stream()
        for _ in range(3):
            stream.receive(rng.randbytes(rng.randrange(120)))
        stream.closed()
        assert len(account.picked) == len(account.closed)


def test_oversize_message_is_only_slow() -> None:
    account = Account(*ADDRESSES)
    stream = account.stream()
    stream.receive(request({f"x-{n}": "y" * 1000 for n in range(2000)}, modes=(DUPLEX, DUPLEX)))
    answers = stream.receive(body(b"z" * 20_000_000, end=True))
    assert (
        sum(len(a.request_body.response.body_mutation.streamed_response.body) for a in decoded(answers)) == 20_000_000
    )
    assert pb.ProcessingResponse.FromString(
        answers[-1]
    ).request_body.response.body_mutation.streamed_response.end_of_stream
