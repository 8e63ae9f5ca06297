"""Server-sent events, however the network splits them."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from halffull_lab.sse import EventParser

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
# Data without line ends; bytes that look like syntax, and halves of UTF-8 characters, on purpose.
TEXT = st.text(alphabet="a :x{}é漢\ufeff\u2028\x0b\x0c\x85", max_size=12).map(lambda text: text.encode())


def feed(parser: EventParser, stream: bytes, cuts: list[int]) -> list[bytes]:
    events = []
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, stop in itertools.pairwise(bounds):
        events += parser.feed(stream[start:stop])
    return events


@given(
    events=st.lists(st.lists(TEXT, min_size=1, max_size=3), max_size=6),
    noise=st.lists(
        st.sampled_from([b": keep-alive", b"event: x", b"id: 7", b"retry: 1", b"datax: no", b"data"]), max_size=2
    ),
    end=ENDS,
    cuts=st.lists(st.integers(0, 400), max_size=30),
    bom=st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_any_split_gives_the_events_that_were_sent(
    events: list[list[bytes]], noise: list[bytes], end: bytes, cuts: list[int], bom: bytes
) -> None:
    fillers = [line for line in noise if line != b"data"]
    stream = bom
    for lines in events:
        stream += b"".join(line + end for line in fillers)
        stream += b"".join(b"data: " + line + end for line in lines) + end
    assert feed(EventParser(), stream, cuts) == [b"\n".join(lines) for lines in events]


@given(stream=st.binary(max_size=60).map(lambda raw: raw.replace(b"\x00", b"\r\ndata: a\n\n")))
@example(b"data: a\r\n\r\ndata: b\r\r\n")
def test_byte_by_byte_is_the_same_as_at_once(stream: bytes) -> None:
    assert feed(EventParser(), stream, list(range(len(stream)))) == EventParser().feed(stream)


def test_one_space_after_the_colon_is_dropped_and_only_one() -> None:
    assert EventParser().feed(b"data:a\n\ndata: b\n\ndata:  c\n\ndata\n\n") == [b"a", b"b", b" c", b""]


def test_an_event_without_its_blank_line_is_none_yet() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"\n") == [b"a"]


def test_an_empty_chunk_between_cr_and_lf_ends_no_line() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"") == []
    assert parser.feed(b"\ndata: b\r\n\r\n") == [b"a\nb"]


def test_a_large_event_in_many_chunks_costs_linear_time() -> None:
    parser = EventParser()
    pieces = 20_000
    for _ in range(pieces):  # quadratic joining would copy 6 GB
        assert parser.feed(b"x" * 30) == []
    parser = EventParser()
    parser.feed(b"data: ")
    for _ in range(pieces):
        parser.feed(b"x" * 30)
    assert parser.feed(b"\n\n") == [b"x" * 30 * pieces]
