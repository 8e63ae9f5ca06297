"""`halffull-extproc run` as a process, with the real Envoy and engines that answer over HTTP."""

import asyncio
import contextlib
import io
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from aiohttp import web
from grpc_health.v1 import health_pb2, health_pb2_grpc

from halffull_extproc.app import DRAIN
from halffull_extproc.cli import main
from tests.extproc.envoy.stack import Envoy, eventually
from tests.ports import free_ports

from .reports import REPORT


@dataclass
class Upstream:
    """An engine: completions that last as long as the test wants, and a load report."""

    port: int
    load_port: int
    served: int = 0
    open: int = 0
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.served += 1
        if not body.get("stream"):
            return web.json_response({"port": self.port})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: first\n\n")
        self.open += 1
        await self.release.wait()
        self.open -= 1
        await response.write(b"data: [DONE]\n\n")
        return response

    async def load(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                **REPORT,
                "boot_id": str(self.port),
                "queued_tokens": 0,
                "running": 0,
                "waiting": 0,
                "requests": self.served,
            }
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Upstream"]:
        async with contextlib.AsyncExitStack() as stack:
            for port, route in (
                (self.port, web.post("/v1/completions", self.complete)),
                (self.load_port, web.get("/load", self.load)),
            ):
                app = web.Application()
                app.add_routes([route])
                runner = web.AppRunner(app, shutdown_timeout=0.1)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", port).start()
            try:
                yield self
            finally:
                self.release.set()


@dataclass
class Stack:
    folder: Path
    engines: list[Upstream]
    session: aiohttp.ClientSession
    first_port: int = field(default_factory=lambda: free_ports(5))
    picker: Any = None
    envoy: Any = None

    def __post_init__(self) -> None:
        self.gateway, self.metrics, self.health, self.admin, self.ready = range(self.first_port, self.first_port + 5)

    def configure(self, policy: str = "SAL") -> None:
        (self.folder / "picker.yaml").write_text(
            f"version: 1\npolicy: {policy}\nendpoints: {{file: endpoints.yaml}}\n"
            f"gateway: {{listen: '127.0.0.1:{self.gateway}'}}\n"
            f"listen:\n  grpc: unix:{self.folder}/picker.sock\n"
            f"  health: 127.0.0.1:{self.health}\n  metrics: 127.0.0.1:{self.metrics}\n"
        )

    def endpoints(self, *engines: Upstream) -> None:
        lines = [f"- {{address: '127.0.0.1:{engine.port}', loadPort: {engine.load_port}}}\n" for engine in engines]
        new = self.folder / "new.yaml"
        new.write_text("endpoints:\n" + "".join(lines))
        new.replace(self.folder / "endpoints.yaml")

    async def start_picker(self) -> None:
        with (self.folder / "picker.log").open("ab") as log:
            self.picker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "halffull_extproc", "run", "--config", "picker.yaml", "--log", "json"),
                cwd=self.folder, stderr=log, start_new_session=True,
            )  # fmt: skip

    def bootstrap(self) -> str:
        out = io.StringIO()
        ports = ["--admin-port", str(self.admin), "--ready-port", str(self.ready)]
        with contextlib.redirect_stdout(out):
            assert main(["bootstrap", "--config", str(self.folder / "picker.yaml"), *ports]) == 0
        return out.getvalue()

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "picker.log").read_text().splitlines()]

    async def complete(self, **body: Any) -> int:
        """One request through Envoy; the port of the engine that answered."""
        async with self.session.post(f"http://127.0.0.1:{self.gateway}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return int((await answer.json())["port"])

    async def status(self) -> Any:
        with contextlib.suppress(aiohttp.ClientError):
            async with self.session.get(f"http://127.0.0.1:{self.metrics}/status.json") as answer:
                return json.loads(await answer.read())

    async def state(self, number: int) -> bool:
        """Whether the picker has this many endpoints, all of which have answered a poll."""
        status = await self.status()
        return bool(status) and [e["state"] for e in status["pool"]["endpoints"]] == ["ok"] * number

    async def serving(self, service: str) -> bool:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.health}") as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service))
            except grpc.aio.AioRpcError:
                return False
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """Two engines, the picker and Envoy, all running."""
    async with contextlib.AsyncExitStack() as running:
        session = await running.enter_async_context(aiohttp.ClientSession())
        first = free_ports(9)
        upstreams = [Upstream(port, port + 1) for port in (first + 5, first + 7)]
        engines = [await running.enter_async_context(upstream.running()) for upstream in upstreams]
        made = Stack(folder=tmp_path, engines=engines, session=session, first_port=first)
        made.configure()
        made.endpoints(*engines)
        await made.start_picker()
        made.envoy = await Envoy.start(made.bootstrap(), folder=tmp_path, admin_port=made.admin)
        try:
            await made.envoy.listening(within=90)
            await eventually(lambda: made.state(2), within=90, what="two engines that answer polls")
            yield made
        finally:
            for engine in engines:
                engine.release.set()
            await made.envoy.stop()
            if made.picker.returncode is None:
                made.picker.kill()
            await made.picker.wait()


async def test_requests_are_picked_and_every_page_tells_of_them(stack: Stack) -> None:
    served = Counter([await stack.complete(prompt="x" * 100) for _ in range(30)])
    assert set(served) == {engine.port for engine in stack.engines}
    late = await stack.envoy.stat("http.ingress.ext_proc.message_timeouts")  # unpicked: the machine was busy for 100 ms
    assert late < 30
    status = await stack.status()
    assert 30 - late <= status["pool"]["picks"] <= 30
    assert (status["envoys"], status["troubles"]) == (1, [])
    if not late:
        assert {e["address"]: e["picks"] for e in status["pool"]["endpoints"]} == {
            f"127.0.0.1:{port}": count for port, count in served.items()
        }

    async def metrics() -> str:
        async with stack.session.get(f"http://127.0.0.1:{stack.metrics}/metrics") as answer:
            return await answer.text()

    async def counted() -> bool:
        text = await metrics()
        return 'requests_total{flag="none",status="2xx"} 30.0' in text and f"picks_obeyed_total {30 - late}.0" in text

    await eventually(counted, within=90, what="30 requests in the access log's metrics")
    text = await metrics()
    assert "halffull_picker_picks_not_obeyed_total 0.0" in text
    assert "_created" not in text
    for service in ("liveness", "readiness", ""):
        assert await stack.serving(service)
    async with stack.session.get(f"http://127.0.0.1:{stack.ready}/ready") as answer:
        assert answer.status == 200


async def test_edits_of_both_files_apply_while_it_runs_and_bad_ones_do_not(stack: Stack) -> None:
    first, second = stack.engines
    stack.endpoints(first)
    await eventually(lambda: stack.state(1), within=90, what="one engine")
    assert {await stack.complete() for _ in range(10)} == {first.port}

    (stack.folder / "endpoints.yaml").write_text("endpoints:\n- address: localhost:1\n")

    async def told() -> bool:
        return any(
            "endpoints.yaml:2: endpoints[0].address" in one["text"] for one in (await stack.status())["troubles"]
        )

    await eventually(told, within=90, what="the bad list on the status page")
    assert await stack.complete() == first.port
    stack.endpoints(first, second)
    await eventually(lambda: stack.state(2), within=90, what="two engines again")

    async def routes() -> int:
        return int(await stack.envoy.stat("http.ingress.rds.ingress.config_reload"))

    before = await routes()
    stack.configure("RoundRobin")

    async def policy() -> str:
        return str((await stack.status())["policy"])

    async def is_round_robin() -> bool:
        return await policy() == "RoundRobin" and await routes() > before  # Envoy gets the route a moment later

    await eventually(is_round_robin, within=90, what="the other policy")
    picks = (await stack.status())["pool"]["picks"]
    await stack.complete()
    stack.configure("Best")

    async def refused() -> bool:
        return any("picker.yaml:2: policy: 'Best'" in one["text"] for one in (await stack.status())["troubles"])

    await eventually(refused, within=90, what="the refused policy on the status page")
    assert await policy() == "RoundRobin"
    assert (await stack.status())["pool"]["picks"] == picks, "Envoy balances by itself under RoundRobin"
    assert {await stack.complete() for _ in range(10)} == {first.port, second.port}
    assert any(line["level"] == "error" and "picker.yaml:2" in line.get("reason", "") for line in stack.log())


async def test_sigterm_ends_it_within_the_bound_and_no_stream_is_cut(stack: Stack) -> None:
    url = f"http://127.0.0.1:{stack.gateway}/v1/completions"
    async with stack.session.post(url, json={"stream": True}) as answer:
        assert await answer.content.readline() == b"data: first\n"
        began = time.monotonic()
        stack.picker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(stack.picker.wait(), 90) == 0
        assert time.monotonic() - began < DRAIN + 10
        assert {await stack.complete() for _ in range(10)} <= {engine.port for engine in stack.engines}
        for engine in stack.engines:
            engine.release.set()
        assert (await answer.content.read()).endswith(b"data: [DONE]\n\n")
    assert stack.log()[-1]["event"] == "stopped"


async def test_killed_and_restarted_it_serves_again_and_no_request_fails(stack: Stack) -> None:
    stack.picker.kill()
    await stack.picker.wait()
    for _ in range(10):
        await stack.complete()
    await stack.start_picker()

    async def picked() -> bool:
        await stack.complete()
        status = await stack.status()
        return bool(status) and status["envoys"] == 1 and status["pool"]["picks"] > 0

    await eventually(picked, within=90, what="picks by the new process")


async def test_it_waits_for_its_first_endpoints_before_it_serves(tmp_path: Path) -> None:
    """Without a list, requests are better off unpicked. A bad first list is refused at once."""
    async with aiohttp.ClientSession() as session:
        made = Stack(folder=tmp_path, engines=[], session=session)
        made.configure()
        await made.start_picker()
        assert await asyncio.wait_for(made.picker.wait(), 90) == 2
    assert (tmp_path / "picker.log").read_text() == (
        "halffull-extproc: picker.yaml:3: endpoints.file: endpoints.yaml: No such file or directory\n"
    )
