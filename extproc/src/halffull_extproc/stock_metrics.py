"""Load of an engine without the plugin, read from the Prometheus text that stock vLLM serves (Halffull contract 1).

The text is some 50 kB of which about twenty lines matter, ten times a second and engine. So nothing is parsed as a
whole: one expression finds the lines whose name matters (50 µs; splitting the text into lines costs 200 µs).
"""

import math
import re
from typing import Final

import msgspec

# Metric → field of StockSample. Each is the sum over its samples (one per engine label), except kv_usage: the mean.
_FIELDS: Final[dict[bytes, str]] = {
    b"vllm:num_requests_waiting": "waiting",
    b"vllm:num_requests_running": "running",
    b"vllm:prompt_tokens_total": "prompt_tokens",
    b"vllm:generation_tokens_total": "generation_tokens",
    b"vllm:inter_token_latency_seconds_sum": "itl_sum",
    b"vllm:inter_token_latency_seconds_count": "itl_count",
    b"vllm:time_to_first_token_seconds_sum": "ttft_sum",
    b"vllm:time_to_first_token_seconds_count": "ttft_count",
    b"vllm:request_prompt_tokens_sum": "request_prompt_sum",
    b"vllm:request_prompt_tokens_count": "request_prompt_count",
    b"vllm:request_generation_tokens_sum": "request_generation_sum",
    b"vllm:request_generation_tokens_count": "request_generation_count",
    b"vllm:kv_cache_usage_perc": "kv_usage",
}
_CACHE_INFO: Final = b"vllm:cache_config_info"
# Name, labels (they may contain braces: up to the last one), value. A name that only starts alike, such as
# num_requests_waiting_by_reason or prompt_tokens_created, does not match, nor does a last line that was cut off.
_LINES: Final = re.compile(
    # the common start first, literally: the expression then skips other lines three times faster
    rb"\n(vllm:(?:" + b"|".join(re.escape(name[5:]) for name in [*_FIELDS, _CACHE_INFO]) + rb"))"
    rb"(?:[ \t]+|\{(.*)\}[ \t]*)([^\s}]+)(?=[ \t\r\n])"
)
_BLOCKS = re.compile(rb'(?:^|,)\s*num_gpu_blocks="(\d{1,15})"')
_BLOCK_SIZE = re.compile(rb'(?:^|,)\s*block_size="(\d{1,15})"')


class StockSample(msgspec.Struct, frozen=True):
    """One reading of stock metrics. None is "unknown", never zero; tokens, requests and seconds."""

    waiting: float | None = None
    running: float | None = None
    prompt_tokens: float | None = None
    generation_tokens: float | None = None
    itl_sum: float | None = None
    itl_count: float | None = None
    ttft_sum: float | None = None
    ttft_count: float | None = None
    request_prompt_sum: float | None = None
    request_prompt_count: float | None = None
    request_generation_sum: float | None = None
    request_generation_count: float | None = None
    kv_usage: float | None = None
    total_tokens: float | None = None
    missing: tuple[str, ...] = ()
    max_model_len: int | None = None


def parse_stock_metrics(text: bytes, *, max_model_len: int | None = None) -> StockSample:
    """Read the families that matter from a Prometheus text exposition.

    A family that is absent, renamed, negative or not finite is None and its metric stands in `missing`. It never
    raises: a text without any of them is a sample with everything missing.
    """
    samples: dict[bytes, list[float]] = {name: [] for name in _FIELDS}
    total_tokens: float | None = None
    # The line feed in front: so that every line, the first too, starts with one.
    for name, labels, value in _LINES.findall(b"\n" + text):
        if name == _CACHE_INFO:
            total_tokens = total_tokens or _cache_tokens(labels)
        else:
            samples[name].append(_number(value))
    missing: list[str] = []
    figures: dict[str, float | None] = {"total_tokens": total_tokens}
    for name, field in _FIELDS.items():
        values = samples[name]
        if values and all(0.0 <= value < math.inf for value in values):
            total = sum(values)
            figures[field] = total / len(values) if field == "kv_usage" else total
        else:
            figures[field] = None
            missing.append(name.decode())
    if total_tokens is None:
        missing.append(_CACHE_INFO.decode())
    return StockSample(missing=tuple(missing), max_model_len=max_model_len, **figures)


def _number(text: bytes) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _cache_tokens(labels: bytes) -> float | None:
    """num_gpu_blocks × block_size of one sample: the number of blocks already counts every rank (vLLM 0.32)."""
    blocks, size = _BLOCKS.search(labels), _BLOCK_SIZE.search(labels)
    if not blocks or not size:
        return None
    return float(int(blocks[1]) * int(size[1])) or None
