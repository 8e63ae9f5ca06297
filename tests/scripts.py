"""Programs of hack/, which is no package, as modules."""

import importlib.util
import sys
from pathlib import Path
from typing import Any, Final

HACK: Final = Path(__file__).parents[1] / "hack"


def load(path: str) -> Any:
    """The module of a file in hack/, such as `load("results/page.py")`; others of its folder find it by its name."""
    file = HACK / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
