"""The documented script that runs the `openai` SDK through the gateway."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from halffull_lab.stack import EngineOptions, Stack

SCRIPT = Path(__file__).parents[3] / "hack" / "stock_clients.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stock_clients", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_openai_sdk_works_through_the_gateway() -> None:
    script = load()
    async with Stack(engines=1, options=EngineOptions(speed=20, stream_interval=4)) as stack:
        counts = await script.check(stack.gateway, stack.options.model)
        with pytest.raises(SystemExit, match="lists emulated, not other"):
            await script.check(stack.gateway, "other")
    assert counts == dict.fromkeys(script.CALLS, script.TOKENS)
    assert len(counts) == 4
