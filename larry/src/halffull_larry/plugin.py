"""vLLM's entry point (`vllm.general_plugins`): what a scheduler cannot do because clients are answered elsewhere.

In the process that answers clients it checks the settings before the model is loaded, and refuses a prompt that the
KV cache could never hold with a 400. Where another scheduler is chosen, nothing changes.
"""

import functools
from typing import Any

from halffull_larry.config import LarryConfig, outside_tested_range

__all__ = ["register"]

_WRAPPED = "_halffull_larry"


def register() -> None:
    """Called by vLLM in each of its processes, in some more than once."""
    import vllm  # noqa: PLC0415  importing this module loads no vLLM
    from vllm.v1.engine.input_processor import InputProcessor  # noqa: PLC0415

    if outside_tested_range(vllm.__version__) is not None or hasattr(InputProcessor, _WRAPPED):
        return
    setattr(InputProcessor, _WRAPPED, True)
    InputProcessor.__init__ = _checking_settings(InputProcessor.__init__)
    InputProcessor._validate_prompt_len = _checking_capacity(InputProcessor._validate_prompt_len)  # noqa: SLF001


def _checking_settings(init: Any) -> Any:
    @functools.wraps(init)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if _is_ours(vllm_config):
            LarryConfig.of(vllm_config.additional_config)
        init(self, vllm_config, *args, **kwargs)

    return __init__


def _checking_capacity(validate: Any) -> Any:
    @functools.wraps(validate)
    def _validate_prompt_len(self: Any, prompt_len: int, prompt_type: str, *args: Any, **kwargs: Any) -> Any:
        result = validate(self, prompt_len, prompt_type, *args, **kwargs)
        if prompt_type == "decoder" and (capacity := _capacity(self.vllm_config)) and prompt_len > capacity:
            _refused().inc()
            raise ValueError(
                f"The prompt has {prompt_len} tokens, and the KV cache of this engine holds {capacity}: "
                "it could never be served. Send a shorter prompt."
            )
        return result

    return _validate_prompt_len


def _is_ours(vllm_config: Any) -> bool:
    chosen = vllm_config.scheduler_config.scheduler_cls
    if chosen is None:
        return False
    if isinstance(chosen, str):
        return chosen.startswith("halffull_larry.")
    return any(base.__module__.startswith("halffull_larry.") for base in chosen.__mro__)


def _capacity(vllm_config: Any) -> int | None:
    """Tokens that one engine's KV cache holds; None when another scheduler is chosen or this process cannot tell."""
    cache = vllm_config.cache_config
    if not _is_ours(vllm_config) or not cache.num_gpu_blocks:
        return None
    if tokens := getattr(cache, "kv_cache_size_tokens", None):  # newer releases say it, per engine
        return int(tokens)
    parallel = vllm_config.parallel_config
    engines = parallel.data_parallel_size
    if parallel.data_parallel_external_lb:
        engines = 1
    elif parallel.data_parallel_hybrid_lb:
        engines = parallel.data_parallel_size_local
    # The blocks of all engines that this process feeds, each with a null block.
    return int((cache.num_gpu_blocks // max(1, engines) - 1) * cache.block_size)


@functools.cache
def _refused() -> Any:
    """In the API server's own registry: vLLM's /metrics shows it."""
    from prometheus_client import Counter  # noqa: PLC0415  vLLM's dependency

    return Counter("halffull_larry_refused_prompts", "Prompts refused because the KV cache could never hold them.")
