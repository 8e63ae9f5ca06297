"""`halffull replay` as a person runs it, against engines with a model of another name."""

import asyncio
import json
import re
import socket
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from halffull_lab import cli
from halffull_lab.stack import EngineOptions, ModelError, Stack, first_model
from halffull_lab.unanswered import unanswered


async def test_it_asks_for_the_first_model_that_the_server_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "mine.csv", tmp_path / "results.json"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,2000,5\n1,1000,5\n")
    async with Stack(engines=1, options=EngineOptions(speed=50, model="theirs")) as stack:
        for url in (stack.gateway, f"{stack.engines[0].url}/v1/"):
            assert await first_model(url, api_key=None) == "theirs"
            argv = ["replay", "--url", url, "--trace", str(trace), "--speed", "50", "--out", str(out)]
            assert await asyncio.to_thread(cli.main, argv) == 0
            (run,) = json.loads(out.read_bytes())["runs"]
            assert (run["requests"], run["errors"]) == (2, 0)
            (line,) = [line for line in capsys.readouterr().out.splitlines() if "TTFT per token, ms" in line]
            assert float(line.split("│")[2]) == pytest.approx(1000 * run["normalized_ttft"]["p50"], rel=0.01)
        assert await asyncio.to_thread(cli.main, [*argv, "--model", "another"]) == 1


@pytest.mark.parametrize(("status", "body"), [(200, '{"data": []}'), (404, "{}"), (200, "?"), (200, "[]")])
async def test_a_server_that_lists_none_is_one_line_that_says_what_to_give(status: int, body: str) -> None:
    async def models(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    async with TestServer(app) as server:
        url = str(server.make_url("")).rstrip("/")
        with pytest.raises(ModelError, match=rf"^{url} lists no model \(.*\): give --model$"):
            await first_model(url, api_key=None)
    assert "ModelError" in cli._EXPECTED


@pytest.mark.parametrize(
    "argv",
    [
        ["replay", "--trace", "azure-conv", "--rate", "1", "--url", "http://127.0.0.1:9"],
        ["demo", "--rate", "9", "--engines", "http://127.0.0.1:9"],
        ["calibrate", "--url", "http://127.0.0.1:9"],
        ["probe", "http://127.0.0.1:9"],
    ],
    ids=lambda argv: argv[0],
)
def test_where_nothing_listens_every_command_says_so_in_the_same_words(
    argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) != 0
    (line,) = capsys.readouterr().err.splitlines()
    why = r"does not answer: Connection refused; is it running\?"
    assert re.fullmatch(rf"halffull {argv[0]}: http://127.0.0.1:9(/v1/models)? {why}", line)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ConnectionResetError(104, "x"), "Connection reset by peer"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_why_there_is_no_answer(error: OSError, why: str) -> None:
    assert unanswered("http://h", error) == f"http://h does not answer: {why}; is it running?"
