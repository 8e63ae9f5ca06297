"""Reports, samples and pools for these tests, with figures that are easy to reckon with."""

import random
from typing import Any

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.load_report import LoadReport
from halffull_extproc.policies import Policy
from halffull_extproc.pool import Pool, PoolConfig, Source
from halffull_extproc.pool_status import EndpointStatus
from halffull_extproc.stock_metrics import StockSample


def make_report(**changes: Any) -> LoadReport:
    figures: dict[str, Any] = {
        "version": 1,
        "boot_id": "boot-1",
        "rank": 0,
        "scheduler": "LARRY",
        "age": 0.0,
        "queued_tokens": 0,
        "free_tokens": 100_000,
        "total_tokens": 100_000,
        "running": 0,
        "waiting": 0,
        "max_tokens_per_batch": 1_000,
        "max_model_len": 10_000,
        "steps": 0,
        "busy_seconds": 0.0,
        "computed_tokens": 0,
        "first_tokens": 0,
        "ttft_seconds": 0.0,
        "prompt_tokens": 0,
        "generation_tokens": 0,
        "requests": 0,
    }
    return LoadReport(**(figures | changes))


def make_sample(**changes: Any) -> StockSample:
    figures: dict[str, Any] = {
        "waiting": 0.0,
        "running": 0.0,
        "prompt_tokens": 0.0,
        "generation_tokens": 0.0,
        "itl_sum": 0.0,
        "itl_count": 0.0,
        "ttft_sum": 0.0,
        "ttft_count": 0.0,
        "request_prompt_sum": 0.0,
        "request_prompt_count": 0.0,
        "request_generation_sum": 0.0,
        "request_generation_count": 0.0,
        "kv_usage": 0.0,
        "total_tokens": 100_000.0,
        "max_model_len": 10_000,
    }
    return StockSample(**(figures | changes))


def address(number: int) -> str:
    return f"10.0.0.{number + 1}:8000"


def make_pool(count: int = 0, *, seed: int = 1, **config: Any) -> Pool:
    """A pool of `count` endpoints, discovered at 0 s, without an answer yet."""
    given: dict[str, Any] = {"policy": Policy.SAL, "source": Source.REPORT}
    pool = Pool(PoolConfig(**(given | config)), rng=random.Random(seed))
    pool.update_endpoints([Endpoint(address(number)) for number in range(count)], now=0.0)
    return pool


def endpoint(pool: Pool, number: int, *, now: float) -> EndpointStatus:
    (found,) = (each for each in pool.status(now=now).endpoints if each.address == address(number))
    return found
