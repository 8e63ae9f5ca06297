"""Traces in every accepted format, and what is wrong with those that are not."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from halffull_lab.traces import Trace, TraceError, load_trace, parse_trace

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
BURST = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,1087,230,1317,API log
"""
OWN = "arrival,prompt_tokens,output_tokens\n0.5,100,10\n1.25,200,20\n"
MOONCAKE = "".join(
    json.dumps({"timestamp": at, "input_length": size, "output_length": 5, "hash_ids": [1, 2]}) + "\n"
    for at, size in ((1000, 6955), (4500, 7))
)


def parse(text: str) -> Trace:
    return parse_trace(text.encode(), name="t")


@pytest.mark.parametrize(
    ("text", "gap", "prompts", "outputs"),
    [
        (AZURE, 4.314579, [374, 396], [44, 109]),
        (BURST, 40.0, [472, 1087], [18, 230]),
        (OWN, 0.75, [100, 200], [10, 20]),
        (MOONCAKE, 3.5, [6955, 7], [5, 5]),
    ],
)
def test_every_format_is_known_by_its_content(text: str, gap: float, prompts: list[int], outputs: list[int]) -> None:
    crlf = text.replace("\n", "\r\n").encode()
    for data in (text.encode(), crlf, b"\xef\xbb\xbf" + crlf, gzip.compress(text.encode()), text.rstrip().encode()):
        trace = parse_trace(data, name="t")
        assert trace.arrival.tolist() == pytest.approx([0, gap], abs=1e-5)
        assert trace.prompt_tokens.tolist() == prompts
        assert trace.output_tokens.tolist() == outputs
        assert trace.notes == ()


def test_columns_may_stand_in_any_order_and_dates_may_carry_a_zone() -> None:
    trace = parse(
        "GeneratedTokens,TIMESTAMP,ContextTokens\n1,2024-05-10 00:00:00+00:00,9\n2,2024-05-10 02:00:01.5+02:00,8\n"
    )
    assert trace.arrival.tolist() == [0, 1.5]
    assert trace.output_tokens.tolist() == [1, 2]


def test_unsorted_times_are_sorted_and_noted() -> None:
    trace = parse("arrival,prompt_tokens,output_tokens\n5,1,1\n3,2,2\n4,3,3\n")
    assert trace.arrival.tolist() == [0, 1, 2]
    assert trace.prompt_tokens.tolist() == [2, 3, 1]
    assert trace.notes == ("sorted by time: 1 rows were earlier than the row before",)


def test_rows_without_tokens_are_left_out_and_named() -> None:
    trace = parse(BURST + "46,GPT-4,1,0,1,API log\n47,GPT-4,0,1,1,API log\n48,GPT-4,3,4,7,API log\n")
    assert len(trace) == 3
    assert trace.notes == ("2 rows left out: line 4: no output tokens; line 5: no prompt tokens",)


def test_many_left_out_rows_are_counted() -> None:
    trace = parse(OWN + "2,1,0\n" * 9)
    assert trace.notes[0].startswith("9 rows left out: line 4: ")
    assert trace.notes[0].endswith(" and 6 more")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "unknown columns"),
        ("a,b,c\n1,2,3\n", "line 1: unknown columns 'a,b,c'"),
        ("arrival,prompt_tokens,output_tokens\n", "no request in it"),
        ("arrival,prompt_tokens,output_tokens\n1,0,5\n", "no request in it that can be replayed (line 2: no prompt"),
        (OWN + "2,x,5\n", "line 4: prompt_tokens: could not convert string to float: 'x'"),
        (OWN + "2,5,x\n", "line 4: output_tokens: could not convert string to float: 'x'"),
        (OWN + "x,5,5\n", "line 4: arrival: could not convert string to float: 'x'"),
        (OWN + "2,1.5,5\n", "line 4: prompt_tokens: '1.5' is not a number of tokens"),
        (OWN + "2,-1,5\n", "line 4: prompt_tokens: '-1' is not a number of tokens"),
        (OWN + "2,inf,5\n", "line 4: "),
        (OWN + "2,99999999999,5\n", "line 4: prompt_tokens: '99999999999' is not a number of tokens up to 10,000,000"),
        (OWN + "nan,1,5\n", "line 4: arrival: time 'nan' is not finite"),
        (OWN + "2,1\n", "line 4: 2 of 3 columns"),
        (AZURE + "yesterday,1,1\n", "line 4: TIMESTAMP: Invalid isoformat string: 'yesterday'"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 4}\n', "line 3: output_length is missing"),
        (MOONCAKE + '{"timestamp": 1, "input_length": null, "output_length": 1}\n', "line 3: input_length: float() "),
        (MOONCAKE + '{"timestamp": 1,\n', "line 3: "),
        (MOONCAKE + "[1, 2]\n", "line 3: "),
    ],
)
def test_an_unreadable_row_is_an_error_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse(text)
    assert str(caught.value).startswith("t: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [gzip.compress(OWN.encode(), mtime=0)[:-9], b"\x1f\x8bnonsense", b"\xff\xfe\x00a"],
    ids=["cut", "no-gzip", "utf-16"],
)
def test_broken_bytes_are_an_error(data: bytes) -> None:
    with pytest.raises(TraceError):
        parse_trace(data, name="t")


def test_a_missing_file_is_an_error_that_names_what_is_bundled(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="azure-conv"):
        load_trace(tmp_path / "none.csv")


def test_the_bundled_traces_are_whole() -> None:
    conversation, code = load_trace("azure-conv"), load_trace("azure-code")
    assert (len(conversation), round(conversation.duration), conversation.notes) == (19366, 3502, ())
    assert (len(code), round(code.duration), code.notes) == (8819, 3436, ())
    assert conversation.prompt_tokens.mean() == pytest.approx(1154.7, abs=0.05)
    assert conversation.prompt_tokens.max() == 14050
    assert code.output_tokens.mean() == pytest.approx(27.9, abs=0.05)


def test_a_share_counts_from_its_own_first_arrival() -> None:
    trace = parse("arrival,prompt_tokens,output_tokens\n" + "".join(f"{at},{at + 1},1\n" for at in range(8)))
    part = trace.share(0.25, 0.5)
    assert part.arrival.tolist() == [0, 1]
    assert part.prompt_tokens.tolist() == [3, 4]
    joined = [trace.share(low, low + 0.25).prompt_tokens for low in (0, 0.25, 0.5, 0.75)]
    assert np.concatenate(joined).tolist() == trace.prompt_tokens.tolist()
    for bad in ((0.5, 0.5), (-0.1, 1), (0, 1.1), (0, 0.01)):
        with pytest.raises(TraceError):
            trace.share(*bad)


def test_rate_and_factor_rescale_time_and_nothing_else() -> None:
    trace = parse("arrival,prompt_tokens,output_tokens\n0,1,1\n1,2,2\n4,3,3\n")
    assert trace.rate == 0.5
    assert trace.at(rate=5).arrival.tolist() == pytest.approx([0, 0.1, 0.4])
    assert trace.at(rate=5).rate == pytest.approx(5)
    assert trace.at(factor=2).arrival.tolist() == [0, 0.5, 2]
    assert trace.at().arrival is trace.arrival
    assert trace.head(seconds=4).arrival.tolist() == [0, 1]
    for options in ({"rate": 1.0, "factor": 1.0}, {"rate": 0.0}, {"factor": -1.0}, {"factor": float("nan")}):
        with pytest.raises(TraceError):
            trace.at(**options)


def test_a_burst_has_no_rate() -> None:
    burst = parse("arrival,prompt_tokens,output_tokens\n7,1,1\n7,1,1\n")
    with pytest.raises(TraceError, match="all requests arrive at once"):
        burst.at(rate=3)
    assert burst.at(factor=3).arrival.tolist() == [0, 0]
    with pytest.raises(TraceError, match="it has one request only, so it has no rate and none can be set"):
        parse("arrival,prompt_tokens,output_tokens\n7,1,1\n").at(rate=3)
