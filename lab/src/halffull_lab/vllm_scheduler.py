"""vLLM's scheduler, or the plugin's, outside any engine: no model behind it, and a KV cache that no worker backs.

Made for vLLM 0.32; import this module only where that is installed.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

import halffull_larry
from halffull_lab.engine_requests import EngineLimits
from halffull_lab.vllm_policies import LAB_POLICIES

STOCK: Final = "Stock"
"""The policy's name for vLLM's own scheduler, without the plugin."""

_MODEL: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}
"""config.json of a model that is never loaded: vLLM's configuration wants one."""


def make_scheduler(
    limits: EngineLimits, *, policy: str, alpha: float, asynchronous: bool, adaptive_threshold: bool
) -> Any:
    """A new scheduler; for the arguments see `halffull_lab.vllm_engine.VLLMEngine`."""
    plugin = policy != STOCK
    order = "FCFS" if policy in LAB_POLICIES else policy
    config = VllmConfig(
        model_config=_model_config(limits.max_model_len),
        scheduler_config=SchedulerConfig(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_tokens_per_batch,
            max_model_len=limits.max_model_len,
            enable_chunked_prefill=True,
            async_scheduling=asynchronous,
            is_encoder_decoder=False,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            long_prefill_token_threshold_adaptive=adaptive_threshold,
        ),
        cache_config=CacheConfig(block_size=limits.block_size, enable_prefix_caching=False),
        additional_config={"larry": {"policy": order, "alpha": alpha, "load_port": None}} if plugin else {},
    )
    # VllmConfig turns it off where it finds no executor that could do it; there is none here at all.
    config.scheduler_config.async_scheduling = asynchronous
    blocks = limits.total_blocks + 1  # vLLM keeps block 0 for itself
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=limits.block_size, num_kv_heads=1, head_size=1, dtype=config.model_config.dtype)
    return _scheduler_class(policy, asynchronous=asynchronous)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        block_size=limits.block_size,
        log_stats=False,
        structured_output_manager=StructuredOutputManager(config),
    )


def _scheduler_class(policy: str, *, asynchronous: bool) -> Any:
    if policy == STOCK:
        return AsyncScheduler if asynchronous else Scheduler
    if policy in LAB_POLICIES:
        return LAB_POLICIES[policy][asynchronous]
    return halffull_larry.Scheduler if asynchronous else halffull_larry.SyncScheduler


@lru_cache
def _model_config(max_model_len: int) -> ModelConfig:
    with _model_folder() as folder:
        return ModelConfig(
            model=folder,
            tokenizer=folder,
            dtype="float32",
            max_model_len=max_model_len,
            hf_overrides={"max_position_embeddings": max_model_len},
            skip_tokenizer_init=True,
        )


@contextlib.contextmanager
def _model_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="halffull-") as folder:
        Path(folder, "config.json").write_text(json.dumps(_MODEL), encoding="utf-8")
        yield folder
