"""Waiting for a condition with a deadline, instead of sleeping and hoping."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], *, within: float = 20.0, what: str = "") -> None:
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, f"not within {within} s: {what or condition}"
        await asyncio.sleep(0.002)
