"""`make bench`: what the picker costs, as ratios within one run (these machines are shared and noisy).

The same closed-loop and paced load goes in turn through three gateways that differ in one thing: the managed gateway
with the picker, its static twin with an ext_proc server that does nothing, and the twin without ext_proc. CPU is the
process's own time as the kernel counts it, everything in it: polls, access log, metrics.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop
import yaml
from client import closed_loop, paced
from gateways import engine, twin
from peers import Load

from halffull_extproc.endpoint import Endpoint
from halffull_extproc.load_report import decode_load_report
from halffull_extproc.policies import Policy
from halffull_extproc.pool import Pool, PoolConfig, Source
from halffull_lab.child import Child, Port
from halffull_lab.stack import Stack

_PEERS = str(Path(__file__).with_name("peers.py"))
_COUNTS = (4, 100, 1000)


def _loopback(count: int) -> list[str]:
    """Distinct addresses of the loopback range."""
    return [f"127.1.{index // 250}.{index % 250 + 1}" for index in range(count)]


@asynccontextmanager
async def _child(argv: list[str], log: Path, **ready: Any) -> AsyncIterator[Child]:
    child = Child(argv, log=log)
    child.start()
    try:
        await child.ready(**ready)
        yield child
    finally:
        await child.stop()


class Bench:
    """The processes that all measurements share."""

    def __init__(self, folder: Path, exits: AsyncExitStack) -> None:
        self.folder, self.exits = folder, exits
        self.engine_port, self.load_port = Port(), Port()

    async def start(self) -> None:
        """Start engines and load reports."""
        await self.envoy("engine", lambda admin: engine(self.engine_port.number, admin))
        load = Child([sys.executable, _PEERS, "load", str(self.load_port.number)], log=self.folder / "load.log").start()
        self.exits.push_async_callback(load.stop)
        await load.ready(url=f"http://127.0.0.1:{self.load_port.number}/load")

    async def envoy(self, name: str, config: Any) -> Child:
        """Start an Envoy with what `config(admin_port)` returns."""
        admin = Port()
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config(admin.number)))
        argv = ["envoy", "-c", str(file), "--use-dynamic-base-id", "--concurrency", "2", "--log-level", "warning"]
        return await self.exits.enter_async_context(
            _child(argv, self.folder / f"{name}.log", url=f"http://{admin.address}/ready")
        )

    async def managed(self, endpoints: int) -> Stack:
        """The picker and its managed Envoy in front of so many endpoints."""
        entries = [
            {"address": f"{host}:{self.engine_port.number}", "loadPort": self.load_port.number}
            for host in _loopback(endpoints)
        ]
        stack = await self.exits.enter_async_context(
            Stack(engines=0, endpoints=entries, logs=self.folder / f"managed-{endpoints}")
        )
        await stack.envoy.ready(url=f"{stack.gateway}/health", within=30)
        return stack

    async def empty(self) -> tuple[Child, int]:
        """The ext_proc server that does nothing, and its gateway's port."""
        socket = self.folder / "empty.sock"
        child = Child([sys.executable, _PEERS, "empty", str(socket)], log=self.folder / "empty.log").start()
        self.exits.push_async_callback(child.stop)
        return child, await self.twin("with-empty", socket)

    async def twin(self, name: str, socket: Path | None) -> int:
        """A static twin's port."""
        listen, ready = Port(), Port()
        engines = [(host, self.engine_port.number) for host in _loopback(4)]
        await self.envoy(
            name,
            lambda admin: twin(
                listen=listen.address, picker=socket, engines=engines, admin_port=admin, ready=ready.address
            ),
        )
        return listen.number


async def _cost(child: Child, port: int, *, requests: int) -> float:
    """CPU µs of `child` per request under a closed loop."""
    before = child.cpu_seconds()
    await closed_loop(port, requests=requests)
    return (child.cpu_seconds() - before) / requests * 1e6


async def _paced_cost(child: Child, port: int, *, seconds: float) -> float:
    """CPU µs of `child` per request at 100 requests/s."""
    before = child.cpu_seconds()
    latencies = await paced(port, rate=100, seconds=seconds)
    return (child.cpu_seconds() - before) / len(latencies) * 1e6


async def _growth(child: Child, port: int, *, requests: int) -> float:
    """MB by which a process grows over so many requests, after a fifth of them as a warm-up."""
    assert child.pid is not None
    process = psutil.Process(child.pid)
    await closed_loop(port, requests=requests // 5)
    before = process.memory_info().rss
    await closed_loop(port, requests=requests)
    return float((process.memory_info().rss - before) / 2**20)


def _picks() -> dict[str, float]:
    """µs of one pick and its close, by number of endpoints, the slower of SAL and SALPlus."""
    report = decode_load_report(Load.body)
    figures: dict[str, float] = {}
    for count in _COUNTS:
        worst = 0.0
        for policy in (Policy.SAL, Policy.SALPlus):
            pool = Pool(PoolConfig(policy=policy, source=Source.REPORT), rng=random.Random(0))
            endpoints = [Endpoint(address=f"{host}:8000") for host in _loopback(count)]
            pool.update_endpoints(endpoints, now=0.0)
            for endpoint in endpoints:
                pool.report(endpoint.address, report, sent=0.0, now=0.001)
            rounds: list[float] = []
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(1000):
                    pick = pool.pick(body_bytes=4096, now=0.002)
                    assert pick is not None
                    pool.close(pick, now=0.003)
                rounds.append((time.perf_counter() - start) * 1e3)
            worst = max(worst, min(rounds))
        figures[str(count)] = round(worst, 1)
    return figures


def _added(with_picker: list[float], without: list[float], percentile: float) -> float:
    """Milliseconds that the picker adds at a percentile."""
    return round(float(np.percentile(with_picker, percentile) - np.percentile(without, percentile)) * 1e3, 2)


async def _measure(*, quick: bool, say: Any) -> dict[str, Any]:
    requests, rounds, seconds = (2_000, 2, 5.0) if quick else (10_000, 3, 10.0)
    soak = 10_000 if quick else 100_000
    with tempfile.TemporaryDirectory(prefix="halffull-bench-") as folder:
        async with AsyncExitStack() as exits:
            bench = Bench(Path(folder), exits)
            await bench.start()
            stack = await bench.managed(4)
            port = stack.ports.gateway.number
            empty, empty_port = await bench.empty()
            plain_port = await bench.twin("without", None)
            say("warm-up")
            for each in (port, empty_port, plain_port):
                await closed_loop(each, requests=requests)

            picker_cost: list[float] = []
            empty_cost: list[float] = []
            paced_picker: list[float] = []
            paced_empty: list[float] = []
            latency: list[float] = []
            plain: list[float] = []
            for index in range(rounds):
                say(f"round {index + 1} of {rounds}")
                picker_cost.append(await _cost(stack.picker, port, requests=requests))
                empty_cost.append(await _cost(empty, empty_port, requests=requests))
                paced_picker.append(await _paced_cost(stack.picker, port, seconds=seconds))
                paced_empty.append(await _paced_cost(empty, empty_port, seconds=seconds))
                latency += await paced(port, rate=100, seconds=seconds)
                plain += await paced(plain_port, rate=100, seconds=seconds)

            say(f"{soak} requests, for the memory")
            grown = await _growth(stack.picker, port, requests=soak)
            grown_empty = await _growth(empty, empty_port, requests=soak)
            gone = await stack.envoy_stats(r"^http\.ingress\..*ext_proc.*(failure_mode_allowed|timeouts)$")

            say("1,000 endpoints")
            large = await bench.managed(1000)
            await asyncio.sleep(2)  # connections are made
            start, cpu = time.monotonic(), large.picker.cpu_seconds()
            await asyncio.sleep(seconds)
            cores = (large.picker.cpu_seconds() - cpu) / (time.monotonic() - start)
            polled: list[float] = []
            plain_beside: list[float] = []
            for _ in range(rounds):
                polled += await paced(large.ports.gateway.number, rate=100, seconds=seconds)
                plain_beside += await paced(plain_port, rate=100, seconds=seconds)
            states = {each["state"] for each in (await large.status())["pool"]["endpoints"]}

    cost, least = statistics.median(picker_cost), statistics.median(empty_cost)
    paced_cost, paced_least = statistics.median(paced_picker), statistics.median(paced_empty)
    return {
        "cpu_us_per_request": round(cost),
        "cpu_us_per_request_100rps": round(paced_cost),
        "over_empty_handler": round(cost / least, 2),
        "over_empty_handler_100rps": round(paced_cost / paced_least, 2),
        "added_p50_ms": _added(latency, plain, 50),
        "added_p99_ms": _added(latency, plain, 99),
        "added_p50_ms_while_polling_1000": _added(polled, plain_beside, 50),
        "added_p99_ms_while_polling_1000": _added(polled, plain_beside, 99),
        "pick_us": _picks(),
        "poll_1000_cores": round(cores, 2),
        "rss_growth_mb": round(grown, 1),
        "rss_growth_mb_empty_handler": round(grown_empty, 1),
        "rss_growth_requests": soak,
        "empty_handler_us_per_request": round(least),
        "empty_handler_us_per_request_100rps": round(paced_least),
        "unpicked": sum(gone.values()),
        "states_while_polling_1000": sorted(states),
        "quick": quick,
        "python": platform.python_version(),
        "command": "make bench" + (" ARGS=--quick" if quick else ""),
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short form, about a minute: CI runs it")
    parser.add_argument("--out", type=Path, default=Path("build/bench/extproc.json"), help="default: %(default)s")
    options = parser.parse_args()

    def say(what: str) -> None:
        sys.stderr.write(f"bench: {what}\n")

    figures = uvloop.run(_measure(quick=options.quick, say=say))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2) + "\n")
    sys.stdout.write(options.out.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
