"""A server of completions that costs next to nothing, so that what a client measures is the client.

`python -m` is not needed: run the file with PORT TTFT_S TOKENS GAP_S TEXT_BYTES; it serves until killed.
"""

import asyncio
import json
import sys


class Streams(asyncio.Protocol):
    """Answers each POST with headers at once, the first token after a constant time, then one per gap."""

    def __init__(self, *, ttft: float, tokens: int, gap: float, text: int) -> None:
        def event(finish: str | None) -> bytes:
            choice = {"index": 0, "text": "x" * text, "finish_reason": finish}
            return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"

        usage = b'data: {"choices": [], "usage": {"completion_tokens": %d}}\n\ndata: [DONE]\n\n' % tokens
        self._event, self._last = chunk(event(None)), chunk(event("length") + usage) + chunk(b"")
        self._ttft, self._tokens, self._gap = ttft, tokens, gap
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if found:
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
            if len(body) >= length:
                self._buffer = body[length:]
                self._task = asyncio.get_running_loop().create_task(self._answer())

    async def _answer(self) -> None:
        loop = asyncio.get_running_loop()
        first = loop.time() + self._ttft
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        self._transport.write(head)
        for place in range(self._tokens):
            await asyncio.sleep(max(0.0, first + place * self._gap - loop.time()))
            self._transport.write(self._event if place < self._tokens - 1 else self._last)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main(port: int, ttft: float, tokens: int, gap: float, text: int) -> None:
    server = await asyncio.get_running_loop().create_server(
        lambda: Streams(ttft=ttft, tokens=tokens, gap=gap, text=text), "127.0.0.1", port, backlog=4096
    )
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])))
