"""`halffull engine`: an emulated vLLM server. OpenAI's API on one port, the load report on another.

The engine's own times are virtual: `--speed` seconds of them pass per second. What it says of itself (load report,
/metrics) is in real seconds, as from a GPU that is so much faster.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import uvicorn
import uvloop

from halffull_lab.arguments import not_negative, port, positive, positive_int
from halffull_lab.engine_app import EngineApp, ServerOptions
from halffull_lab.engine_requests import EngineLimits
from halffull_lab.profiles import NAMES, ProfileError, load_profile
from halffull_larry.ordering import POLICIES
from halffull_larry.report import LoadServer, listening_socket

KEEP_ALIVE: Final = 5
"""s; uvicorn's default, which vLLM keeps."""


class _Server(uvicorn.Server):
    """Says when it is ready, and ends open streams some time after it is told to stop."""

    def __init__(self, config: uvicorn.Config, *, app: EngineApp, ready: Callable[[], None], patience: float) -> None:
        super().__init__(config)
        self._app = app
        self._ready = ready
        self._patience = patience

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._app.idle(), self._patience)
        self._app.close()
        await super().shutdown(sockets)


async def serve(
    options: ServerOptions,
    *,
    host: str,
    port: int,
    load_port: int,
    ready: Callable[[int, int], None],
    shutdown_timeout: float = 0.0,
) -> None:
    """Serve until SIGINT or SIGTERM, and then what is under way for `shutdown_timeout` seconds more, as vLLM does.

    `ready` is told both ports (0 takes a free one).

    Raises:
        OSError: a port cannot be bound.
    """
    with contextlib.ExitStack() as stack:
        app = EngineApp(options)
        with _naming("--port", host, port):
            http = stack.enter_context(listening_socket(host, port))
        with _naming("--load-port", host, load_port):
            load = LoadServer(app.load_report, app.plugin_metrics, host=host, port=load_port)
        stack.callback(load.stop)
        load.start()
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE,
        )
        server = _Server(
            config, app=app, ready=lambda: ready(http.getsockname()[1], load.port), patience=shutdown_timeout
        )
        await server.serve(sockets=[http])


@contextlib.contextmanager
def _naming(flag: str, host: str, port: int) -> Iterator[None]:
    """An error of binding says which flag to change."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{flag} {port}: cannot listen on {host}: {error.strerror or error}") from error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `halffull engine`."""
    defaults = ServerOptions()
    parser.add_argument(
        "--profile",
        default=defaults.profile,
        help=f"model and GPUs: {NAMES}, or a file from halffull calibrate (default: %(default)s)",
    )
    parser.add_argument("--policy", choices=POLICIES, default=defaults.policy, help="order of the waiting queue")
    parser.add_argument("--alpha", type=float, default=defaults.alpha, help="of LARRY")
    parser.add_argument("--model", default=defaults.model, help="served name")
    parser.add_argument("--host", default="127.0.0.1", help=":: takes IPv4 too")
    parser.add_argument("--port", type=port, default=8000, help="OpenAI API; 0: a free one")
    parser.add_argument("--load-port", type=port, default=9400, help="load report; 0: a free one")
    parser.add_argument("--speed", type=positive, default=defaults.speed, help="virtual seconds per second")
    parser.add_argument(
        "--stream-interval",
        type=positive_int,
        default=defaults.stream_interval,
        help="tokens per event, after the first token",
    )
    parser.add_argument("--kv-tokens", type=positive_int, help="KV cache, if not the profile's")
    parser.add_argument("--max-model-len", type=positive_int, help="longest sequence, tokens, if not the profile's")
    parser.add_argument("--max-num-seqs", type=positive_int, help="most running requests, if not the profile's")
    parser.add_argument("--max-tokens-per-batch", type=positive_int, help="budget of a step, if not the profile's")
    parser.add_argument(
        "--shutdown-timeout",
        type=not_negative,
        default=0.0,
        help="seconds that requests may go on after SIGTERM (default: they end at once)",
    )
    parser.add_argument("--allow-faults", action="store_true", help="take POST /fault (tests)")


def _limits(args: argparse.Namespace) -> EngineLimits:
    given = {
        name: value
        for name in ("kv_tokens", "max_model_len", "max_num_seqs", "max_tokens_per_batch")
        if (value := getattr(args, name)) is not None
    }
    profile = replace(load_profile(args.profile), **given)
    if profile.kv_tokens < profile.block_size:
        raise ValueError(f"--kv-tokens {profile.kv_tokens}: less than a block of {profile.block_size}")
    return EngineLimits.of(profile)


def main(args: argparse.Namespace) -> int:
    """Run one emulated engine; its addresses go to stdout, as one JSON line, when it answers."""

    def ready(port: int, load_port: int) -> None:
        sys.stdout.write(json.dumps({"port": port, "load_port": load_port}) + "\n")
        sys.stdout.flush()

    try:
        options = ServerOptions(
            profile=args.profile,
            policy=args.policy,
            alpha=args.alpha,
            model=args.model,
            speed=args.speed,
            stream_interval=args.stream_interval,
            allow_faults=args.allow_faults,
            limits=_limits(args),
        )
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a socket per open stream, thousands of them
        uvloop.run(
            serve(
                options,
                host=args.host,
                port=args.port,
                load_port=args.load_port,
                ready=ready,
                shutdown_timeout=args.shutdown_timeout,
            )
        )
    except ProfileError:
        raise  # wrong usage, which the command line tells of as of any other
    except (OSError, ValueError) as error:
        sys.stderr.write(f"halffull engine: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0
