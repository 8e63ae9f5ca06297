"""The command `halffull-operator`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from halffull_operator.errors import InputError
from halffull_operator.version import own_version

if TYPE_CHECKING:
    from halffull_operator.config import OperatorConfig

BAD_INPUT: Final = 2
_MAX_BYTES: Final = 1024 * 1024
_EPILOG: Final = """\
examples:
  halffull-operator check --config operator.yaml
  halffull-operator crd | kubectl apply --server-side -f -
  halffull-operator run --config operator.yaml
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it did what was asked, 2 when its input cannot be used (one line says why)."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.main(options))
    except InputError as error:
        sys.stderr.write(f"halffull-operator: {error}\n")
        return BAD_INPUT
    except BrokenPipeError:
        return 0  # `… | head`


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="halffull-operator",
        description="The operator of LLMServing: vLLM engines with LARRY, and a gateway with SAL in front of them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=own_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    run = commands.add_parser("run", help="run the operator until SIGTERM")
    run.set_defaults(main=_run)
    run.add_argument("--port", type=_port, default=8080, help="of /metrics, /healthz and /readyz (default: 8080)")
    run.add_argument(
        "--log", choices=("auto", "json", "console"), default="auto", help="form of the log (default: auto)"
    )
    run.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least level that is logged (default: info)",
    )
    check = commands.add_parser("check", help="check a configuration")
    check.set_defaults(main=_check)
    for command in (run, check):
        command.add_argument(
            "--config", type=Path, required=True, metavar="FILE", help="operator.yaml, as the chart makes it"
        )
    commands.add_parser("crd", help="print the CRD of this release").set_defaults(main=_crd)
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("a port is 1 to 65535, or 0 for any")
    return port


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise InputError(f"{path}: more than {_MAX_BYTES} bytes")
        return data.decode()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error


def _run(options: argparse.Namespace) -> int:
    # Imported here and below: `--help` and a mistake in the configuration need not wait for Kubernetes' client.
    import asyncio  # noqa: PLC0415

    from halffull_operator import log  # noqa: PLC0415

    log.configure(form=options.log, level=options.log_level)
    config = _load(options.config)
    import prometheus_client  # noqa: PLC0415

    from halffull_operator import app  # noqa: PLC0415

    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # when a series began: noise here
    asyncio.run(app.run(config, port=options.port))
    return 0


def _check(options: argparse.Namespace) -> int:
    config = _load(options.config)
    profiles = ", ".join(sorted(config.profiles)) or "none"
    namespaces = ", ".join(config.watch.namespaces) or "all"
    sys.stdout.write(f"{options.config}: fine. Namespaces: {namespaces}. Profiles: {profiles}.\n")
    return 0


def _load(path: Path) -> "OperatorConfig":
    from halffull_operator.config import load_config  # noqa: PLC0415

    return load_config(_read(path), source=str(path))


def _crd(_options: argparse.Namespace) -> int:
    from halffull_operator import crd  # noqa: PLC0415

    sys.stdout.write(crd.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
