"""The pick decides where a request goes, and nobody else does."""

import asyncio
import hashlib
import io
import socket

import aiohttp
import pytest

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.policies import Policy
from tests.extproc.envoy.conftest import StartGateway
from tests.extproc.envoy.stack import Gateway, eventually, lines, pattern


async def _logged(running: Gateway, number: int) -> None:
    await eventually(lambda: len(running.picker.pool.logged) >= number, what=f"{number} access log entries")


async def test_pick_is_obeyed_and_reported(gateway: StartGateway) -> None:
    running = await gateway(engines=4)
    pool = running.picker.pool
    for engine in [*running.engines, *running.engines]:
        pool.choose = lambda _eligible, address=engine.address: [address]
        status, told = await running.ask(data=b"{}")
        assert (status, told["engine"]) == (200, engine.address)
    await _logged(running, 8)
    for entry, engine in zip(pool.logged, [*running.engines, *running.engines], strict=True):
        assert (entry.obeyed, entry.status, entry.attempts, entry.flags, entry.method_path_ok) == (
            True,
            200,
            1,
            (),
            True,
        )
        assert (entry.outcome.picked, entry.outcome.succeeded, entry.outcome.failed) == (
            engine.address,
            engine.address,
            (),
        )
        assert entry.request_bytes == 2
        assert 0 < (entry.ttfb_s or 0) <= entry.duration_s < 5
    assert [body_bytes for _, body_bytes, _ in pool.picks] == [2] * 8
    assert not pool.open


async def test_envoy_s_own_log_names_pick_and_engine(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    await running.ask(data=b"{}", headers={"x-request-id": "of-the-client"})
    entry = (await eventually(running.envoy.access_log, what="a line of JSON on standard output"))[0]
    address = running.engines[0].address
    assert (entry["picked"], entry["served"], entry["status"], entry["request_id"]) == (
        address,
        address,
        200,
        "of-the-client",
    )


@pytest.mark.parametrize("policy", [Policy.SAL, Policy.LeastRequest, Policy.RoundRobin, Policy.Random])
async def test_client_sent_routing_headers_never_steer(gateway: StartGateway, policy: Policy) -> None:
    running = await gateway(engines=2, policy=policy)
    trap = running.engines[1].address
    running.picker.set_endpoints([Endpoint(running.engines[0].address)])
    await eventually(lambda: _only(running, running.engines[0].address), what="EDS")
    headers = {
        "x-gateway-destination-endpoint": trap,
        "x-gateway-destination-endpoint-subset": trap,
        "x-gateway-destination-endpoint-served": trap,
        "x-envoy-original-dst-host": trap,
        "x-envoy-upstream-rq-timeout-ms": "1",
        "x-envoy-max-retries": "9",
        "x-envoy-retry-on": "5xx",
        "x-envoy-upstream-alt-stat-name": "mine",
        "x-envoy-internal": "true",
        "x-forwarded-for": "127.0.0.1",
    }
    for _ in range(4):
        status, told = await running.ask(headers=headers, data=b"{}")
        assert (status, told["engine"]) == (200, running.engines[0].address)
        for name, value in headers.items():
            assert told["headers"].get(name) != value, name
    await running.picker.stop()  # nor while nobody overwrites them
    for _ in range(4):
        status, told = await running.ask(headers=headers, data=b"{}")
        assert (status, told["engine"]) == (200, running.engines[0].address)
        assert "x-gateway-destination-endpoint" not in told["headers"]
    assert not running.engines[1].requests


async def _only(running: Gateway, address: str, cluster: str = "engines") -> bool:
    return all(
        [list(await running.envoy.hosts(c)) == [address] for c in ("engines", "engines-round-robin", "engines-random")]
    )


async def test_pick_of_an_unknown_host_is_answered_and_counted_as_not_obeyed(gateway: StartGateway) -> None:
    running = await gateway(engines=2)
    running.picker.pool.choose = lambda _eligible: ["127.0.0.1:9"]
    assert (await running.ask())[0] == 200
    await _logged(running, 1)
    assert running.picker.pool.logged[0].obeyed is False
    assert running.picker.pool.logged[0].outcome.failed == ()


async def test_refused_connection_goes_to_the_second_choice(gateway: StartGateway) -> None:
    running = await gateway(engines=2)
    pool, live = running.picker.pool, running.engines[0].address
    with socket.socket() as refusing:  # bound, so that nobody else takes it, and not listening
        refusing.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{refusing.getsockname()[1]}"
        running.picker.set_endpoints([Endpoint(dead), Endpoint(live)])
        await eventually(lambda: _has(running, dead), what="EDS")
        pool.choose = lambda _eligible: [dead, live]
        body = pattern(500_000)  # fits the retry buffer
        for _ in range(10):
            status, told = await running.ask(data=body)
            assert (status, told["engine"], told["sha256"]) == (200, live, hashlib.sha256(body).hexdigest())
        await _logged(running, 10)
        for entry in pool.logged:
            assert (entry.attempts, entry.obeyed) == (2, True)
            assert (entry.outcome.picked, entry.outcome.failed, entry.outcome.succeeded) == (dead, (dead,), live)
        pool.choose = lambda _eligible: [dead]  # and a first choice alone: never twice the same host
        status, told = await running.ask()
        assert (status, told["engine"]) == (200, live)


async def _has(running: Gateway, address: str) -> bool:
    return address in await running.envoy.hosts()


async def test_bodies_are_retried_up_to_the_buffer_that_was_asked_for(gateway: StartGateway) -> None:
    running = await gateway(engines=1, retry_buffer_bytes=3_000_000)
    pool, live = running.picker.pool, running.engines[0].address
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{refusing.getsockname()[1]}"
        running.picker.set_endpoints([Endpoint(dead), Endpoint(live)])
        await eventually(lambda: _has(running, dead), what="EDS")
        pool.choose = lambda _eligible: [dead, live]
        body = pattern(2_500_000)
        status, told = await running.ask(data=io.BytesIO(body))
        assert (status, told["engine"], told["sha256"]) == (200, live, hashlib.sha256(body).hexdigest())


async def test_no_answering_engine_says_so(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    await running.engines[0].stop()
    status, told = await running.ask()
    assert status == 503
    assert told["error"] == {
        "code": 503,
        "message": "The engine could not be reached. Try again.",
        "type": "GatewayError",
    }
    await _logged(running, 1)
    entry = running.picker.pool.logged[0]
    assert entry.flags
    assert entry.outcome.failed == (running.engines[0].address,)
    assert entry.outcome.succeeded is None


@pytest.mark.parametrize("policy", list(Policy))
async def test_no_endpoints_is_ready_and_an_immediate_503_that_can_be_read(
    gateway: StartGateway, policy: Policy
) -> None:
    running = await gateway(engines=0, policy=policy)
    async with running.session.get(f"http://127.0.0.1:{running.ready_port}/ready") as ready:
        assert ready.status == 200
    async with running.session.post(running.url + "/v1/completions", data=b"{}") as response:
        assert response.status == 503  # 429 elsewhere: users want 503
        assert response.content_type == "application/json"
        assert "No engine is ready" in (await response.json())["error"]["message"]
    assert not running.picker.pool.open


async def test_first_endpoint_ends_the_503(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    address = running.engines[0].address
    running.picker.set_endpoints([])
    await eventually(lambda: _none(running), what="EDS without hosts")
    assert (await running.ask())[0] == 503
    running.picker.set_endpoints([Endpoint(address)])
    await eventually(lambda: _has(running, address), what="EDS")
    assert (await running.ask())[0] == 200
    assert await running.listener_changes() == {}


async def _none(running: Gateway) -> bool:
    return not await running.envoy.hosts()


async def test_ipv6_endpoints_are_picked_in_brackets(gateway: StartGateway) -> None:
    running = await gateway(engines=3, host="::1")
    for engine in running.engines:
        assert engine.address.startswith("[::1]:")
        running.picker.pool.choose = lambda _eligible, address=engine.address: [address]
        status, told = await running.ask()
        assert (status, told["engine"]) == (200, engine.address)
    await _logged(running, 3)
    assert [entry.obeyed for entry in running.picker.pool.logged] == [True] * 3


async def test_ipv6_listener_takes_both_families(gateway: StartGateway) -> None:
    running = await gateway(engines=1, listen="[::]:0")
    for host in ("127.0.0.1", "[::1]"):
        async with running.session.post(f"http://{host}:{running.port}/v1/completions") as response:
            assert response.status == 200


async def test_20_mb_body_passes_and_never_reaches_the_picker(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    body = pattern(20 * 1024 * 1024)
    status, told = await running.ask(data=io.BytesIO(body))
    assert (status, told["bytes"], told["sha256"]) == (200, len(body), hashlib.sha256(body).hexdigest())
    assert running.picker.pool.picks[0][1] == len(body)


async def test_chunked_request_has_no_size_and_a_get_has_none(gateway: StartGateway) -> None:
    running = await gateway(engines=1)

    async def chunks() -> object:
        for part in (b"a" * 1000, b"b" * 1000):
            yield part

    status, told = await running.ask(data=chunks())
    assert (status, told["bytes"]) == (200, 2000)
    assert (await running.ask("/v1/models", method="GET"))[0] == 200
    assert [body_bytes for _, body_bytes, _ in running.picker.pool.picks] == [None, 0]


async def test_client_disconnect_closes_the_pick_and_blames_nobody(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    pool = running.picker.pool
    for _ in range(5):
        async with running.session.post(running.url + "/v1/stream", data=b"{}") as response:
            assert await anext(lines(response)) == b"data: first"
            assert len(pool.open) == 1
            response.close()
        await eventually(lambda: not pool.open, what="the charge is returned")
    await _logged(running, 5)
    assert [entry.outcome.failed for entry in pool.logged] == [()] * 5
    assert {flag for entry in pool.logged for flag in entry.flags} <= {
        "downstream_connection_termination",
        "downstream_remote_reset",
    }


async def test_stream_that_ends_well_is_a_success_not_a_499(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    pool = running.picker.pool
    async with running.session.post(running.url + "/v1/stream", data=b"{}") as response:
        stream = lines(response)
        assert await anext(stream) == b"data: first"
        assert len(pool.open) == 1  # for as long as the response lasts
        running.engines[0].finish.set()
        assert [line async for line in stream][-1] == b"data: [DONE]"
    await _logged(running, 1)
    assert (pool.logged[0].status, pool.logged[0].flags) == (200, ())
    assert pool.logged[0].outcome.succeeded == running.engines[0].address
    assert not pool.open


@pytest.mark.parametrize(("status", "failed"), [(400, False), (404, False), (429, False), (500, True), (503, True)])
async def test_engine_s_errors_pass_and_only_5xx_blame_it(gateway: StartGateway, status: int, *, failed: bool) -> None:
    running = await gateway(engines=2)
    engine = running.engines[1]
    engine.status = status
    running.picker.pool.choose = lambda _eligible: [engine.address]
    answered, told = await running.ask()
    assert (answered, told["engine"]) == (status, engine.address)  # its own body, not the gateway's; and never retried
    await _logged(running, 1)
    outcome = running.picker.pool.logged[0].outcome
    assert (outcome.failed, outcome.succeeded) == (((engine.address,), None) if failed else ((), engine.address))


async def test_engine_that_dies_in_the_middle_of_a_stream_is_blamed(gateway: StartGateway) -> None:
    running = await gateway(engines=1)
    engine = running.engines[0]
    async with running.session.post(running.url + "/v1/stream", data=b"{}") as response:
        assert await anext(lines(response)) == b"data: first"
        transport = engine.requests[0].transport
        assert transport is not None
        transport.abort()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()
    await _logged(running, 1)
    entry = running.picker.pool.logged[0]
    assert (entry.status, entry.outcome.failed, entry.outcome.succeeded) == (200, (engine.address,), None)


async def test_pick_that_raises_costs_nothing_when_failing_open(gateway: StartGateway) -> None:
    running = await gateway(engines=2)

    def broken(_eligible: list[str]) -> list[str]:
        raise ZeroDivisionError

    running.picker.pool.choose = broken
    assert [(await running.ask())[0] for _ in range(3)] == [200] * 3
    assert running.picker.server is not None
    assert running.picker.server.counts["pick", "failed"] == 3
    running.picker.set_route(Policy.SAL, fail_open=False)
    await eventually(lambda: _status(running, 503), what="FailClose")


async def _status(running: Gateway, status: int) -> bool:
    return (await running.ask())[0] == status


async def test_1500_requests_at_once_are_all_picked(gateway: StartGateway) -> None:
    running = await gateway(engines=2)
    pool = running.picker.pool
    for engine in running.engines:
        engine.event_interval = 60
    opening = asyncio.Semaphore(8)  # opened one after the other, more or less; all open in the end

    async def opened() -> aiohttp.ClientResponse:
        async with opening:
            return await running.session.post(running.url + "/v1/stream", data=b"{}")

    responses = await asyncio.gather(*(opened() for _ in range(1500)))
    assert {response.status for response in responses} == {200}  # Envoy's default circuit breakers refuse 476 of them
    assert len(pool.picks) == len(pool.open) == 1500
    overflows = await running.envoy.stats(r"^cluster\.(picker|engines)\..*overflow$")
    assert overflows
    assert not any(overflows.values())
    for response in responses:
        response.close()
    await eventually(lambda: not pool.open, what="all charges are returned")
    assert len(pool.closed) == len(pool.picks)
