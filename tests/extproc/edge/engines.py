"""Small HTTP servers that answer polls, well or badly."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

Answer = Callable[["Engine", asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


def http(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


class Engine:
    """Counts connections and requests; `answer` is called for each request and may be changed while it runs."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.connections = 0
        self.requests: list[bytes] = []
        self.open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                request = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(request)
                await self.answer(self, reader, writer, request)
        self.open.discard(writer)
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await writer.wait_closed()
        self._tasks.discard(task)

    async def end(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def engine(answer: Answer, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[tuple[Engine, int]]:
    serving = Engine(answer)
    server = await asyncio.start_server(serving.serve, host, port)
    try:
        yield serving, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await serving.end()
        await server.wait_closed()


def always(data: bytes) -> Answer:
    async def answer(_: Engine, __: asyncio.StreamReader, writer: asyncio.StreamWriter, ___: bytes) -> None:
        writer.write(data)

    return answer


async def never(_: Engine, reader: asyncio.StreamReader, __: asyncio.StreamWriter, ___: bytes) -> None:
    await reader.read(1)


def abort(writer: asyncio.StreamWriter) -> None:
    """Reset the connection: what a mesh or a killed process does."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def reset(_: Engine, __: asyncio.StreamReader, writer: asyncio.StreamWriter, ___: bytes) -> None:
    abort(writer)
