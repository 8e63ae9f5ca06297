import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from halffull_extproc.http_server import ListenError, StatusServer, listening_socket
from halffull_extproc.status import status_json, status_page

from .snapshots import pool_of, snapshot_of

HOSTILE = "</script><img src=x onerror=alert(1)>"


def document(**changed: Any) -> Any:
    pool = pool_of("10.0.0.1:80", "10.0.0.2:80", name=HOSTILE)
    pool.pick(body_bytes=4000, now=1.01)
    return json.loads(status_json(snapshot_of(pool, **changed)))


def test_shows_what_a_person_wants_to_know_of_each_endpoint() -> None:
    first, second = document()["pool"]["endpoints"]
    for key in ("queued", "free", "running", "charged_tokens", "report_age", "state", "reason", "share", "name"):
        assert key in first
    assert (first["running"], first["polls"], first["poll_failures"], first["state"]) == (3, 7, 3, "ok")
    assert (second["running"], second["report_age"], second["state"]) == (None, None, "new")
    assert first["share"] + second["share"] == 1


def test_troubles_are_lines_for_people() -> None:
    assert document()["troubles"] == []
    troubles = document(
        config_error="picker.yaml:7: poll.interval: no",
        config_at_start=("listen.grpc",),
        troubles={"polling": "check mTLS", "endpoints": ""},
        ads_rejection="Listener: port taken",
    )["troubles"]
    assert [one["text"] for one in troubles] == [
        "picker.yaml:7: poll.interval: no (the last good one stands)",
        "check mTLS",
        "edited, applied at the next start: listen.grpc",
        "Listener: port taken",
    ]


def test_of_two_troubles_with_the_configuration_the_newest_is_told() -> None:
    troubles = document(config_error="picker.yaml:1: old", troubles={"configuration": "picker.yaml: gone"})["troubles"]
    assert [one["text"] for one in troubles] == ["picker.yaml: gone"]


def test_figures_that_are_not_finite_are_null() -> None:
    pool = pool_of("10.0.0.1:80")
    assert b"NaN" not in status_json(snapshot_of(pool, uptime=float("nan")))
    assert b"Infinity" not in status_json(snapshot_of(pool, uptime=float("inf")))


def test_the_page_loads_nothing_from_elsewhere_and_writes_no_html_of_what_it_is_told() -> None:
    page = status_page()
    assert not re.search(r"(src|href|url)\s*[=(]", page)
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page
    assert "document.write" not in page
    assert 'fetch("status.json"' in page
    assert page.count("<script>") == page.count("</script>") == 1
    assert len(page) < 20_000


def test_the_page_names_only_figures_that_the_json_has() -> None:
    page = status_page()
    told = document()
    for key in set(re.findall(r"endpoint\.(\w+)", page)):
        assert key in told["pool"]["endpoints"][0], key
    for key in set(re.findall(r"\bpool\.(\w+)", page)) - {"endpoints"}:
        assert key in told["pool"], key
    for key in set(re.findall(r"\bstatus\.(\w+)", page)) - {"json"}:
        assert key in told, key


@contextlib.asynccontextmanager
async def serving(address: str = "127.0.0.1:0") -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    host, _, _ = address.rpartition(":")
    with socket.socket(socket.AF_INET6 if "[" in host else socket.AF_INET) as taken:
        taken.bind((host.strip("[]"), 0))
        port = taken.getsockname()[1]
    server = StatusServer(metrics=lambda: b"up 1\n", status=lambda: b'{"a":1}')
    await server.start(listening_socket(f"{host}:{port}", key="listen.metrics"))
    try:
        async with aiohttp.ClientSession() as session:
            yield session, f"http://{'127.0.0.1' if host == '[::]' else host}:{port}"
    finally:
        await server.stop()
        await server.stop()


async def test_serves_three_pages_and_nothing_else() -> None:
    async with serving() as (session, url):
        for path, start, kind in (
            ("/metrics", "up 1", "text/plain; version=0.0.4"),
            ("/status", "<!doctype html>", "text/html"),
            ("/status.json", '{"a":1}', "application/json"),
        ):
            async with session.get(url + path) as answer:
                assert answer.status == 200
                assert answer.headers["Content-Type"].startswith(kind)
                assert (await answer.text()).startswith(start)
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for path in ("/status/", "/metrics/x", "/../etc/passwd", "/status.html", "/%00", "/a/b?c"):
            async with session.get(url + path) as answer:
                assert answer.status == 404
                assert await answer.text() == "Nothing is here; there are /status, /status.json and /metrics.\n"
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


async def test_the_root_leads_to_the_status_page() -> None:
    async with serving() as (session, url):
        async with session.get(url + "/", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (307, "/status")
        async with session.get(url) as answer:
            assert answer.url.path == "/status"
            assert (await answer.text()).startswith("<!doctype html>")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
async def test_is_read_only(method: str) -> None:
    async with serving() as (session, url):
        for path in ("/metrics", "/status", "/status.json", "/", "/other"):
            async with session.request(method, url + path, data=b"x") as answer:
                assert answer.status == 405


async def test_both_families_are_served_by_the_ipv6_wildcard() -> None:
    async with serving("[::]:0") as (session, url):
        for host in ("127.0.0.1", "[::1]"):
            async with session.get(url.replace("127.0.0.1", host) + "/metrics") as answer:
                assert answer.status == 200


def test_a_port_that_is_taken_is_one_line_that_names_the_key() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ListenError, match=f"listen.metrics: cannot listen on 127.0.0.1:{port}: Address already in use"
        ):
            listening_socket(f"127.0.0.1:{port}", key="listen.metrics")
