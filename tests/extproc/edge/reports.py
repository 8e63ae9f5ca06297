"""Load reports and stock metrics as engines send them."""

import json
from typing import Any

REPORT: dict[str, Any] = {
    "version": 1,
    "boot_id": "b-1",
    "rank": 0,
    "scheduler": "LARRY",
    "age": 0.01,
    "queued_tokens": 100,
    "free_tokens": 5000,
    "total_tokens": 8000,
    "running": 3,
    "waiting": 2,
    "max_tokens_per_batch": 1024,
    "max_model_len": 4096,
    "steps": 1000,
    "busy_seconds": 30.5,
    "computed_tokens": 99999,
    "first_tokens": 70,
    "ttft_seconds": 12.5,
    "prompt_tokens": 7000,
    "generation_tokens": 900,
    "requests": 65,
}


def report(**changed: Any) -> bytes:
    return json.dumps({**REPORT, **changed}).encode()


def metrics_text(*, engines: int = 1, extra: str = "", without: str = "") -> bytes:
    figures = {
        "vllm:num_requests_waiting": 4,
        "vllm:num_requests_running": 6,
        "vllm:prompt_tokens_total": 1000,
        "vllm:generation_tokens_total": 300,
        "vllm:inter_token_latency_seconds_sum": 9.5,
        "vllm:inter_token_latency_seconds_count": 290,
        "vllm:time_to_first_token_seconds_sum": 3.5,
        "vllm:time_to_first_token_seconds_count": 20,
        "vllm:request_prompt_tokens_sum": 950,
        "vllm:request_prompt_tokens_count": 19,
        "vllm:request_generation_tokens_sum": 280,
        "vllm:request_generation_tokens_count": 19,
        "vllm:kv_cache_usage_perc": 0.25,
    }
    lines = ["# HELP python_info x", 'python_info{version="3.12"} 1.0']
    for name, value in figures.items():
        if name == without:
            continue
        lines += [f"# HELP {name} what it is", f"# TYPE {name} gauge"]
        lines += [f'{name}{{engine="{engine}",model_name="m"}} {float(value)}' for engine in range(engines)]
    if without != "vllm:cache_config_info":
        lines += [
            f'vllm:cache_config_info{{block_size="16",engine="{engine}",num_gpu_blocks="500",'
            'num_gpu_blocks_override="None"} 1.0'
            for engine in range(engines)
        ]
    return ("\n".join(lines) + "\n" + extra).encode()
