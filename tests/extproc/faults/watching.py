"""What Envoy and the picker say of themselves, and faults to put into engines."""

import asyncio
import json
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import aiohttp

from halffull_lab.stack import Engine, Stack, get_text
from tests.extproc.faults.load import Sent

T = TypeVar("T")


async def eventually(
    condition: Callable[[], Awaitable[T | None]], *, within: float = 20.0, what: str = "the condition"
) -> T:
    """Poll `condition` until it is true, and return what it returned; fail with `what` after `within` seconds.

    Who does not answer, on a busy machine or while it starts, is asked again.
    """
    deadline = time.monotonic() + within
    last: object
    while True:
        try:
            last = value = await condition()
            if value:
                return value
        except (TimeoutError, aiohttp.ClientError) as error:
            last = error
        assert time.monotonic() < deadline, f"{what}: not within {within} s, last {last!r}"
        await asyncio.sleep(0.05)


# The picker


async def endpoints(stack: Stack) -> dict[str, dict[str, Any]]:
    """Each endpoint on the status page, by address."""
    return {one["address"]: one for one in (await stack.status())["pool"]["endpoints"]}


async def endpoint(stack: Stack, engine: Engine) -> dict[str, Any]:
    return (await endpoints(stack))[engine.http.address]


async def picks(stack: Stack) -> dict[str, float]:
    """Picks of each endpoint since this picker discovered it."""
    return {address: one["picks"] for address, one in (await endpoints(stack)).items()}


async def in_state(stack: Stack, engine: Engine, *states: str, within: float = 10.0) -> dict[str, Any]:
    """Wait until an engine is in one of the states; what the status page says of it then."""

    async def there() -> dict[str, Any] | None:
        seen = (await endpoints(stack)).get(engine.http.address)  # a picker that just started knows nobody
        return seen if seen and seen["state"] in states else None

    return await eventually(there, within=within, what=f"{engine.name} {' or '.join(states)}")


async def picked_again(stack: Stack, engine: Engine, *, more: int = 5, within: float = 20.0) -> None:
    """Wait until an engine is well and gets picks."""
    await in_state(stack, engine, "ok", within=within)
    before = (await endpoint(stack, engine))["picks"]

    async def picked() -> bool:
        return bool((await endpoint(stack, engine))["picks"] >= before + more)

    await eventually(picked, within=within, what=f"{engine.name} is picked again")


async def troubles(stack: Stack) -> dict[str, str]:
    return {one["about"]: one["text"] for one in (await stack.status())["troubles"]}


async def metric(stack: Stack, name: str) -> float:
    """The value of one series, named as the exposition writes it."""
    text = await get_text(f"{stack.metrics}/metrics")
    line = next(line for line in text.splitlines() if line.startswith(name + " "))
    return float(line.rpartition(" ")[2])


async def settled(stack: Stack) -> None:
    """Wait until Envoy has answered everything that it was sent by ADS: it serves before it has said so."""
    series = re.compile(r'halffull_picker_ads_responses_total{result="(\w+)",type="(\w+)"} (\S+)')

    async def answered() -> bool:
        open_answers: Counter[str] = Counter()
        for result, kind, number in series.findall(await get_text(f"{stack.metrics}/metrics")):
            if kind == "other":  # asked for, and not ours to send
                continue
            open_answers[kind] += int(float(number)) * (1 if result == "sent" else -1)
        return bool(open_answers) and not any(open_answers.values())

    await eventually(answered, what="Envoy's answers by ADS")


# Envoy


async def served(stack: Stack) -> Counter[str]:
    """Requests that each engine was sent, over all clusters, as Envoy counts them per host."""
    total: Counter[str] = Counter()
    for cluster in json.loads(await get_text(f"{stack.admin}/clusters", format="json"))["cluster_statuses"]:
        for host in cluster.get("host_statuses", []):
            if "socket_address" in host["address"]:
                address = host["address"]["socket_address"]
                count = next(int(one.get("value", 0)) for one in host["stats"] if one["name"] == "rq_total")
                total[f"{address['address']}:{address['port_value']}"] += count
    return total


async def ext_proc(stack: Stack, name: str) -> int:
    """A counter of the ext_proc filter."""
    return sum((await stack.envoy_stats(rf"^http\.ingress\.ext_proc\.{name}$")).values())


async def listener_changes(stack: Stack) -> dict[str, int]:
    """What must stay 0: every change of a listener drains every connection."""
    stats = await stack.envoy_stats(
        r"^listener_manager\.(listener_modified|listener_in_place_updated|listener_removed|total_listeners_draining)$"
    )
    return {name: value for name, value in stats.items() if value}


async def logged(stack: Stack, requests: Iterable[Sent]) -> dict[str, dict[str, Any]]:
    """Envoy's access-log entry of each of these requests, which are over, by request id."""
    wanted = {one.request_id for one in requests}
    found: dict[str, dict[str, Any]] = {}

    async def complete() -> bool:
        lines = stack.envoy.log.read_text(errors="replace").splitlines()
        parsed = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        found.update({entry["request_id"]: entry for entry in parsed if entry.get("request_id") in wanted})
        return len(found) == len(wanted)

    await eventually(complete, what="the access log")
    return found


# Engines


async def fault(engine: Engine, kind: str, *, factor: float = 2.0) -> None:
    """Put a fault into an engine; `none` takes it out. `factor` is how much slower `slow` makes it."""
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{engine.url}/fault", json={"kind": kind, "factor": factor}) as response,
    ):
        assert response.status == 200, await response.text()
