"""What a client writes into a request changes neither where it goes nor what of an engine it reaches."""

import http.client
import json
import socket
import uuid

import pytest

from tests.cluster.node import SLOW, Cluster
from tests.cluster.security.client import PORT, Client
from tests.cluster.servings import EMULATED, Serving
from tests.operator.kube import wait_until

ADDRESS_HEADERS = (
    "x-gateway-destination-endpoint",
    "x-gateway-destination-endpoint-served",
    "x-gateway-destination-endpoint-subset",
    "x_gateway_destination_endpoint",
    "x-envoy-original-dst-host",
    "x-envoy-original-host",
    "x-forwarded-host",
    "x-forwarded-for",
    "x-forwarded-proto",
    "x-real-ip",
    "x-original-url",
    "x-rewrite-url",
    "x-envoy-original-path",
    "x-envoy-upstream-alt-stat-name",
    "x-envoy-external-address",
    "x-host-override",
    "forwarded",
    "via",
    "host",
)
CONTROL = (
    "/metrics",
    "/load",
    "/version",
    "/server_info",
    "/docs",
    "/openapi.json",
    "/tokenize",
    "/detokenize",
    "/invocations",
    "/ping",
    "/pause",
    "/resume",
    "/sleep",
    "/wake_up",
    "/is_sleeping",
    "/abort_requests",
    "/reset_prefix_cache",
    "/reset_mm_cache",
    "/reset_encoder_cache",
    "/collective_rpc",
    "/init_weight_transfer_engine",
    "/update_weights",
    "/scale_elastic_ep",
    "/start_profile",
    "/stop_profile",
    "/config_dump",
    "/quitquitquit",
    "/stats/prometheus",
    "/status.json",
)
"""Of vLLM, of Envoy and of the picker."""
TRICKS = (
    "/{}",
    "{}/",
    "/v1/..{}",
    "/v1//../..{}",
    "/v1/./..{}",
    "/v1/%2e%2e{}",
    "/v1/%2E%2e{}",
    "/v1/.%2e{}",
    "/v1/..%2f{}",
    "/v1/..%5c{}",
    "/%2f{}",
    "{}?/v1/models",
    "{};/v1/models",
    "{}#/v1/models",
    "http://models{}",
    "http://models/v1/..{}",
)
"""Ways to write such a path. (tests/extproc/envoy/test_paths.py has more of them.)"""


def say(
    serving: Serving, target: str, *, method: str = "GET", headers: tuple[str, ...] = (), body: str = ""
) -> tuple[int, str]:
    """Send a request to the gateway as it is written, for libraries tidy up; status and content of the answer."""
    host = serving.url.removeprefix("http://").removesuffix("/v1")
    named = headers if any(line.startswith("host:") for line in headers) else ("host: models", *headers)
    head = "\r\n".join((f"{method} {target} HTTP/1.1", "connection: close", *named, "", ""))
    with socket.create_connection((host, 80), timeout=SLOW) as connection:
        connection.sendall((head + body).encode("latin-1"))
        answer = http.client.HTTPResponse(connection, method=method)
        answer.begin()
        return answer.status, answer.read().decode(errors="replace")


def complete(serving: Serving, *headers: str, target: str = "/v1/completions") -> tuple[int, str]:
    """Ask for a completion; the status and the request's id."""
    name = str(uuid.uuid4())
    body = json.dumps({"model": EMULATED, "prompt": "Why is the sky blue?", "max_tokens": 2})
    lines = (f"x-request-id: {name}", "content-type: application/json", f"content-length: {len(body)}", *headers)
    return say(serving, target, method="POST", headers=lines, body=body)[0], name


@pytest.fixture(scope="module")
def trap(cluster: Cluster, secure: Serving) -> Client:
    """Where a client would like to be sent to: it listens at the engines' port, in the serving's namespace."""
    return Client.start(cluster, secure.namespace, "trap")


def test_no_header_and_no_form_of_the_url_leads_to_an_address_of_the_client_s(
    secure: Serving, trap: Client, stranger: Client
) -> None:
    place = f"{trap.address}:{PORT}"
    answers = {header: complete(secure, f"{header}: {place}") for header in ADDRESS_HEADERS}
    answers["absolute"] = complete(secure, target=f"http://{place}/v1/completions")
    answers["absolute, and a host"] = complete(secure, "host: x", target=f"http://{place}/v1/completions")
    answers["several"] = complete(secure, *(f"x-gateway-destination-endpoint: {place}" for _ in range(3)))
    assert {what: status for what, (status, _) in answers.items()} == dict.fromkeys(answers, 200)
    engines = {pod["status"]["podIP"] for pod in secure.engines()}
    assert set(secure.served([name for _, name in answers.values()]).values()) <= engines
    for method, target, headers in (
        ("CONNECT", place, ()),
        ("CONNECT", f"http://{place}", ()),
        ("GET", f"http://{place}/", ()),
        ("GET", f"//{place}/", ()),
        ("GET", f"/http://{place}/", ()),
        ("GET", f"@{place}/v1/models", ()),
        ("GET", "/v1/models", ("connection: upgrade", "upgrade: websocket", f"host: {place}")),
        ("GET", "/v1/models", ("connection: upgrade, http2-settings", "upgrade: h2c", f"host: {place}")),
    ):
        status, content = say(secure, target, method=method, headers=headers)
        assert status in (200, 400, 403, 404, 405, 426), (method, target, status, content)
        if status == 200:
            assert json.loads(content)["data"][0]["id"] == EMULATED, "an engine, as without the header"
    assert stranger.ask(f"http://{trap.address}:{PORT}/halffull/LICENSE") == ["200"]
    asked = wait_until("it has noted who came last", trap.asked, within=SLOW)
    assert len(asked) == 1, "nobody came before"


def test_no_header_chooses_among_the_engines(secure: Serving) -> None:
    wanted, other = (pod["status"]["podIP"] for pod in secure.engines())
    headers = [f"{header}: {wanted}:8000" for header in ADDRESS_HEADERS if header != "host"]
    names = []
    for _ in range(24):
        status, name = complete(secure, *headers)
        assert status == 200
        names.append(name)
    assert other in secure.served(names).values()


def test_no_client_sets_timeouts_or_retries(secure: Serving) -> None:
    for header in (
        "x-envoy-upstream-rq-timeout-ms: 1",
        "x-envoy-upstream-rq-per-try-timeout-ms: 1",
        "x-envoy-expected-rq-timeout-ms: 1",
        "x-envoy-retry-on: 5xx",
        "x-envoy-max-retries: 100",
        "x-envoy-hedge-on-per-try-timeout: true",
        "grpc-timeout: 1m",
    ):
        assert complete(secure, header)[0] == 200, header


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_paths_outside_the_api_are_refused_by_the_gateway(secure: Serving, method: str) -> None:
    for target in (*CONTROL, *(trick.format(path) for path in ("/metrics", "/sleep") for trick in TRICKS)):
        status, content = say(secure, target, method=method, headers=("content-length: 0",))
        assert status in (400, 404), (target, status, content)
        refusals = ("This path is not served here.", "The path of the URL cannot be read")
        assert json.loads(content).get("error", {}).get("message", "").startswith(refusals), (target, content)


def test_requests_that_can_be_read_in_two_ways_are_refused(secure: Serving) -> None:
    for headers in (
        ("content-length: 5", "transfer-encoding: chunked"),
        ("content-length: 5", "content-length: 6"),
        ("transfer-encoding: chunked, identity",),
    ):
        status, _ = say(secure, "/v1/completions", method="POST", headers=headers, body="0\r\n\r\n")
        assert status in (400, 501), headers


def test_a_gateway_pod_shows_others_no_more_than_its_service_and_metrics(secure: Serving, stranger: Client) -> None:
    """Envoy's admin interface and the picker's gRPC are inside of the pod."""
    address = secure.gateways()[0]["status"]["podIP"]
    metrics = [
        f"http://{address}:9902/ready",
        f"http://{address}:9902/stats/prometheus",
        f"http://{address}:9090/metrics",
    ]
    assert stranger.ask(*metrics) == ["200"] * 3
    admin = [f"http://{address}:9902/{path}" for path in ("config_dump", "clusters", "ready/../config_dump")]
    assert [answer[:15] for answer in stranger.ask(*admin)] == ["HTTP Error 404:"] * 3
    for answer in stranger.ask(*(f"http://{address}:{port}/" for port in (9901, 9002))):
        assert "Connection refused" in answer, answer
