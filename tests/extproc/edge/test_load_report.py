import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.load_report import LoadReport, ReportError, decode_load_report, merge_ranks

from .reports import REPORT, report

SUMMED = (
    "queued_tokens", "free_tokens", "total_tokens", "running", "waiting", "max_tokens_per_batch", "steps",
    "busy_seconds", "computed_tokens", "first_tokens", "ttft_seconds", "prompt_tokens", "generation_tokens", "requests",
)  # fmt: skip


def test_has_exactly_the_fields_of_the_contract() -> None:
    assert [field.name for field in msgspec.structs.fields(LoadReport)] == list(REPORT)


def test_reads_what_was_sent_and_ignores_unknown_fields() -> None:
    read = decode_load_report(report(colour="blue", nested={"a": [1]}))
    assert msgspec.to_builtins(read) == REPORT


@pytest.mark.parametrize("version", [0, 2, 99, "1", 1.5])
def test_another_version_is_refused_by_its_number(version: object) -> None:
    with pytest.raises(ReportError, match=r"version .* is not supported, this picker reads version 1"):
        decode_load_report(report(version=version))


def test_a_newer_report_with_other_fields_is_refused_for_its_version() -> None:
    with pytest.raises(ReportError, match="version 2 is not supported"):
        decode_load_report(b'{"version": 2, "queue": {"tokens": 5}}')


@pytest.mark.parametrize("field", [name for name in REPORT if name not in ("boot_id", "scheduler")])
@pytest.mark.parametrize("value", [-1, "5", None, [], True])
def test_negative_and_mistyped_values_are_refused_and_the_field_is_named(field: str, value: object) -> None:
    with pytest.raises(ReportError, match=field):
        decode_load_report(report(**{field: value}))


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_values_that_are_not_finite_are_refused(literal: str) -> None:
    body = report().replace(b'"busy_seconds": 30.5', f'"busy_seconds": {literal}'.encode())
    with pytest.raises(ReportError):
        decode_load_report(body)


@pytest.mark.parametrize("field", list(REPORT))
def test_every_field_is_needed(field: str) -> None:
    body = json.dumps({name: value for name, value in REPORT.items() if name != field}).encode()
    with pytest.raises(ReportError, match=field):
        decode_load_report(body)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 50_000, b"<html>busy</html>"])
def test_garbage_is_refused_in_one_line(body: bytes) -> None:
    with pytest.raises(ReportError) as refused:
        decode_load_report(body)
    assert "\n" not in str(refused.value)


@given(st.binary(max_size=400))
def test_no_bytes_raise_anything_else(body: bytes) -> None:
    with pytest.raises(ReportError):
        decode_load_report(body)


def test_one_rank_is_itself() -> None:
    one = decode_load_report(report())
    assert merge_ranks([one]) is one


def test_ranks_add_up_and_the_limits_are_the_narrowest() -> None:
    ranks = [
        decode_load_report(report(rank=0, boot_id="a", age=0.1, max_model_len=4096)),
        decode_load_report(report(rank=1, boot_id="b", age=0.5, max_model_len=2048, queued_tokens=7, free_tokens=0)),
    ]
    merged = merge_ranks(ranks)
    for name in SUMMED:
        assert getattr(merged, name) == getattr(ranks[0], name) + getattr(ranks[1], name), name
    assert (merged.age, merged.max_model_len, merged.boot_id, merged.rank) == (0.5, 2048, "a,b", 0)


def test_one_restarted_rank_changes_the_merged_boot_id() -> None:
    ranks = [decode_load_report(report(rank=rank, boot_id=f"b{rank}")) for rank in range(3)]
    again = [ranks[0], decode_load_report(report(rank=1, boot_id="new")), ranks[2]]
    assert merge_ranks(ranks).boot_id != merge_ranks(again).boot_id


def test_ranks_that_order_their_queues_differently_are_refused() -> None:
    ranks = [decode_load_report(report(scheduler=name)) for name in ("LARRY", "Stock: vLLM 0.99 is not tested")]
    with pytest.raises(ReportError, match="ranks disagree"):
        merge_ranks(ranks)


def test_no_rank_is_no_report() -> None:
    with pytest.raises(ReportError):
        merge_ranks([])
