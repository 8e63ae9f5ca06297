"""A body of any size streams through; the picker sees one message, whatever follows the headers."""

import hashlib
import json
import random
from contextlib import AsyncExitStack

import psutil

from halffull_lab.stack import Stack
from tests.extproc.scale.client import Client, post
from tests.extproc.scale.figures import endpoints, eventually, ext_proc, nothing_owed, ok, picked, upstreams

SIZE = 20_000_000
CHUNK = 64 * 1024
MAX_MODEL_LEN = 131_072
"""What the upstream reports."""


def chunked(path: str, body: bytes) -> bytes:
    """The same POST without a Content-Length."""
    head = f"POST {path} HTTP/1.1\r\nhost: gateway\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    pieces = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def test_20_mb_bodies_pass_whole_and_leave_the_picker_as_it_was() -> None:
    body = random.Random(20).randbytes(SIZE)
    digest = hashlib.sha256(body).hexdigest()
    requests = [post("/v1/completions", body), chunked("/v1/completions", body)]
    async with AsyncExitStack() as cleanup:
        (engine,) = await upstreams(cleanup, 1)
        stack = await cleanup.enter_async_context(Stack(engines=0, endpoints=[engine.entry()]))
        await eventually(lambda: ok(stack), what="the engine reported")
        client = await Client.connect(stack.gateway)
        cleanup.callback(client.abort)

        async def send(request: bytes) -> None:
            answer = await client.ask(request)
            assert answer.status == 200
            told = json.loads(answer.body)
            assert (told["bytes"], told["sha256"]) == (SIZE, digest)

        for request in requests:  # what is allocated once is no growth
            await send(request)
        picker = psutil.Process(stack.picker.pid)
        memory, counted = picker.memory_info().rss, await ext_proc(stack)
        for number in range(10):
            await send(requests[number % 2])
        grown, after = picker.memory_info().rss - memory, await ext_proc(stack)
        assert grown < 10_000_000
        risen = {name: value - counted.get(name, 0) for name, value in after.items()}
        assert (risen["streams_started"], risen["stream_msgs_sent"]) == (10, 10)
        assert risen["stream_msgs_received"] >= 10 - risen["message_timeouts"]
        assert risen["failure_mode_allowed"] == risen["message_timeouts"] <= 5  # the machine was busy for 100 ms
        assert len(engine.requests) == 12  # each once
        await eventually(lambda: nothing_owed(stack), what="charges back to 0")

        held = await picked(stack, post("/v1/stream", body))  # open, so that its charge can be seen
        cleanup.callback(held.abort)
        await held.answered
        (endpoint,) = await endpoints(stack)
        assert endpoint["open_picks"] == 1
        assert endpoint["charged_tokens"] <= MAX_MODEL_LEN
