"""Calls to the API server: what is sent, and what every way to fail becomes."""

import asyncio
import json
import socket

import pytest
import yaml
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio import client

from halffull_operator import cluster as module
from halffull_operator import kinds
from halffull_operator.cluster import Cluster, connect, from_response
from halffull_operator.errors import ApiError
from halffull_operator.metrics import Metrics
from tests.operator.edge.fake_api import FakeApi, refused

SERVICE = kinds.named("v1", "Service")


def service(name: str = "s", **spec: object) -> kinds.Manifest:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "ns"}, "spec": spec}


async def test_apply_get_list_delete(api: FakeApi, cluster: Cluster, metrics: Metrics) -> None:
    answer = await cluster.apply(service(type="ClusterIP"))
    assert answer["metadata"]["resourceVersion"]
    assert (await cluster.get(SERVICE, "s", namespace="ns")) == answer
    items, version = await cluster.list(SERVICE, namespace="ns")
    assert [item["metadata"]["name"] for item in items] == ["s"]
    assert items[0]["kind"] == "Service"
    assert int(version) >= int(answer["metadata"]["resourceVersion"])
    await cluster.delete(SERVICE, "s", namespace="ns", uid="another one")
    assert await cluster.get(SERVICE, "s", namespace="ns") is not None, "its successor lives"
    await cluster.delete(SERVICE, "s", namespace="ns", uid=answer["metadata"]["uid"])
    assert await cluster.get(SERVICE, "s", namespace="ns") is None
    await cluster.delete(SERVICE, "s", namespace="ns", uid=None)
    assert metrics.registry.get_sample_value(
        "halffull_operator_api_requests_total", {"verb": "patch", "resource": "services", "reason": "ok"}
    )


async def test_a_long_list_comes_in_pages(api: FakeApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halffull_operator.cluster.PAGE", 2)
    for name in "abcde":
        api.put(service(name))
    pages = [page async for page in cluster.pages(SERVICE)]
    assert [[item["metadata"]["name"] for item in items] for items, _ in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert {version for _, version in pages} == {str(api.version)}
    assert all(item["kind"] == "Service" for items, _ in pages for item in items)


async def test_apply_says_who_we_are_and_forces(api: FakeApi, cluster: Cluster) -> None:
    seen: list[web.Request] = []
    api.fault = seen.append  # None: no fault
    await cluster.apply(service())
    (request,) = seen
    assert request.query == {"fieldManager": "halffull-operator", "force": "true"}
    assert request.headers["Content-Type"].partition(";")[0] == "application/apply-patch+yaml"
    assert request.headers["User-Agent"].startswith("halffull-operator/")


@pytest.mark.parametrize(
    ("status", "reason", "message", "wanted", "retryable"),
    [
        (409, "Conflict", "the object has been modified", "Conflict", True),
        (422, "Invalid", "spec.ports: Required value", "Invalid", False),
        (403, "Forbidden", "exceeded quota: pods, requested: pods=1", "QuotaExceeded", False),
        (403, "Forbidden", "only dynamically provisioned pvc can be resized and …", "CacheResizeUnsupported", False),
        (403, "Forbidden", "user cannot patch", "Forbidden", False),
        (401, "Unauthorized", "", "Unauthorized", True),
        (429, "TooManyRequests", "", "TooManyRequests", True),
        (500, "InternalError", "", "InternalError", True),
        (500, "", "failed to update, see (a; b, Kind=C): field not declared in schema", "HTTP500", True),
        (503, "ServiceUnavailable", "", "ServiceUnavailable", True),
        (504, "Timeout", "", "Timeout", True),
    ],
)
async def test_refusals(
    api: FakeApi, cluster: Cluster, status: int, reason: str, message: str, wanted: str, *, retryable: bool
) -> None:
    api.fault = lambda _: refused(status, reason, message)
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert (caught.value.reason, caught.value.retryable) == (wanted, retryable)
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        (
            "failed to create typed patch object (ns/s; v1, Kind=Service): .spec.foo: field not declared in schema",
            ".spec.foo: field not declared in schema",
        ),
        (
            "failed to convert new object (ns/s; v1, Kind=Service) to proper version: cannot convert float64 to int64",
            "cannot convert float64 to int64",
        ),
    ],
)
async def test_an_apply_that_does_not_fit_the_schema_is_answered_with_500_and_never_will_fit(
    api: FakeApi, cluster: Cluster, message: str, wanted: str
) -> None:
    api.fault = lambda _: refused(500, "", message)
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert (caught.value.reason, caught.value.message, caught.value.retryable) == ("Invalid", wanted, False)
    assert not caught.value.unreachable


@given(st.text())
def test_an_apply_is_json_that_yaml_reads_alike(text: str) -> None:
    body = module._as_yaml({text: [text]})
    assert json.loads(body) == {text: [text]}
    assert "\\ud83d" not in module._as_yaml({"a": "\N{GRINNING FACE}"})
    if len(text) < 1000:
        assert yaml.safe_load(body) == {text: [text]}


async def test_a_namespace_that_is_being_deleted(api: FakeApi, cluster: Cluster) -> None:
    api.fault = lambda _: refused(403, "Forbidden", "…", details={"causes": [{"reason": "NamespaceTerminating"}]})
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert caught.value.reason == "NamespaceTerminating"


async def test_retry_after_from_header_and_body(api: FakeApi, cluster: Cluster) -> None:
    api.fault = lambda _: refused(429, "TooManyRequests", details={"retryAfterSeconds": 3})
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert caught.value.retry_after == 3.0
    api.fault = lambda _: web.json_response({}, status=503, headers={"Retry-After": "7"})
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert caught.value.retry_after == 7.0


async def test_no_answer_in_time(api: FakeApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.1)

    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(2)
        return web.Response()

    monkeypatch.setattr(api, "_object", lambda request, *_: silent(request))
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert (caught.value.reason, caught.value.retryable, caught.value.unreachable) == ("Timeout", True, True)


async def test_an_answer_that_is_no_json(api: FakeApi, cluster: Cluster) -> None:
    api.fault = lambda _: web.Response(text="<html>a proxy's page</html>")
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert caught.value.reason == "Unreachable"
    api.fault = lambda _: web.Response(text="<html>bad gateway</html>", status=502)
    with pytest.raises(ApiError) as caught:
        await cluster.apply(service())
    assert (caught.value.status, caught.value.retryable) == (502, True)


@pytest.mark.parametrize(("status", "reason"), [(429, "…"), (500, "…"), (503, "…"), (409, "Conflict")])
async def test_a_passing_trouble_is_got_over(api: FakeApi, cluster: Cluster, status: int, reason: str) -> None:
    failures = iter([True] * len(module.RETRIES))
    api.fault = lambda _: refused(status, reason) if next(failures, False) else None
    await cluster.apply(service())
    assert api.count("PATCH", "") == 1 + len(module.RETRIES)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
async def test_a_refusal_is_asked_once(api: FakeApi, cluster: Cluster, status: int) -> None:
    api.fault = lambda _: refused(status, "…")
    with pytest.raises(ApiError):
        await cluster.apply(service())
    assert api.count("PATCH", "") == 1


async def test_who_asks_for_a_long_wait_gets_it_in_the_queue(api: FakeApi, cluster: Cluster) -> None:
    api.fault = lambda _: web.json_response({}, status=429, headers={"Retry-After": "30"})
    with pytest.raises(ApiError):
        await cluster.apply(service())
    assert api.count("PATCH", "") == 1


async def test_a_deletion_of_another_one_s_uid_is_over_soon(api: FakeApi, cluster: Cluster) -> None:
    await cluster.apply(service())
    await cluster.delete(SERVICE, "s", namespace="ns", uid="another one")
    assert api.count("DELETE", "") == 1 + len(module.RETRIES)


async def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        metrics = Metrics()
        async with connect(
            client.Configuration(host=f"http://127.0.0.1:{port}"), count=metrics.count_request
        ) as cluster:
            with pytest.raises(ApiError) as caught:
                await cluster.get(SERVICE, "s", namespace="ns")
    assert (caught.value.reason, caught.value.retryable) == ("Unreachable", True)


async def test_what_is_served(api: FakeApi, cluster: Cluster) -> None:
    assert await cluster.served(kinds.OPTIONAL) == frozenset(kinds.OPTIONAL)
    api.kinds = [kind for kind in api.kinds if kind.kind not in ("PodMonitor", "HTTPRoute")]
    assert {kind.kind for kind in await cluster.served(kinds.OPTIONAL)} == {"InferencePool"}


@given(
    status=st.integers(300, 599),
    body=st.none() | st.text() | st.binary() | st.from_type(dict[str, int]).map(str),
    headers=st.none() | st.dictionaries(st.sampled_from(["Retry-After", "Date"]), st.text(max_size=8)),
)
def test_whatever_comes_is_an_error_with_a_reason(
    status: int, body: str | bytes | None, headers: dict[str, str] | None
) -> None:
    error = from_response(status, body, headers)
    assert error.reason
    assert error.retry_after is None or 0 < error.retry_after <= 300
