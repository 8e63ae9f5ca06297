"""The examples as running things: real Envoy, the real picker, two engines that answer with their name."""

import asyncio
import contextlib
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from yarl import URL

from tests.ports import free_ports

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
BIN = Path(sys.executable).parent
PICKER = BIN / "halffull-extproc"
ENVOY = BIN / "envoy"
DESTINATION = "x-gateway-destination-endpoint"
DEADLINE = 60.0  # s, of every wait


@dataclass
class Ports:
    """Free ports in the place of the examples' own; nothing else of an example changes."""

    ingress: int = 8000
    engine_a: int = 8001
    engine_b: int = 8002
    picker: int = 9002
    health: int = 9003
    metrics: int = 9090
    report_a: int = 9401
    report_b: int = 9402
    admin: int = 9901
    free: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for name in vars(self) if name != "free"]
        for free, name in enumerate(names, free_ports(len(names))):
            self.free[getattr(self, name)] = free
            setattr(self, name, free)

    def put_into(self, text: str) -> str:
        return re.sub(r"\b\d{4}\b", lambda match: str(self.free.get(int(match[0]), match[0])), text)


@dataclass
class Engine:
    """Answers every request with its name, and says in its load report how much is queued."""

    name: str
    queued_tokens: int = 0
    failing: bool = False
    hold: asyncio.Event | None = None
    """Set: the next answer begins at once and ends with the event."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        if self.failing:
            return web.json_response({"error": "broken"}, status=500)
        hold, self.hold = self.hold, None
        if hold is None:
            return web.json_response({"engine": self.name})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await hold.wait()
        await response.write_eof()
        return response

    async def report(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "version": 1,
                "boot_id": self.name,
                "rank": 0,
                "scheduler": "LARRY",
                "age": 0.0,
                "queued_tokens": self.queued_tokens,
                "free_tokens": 400_000,
                "total_tokens": 400_000,
                "running": 0,
                "waiting": 0,
                "max_tokens_per_batch": 8192,
                "max_model_len": 32_768,
                "steps": 100,
                "busy_seconds": 2.0,
                "computed_tokens": 100_000,
                "first_tokens": 100,
                "ttft_seconds": 10.0,
                "prompt_tokens": 80_000,
                "generation_tokens": 20_000,
                "requests": 100,
            }
        )

    @contextlib.asynccontextmanager
    async def serving(self, *, port: int, report_port: int) -> AsyncIterator["Engine"]:
        runners = []
        for handler, at in ((self.answer, port), (self.report, report_port)):
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", handler)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", at).start()
            runners.append(runner)
        try:
            yield self
        finally:
            for runner in runners:
                await runner.cleanup()


@contextlib.asynccontextmanager
async def program(*command: str | Path, log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run it; on failure pytest keeps the folder of `log`."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=asyncio.subprocess.STDOUT)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


class Stack:
    """Client's view of a running example."""

    def __init__(self, *, ports: Ports, client: aiohttp.ClientSession, engines: Mapping[str, Engine]) -> None:
        self.ports = ports
        self.client = client
        self.a, self.b = engines["a"], engines["b"]
        self.picker: asyncio.subprocess.Process | None = None

    def address(self, engine: Engine) -> str:
        return f"127.0.0.1:{self.ports.engine_a if engine is self.a else self.ports.engine_b}"

    async def ask(self, *, path: str = "/v1/completions", headers: Mapping[str, str] | None = None) -> tuple[int, str]:
        """Status, and the name of the engine that answered ('' if none did)."""
        url = URL(f"http://127.0.0.1:{self.ports.ingress}{path}", encoded=True)
        async with self.client.post(url, json={"prompt": "How full?"}, headers=headers) as response:
            body: dict[str, Any] = await response.json() if response.status == 200 else {}
            return response.status, body.get("engine", "")

    async def ask_many(self, times: int, *, headers: Mapping[str, str] | None = None) -> Counter[tuple[int, str]]:
        return Counter([await self.ask(headers=headers) for _ in range(times)])

    async def only(self, engine: Engine, *, headers: Mapping[str, str] | None = None) -> None:
        """Wait until twelve requests in a row go to `engine`: by chance, P2C does that once in 4,096 times.

        Not each of the first dozen need do so: the picker may not have started, and on a busy machine it may miss
        Envoy's 100 ms for a request, which then passes unpicked, as it should.
        """
        async with asyncio.timeout(DEADLINE):
            while await self.ask_many(12, headers=headers) != {(200, engine.name): 12}:
                pass

    async def open_picks(self) -> float:
        """Picks whose stream has not ended, as the picker's status says."""
        async with self.client.get(f"http://127.0.0.1:{self.ports.metrics}/status.json") as response:
            endpoints = (await response.json())["pool"]["endpoints"]
            return float(sum(endpoint["open_picks"] for endpoint in endpoints))

    async def check_that_a_pick_stays_open_until_the_answer_has_ended(self) -> None:
        """Long after the answer's headers and first bytes, and no longer than its end."""
        self.b.queued_tokens = 500_000
        await self.only(self.a)
        async with asyncio.timeout(DEADLINE):
            response, end = await self._picked_answer_that_has_begun()
        async with response:
            # An early end would come before this request on the connection between Envoy and picker.
            self.a.queued_tokens, self.b.queued_tokens = 500_000, 0
            await self.only(self.b)
            seen = [await self.open_picks() for _ in range(20)]
            assert seen[-1] == 1, seen
            end.set()
            await response.read()
        async with asyncio.timeout(DEADLINE):
            while await self.open_picks():
                pass

    async def _picked_answer_that_has_begun(self) -> tuple[aiohttp.ClientResponse, asyncio.Event]:
        """An answer of engine a, and what ends it; a request that passed unpicked (see `only`) is sent again."""
        while True:
            self.a.hold = end = asyncio.Event()
            url = f"http://127.0.0.1:{self.ports.ingress}/v1/completions"
            response = await self.client.post(url, json={"prompt": "How full?"})
            if await response.content.readexactly(5) == b"first" and await self.open_picks():
                return response, end
            end.set()
            response.close()

    @contextlib.asynccontextmanager
    async def started_picker(self, folder: Path) -> AsyncIterator[None]:
        run = (PICKER, "run", "--config", folder / "picker.yaml")
        async with program(*run, log=folder / "picker.log") as self.picker:
            await _answers(self.client, f"http://127.0.0.1:{self.ports.metrics}/status.json", process=self.picker)
            yield

    async def kill_picker(self) -> None:
        assert self.picker is not None
        self.picker.kill()
        await self.picker.wait()


async def _answers(client: aiohttp.ClientSession, url: str, *, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(DEADLINE):
        while True:
            assert process.returncode is None, f"ended with {process.returncode} before {url} answered"
            with contextlib.suppress(aiohttp.ClientError):
                async with client.get(url) as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(
    folder: Path,
    *,
    envoy: str = "envoy.yaml",
    picker: bool = True,
    change: Callable[[str], str] = str,
) -> AsyncIterator[Stack]:
    """Start an example: only its ports are replaced, unless `change` edits Envoy's configuration."""
    ports = Ports()
    for name in ("envoy.yaml", "envoy-p2c.yaml", "picker.yaml", "endpoints.yaml"):
        (folder / name).write_text(ports.put_into((EXAMPLES / name).read_text()))
    (folder / envoy).write_text(change((folder / envoy).read_text()))
    a, b = Engine("a"), Engine("b")
    async with contextlib.AsyncExitStack() as things:
        await things.enter_async_context(a.serving(port=ports.engine_a, report_port=ports.report_a))
        await things.enter_async_context(b.serving(port=ports.engine_b, report_port=ports.report_b))
        # Longer than DEADLINE: an answer may be held for as long as a wait takes.
        client = await things.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=100)))
        stack = Stack(ports=ports, client=client, engines={"a": a, "b": b})
        if picker:
            await things.enter_async_context(stack.started_picker(folder))
        run_envoy = (ENVOY, "-c", folder / envoy, "--concurrency", "1", "--disable-hot-restart", "-l", "warning")
        process = await things.enter_async_context(program(*run_envoy, log=folder / "envoy.log"))
        await _answers(client, f"http://127.0.0.1:{ports.admin}/ready", process=process)
        yield stack
