"""Ends a picker that does not pick any more.

Without its picker Envoy goes on by P2C at once; with one that is stuck each request first waits for Envoy's patience.
So a picker that is stuck says where, and ends; whoever started it starts it again.
"""

import asyncio
import faulthandler
from collections.abc import Callable
from typing import Final

import structlog

STUCK: Final = 30.0
"""s without a turn of the event loop in which it works."""

_log = structlog.get_logger(__name__)


async def watch(works: Callable[[], bool], *, stuck: float = STUCK) -> None:
    """Run beside the rest; cancelling ends the watch.

    After `stuck` seconds in which the loop stood still, or `works` was false or raised, the stacks of all threads go to
    standard error and the process ends with code 1: by a thread of the interpreter's own, which waits for no lock.
    """
    try:
        while True:
            try:
                if works():
                    faulthandler.dump_traceback_later(stuck, exit=True)
            except Exception:  # noqa: BLE001 - logged, and an answer in itself
                _log.exception("the picker cannot pick", ends_within=stuck)
            await asyncio.sleep(stuck / 4)
    finally:
        faulthandler.cancel_dump_traceback_later()
