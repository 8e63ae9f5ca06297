import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from kubernetes.aio import client

from halffull_operator.cluster import Cluster, connect
from halffull_operator.metrics import Metrics
from tests.operator.edge.fake_api import FakeApi


async def until(what: str, look: Callable[[], object], *, within: float = 10.0) -> None:
    """Look until it is so."""
    try:
        async with asyncio.timeout(within):
            while not look():  # noqa: ASYNC110  whatever it looks at
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {within:.0f} s: {what}") from None


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    fake = FakeApi()
    async with fake.serve():
        yield fake


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def configuration(api: FakeApi) -> client.Configuration:
    return client.Configuration(host=api.url)


@pytest.fixture
async def cluster(configuration: client.Configuration, metrics: Metrics) -> AsyncIterator[Cluster]:
    async with connect(configuration, count=metrics.count_request) as cluster:
        yield cluster
