"""`halffull-extproc bootstrap`: the configuration that Envoy is started with."""

import argparse
import sys

from halffull_extproc.addresses import split_address
from halffull_extproc.commands import source
from halffull_extproc.settings import SettingsError
from halffull_extproc.wiring import picker_address, picker_tls, ready_address
from halffull_extproc.xds.bootstrap import bootstrap


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bootstrap`."""
    source.add_arguments(parser)
    parser.add_argument(
        "--admin-port", type=_port, default=9901, metavar="N", help="Envoy's admin port, on 127.0.0.1 (default: 9901)"
    )
    parser.add_argument(
        "--ready-port",
        type=_port,
        default=9902,
        metavar="N",
        help="port of /ready and /stats/prometheus (default: 9902)",
    )


def main(options: argparse.Namespace) -> int:
    """Print the bootstrap.

    Raises:
        InputError: the configuration cannot be used, or a port is taken by it.
    """
    settings, _, _ = source.load(options)
    taken = {split_address(settings.gateway.listen)[1]: "gateway.listen"}
    for flag, port in (("--admin-port", options.admin_port), ("--ready-port", options.ready_port)):
        if port in taken:
            raise SettingsError(f"{flag} {port}: the port is {taken[port]}'s already")
        taken[port] = flag
    text = bootstrap(
        picker=picker_address(settings),
        tls=picker_tls(settings),
        admin_port=options.admin_port,
        ready=ready_address(settings, options.ready_port),
    )
    sys.stdout.write(text)
    return 0


def _port(text: str) -> int:
    port = int(text) if text.isdecimal() else 0
    if not 0 < port < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, allowed: 1 to 65535")
    return port
