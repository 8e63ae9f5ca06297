"""The `halffull` command. Each subcommand's module is imported when it is called, so that `--help` answers at once."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version

COMMANDS = {
    "demo": "real Envoy, the picker and emulated GPUs under a production trace: SAL against P2C",
    "replay": "send a recorded trace, open loop, to a server, and report the figures",
    "engine": "an emulated vLLM engine: OpenAI API, metrics and load report, no GPU",
    "probe": "what a client and the picker can see of an engine",
    "simulate": "the code that ships under a virtual clock: the paper's figures, or one's own traffic",
    "plan": "how many engines one's traffic needs for an objective, under each policy",
    "calibrate": "measure an engine and fit the latency model that the simulator takes",
}
_MODULES = {
    "engine": "halffull_lab.engine_server",
    "replay": "halffull_lab.replay_command",
    "calibrate": "halffull_lab.calibrate_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; its exit code, 2 for wrong usage or an error of one line, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="halffull", description="Halffull's lab.")
    parser.add_argument("--version", action="version", version=version("halffull-lab"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = next((argument for argument in arguments if argument in COMMANDS), None)
    module = importlib.import_module(_MODULES.get(called, f"halffull_lab.{called}")) if called else None
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if module is not None and name == called:
            module.add_arguments(command)
    args = parser.parse_args(arguments)
    if module is None:  # argparse has exited: a command is required
        raise AssertionError
    try:
        return int(module.main(args))
    except KeyboardInterrupt:
        print("halffull: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 1
    except Exception as error:
        if type(error).__name__ not in _EXPECTED and not isinstance(error, OSError):
            raise
        print(f"halffull {called}: {error}", file=sys.stderr)
        return 2


# Errors that say in one line what a person can do; by name, so that nothing is imported for them.
_EXPECTED = {
    "TraceError",
    "DemoError",
    "ChildError",
    "ReplayError",
    "ModelError",
    "CalibrationError",
    "ProfileError",
    "ExperimentError",
}
