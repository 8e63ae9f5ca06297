"""The command `halffull-extproc`."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

from halffull_extproc.errors import InputError
from halffull_extproc.version import own_version

BAD_INPUT: Final = 2
COMMANDS: Final = {
    "run": "run the picker until SIGTERM",
    "bootstrap": "print the bootstrap configuration for Envoy",
    "check": "check a configuration and say what would be used",
    "schema": "print a JSON Schema",
}
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it did what was asked, 2 when its input can not be used (one line says why)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="halffull-extproc",
        description="The picker: sends each request to the vLLM engine that will serve it soonest, for Envoy.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=own_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    first = next((argument for argument in given if not argument.startswith("-")), None)
    called = first if first in COMMANDS else None
    module = importlib.import_module(f"halffull_extproc.commands.{called}") if called else None
    for name, text in COMMANDS.items():
        own = module if name == called else None
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=getattr(own, "EPILOG", ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if own is not None:
            own.add_arguments(command)
    options = parser.parse_args(given)
    if module is None:  # argparse has exited: a command is required
        raise AssertionError
    try:
        return int(module.main(options))
    except InputError as error:
        sys.stderr.write(f"halffull-extproc: {error}\n")
        return BAD_INPUT
    except BrokenPipeError:
        return 0  # `… | head`
