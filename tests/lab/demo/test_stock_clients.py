"""The documented script that runs the `openai` SDK through the gateway."""

import pytest

from halffull_lab.stack import EngineOptions, Stack
from tests import scripts


async def test_the_openai_sdk_works_through_the_gateway() -> None:
    script = scripts.load("stock_clients.py")
    async with Stack(engines=1, options=EngineOptions(speed=20, stream_interval=4)) as stack:
        counts = await script.check(stack.gateway, stack.options.model)
        with pytest.raises(SystemExit, match="lists emulated, not other"):
            await script.check(stack.gateway, "other")
    assert counts == dict.fromkeys(script.CALLS, script.TOKENS)
    assert len(counts) == 4
