"""`gateway(...)`: Envoy, picker and engines, started together and stopped after the test, whatever happens."""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.policies import Policy
from halffull_extproc.xds.gateway_config import GatewayConfig
from tests.extproc.envoy.stack import Engine, Gateway, Picker, start_envoy

StartGateway = Callable[..., Awaitable[Gateway]]


@pytest.fixture
def socket_folder() -> AsyncIterator[Path]:
    """A folder with a short name: the path of a unix socket has 107 bytes at most, and pytest's are longer."""
    with tempfile.TemporaryDirectory(prefix="hf") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def patient_envoy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy waits 10 s for a pick, not 100 ms.

    Client, picker and engines are one process here: on a busy machine it would keep Envoy waiting, and requests would
    pass unpicked. What the 100 ms are for is shown with pickers in processes of their own, which have them.
    """
    monkeypatch.setattr("halffull_extproc.xds.listener.MESSAGE_TIMEOUT", "10s")


@pytest.fixture
async def gateway(tmp_path: Path, socket_folder: Path) -> AsyncIterator[StartGateway]:
    """`await gateway(engines=2, policy=Policy.SAL, …)` starts one; keywords besides go into GatewayConfig."""
    async with AsyncExitStack() as stack:

        async def start(
            *,
            engines: int = 2,
            host: str = "127.0.0.1",
            policy: Policy = Policy.SAL,
            fail_open: bool = True,
            **config: Any,
        ) -> Gateway:
            running = [await Engine().start(host) for _ in range(engines)]
            for engine in running:
                stack.push_async_callback(engine.stop)
            settings = GatewayConfig(**{"listen": "127.0.0.1:0", **config})
            picker = Picker(f"unix:{socket_folder}/p", settings, policy=policy, fail_open=fail_open)
            picker.set_endpoints([Endpoint(engine.address) for engine in running])
            await picker.start()
            stack.push_async_callback(picker.stop)
            envoy, ready_port = await start_envoy(tmp_path, picker)
            stack.push_async_callback(envoy.stop)
            session = await stack.enter_async_context(
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(100))
            )
            port = await envoy.listening()
            return Gateway(envoy, picker, running, port, session, ready_port)

        yield start
