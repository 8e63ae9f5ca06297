"""The emulated engine as a server: what a client, a picker and a fault see. Real sockets, time dilated."""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from halffull_lab import engine_server
from halffull_lab.engine_app import EngineApp, ServerOptions
from halffull_lab.engine_requests import EngineLimits
from halffull_lab.engine_server import KEEP_ALIVE
from halffull_lab.probe import METRICS, probe
from halffull_lab.sse import EventParser
from halffull_larry.report import LoadServer, listening_socket

LIMITS = EngineLimits(
    max_tokens_per_batch=1_024, max_num_seqs=4, max_model_len=8_192, block_size=16, total_blocks=1_000
)


@dataclass
class Running:
    app: EngineApp
    url: str
    load_url: str
    session: aiohttp.ClientSession

    async def post(self, fields: object, path: str = "/v1/completions") -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=fields) as response:
            return response.status, await response.json(content_type=None)

    async def load(self) -> dict[str, Any]:
        async with self.session.get(f"{self.load_url}/load") as response:
            return dict(await response.json())

    async def fault(self, **fields: object) -> None:
        assert await self.post(fields, "/fault") == (200, {})

    async def eventually(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while not condition(report := await self.load()):  # noqa: ASYNC110  only polling shows it
                await asyncio.sleep(0.005)
            return report


@contextlib.asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[Running]:
    app = EngineApp(ServerOptions(**({"speed": 50.0, "limits": LIMITS, "allow_faults": True} | options)))
    load = LoadServer(app.load_report, app.plugin_metrics, host="127.0.0.1", port=0)
    load.start()
    config = uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None, timeout_keep_alive=1)
    server = uvicorn.Server(config)
    with listening_socket("127.0.0.1", 0) as http:
        port = http.getsockname()[1]
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[http])
        try:
            async with aiohttp.ClientSession() as session:
                yield Running(app, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{load.port}", session)
        finally:
            app.close()
            await server.shutdown(sockets=[http])
            load.stop()
            await asyncio.gather(*app._watchers)


def body(prompt: int, output: int, **more: object) -> dict[str, object]:
    return {"model": "emulated", "prompt": " the" * prompt, "max_tokens": output, "ignore_eos": True, **more}


async def read_stream(response: aiohttp.ClientResponse) -> list[Any]:
    parser, events = EventParser(), []
    async for data in response.content.iter_any():
        events += parser.feed(data)
    return [event.decode() if event == b"[DONE]" else json.loads(event) for event in events]


@pytest.mark.parametrize(("interval", "sizes"), [(1, [1] * 10), (4, [1, 4, 4, 1]), (16, [1, 9])])
async def test_a_stream_gives_its_headers_at_once_and_every_token(interval: int, sizes: list[int]) -> None:
    async with serving(stream_interval=interval) as engine:
        fields = body(4_000, 10, stream=True, stream_options={"include_usage": True})
        await engine.fault(kind="wedge")  # the headers must not wait for a step
        async with asyncio.timeout(30), engine.session.post(f"{engine.url}/v1/completions", json=fields) as response:
            assert engine.app.engine.snapshot.steps == 0
            await engine.fault(kind="none")
            events = await read_stream(response)
        assert events.pop() == "[DONE]"
        usage = events.pop()
        assert usage["choices"] == []
        assert usage["usage"] == {"prompt_tokens": 4_000, "total_tokens": 4_010, "completion_tokens": 10}
        assert [event["choices"][0]["text"].count(" the") for event in events] == sizes
        assert [event["choices"][0]["finish_reason"] for event in events] == [None] * (len(sizes) - 1) + ["length"]


async def test_an_answer_that_is_no_stream_gives_its_headers_at_the_end() -> None:
    async with serving(speed=20.0) as engine:
        async with engine.session.post(f"{engine.url}/v1/completions", json=body(100, 50)) as response:
            assert engine.app.engine.snapshot.requests == 1
            answer = await response.json()
        assert answer["choices"][0]["text"] == " the" * 50
        assert answer["usage"]["completion_tokens"] == 50


async def test_the_openai_sdk_is_content() -> None:
    from openai import AsyncOpenAI  # noqa: PLC0415  it takes seconds, which the collection need not wait for

    async with serving() as engine, AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none") as client:
        models = await client.models.list()
        assert [model.id for model in models.data] == ["emulated"]
        stream = await client.chat.completions.create(
            model="emulated",
            messages=[{"role": "user", "content": "hello"}],
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == " the" * 5
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 5
        whole = await client.completions.create(model="emulated", prompt=["abcd", "efgh"], max_tokens=3, n=2)
        assert [choice.text for choice in whole.choices] == [" the" * 3] * 4


async def test_a_client_that_leaves_is_forgotten() -> None:
    async with serving(speed=2.0) as engine:
        for fields in (body(100, 5_000, stream=True, n=3), body(100, 5_000)):
            request = asyncio.create_task(engine.session.post(f"{engine.url}/v1/completions", json=fields))
            await engine.eventually(lambda report: report["running"] > 0)
            if fields.get("stream"):
                (await request).close()
            request.cancel()
            report = await engine.eventually(lambda report: report["running"] == 0)
            assert report["free_tokens"] == report["total_tokens"]
            assert report["requests"] == report["queued_tokens"] == report["waiting"] == 0
        assert not engine.app._calls


async def test_many_at_once_all_get_exactly_what_they_asked_for() -> None:
    async with serving(speed=100.0, policy="LARRY", stream_interval=16) as engine:

        async def one(number: int) -> None:
            fields = body(50 + number * 37 % 700, 1 + number % 40, stream=True, stream_options={"include_usage": True})
            async with engine.session.post(f"{engine.url}/v1/completions", json=fields) as response:
                events = await read_stream(response)
            assert events[-2]["usage"]["completion_tokens"] == 1 + number % 40
            words = sum(event["choices"][0]["text"].count(" the") for event in events[:-2])
            assert words == 1 + number % 40

        await asyncio.gather(*(one(number) for number in range(60)))
        report = await engine.load()
        assert report["requests"] == report["first_tokens"] == 60
        assert report["generation_tokens"] == sum(1 + number % 40 for number in range(60))
        assert report["scheduler"] == "LARRY"


async def test_bad_requests_get_openais_errors() -> None:
    async with serving() as engine:
        for fields, path, status in (
            ({"prompt": "x", "model": "other"}, "/v1/completions", 404),
            (body(9_000, 10), "/v1/completions", 400),
            (body(10, 0), "/v1/completions", 400),
            (body(0, 5), "/v1/completions", 400),
            ({}, "/v1/chat/completions", 400),
            ({"kind": "explode"}, "/fault", 400),
            ({"kind": "slow", "factor": -1}, "/fault", 400),
        ):
            got, answer = await engine.post(fields, path)
            assert (got, answer["error"]["code"]) == (status, status)
        assert await engine.post({}, "/nowhere") == (404, {"detail": "Not Found"})
        assert await engine.post({}, "/health") == (405, {"detail": "Method Not Allowed"})
        assert (await engine.load())["waiting"] == 0
        assert (await engine.post({"prompt": " the" * 7}, "/tokenize"))[1]["count"] == 7


async def test_bodies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halffull_lab.engine_app.MAX_BODY_BYTES", 200_000)
    async with serving() as engine:
        assert (await engine.post(body(8_000, 1)))[0] == 200

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(10):
                yield b" " * 50_000

        with contextlib.suppress(aiohttp.ClientError):  # the server may close before everything was sent
            async with engine.session.post(f"{engine.url}/v1/completions", data=endless()) as response:
                assert response.status == 413


async def test_faults_come_and_go() -> None:
    async with serving(speed=20.0) as engine:
        await engine.fault(kind="fail")
        assert (await engine.post(body(100, 100)))[0] == 500
        assert (await engine.load())["steps"] == 0
        async with engine.session.get(f"{engine.url}/health") as response:
            assert response.status == 200
        await engine.fault(kind="slow", factor=3)
        busy, steps = 0.0, 0
        for kind in ("slow", "none"):
            assert (await engine.post(body(100, 50)))[0] == 200
            report = await engine.load()
            mean = (report["busy_seconds"] - busy) / (report["steps"] - steps)
            busy, steps = report["busy_seconds"], report["steps"]
            # A step of one decode takes 0.02 s; the report counts in real seconds, 20 times fewer.
            assert (mean * 20 > 0.05) == (kind == "slow")
            await engine.fault(kind="none")

        await engine.fault(kind="slow", factor=50)  # 15 s until it is over: a test held up finds it running
        request = asyncio.create_task(engine.post(body(100, 300)))
        await engine.eventually(lambda report: report["running"] == 1)
        await engine.fault(kind="wedge")
        report = await engine.eventually(lambda report: report["age"] > 1.0)
        assert (report["running"], report["requests"]) == (1, 2)
        async with engine.session.get(f"{engine.url}/health") as response:
            assert response.status == 200
        await engine.fault(kind="none")
        assert (await request)[0] == 200

        await engine.fault(kind="hang_load")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await engine.load()
        await engine.fault(kind="none")
        assert (await engine.load())["requests"] == 3


async def test_without_the_flag_there_are_no_faults() -> None:
    async with serving(allow_faults=False) as engine:
        assert (await engine.post({"kind": "fail"}, "/fault"))[0] == 404
        assert (await engine.post(body(10, 1)))[0] == 200


async def test_metrics_have_vllms_names_and_agree_with_the_report() -> None:
    async with serving() as engine:
        await engine.post(body(100, 10, n=2))
        async with engine.session.get(f"{engine.url}/metrics") as response:
            text = await response.text()
        samples = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                assert name not in samples
                samples[name] = float(value)
        names = {name.partition("{")[0] for name in samples}
        assert names >= set(METRICS)
        assert "halffull_engine_late_seconds_max" in names
        # A step of some 20 ms, fifty times as fast.
        assert samples['vllm:time_to_first_token_seconds_bucket{engine="0",model_name="emulated",le="0.001"}'] == 2
        assert samples['vllm:time_to_first_token_seconds_bucket{engine="0",model_name="emulated",le="2560.0"}'] == 2
        label = '{engine="0",model_name="emulated"}'
        assert samples[f"vllm:prompt_tokens_total{label}"] == 200
        assert samples[f"vllm:generation_tokens_total{label}"] == 20
        assert samples[f"vllm:inter_token_latency_seconds_count{label}"] == 18
        assert samples[f"vllm:request_generation_tokens_sum{label}"] == 20
        families = [line for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(families) == len(set(families))


async def test_the_plugins_metrics_are_beside_the_load_report() -> None:
    async with serving(policy="LARRY") as engine:
        await engine.post(body(100, 10, n=2))
        await engine.post(body(2_000, 1))
        async with engine.session.get(f"{engine.load_url}/metrics") as response:
            lines = (await response.text()).splitlines()
    assert 'halffull_larry_info{scheduler="LARRY",vllm="emulated"} 1' in lines
    assert "halffull_larry_active 1" in lines
    assert 'halffull_larry_waiting_seconds_count{prompt_tokens="256"} 2' in lines
    assert 'halffull_larry_waiting_seconds_count{prompt_tokens="4096"} 1' in lines


async def test_the_probe_sees_what_the_contract_promises() -> None:
    async with serving(speed=4.0, model="some/model") as engine:
        facts = await probe(engine.url, load_url=engine.load_url)
        assert not [section for section, values in facts.items() if "broke" in values]
        assert facts["models"] == {"model": "some/model", "max_model_len": 8_192}
        assert facts["stream"]["headers_s"] < facts["stream"]["first_event_s"]
        assert facts["stream"]["done"]
        assert facts["whole"]["headers_s"] > 0.15  # of the 0.2 s that its steps take at this speed
        assert facts["children"] == {"choices": 2, "requests": 1, "prompt_tokens": 20, "generation_tokens": 16}
        assert facts["disconnect"]["after"] == 0
        assert facts["metrics"]["missing"] == []
        web_frameworks = {"unknown path", "wrong method"}
        assert {name for name, error in facts["errors"].items() if not error["openai_error"]} == web_frameworks
        assert 0.9 < facts["keep_alive"]["closed_after_s"] < 5  # 1 s, as configured above
        report = facts["report"]
        assert report["missing"] == report["falling"] == []
        assert report["of_100_in_10_out"] == {
            "steps": 10,
            "computed_tokens": 109,
            "first_tokens": 1,
            "prompt_tokens": 100,
            "generation_tokens": 10,
            "requests": 1,
        }


async def test_the_probe_does_without_a_load_report() -> None:
    async with serving(speed=4.0) as engine:
        facts = await probe(engine.url, load_url=None)
        assert facts["report"] == {"present": False}
        assert (facts["disconnect"]["during"], facts["disconnect"]["after"]) == (1, 0)
        broken = await probe(engine.url, load_url="http://127.0.0.1:9")  # the port that discards
        assert "broke" in broken["report"]
        assert "broke" not in broken["stream"]


@pytest.mark.parametrize(("patience", "ends_with"), [((), 503), (("--shutdown-timeout", "60"), None)])
async def test_the_command_ends_open_streams_at_sigterm_or_lets_them_finish(
    patience: tuple[str, ...], ends_with: int | None
) -> None:
    assert KEEP_ALIVE == 5  # uvicorn's, which Envoy's idle timeout is set below
    code = (
        "import argparse, sys; from halffull_lab import engine_server as e; p = argparse.ArgumentParser();"
        "e.add_arguments(p); sys.exit(e.main(p.parse_args()))"
    )
    flags = ["--port", "0", "--load-port", "0", "--profile", "8b-a100", "--policy", "LARRYPlus", "--kv-tokens", "50000"]
    flags += patience
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *flags, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        ports = json.loads(await process.stdout.readline())
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{ports['load_port']}/load") as response:
                report = await response.json()
            assert (report["scheduler"], report["total_tokens"]) == ("LARRYPlus", 50_000)
            url = f"http://127.0.0.1:{ports['port']}/v1/completions"
            async with session.post(url, json=body(10, 200, stream=True)) as response:
                await response.content.readany()
                process.send_signal(signal.SIGTERM)
                events = await read_stream(response)
            assert events[-1] == "[DONE]"
            assert events[-2].get("error", {}).get("code") == ends_with
        async with asyncio.timeout(10):
            assert await process.wait() in (0, -signal.SIGTERM)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_stands_in_for_vllm_with_the_flags_of_the_chart_s_cpu_profile() -> None:
    stand_in = Path(__file__).parents[3] / "images/engine-vllm"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, stand_in, "serve", "org/tiny", "--enforce-eager", "--port=0", "--load-port=0"),
        env=os.environ | {"PATH": str(Path(sys.executable).parent)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        first = await process.stdout.readline()
        assert set(json.loads(first or b"{}")) == {"port", "load_port"}, (await process.stderr.read()).decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def command(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    engine_server.add_arguments(parser)
    return parser.parse_args(["--port", "0", "--load-port", "0", *flags])


@pytest.mark.parametrize("flag", ["--port", "--load-port"])
def test_the_command_names_a_port_that_is_taken(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert engine_server.main(command(flag, str(port))) == 1
    said = capsys.readouterr()
    assert said.err == f"halffull engine: {flag} {port}: cannot listen on 127.0.0.1: Address already in use\n"
    assert said.out == ""


def test_the_command_names_a_cache_without_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine_server.main(command("--kv-tokens", "15")) == 1
    assert capsys.readouterr().err == "halffull engine: --kv-tokens 15: less than a block of 16\n"
