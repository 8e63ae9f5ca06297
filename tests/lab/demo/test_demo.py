"""`halffull demo` as a person runs it, made short."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web

from halffull_lab.child import Child
from halffull_lab.stack import EngineOptions, Stack
from tests.lab.waiting import until


def demo(tmp_path: Path, *options: str) -> Child:
    argv = [sys.executable, "-m", "halffull_lab", "demo", "--out", str(tmp_path / "out"), *options]
    return Child(argv, log=tmp_path / "demo.log").start()


async def finished(child: Child, *, within: float = 100) -> int | None:
    await until(lambda: child.returncode is not None, within=within)
    return child.returncode


def results(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "out" / "results.json").read_text())


async def test_the_demo_from_end_to_end(tmp_path: Path) -> None:
    child = demo(tmp_path, "--quick", "--seconds", "1", "--speed", "8")
    try:
        assert await finished(child) == 0, child.output()
    finally:
        child.kill()
    found = results(tmp_path)
    assert [(run["policy"], run["engine"]) for run in found["runs"]] == [
        ("SAL", "FCFS"),
        ("LeastRequest", "FCFS"),
        ("SAL", "LARRY"),
        ("LeastRequest", "LARRY"),
    ]
    assert {run["requests"] for run in found["runs"]} == {201}  # 0.8 × 7.84, the saturation, × 4 engines × 8 s
    assert {run["errors"] for run in found["runs"]} == {0}
    assert found["picker_killed"]["run"]["errors"] == 0
    assert found["picker_killed"]["sent_meanwhile"] > 0
    assert "emulated GPUs" in found["title"]
    text = child.output()
    assert "emulated GPUs" in text
    assert "run 4 of 4: LeastRequest, LARRY engines" in text
    assert (tmp_path / "out" / "report.html").stat().st_size > 50_000


async def test_requests_that_the_engines_refuse_are_left_out_before_the_first_run(tmp_path: Path) -> None:
    trace = tmp_path / "mine.csv"
    rows = [f"{at / 10},{20_000 if at % 10 == 9 else 100},5" for at in range(100)]
    trace.write_text("\n".join(["arrival,prompt_tokens,output_tokens", *rows]))
    child = demo(tmp_path, "--quick", "--trace", str(trace), "--rate", "20", "--seconds", "0.5", "--speed", "8")
    try:
        assert await finished(child) == 0, child.output()
    finally:
        child.kill()
    found = results(tmp_path)
    assert {(run["requests"], run["errors"]) for run in found["runs"]} == {(80, 0)}
    note = "10 of 100 requests left out: longer than the engine takes"
    assert note in found["notes"]
    assert note in child.output()
    assert "about 1 minute\n" in child.output()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
async def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals, code: int) -> None:
    child = demo(tmp_path, "--quick")
    try:
        await child.ready(line="run 1 of 4", within=60)
        assert child.pid is not None
        family = psutil.Process(child.pid).children(recursive=True)
        assert len(family) == 6  # four engines, picker, Envoy
        os.kill(child.pid, number)
        assert await finished(child, within=20) == code
        await until(lambda: not any(process.is_running() for process in family))
        assert child.output().splitlines()[-1] == "halffull: interrupted"
    finally:
        child.kill()


@pytest.fixture
async def failing_server() -> AsyncIterator[str]:
    async def completions(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=500, text="out of order")

    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "tiny", "max_model_len": 4096}]})

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def test_errors_of_ones_own_servers_are_counted_and_decide_the_exit_code(
    tmp_path: Path, failing_server: str
) -> None:
    child = demo(tmp_path, "--quick", "--engines", failing_server, "--rate", "40", "--seconds", "1")
    try:
        assert await finished(child) == 1, child.output()
    finally:
        child.kill()
    found = results(tmp_path)
    assert [run["policy"] for run in found["runs"]] == ["SAL", "LeastRequest"]
    assert all(run["errors"] == run["requests"] == 40 for run in found["runs"])
    assert found["runs"][0]["ttft"] == {"p50": None, "p95": None, "p99": None, "max": None}
    assert found["emulated"] is False
    last = child.output().splitlines()[-1]
    assert last.startswith("halffull demo: 40 of 40 requests failed in the run SAL; 40 of 40 ")
    assert "; the first: request 0: status: 500 out of order" in last
    assert "emulated GPUs" not in found["title"]


async def test_the_balancers_before_ones_own_servers(tmp_path: Path) -> None:
    # Emulated engines that somebody else started, seen through stock vLLM's metrics.
    async with Stack(engines=2, options=EngineOptions(speed=50, model="theirs")) as stack:
        urls = ",".join(engine.url for engine in stack.engines)
        child = demo(tmp_path, "--quick", "--engines", urls, "--rate", "60", "--seconds", "1")
        try:
            assert await finished(child) == 0, child.output()
        finally:
            child.kill()
    found = results(tmp_path)
    assert {run["errors"] for run in [*found["runs"], found["picker_killed"]["run"]]} == {0}
    assert found["setting"]["servers"] == urls.replace(",", ", ")
