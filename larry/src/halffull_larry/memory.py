"""The KV cache as the stop rule and the load report see it: vLLM's own block arithmetic, on every release alike."""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request

__all__ = ["Memory", "Prefills"]

Blocks = tuple[Sequence[Any], ...]
"""Blocks per group of the KV cache."""


class Memory:
    """What fits, in blocks, and what is free, in tokens."""

    def __init__(self, manager: KVCacheManager, *, max_model_len: int, lookahead: int) -> None:
        """The memory behind `manager`; `lookahead`: tokens of a speculative decoder that want slots too."""
        self._manager = manager
        self._max_model_len = max_model_len
        self._lookahead = lookahead
        self._coordinator = coordinator = manager.coordinator
        self._pool = manager.block_pool
        self._nothing: Blocks = manager.empty_kv_cache_blocks.blocks
        # The groups of a hybrid model share the pool, and each wants blocks of its own for the same token.
        self._block_sizes: list[int] = [group.block_size for group in coordinator.single_type_managers]
        self._blocks: int = self._pool.num_gpu_blocks - 1  # block 0 is the null block
        self._tokens_per_block = min(self._block_sizes) / len(self._block_sizes)
        self.total_tokens = int(self._blocks * self._tokens_per_block)
        """Of the whole cache."""
        self._accepted = set(inspect.signature(coordinator.get_num_blocks_to_allocate).parameters)

    @property
    def free_tokens(self) -> int:
        """Evictable cached blocks are free."""
        return int(self.free_blocks * self._tokens_per_block)

    def cached(self, request: Request) -> tuple[Blocks, int]:
        """The blocks of the prefix cache that the request would take over, and the tokens in them.

        Not by KVCacheManager.get_computed_blocks: on some releases it counts each call as a query of the cache.
        """
        if not self._manager.enable_caching or request.skip_reading_prefix_cache or not request.block_hashes:
            return self._nothing, 0
        # The last token is always computed; newer releases return a third value.
        blocks, tokens, *_ = self._coordinator.find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        return blocks, tokens

    def fits_ever(self, request: Request) -> bool:
        """Whether an empty cache could hold all the tokens that the request has."""
        return self.at_most(request) <= self._blocks or self.needed(request) + self._held(request) <= self._blocks

    def _held(self, request: Request) -> int:
        """Blocks that a waiting request has already (a streaming session between two turns)."""
        groups = (group.req_to_blocks.get(request.request_id, ()) for group in self._coordinator.single_type_managers)
        return sum(not block.is_null for blocks in groups for block in blocks)

    @property
    def free_blocks(self) -> int:
        """Evictable cached blocks are free."""
        return int(self._pool.get_num_free_blocks())

    def fits(self, request: Request, blocks: int) -> bool:
        """Whether `blocks` suffice for all the tokens that the request has."""
        if self.at_most(request) <= blocks:
            return True
        cached, tokens = self.cached(request)
        return self.needed(request, cached, computed=tokens) <= blocks

    def at_most(self, request: Request) -> int:
        """Blocks without any help of the prefix cache or of a sliding window."""
        slots, blocks = self._slots(request), 0
        for size in self._block_sizes:
            blocks -= -slots // size
        return blocks

    def _slots(self, request: Request) -> int:
        return min(int(request.num_tokens) + self._lookahead, self._max_model_len)

    def needed(self, request: Request, cached: Blocks | None = None, *, computed: int = 0) -> int:
        """Blocks that the request's tokens still want, exactly as KVCacheManager.allocate_slots would count them."""
        arguments = {
            "request_id": request.request_id,
            "num_tokens": self._slots(request),
            "new_computed_blocks": self._nothing if cached is None else cached,
            "num_encoder_tokens": 0,
            "total_computed_tokens": computed,
            "num_local_computed_tokens": computed,
            "num_tokens_main_model": min(request.num_tokens, self._max_model_len),
            "apply_admission_cap": True,
            "prefill_end": max(request.num_prompt_tokens, request.num_tokens - 1),
        }
        accepted = {name: value for name, value in arguments.items() if name in self._accepted}
        return int(self._coordinator.get_num_blocks_to_allocate(**accepted))


class Prefills:
    """The admitted requests whose prefill is not over, and the blocks that they still need."""

    def __init__(self, memory: Memory, requests: Iterable[Request]) -> None:
        """Those of a step's beginning."""
        self._memory = memory
        self._requests: list[Request] = []
        self._at_most = 0
        self.add(requests)

    def add(self, requests: Iterable[Request]) -> None:
        """The step admitted more."""
        for request in requests:
            self._requests.append(request)
            self._at_most += self._memory.at_most(request)

    def leave_room_for(self, request: Request) -> bool:
        """Whether all the tokens of one more request fit into what these will leave free."""
        memory = self._memory
        free = memory.free_blocks
        if self._at_most + memory.at_most(request) <= free:  # mostly, and a tenth of the work
            return True
        promised = sum(memory.needed(other, computed=other.num_computed_tokens) for other in self._requests)
        return memory.fits(request, free - promised)
