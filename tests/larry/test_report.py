"""The load report and the endpoint that serves it: its fields, and clients that misbehave."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from halffull_larry import report
from halffull_larry.report import Identity, LoadServer, Snapshot, render

IDENTITY = Identity(scheduler="LARRY", max_tokens_per_batch=8192, max_model_len=4096, rank=2, boot_id="b00t")
SNAPSHOT = Snapshot(
    taken=10.0,
    queued_tokens=1,
    free_tokens=2,
    total_tokens=3,
    running=4,
    waiting=5,
    steps=6,
    busy_seconds=7.5,
    computed_tokens=8,
    first_tokens=9,
    ttft_seconds=10.25,
    prompt_tokens=11,
    generation_tokens=12,
    requests=13,
)


def test_the_report_has_exactly_the_contracts_fields() -> None:
    assert json.loads(render(IDENTITY, SNAPSHOT, now=12.5)) == {
        "version": 1,
        "boot_id": "b00t",
        "rank": 2,
        "scheduler": "LARRY",
        "age": 2.5,
        "queued_tokens": 1,
        "free_tokens": 2,
        "total_tokens": 3,
        "running": 4,
        "waiting": 5,
        "max_tokens_per_batch": 8192,
        "max_model_len": 4096,
        "steps": 6,
        "busy_seconds": 7.5,
        "computed_tokens": 8,
        "first_tokens": 9,
        "ttft_seconds": 10.25,
        "prompt_tokens": 11,
        "generation_tokens": 12,
        "requests": 13,
    }


def test_age_is_never_negative_and_boot_ids_differ() -> None:
    assert json.loads(render(IDENTITY, SNAPSHOT, now=9.0))["age"] == 0
    one, other = (Identity(scheduler="FCFS", max_tokens_per_batch=1, max_model_len=1) for _ in range(2))
    assert one.boot_id != other.boot_id


class Served:
    def __init__(self, server: LoadServer) -> None:
        self.server = server
        self.port = server.port
        self.body: bytes | None = b'{"a":1}'
        self.calls = 0

    def connect(self, host: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection((host, self.port), timeout=5)

    def get(self, path: str = "/load", method: str = "GET", host: str = "127.0.0.1") -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(host, self.port, timeout=5)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@pytest.fixture
def served() -> Iterator[Served]:
    holder: list[Served] = []

    def body() -> bytes | None:
        holder[0].calls += 1
        return holder[0].body

    server = LoadServer(body, host="127.0.0.1", port=0)
    holder.append(Served(server))
    server.start()
    yield holder[0]
    server.stop()
    server.stop()
    assert not any(thread.name == "halffull-load-report" for thread in threading.enumerate())


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_get_head_and_what_is_neither(served: Served) -> None:
    assert served.get() == (200, b'{"a":1}')
    assert served.get("/load?x=1") == (200, b'{"a":1}')
    assert served.get(method="HEAD") == (200, b"")
    assert served.get(method="DELETE")[0] == 405
    assert served.get("/")[0] == 404


def test_one_connection_serves_many_pipelined_and_split_requests(served: Served) -> None:
    with served.connect() as client:
        request = b"GET /load HTTP/1.1\r\nHost: x\r\n\r\n"
        client.sendall(request * 3 + request[:7])
        client.sendall(request[7:])
        received = b""
        while received.count(b'{"a":1}') < 4:
            data = client.recv(65536)
            assert data
            received += data
        assert received.count(b"HTTP/1.1 200 OK") == 4


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /load HTTP/1.1\r\nconnection: close\r\n\r\n", b"200"),
        (b"GET /load HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /load\r\n\r\n", b"400"),
        (b"\x16\x03\x01 hello tls\r\n\r\n", b"400"),
        (b"POST /load HTTP/1.1\r\ncontent-length: 5\r\n\r\nhello", b"413"),
        (b"POST /load HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"413"),
        (b"GET /load HTTP/1.1\r\nx: " + b"y" * 10_000, b"431"),
    ],
)
def test_these_are_answered_and_closed(served: Served, sent: bytes, status: bytes) -> None:
    with served.connect() as client:
        client.sendall(sent)
        received = b""
        while data := client.recv(65536):
            received += data
    assert received.split(b" ")[1] == status
    assert b"connection: close" in received


def test_silence_leaves_the_connection_open(served: Served) -> None:
    served.body = None
    with served.connect() as client:
        client.sendall(b"GET /load HTTP/1.1\r\n\r\n")
        eventually(lambda: served.calls == 1)
        client.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.recv(1)


def test_a_report_that_fails_is_a_500_and_the_thread_lives(served: Served) -> None:
    del served.body
    assert served.get()[0] == 500
    served.body = b"{}"
    assert served.get() == (200, b"{}")


def test_stuck_clients_make_room_for_others_and_the_active_one_stays(served: Served) -> None:
    clients = [served.connect() for _ in range(20)]
    same: socket.socket | None = None
    poller = http.client.HTTPConnection("127.0.0.1", served.port, timeout=5)
    try:
        for _ in range(150):
            clients.append(served.connect())
            clients[-1].sendall(b"GET /load HTT")
            poller.request("GET", "/load")
            assert poller.getresponse().read() == b'{"a":1}'
            same = same or poller.sock
            assert poller.sock is same
        assert clients[0].recv(1) == b""
    except ConnectionResetError:
        pass  # the first client's, closed with its half request unread
    finally:
        poller.close()
        for client in clients:
            client.close()


def test_a_client_that_never_reads_holds_up_nobody(served: Served) -> None:
    served.body = b"x" * 100_000
    with served.connect() as client:
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.sendall(b"GET /load HTTP/1.1\r\n\r\n" * 2_000_000)
        assert served.calls < 500  # it stopped making answers that nobody takes, and reading
        assert all(len(connection._buffer) < 1_000_000 for connection in served.server._connections)
        assert served.get()[0] == 200


def test_idle_connections_are_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "IDLE_SECONDS", 0.1)
    with served.connect() as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("bound", "reachable"), [("::", ("127.0.0.1", "::1")), ("::1", ("::1",)), ("0.0.0.0", ("127.0.0.1",))]
)
def test_address_families(bound: str, reachable: tuple[str, ...]) -> None:
    try:
        with socket.socket(socket.AF_INET6) as six:
            six.bind(("::1", 0))
    except OSError:
        reachable = tuple(host for host in reachable if host != "::1")
        if bound == "::1":
            return  # this machine has no IPv6 to bind
    server = LoadServer(lambda: b"{}", host=bound, port=0)
    server.start()
    try:
        for host in reachable:
            assert Served(server).get(host=host) == (200, b"{}")
    finally:
        server.stop()


def test_a_taken_port_is_the_callers_error() -> None:
    server = LoadServer(lambda: b"{}", host="127.0.0.1", port=0)
    server.start()
    try:
        with pytest.raises(OSError, match="in use"):
            LoadServer(lambda: b"{}", host="127.0.0.1", port=server.port)
    finally:
        server.stop()
    LoadServer(lambda: b"{}", host="127.0.0.1", port=0).stop()  # never started
