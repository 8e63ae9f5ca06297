"""`halffull-extproc schema`: the contracts as JSON Schemas."""

import argparse
import json
import sys
from typing import Final

from halffull_extproc.load_report import load_report_schema
from halffull_extproc.settings import picker_schema

_SCHEMAS: Final = {"picker": picker_schema, "load-report": load_report_schema}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The contract to print."""
    parser.add_argument("contract", choices=sorted(_SCHEMAS), help="which one")


def main(options: argparse.Namespace) -> int:
    """Print a schema."""
    sys.stdout.write(json.dumps(_SCHEMAS[options.contract](), indent=2, ensure_ascii=False) + "\n")
    return 0
