"""Waiting for a condition instead of sleeping."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable


async def until(condition: Callable[[], bool | Awaitable[bool]], *, within: float = 20.0) -> None:
    """Poll it until it holds; TimeoutError after `within` seconds."""
    async with asyncio.timeout(within):
        while True:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            await asyncio.sleep(0.01)
