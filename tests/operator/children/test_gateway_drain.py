"""The pre-stop hook, against an admin interface that plays Envoy's."""

import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from halffull_operator.children.gateway_drain import hook


class Admin(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str] = []
        self.active: list[int] = [0]


class Handler(BaseHTTPRequestHandler):
    server: Admin

    def do_POST(self) -> None:
        self.server.asked.append(f"POST {self.path}")
        self._answer("OK\n")

    def do_GET(self) -> None:
        self.server.asked.append(f"GET {self.path}")
        active = self.server.active
        self._answer(f"http.ingress.downstream_rq_active: {active.pop(0) if len(active) > 1 else active[0]}\n")

    def _answer(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def admin() -> Iterator[Admin]:
    with Admin() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def drain(admin: Admin, *, quiet: int = 0, drain: int = 20) -> float:
    before = time.monotonic()
    subprocess.run(hook(admin=admin.server_address[1], quiet=quiet, drain=drain), check=True, timeout=30)
    return time.monotonic() - before


def test_it_fails_health_then_drains_then_waits_for_the_last_request(admin: Admin) -> None:
    admin.active = [10, 1, 0]
    took = drain(admin)
    assert admin.asked[:2] == ["POST /healthcheck/fail", "POST /drain_listeners?graceful&skip_exit"]
    assert admin.asked[2:] == [r"GET /stats?filter=^http\.ingress\.downstream_rq_active$"] * 3
    assert took >= 2


def test_an_idle_gateway_goes_at_once(admin: Admin) -> None:
    assert drain(admin) < 2


def test_it_gives_up_in_time(admin: Admin) -> None:
    admin.active = [1]
    assert drain(admin, quiet=1, drain=1) < 6


def test_without_envoy_it_goes_at_once() -> None:
    before = time.monotonic()
    subprocess.run(hook(admin=1, quiet=0, drain=20), check=True, timeout=30, capture_output=True)
    assert time.monotonic() - before < 5
