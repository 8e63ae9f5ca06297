import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halffull_extproc.stock_metrics import StockSample, parse_stock_metrics

from .reports import metrics_text

FIELD_OF = {
    "vllm:num_requests_waiting": "waiting",
    "vllm:num_requests_running": "running",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
    "vllm:inter_token_latency_seconds_sum": "itl_sum",
    "vllm:inter_token_latency_seconds_count": "itl_count",
    "vllm:time_to_first_token_seconds_sum": "ttft_sum",
    "vllm:time_to_first_token_seconds_count": "ttft_count",
    "vllm:request_prompt_tokens_sum": "request_prompt_sum",
    "vllm:request_prompt_tokens_count": "request_prompt_count",
    "vllm:request_generation_tokens_sum": "request_generation_sum",
    "vllm:request_generation_tokens_count": "request_generation_count",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:cache_config_info": "total_tokens",
}


def test_reads_every_family() -> None:
    sample = parse_stock_metrics(metrics_text(), max_model_len=4096)
    assert sample == StockSample(
        waiting=4, running=6, prompt_tokens=1000, generation_tokens=300, itl_sum=9.5, itl_count=290, ttft_sum=3.5,
        ttft_count=20, request_prompt_sum=950, request_prompt_count=19, request_generation_sum=280,
        request_generation_count=19, kv_usage=0.25, total_tokens=8000, missing=(), max_model_len=4096,
    )  # fmt: skip


def test_engines_add_up_usage_is_their_mean_and_the_cache_is_counted_once() -> None:
    sample = parse_stock_metrics(metrics_text(engines=4))
    assert (sample.waiting, sample.prompt_tokens, sample.kv_usage, sample.total_tokens) == (16, 4000, 0.25, 8000)


@pytest.mark.parametrize("name", FIELD_OF)
def test_a_missing_metric_is_unknown_and_named(name: str) -> None:
    sample = parse_stock_metrics(metrics_text(without=name))
    assert getattr(sample, FIELD_OF[name]) is None
    assert sample.missing == (name,)


@pytest.mark.parametrize("name", FIELD_OF)
def test_a_renamed_metric_is_unknown_and_never_the_other_one(name: str) -> None:
    text = metrics_text().replace(name.encode() + b"{", name.encode() + b"_by_reason{")
    sample = parse_stock_metrics(text)
    assert getattr(sample, FIELD_OF[name]) is None
    assert name in sample.missing


def test_created_samples_are_no_counters() -> None:
    extra = (
        'vllm:prompt_tokens_created{engine="0"} 1.7e9\n'
        'vllm:request_prompt_tokens_created{engine="0"} 1.7e9\n'
        'vllm:prompt_tokens_total_created{engine="0"} 1.7e9\n'
    )
    assert parse_stock_metrics(metrics_text(extra=extra)) == parse_stock_metrics(metrics_text())


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "soon", "-Inf"])
def test_a_value_that_is_no_amount_is_unknown(value: str) -> None:
    text = metrics_text(without="vllm:num_requests_waiting", extra=f'vllm:num_requests_waiting{{engine="0"}} {value}\n')
    sample = parse_stock_metrics(text)
    assert sample.waiting is None
    assert sample.missing == ("vllm:num_requests_waiting",)


def test_one_bad_engine_makes_the_sum_unknown_rather_than_too_small() -> None:
    sample = parse_stock_metrics(metrics_text(extra='vllm:num_requests_running{engine="9"} NaN\n'))
    assert sample.running is None


def test_zero_is_known() -> None:
    text = metrics_text(without="vllm:num_requests_running", extra="vllm:num_requests_running 0\n")
    assert parse_stock_metrics(text).running == 0.0


def test_labels_may_contain_anything_and_a_timestamp_may_follow() -> None:
    extra = 'vllm:num_requests_running{model_name="a} 7 {b=\\"c\\"",x="y"} 3 1700000000000\n'
    assert parse_stock_metrics(metrics_text(without="vllm:num_requests_running", extra=extra)).running == 3


def test_the_first_line_counts_and_a_cut_off_last_line_does_not() -> None:
    assert parse_stock_metrics(b"vllm:num_requests_running 7\n").running == 7
    assert parse_stock_metrics(b"vllm:num_requests_running 12").running is None


@pytest.mark.parametrize("blocks", ["None", "0", "-5", "9" * 40])
def test_a_cache_of_unknown_size_is_unknown(blocks: str) -> None:
    extra = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0\n'
    assert parse_stock_metrics(metrics_text(without="vllm:cache_config_info", extra=extra)).total_tokens is None


def test_num_gpu_blocks_override_is_not_num_gpu_blocks() -> None:
    extra = 'vllm:cache_config_info{block_size="16",num_gpu_blocks_override="99"} 1.0\n'
    assert parse_stock_metrics(metrics_text(without="vllm:cache_config_info", extra=extra)).total_tokens is None


@given(st.binary(max_size=300))
def test_no_bytes_raise(text: bytes) -> None:
    assert parse_stock_metrics(text).missing


@given(st.lists(st.sampled_from(["vllm:num_requests_running", " 1", "{", "}", "\n", '"', "5", "\\"]), max_size=40))
def test_fragments_of_the_format_do_not_raise(parts: list[str]) -> None:
    parse_stock_metrics("".join(parts).encode())


def test_megabytes_without_a_match_take_no_time() -> None:
    hostile = (b"vllm:num_requests_running{" + b"}" * 100_000 + b"\n") * 20
    began = time.monotonic()
    parse_stock_metrics(hostile)
    assert time.monotonic() - began < 5.0
