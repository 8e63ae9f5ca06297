"""An HTTP/1.1 client that costs little: keep-alive connections that send one prepared request over and over."""

import asyncio
import time
from typing import Any

_BODY = b"x" * 4096
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
    % (len(_BODY), _BODY)
)


class Connection(asyncio.Protocol):
    """One request at a time; the answer's length is taken from its content-length."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answered: asyncio.Future[float] | None = None
        self._sent = 0.0

    def connection_made(self, transport: Any) -> None:
        """Keep the transport."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail a waiting request."""
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(exc or ConnectionResetError("closed by the gateway"))

    async def request(self) -> float:
        """Send, wait for the whole answer; the seconds it took.

        Raises:
            RuntimeError: the answer was not a 200.
        """
        self._answered = asyncio.get_running_loop().create_future()
        self._sent = time.perf_counter()
        self._transport.write(REQUEST)
        return await self._answered

    def data_received(self, data: bytes) -> None:
        """Gather bytes until the answer is whole."""
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        fields = head.lower().partition(b"content-length:")[2]
        if len(body) < int(fields.split(b"\r\n", 1)[0]):
            return
        answer, self._buffer = self._buffer, b""
        assert self._answered is not None
        if answer.startswith(b"HTTP/1.1 200"):
            self._answered.set_result(time.perf_counter() - self._sent)
        else:
            self._answered.set_exception(RuntimeError(answer[:400].decode(errors="replace")))

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


async def _connect(port: int, count: int) -> list[Connection]:
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(count)]
    return [protocol for _, protocol in pairs]


async def closed_loop(port: int, *, requests: int, connections: int = 32) -> None:
    """Send `requests` requests, each connection its next one as soon as the last is answered."""
    left = requests
    clients = await _connect(port, connections)

    async def work(client: Connection) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await client.request()

    try:
        await asyncio.gather(*(work(client) for client in clients))
    finally:
        for client in clients:
            client.close()


async def paced(port: int, *, rate: float, seconds: float) -> list[float]:
    """Send at fixed times, `rate` a second; the seconds from each send to its answer."""
    loop = asyncio.get_running_loop()
    idle = await _connect(port, 16)
    latencies: list[float] = []

    async def one() -> None:
        client = idle.pop() if idle else (await _connect(port, 1))[0]
        latencies.append(await client.request())
        idle.append(client)

    start = loop.time()
    async with asyncio.TaskGroup() as tasks:
        for index in range(round(rate * seconds)):
            await asyncio.sleep(start + index / rate - loop.time())
            tasks.create_task(one())
    for client in idle:
        client.close()
    return latencies
