"""LARRY inside stock vLLM: `--scheduler-cls halffull_larry.Scheduler`, or `halffull_larry.SyncScheduler`.

Importing this package loads no vLLM: the two classes are made when they are asked for. Its pure half, `ordering` and
`report`, serves the emulated engine too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from halffull_larry.scheduler import Scheduler, SyncScheduler

__all__ = ["Scheduler", "SyncScheduler"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from halffull_larry import scheduler  # noqa: PLC0415  it imports vLLM

    return getattr(scheduler, name)
