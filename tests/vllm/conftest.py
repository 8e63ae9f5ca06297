"""Servers for the tests in real vLLM. `make test-vllm` runs them where vLLM is; elsewhere there is nothing to collect.

A module names its server in `SERVER = serving.larry(…)` (or several in `SERVERS = [...]`: each of its tests runs on
each), and its tests take the fixtures `server` and `client`. Equal setups share one server, one server runs at a time,
and tests are ordered so that each starts once.
"""

import importlib.util
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from .client import Client
    from .serving import Launcher, Server, Setup

HAS_VLLM = importlib.util.find_spec("vllm") is not None
collect_ignore_glob = [] if HAS_VLLM else ["*"]

# What vLLM and its dependencies warn about when they are imported; nothing of ours.
WARNINGS = ("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",)

_setups: dict["Setup", "Setup"] = {}
_launchers: list["Launcher"] = []


def pytest_configure(config: pytest.Config) -> None:
    """Narrow exceptions to "every warning is an error", for these tests only."""
    for line in WARNINGS:
        config.addinivalue_line("filterwarnings", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run of a test per setup that its module declares."""
    if "server" not in metafunc.fixturenames:
        return
    declared = getattr(metafunc.module, "SERVERS", None) or [metafunc.module.SERVER]
    # pytest compares parameters by identity: equal setups become one object.
    setups = [_setups.setdefault(setup, setup) for setup in declared]
    metafunc.parametrize("server", setups, indirect=True, scope="session", ids=str)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one server stand together, after those that need none; a start may take longer than a test may."""
    order = {setup: position for position, setup in enumerate(_setups)}

    def position(item: pytest.Item) -> int:
        setup = _setup_of(item)
        return -1 if setup is None else order[setup]

    items.sort(key=position)
    for item in items:
        if {"server", "launcher"} & set(getattr(item, "fixturenames", ())) and item.get_closest_marker(
            "timeout"
        ) is None:
            item.add_marker(pytest.mark.timeout(600))


def _setup_of(item: pytest.Item) -> "Setup | None":
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("server") if callspec else None


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Launcher"]:
    """Starts servers; for one of the test's own: `with serving.running(setup, launcher, tmp_path) as server`."""
    from .serving import Launcher  # noqa: PLC0415  needs packages of vLLM's environment

    with Launcher(tmp_path_factory.mktemp("launcher")) as started:
        started.warm()
        yield started


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, launcher: "Launcher", tmp_path_factory: pytest.TempPathFactory
) -> Iterator["Server"]:
    """The module's server, ready."""
    from .serving import running  # noqa: PLC0415

    with running(request.param, launcher, tmp_path_factory.mktemp("server")) as ready:
        yield ready


@pytest_asyncio.fixture
async def client(server: "Server") -> AsyncIterator["Client"]:
    """A client of the module's server."""
    from .client import Client  # noqa: PLC0415

    async with Client(server) as opened:
        yield opened
