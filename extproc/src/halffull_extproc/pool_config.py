"""What the pool is told by its configuration."""

import enum
from dataclasses import dataclass

from halffull_extproc.policies import Policy


class Source(enum.Enum):
    """Where the load of engines comes from; one for the whole pool."""

    REPORT = "report"
    """Load reports of the plugin."""
    METRICS = "metrics"
    """/metrics of stock vLLM."""


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Figures in seconds and tokens."""

    policy: Policy
    source: Source
    beta: float | None = None
    """β of SAL; None: from the engines' counters."""
    kv_weight: float = 0.03
    knee: float = 3.0
    learn_speed: bool = True
    """Whether SALPlus uses κ."""
    poll_interval: float = 0.1
    stale_after: float = 1.0
    pickers: int = 1
    """G, how many pickers send to these engines (source METRICS)."""
    max_tokens_per_batch: int = 8192
    """Token budget of a step (source METRICS; a report carries its own)."""
