"""The other processes of the bench, started as `python hack/bench/peers.py empty SOCKET | load PORT`."""

import asyncio
import json
import signal
import sys
from typing import Any

import grpc
import uvloop
from envoy.service.ext_proc.v3 import external_processor_pb2

_REPORT = {
    "version": 1,
    "boot_id": "bench",
    "rank": 0,
    "scheduler": "FCFS",
    "age": 0.0,
    "queued_tokens": 0,
    "free_tokens": 230_000,
    "total_tokens": 230_000,
    "running": 0,
    "waiting": 0,
    "max_tokens_per_batch": 1024,
    "max_model_len": 16_384,
    "steps": 0,
    "busy_seconds": 0.0,
    "computed_tokens": 0,
    "first_tokens": 0,
    "ttft_seconds": 0.0,
    "prompt_tokens": 0,
    "generation_tokens": 0,
    "requests": 0,
}


async def empty(socket: str) -> None:
    """An ext_proc server that does nothing: what any picker in Python costs at the least."""
    answer = external_processor_pb2.ProcessingResponse(
        request_headers=external_processor_pb2.HeadersResponse()
    ).SerializeToString()

    async def process(_requests: Any, context: Any) -> None:
        while await context.read() is not grpc.aio.EOF:
            await context.write(answer)

    handler = grpc.stream_stream_rpc_method_handler(process, request_deserializer=None, response_serializer=None)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("envoy.service.ext_proc.v3.ExternalProcessor", {"Process": handler}),)
    )
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    await _until_terminated()
    await server.stop(0)


class Load(asyncio.Protocol):
    """Answers every request on a connection with an idle engine's load report."""

    body = json.dumps(_REPORT).encode()
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer as many requests as have come."""
        self.transport.write(self.answer * data.count(b"\r\n\r\n"))


async def load(port: int) -> None:
    """Load reports on every loopback address."""
    await asyncio.get_running_loop().create_server(Load, "0.0.0.0", port, backlog=4096)  # noqa: S104 - 127.0.0.0/8
    await _until_terminated()


async def _until_terminated() -> None:
    done = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, done.set)
    await done.wait()


if __name__ == "__main__":
    role, argument = sys.argv[1:]
    uvloop.run(empty(argument) if role == "empty" else load(int(argument)))
