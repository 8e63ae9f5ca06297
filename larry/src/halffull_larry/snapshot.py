"""What an engine's load is at one moment: the part of the load report that changes. Pure."""

from typing import NamedTuple


class Snapshot(NamedTuple):
    """An engine's load at one moment. A tuple, because it is built twice per step: about 1 µs.

    Cumulative fields never fall within one `boot_id`.
    """

    taken: float = 0.0
    """s, of the clock that `report.render` is given later."""
    queued_tokens: int = 0
    """Prompt tokens not yet computed, of waiting and admitted requests; prefix-cached ones not counted."""
    free_tokens: int = 0
    """KV cache; evictable cached blocks are free."""
    total_tokens: int = 0
    """KV cache."""
    running: int = 0
    """Requests."""
    waiting: int = 0
    """Requests in every queue that the scheduler keeps."""
    steps: int = 0
    """Cumulative: non-empty steps."""
    busy_seconds: float = 0.0
    """Cumulative: time in them."""
    computed_tokens: int = 0
    """Cumulative: tokens computed, prefill and decode."""
    first_tokens: int = 0
    """Cumulative: requests that produced a first token."""
    ttft_seconds: float = 0.0
    """Cumulative: sum of their times from arrival to it."""
    prompt_tokens: int = 0
    """Cumulative, of finished requests: each prompt once, whatever n."""
    generation_tokens: int = 0
    """Cumulative, of finished requests: all children of n > 1."""
    requests: int = 0
    """Cumulative: finished requests, each once, whatever n."""
