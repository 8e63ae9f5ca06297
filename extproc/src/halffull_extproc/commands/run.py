"""`halffull-extproc run`: the picker, until SIGTERM."""

import argparse
import contextlib
import gc
import resource
from typing import Final

from halffull_extproc import log
from halffull_extproc.commands import source

EPILOG: Final = """\
examples:
  halffull-extproc run --config picker.yaml
  halffull-extproc run --config-map serving/llama-picker --log json
policy, failureMode, sal, salPlus and poll are applied while running; everything else at the next start.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `run`."""
    source.add_arguments(parser)
    parser.add_argument(
        "--log", choices=("auto", "json", "console"), default="auto", help="form of the log (default: auto)"
    )
    parser.add_argument(
        "--log-level", choices=log.LEVELS, default="info", help="least level that is logged (default: info)"
    )


def main(options: argparse.Namespace) -> int:
    """Run the picker until SIGTERM.

    Raises:
        InputError: configuration, endpoints, certificates or addresses cannot be used.
    """
    log.configure(form=options.log, level=options.log_level)
    settings, where, text = source.load(options)
    source.endpoints(settings, where, text)  # a bad list at the start is an error; later, the last good one stands
    # Imported here: a configuration that cannot be used is said at once.
    import prometheus_client  # noqa: PLC0415
    import uvloop  # noqa: PLC0415

    from halffull_extproc import app  # noqa: PLC0415
    from halffull_extproc.http_server import ListenError  # noqa: PLC0415

    _raise_file_limit()
    _collect_in_small_portions()
    prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # when a series began: noise here
    try:
        uvloop.run(app.run(settings, source=where, text=text))
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
