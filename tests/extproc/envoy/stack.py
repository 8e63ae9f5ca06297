"""The pieces of a gateway under test: a real Envoy, a picker of ours with a pool that does as told, and engines.

Each piece has `start` and `stop`; the `gateway` fixture (conftest.py) puts them together. Nothing here sleeps to be on
time: `eventually` polls a condition until its deadline.
"""

import asyncio
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import aiohttp
from aiohttp import web

from halffull_extproc.endpoint import Endpoint, Health
from halffull_extproc.policies import Policy
from halffull_extproc.pool import Outcome, Pick
from halffull_extproc.server import Hooks, Server
from halffull_extproc.tls import SelfSigned, TlsFiles
from halffull_extproc.xds.ads import AdsServer
from halffull_extproc.xds.bootstrap import bootstrap
from halffull_extproc.xds.gateway_config import GatewayConfig
from tests.ports import free_ports

if TYPE_CHECKING:
    from halffull_extproc.xds.access_log import AccessLogEntry

T = TypeVar("T")

ENVOY = Path(sys.executable).with_name("envoy")


async def eventually(
    condition: Callable[[], T | Awaitable[T]], *, within: float = 30.0, what: str = "the condition"
) -> T:
    """Poll `condition` until it is true, and return what it returned; fail with `what` after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        result = condition()
        value = await result if isinstance(result, Awaitable) else result
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {within} s, last {value!r}"
        await asyncio.sleep(0.02)


class Envoy:
    """A real Envoy on its own ports, with its output in a folder."""

    def __init__(self, process: asyncio.subprocess.Process, *, admin_port: int, folder: Path) -> None:
        self.process = process
        self.admin = f"http://127.0.0.1:{admin_port}"
        self.folder = folder
        self._session = aiohttp.ClientSession()

    @classmethod
    async def start(
        cls, config: str, *, folder: Path, admin_port: int, concurrency: int = 1, options: Iterable[str] = ()
    ) -> Self:
        """Start Envoy with the bootstrap `config`, whose admin interface is on `admin_port`; do not wait for it."""
        path = folder / "envoy.yaml"
        path.write_text(config)
        with (folder / "envoy.out").open("ab") as out, (folder / "envoy.err").open("ab") as err:
            process = await asyncio.create_subprocess_exec(
                *(str(ENVOY), "-c", str(path), "--use-dynamic-base-id", "--concurrency", str(concurrency)),
                *("--log-level", "info", "--drain-time-s", "5", *options),
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C in a terminal is pytest's to handle
            )
        return cls(process, admin_port=admin_port, folder=folder)

    async def stop(self) -> None:
        await self._session.close()
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    async def get(self, path: str) -> str:
        async with self._session.get(self.admin + path) as response:
            return await response.text()

    async def stats(self, pattern: str) -> dict[str, int]:
        """Read the counters and gauges whose name matches the regular expression."""
        found = json.loads(await self.get(f"/stats?format=json&filter={pattern}"))["stats"]
        return {stat["name"]: stat["value"] for stat in found if "value" in stat}

    async def stat(self, name: str) -> int:
        """Read one counter or gauge; 0 when Envoy has not made it yet."""
        return (await self.stats(f"^{name}$".replace(".", r"\."))).get(name, 0)

    async def config_dump(self) -> dict[str, Any]:
        dump: dict[str, Any] = json.loads(await self.get("/config_dump?include_eds"))
        return dump

    async def hosts(self, cluster: str = "engines") -> dict[str, str]:
        """Each host of a cluster and the health that EDS gave it."""
        clusters = json.loads(await self.get("/clusters?format=json"))["cluster_statuses"]
        hosts = next((each.get("host_statuses", []) for each in clusters if each["name"] == cluster), [])
        found = {}
        for host in hosts:
            address = host["address"]["socket_address"]
            name = address["address"]
            key = f"[{name}]:{address['port_value']}" if ":" in name else f"{name}:{address['port_value']}"
            found[key] = host["health_status"]["eds_health_status"]
        return found

    async def listening(self, name: str = "ingress", *, within: float = 60.0) -> int:
        """Wait until a listener takes connections, and return its port."""

        async def port() -> int:
            if self.process.returncode is not None:
                raise AssertionError(f"Envoy exited: {self.errors()[-2000:]}")
            with suppress(aiohttp.ClientError):
                if (await self.get("/ready")).strip() == "LIVE":
                    listeners = json.loads(await self.get("/listeners?format=json")).get("listener_statuses", [])
                    for listener in listeners:
                        if listener["name"] == name:
                            found: int = listener["local_address"]["socket_address"]["port_value"]
                            return found
            return 0

        return await eventually(port, within=within, what=f"listener {name}")

    def errors(self) -> str:
        return (self.folder / "envoy.err").read_text()

    def access_log(self) -> list[dict[str, Any]]:
        lines = (self.folder / "envoy.out").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]


class Engine:
    """An upstream that tells what reached it: `requests` lists them, the answer repeats the essentials.

    `/v1/stream` is a stream of server-sent events that lasts until `finish` is set; between the first and the last
    there is one every `event_interval` seconds.
    """

    def __init__(self) -> None:
        self.requests: list[web.Request] = []
        self.finish = asyncio.Event()
        self.status = 200
        self.event_interval = 0.1
        self.address = ""
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1") -> Self:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/v1/stream", self._stream)
        app.router.add_route("*", "/{tail:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0, backlog=4096)
        await site.start()
        port = self._runner.addresses[0][1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self

    async def stop(self) -> None:
        self.finish.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        digest, size = hashlib.sha256(), 0
        async for chunk in request.content.iter_any():
            digest.update(chunk)
            size += len(chunk)
        told = {
            "engine": self.address,
            "path": request.raw_path,
            "headers": {key.lower(): value for key, value in request.headers.items()},
            "bytes": size,
            "sha256": digest.hexdigest(),
        }
        if "answer-bytes" in request.headers:  # a body of that size instead, which its sender can know
            return web.Response(
                body=pattern(int(request.headers["answer-bytes"])), headers={"sha256": digest.hexdigest()}
            )
        return web.json_response(told, status=self.status, headers={"engine": self.address})

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "engine": self.address})
        await response.prepare(request)
        with suppress(ConnectionResetError):  # the client may leave at any time
            await response.write(b"data: first\n\n")
            while not self.finish.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.finish.wait(), self.event_interval)
                await response.write(b"data: more\n\n")
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        return response


def pattern(size: int) -> bytes:
    """Bytes that no shift, cut or repetition leaves the same."""
    return b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(size // 32 + 1))[:size]


def fake_pick(*addresses: str) -> Pick:
    """A pick that charges nothing."""
    return Pick(addresses=addresses, tokens=1.0, at=0.0, body_bytes=None, ledger=None)


class FakePool:
    """A pool that picks what `choose` says (the healthy ones in order, unless replaced) and keeps account."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = []
        self.choose: Callable[[list[str]], Iterable[str]] = lambda eligible: eligible[:2]
        self.picks: list[tuple[Pick, int | None, frozenset[str] | None]] = []
        self.open: set[Pick] = set()
        self.closed: list[tuple[Pick, int | None]] = []
        self.outcomes: list[Outcome] = []
        self.logged: list[AccessLogEntry] = []

    def pick(self, *, body_bytes: int | None, subset: Collection[str] | None) -> Pick | None:
        eligible = [
            endpoint.address
            for endpoint in self.endpoints
            if endpoint.health is Health.HEALTHY and (subset is None or endpoint.address in subset)
        ]
        addresses = tuple(self.choose(eligible))
        if not addresses:
            return None
        pick = fake_pick(*addresses)
        self.picks.append((pick, body_bytes, None if subset is None else frozenset(subset)))
        self.open.add(pick)
        return pick

    def close(self, pick: Pick, *, body_bytes: int | None) -> None:
        self.open.remove(pick)  # KeyError: closed twice
        self.closed.append((pick, body_bytes))

    def hooks(self) -> Hooks:
        return Hooks(
            pick=self.pick,
            close=self.close,
            outcome=self.outcomes.append,
            access_log=self.logged.append,
            alive=lambda: True,
            ready=lambda: True,
        )


@dataclass
class Picker:
    """Our server with a FakePool, in this process."""

    listen: str
    config: GatewayConfig | None = None
    policy: Policy = Policy.SAL
    fail_open: bool = True
    tls: TlsFiles | SelfSigned | None = None
    pool: FakePool = field(default_factory=FakePool)
    ads: AdsServer | None = None
    server: Server | None = None

    async def start(self) -> Self:
        """Start, or start anew after `stop`: the pool stays, versions are those of another process."""
        if self.config is not None:
            self.ads = AdsServer(self.config, policy=self.policy, fail_open=self.fail_open)
            self.ads.set_endpoints(self.pool.endpoints)
        self.server = Server(hooks=self.pool.hooks(), listen=self.listen, ads=self.ads, tls=self.tls)
        await self.server.start()
        return self

    async def stop(self, grace: float = 0) -> None:
        if self.server is not None:
            await self.server.stop(grace)
            self.server = None

    def set_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        self.pool.endpoints = list(endpoints)
        if self.ads is not None:
            self.ads.set_endpoints(self.pool.endpoints)

    def set_route(self, policy: Policy, *, fail_open: bool = True) -> None:
        assert self.ads is not None
        self.policy, self.fail_open = policy, fail_open
        self.ads.set_route(policy, fail_open)


class PickerProcess:
    """The same in a process of its own, to be killed (SIGKILL) or hung (SIGSTOP): picks the endpoints in order."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *, listen: str, endpoints: Iterable[Endpoint], fail_open: bool = True) -> Self:
        given = {"listen": listen, "endpoints": [endpoint.address for endpoint in endpoints], "fail_open": fail_open}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("picker_process.py")), json.dumps(given)),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"listening\n"
        return cls(process)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def stop(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.communicate()


@dataclass
class Gateway:
    """Envoy, picker and engines, running."""

    envoy: Envoy
    picker: Picker
    engines: list[Engine]
    port: int
    session: aiohttp.ClientSession
    ready_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(self, path: str = "/v1/completions", **kwargs: Any) -> tuple[int, dict[str, Any]]:
        """POST (or what `method` says); return status and JSON body."""
        method = kwargs.pop("method", "POST")
        async with self.session.request(method, self.url + path, **kwargs) as response:
            told: dict[str, Any] = await response.json(content_type=None)
            return response.status, told

    async def settled(self) -> None:
        """Wait until Envoy has answered everything that it was sent by ADS: it serves before it has said so."""
        assert self.picker.ads is not None
        counts = self.picker.ads.counts

        def answered() -> bool:
            kinds = {kind for kind, how in counts if how == "sent"}
            return all(
                counts[kind, "sent"] == sum(counts[kind, how] for how in ("accepted", "rejected", "ignored"))
                for kind in kinds
            )

        await eventually(answered, what=f"ACKs {counts}")

    async def listener_changes(self) -> dict[str, int]:
        """Everything that shows a listener change or a stuck cluster; all values should be 0."""
        found = await self.envoy.stats(
            r"listener_manager\.(listener_modified|total_listeners_draining|listener_create_failure|lds.update_rejected)$"
            r"|cluster_manager\.(warming_clusters|cds.update_rejected)$"
        )
        assert "listener_manager.listener_modified" in found
        assert "cluster_manager.warming_clusters" in found
        return {name: value for name, value in found.items() if value}


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The non-empty lines of a stream of server-sent events."""
    async for line in response.content:
        if line.strip():
            yield line.strip()


async def start_envoy(
    folder: Path, picker: Picker | str, *, tls: TlsFiles | SelfSigned | None = None
) -> tuple[Envoy, int]:
    """Start Envoy on our own bootstrap; return it and the port of its readiness listener."""
    admin_port = free_ports(2)
    ready_port = admin_port + 1
    listen = picker if isinstance(picker, str) else picker.listen
    config = bootstrap(picker=listen, tls=tls, admin_port=admin_port, ready=f"127.0.0.1:{ready_port}")
    return await Envoy.start(config, folder=folder, admin_port=admin_port), ready_port
