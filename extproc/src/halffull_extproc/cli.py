"""The command `halffull-extproc`."""

import argparse
import contextlib
import gc
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import prometheus_client
import uvloop

from halffull_extproc import app, log
from halffull_extproc.addresses import split_address
from halffull_extproc.discovery.config_map import first_text
from halffull_extproc.discovery.file import MAX_ENDPOINTS_BYTES, FileError, parse_endpoints, read_text
from halffull_extproc.discovery.kube import KubeError, connect, own_namespace
from halffull_extproc.endpoint import Endpoint
from halffull_extproc.http_server import ListenError
from halffull_extproc.load_report import load_report_schema
from halffull_extproc.pool import Source
from halffull_extproc.settings import MAX_BYTES, Settings, SettingsError, TlsFiles, load_settings, picker_schema
from halffull_extproc.status import own_version
from halffull_extproc.tls import SelfSigned, TlsError, read
from halffull_extproc.wiring import (
    ConfigSource,
    gateway_config,
    picker_address,
    picker_tls,
    ranks_polled,
    ready_address,
)
from halffull_extproc.xds.bootstrap import bootstrap

BAD_INPUT: Final = 2
CONFIG_MAP_WITHIN: Final = 60.0  # s that the ConfigMap may take to appear

_EXAMPLES: Final = """\
examples:
  halffull-extproc check --config picker.yaml
  halffull-extproc bootstrap --config picker.yaml > envoy.yaml
  halffull-extproc run --config picker.yaml &
  envoy -c envoy.yaml

the smallest picker.yaml, and its endpoints.yaml:
  version: 1
  policy: SAL
  endpoints: {file: endpoints.yaml}

  endpoints: [{address: "127.0.0.1:8001", loadPort: 9401}]
"""
_RUN_EXAMPLES: Final = """\
examples:
  halffull-extproc run --config picker.yaml
  halffull-extproc run --config-map serving/llama-picker --log json
policy, failureMode, sal, salPlus and poll are applied while running; everything else at the next start.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it did what was asked, 2 when its input can not be used (one line says why)."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.command(options) or 0)
    except (SettingsError, FileError, KubeError, ListenError, TlsError) as error:
        sys.stderr.write(f"halffull-extproc: {error}\n")
        return BAD_INPUT
    except BrokenPipeError:
        return 0  # `… | head`


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halffull-extproc",
        description="The picker: sends each request to the vLLM engine that will serve it soonest, for Envoy.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=own_version())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = _command(commands, "run", "run the picker until SIGTERM", _run, epilog=_RUN_EXAMPLES)
    _add_source(run)
    run.add_argument(
        "--log", choices=("auto", "json", "console"), default="auto", help="form of the log (default: auto)"
    )
    run.add_argument(
        "--log-level", choices=log.LEVELS, default="info", help="least level that is logged (default: info)"
    )

    boot = _command(commands, "bootstrap", "print the bootstrap configuration for Envoy", _bootstrap)
    _add_source(boot)
    boot.add_argument(
        "--admin-port", type=_port, default=9901, metavar="N", help="Envoy's admin port, on 127.0.0.1 (default: 9901)"
    )
    boot.add_argument(
        "--ready-port",
        type=_port,
        default=9902,
        metavar="N",
        help="port of /ready and /stats/prometheus (default: 9902)",
    )

    check = _command(commands, "check", "check a configuration and say what would be used", _check)
    _add_source(check)

    schema = _command(commands, "schema", "print a JSON Schema", _schema)
    schema.add_argument("contract", choices=sorted(_SCHEMAS), help="which one")
    return parser


def _command(commands: Any, name: str, text: str, function: Any, *, epilog: str = "") -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(command=function)
    return parser


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--config", metavar="FILE", help="the configuration, picker.yaml")
    source.add_argument(
        "--config-map",
        metavar="[NAMESPACE/]NAME",
        help="a ConfigMap with the key picker.yaml; the namespace defaults to the pod's",
    )


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() else 0
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, allowed: 1 to 65535")
    return port


def _source(options: argparse.Namespace) -> ConfigSource:
    if options.config is not None:
        return ConfigSource(name=options.config)
    namespace, _, name = options.config_map.rpartition("/")
    namespace = namespace or own_namespace() or ""
    if not namespace or not name:
        raise SettingsError(f"--config-map {options.config_map}: write NAMESPACE/NAME, this is not a pod with one")
    return ConfigSource(name=name, namespace=namespace)


def _text(source: ConfigSource) -> str:
    if not source.namespace:
        return read_text(Path(source.name), max_bytes=MAX_BYTES)

    async def fetch() -> str:
        async with connect() as api:
            return await first_text(api, namespace=source.namespace, name=source.name, within=CONFIG_MAP_WITHIN)

    return uvloop.run(fetch())


def _load(options: argparse.Namespace) -> tuple[Settings, ConfigSource, str]:
    source = _source(options)
    text = _text(source)
    return load_settings(text, source=str(source)), source, text


def _endpoints(settings: Settings, source: ConfigSource) -> list[Endpoint] | None:
    """What endpoints.yaml says now; None when the endpoints come from Kubernetes."""
    if not isinstance(settings.endpoints.file, str):
        return None
    path = source.beside(settings.endpoints.file)
    text = read_text(path, max_bytes=MAX_ENDPOINTS_BYTES)
    return parse_endpoints(text, source=str(path), load_port=settings.load_port, ranks=ranks_polled(settings))


def _run(options: argparse.Namespace) -> int:
    log.configure(form=options.log, level=options.log_level)
    settings, source, text = _load(options)
    _endpoints(settings, source)  # a bad list at the start is an error; later, the last good one stands
    _raise_file_limit()
    _collect_in_small_portions()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # when a series began: noise here
    try:
        uvloop.run(app.run(settings, source=source, text=text))
    except RuntimeError as error:
        what, _, _ = str(error).partition(";")  # what follows advises to debug grpc
        if "Failed to bind" not in what:
            raise
        key = "listen.health" if settings.listen.health in what else "listen.grpc"
        raise ListenError(f"{key}: {what}: taken, not this host's, or a folder that is not there") from error
    return 0


def _raise_file_limit() -> None:
    """A thousand engines and as many streams as there are requests need more descriptors than the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _collect_in_small_portions() -> None:
    """Keep every pause of the garbage collector far below the 100 ms that Envoy waits for a pick.

    Thousands of open streams are some 50 objects each, and a full collection walks all of them: 100 ms with 3,000,
    measured. They hardly ever form cycles, so full collections may be rare; what was imported is never walked again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 10, 100)


def _bootstrap(options: argparse.Namespace) -> None:
    settings, _, _ = _load(options)
    taken = {split_address(settings.gateway.listen)[1]: "gateway.listen"}
    for flag, port in (("--admin-port", options.admin_port), ("--ready-port", options.ready_port)):
        if port in taken:
            raise SettingsError(f"{flag} {port}: the port is {taken[port]}'s already")
        taken[port] = flag
    print(
        bootstrap(
            picker=picker_address(settings),
            tls=picker_tls(settings),
            admin_port=options.admin_port,
            ready=ready_address(settings, options.ready_port),
        ),
        end="",
    )


def _check(options: argparse.Namespace) -> None:
    settings, source, _ = _load(options)
    endpoints = _endpoints(settings, source)
    poll = f"every {settings.poll_interval * 1000:g} ms, stale after {settings.stale_after:g} s"
    gateway, listen = settings.gateway, settings.listen
    for pair in (gateway_config(settings).tls, picker_tls(settings)):
        if pair is not None and not isinstance(pair, SelfSigned):
            read(pair)
    if settings.source is Source.REPORT:
        load = f"load reports, port {settings.load_port}, {settings.ranks} rank(s), {poll}"
    else:
        load = f"stock vLLM metrics, {poll}"
    lines = [
        ("configuration", f"{source} is valid"),
        ("policy", f"{settings.policy.value}, {settings.failure_mode.value}"),
        ("load", load),
        (
            "gateway",
            f"{gateway.listen}{' with TLS' if isinstance(gateway.tls, TlsFiles) else ''}, {' '.join(gateway.paths)}",
        ),
        ("gRPC", f"{listen.grpc}, tls {'from files' if isinstance(listen.tls, TlsFiles) else listen.tls}"),
        ("health", listen.health),
        ("metrics, status", listen.metrics),
    ]
    service, pool = settings.endpoints.service, settings.endpoints.inference_pool
    if endpoints is not None:
        lines.append(("endpoints", f"{len(endpoints)} from {source.beside(str(settings.endpoints.file))}"))
        for endpoint in endpoints[:10]:
            port = f", load port {endpoint.load_port}" if settings.source is Source.REPORT else ""
            lines.append(("", endpoint.address + port))
        if len(endpoints) > 10:
            lines.append(("", f"and {len(endpoints) - 10} more"))
    elif service:
        lines.append(("endpoints", f"Service {service.namespace}/{service.name}, port {service.port}"))
    elif pool:
        lines.append(("endpoints", f"InferencePool {pool.namespace}/{pool.name}"))
    for name, value in lines:
        print(f"{name + ':' if name else '':17}{value}")


_SCHEMAS: Final = {"picker": picker_schema, "load-report": load_report_schema}


def _schema(options: argparse.Namespace) -> None:
    print(json.dumps(_SCHEMAS[options.contract](), indent=2, ensure_ascii=False))
