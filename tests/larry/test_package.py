"""What the package shows to the outside, and that looking at it loads no vLLM."""

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import halffull_larry

PYPROJECT = Path(__file__).parents[2] / "larry" / "pyproject.toml"


def test_two_classes_are_public() -> None:
    assert halffull_larry.__all__ == ["Scheduler", "SyncScheduler"]


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'LarryScheduler'"):
        _ = halffull_larry.LarryScheduler


def test_importing_it_loads_neither_vllm_nor_anything_else_that_is_heavy() -> None:
    modules = "config ordering report accounts metrics snapshot waiting lanes plugin"
    imports = "; ".join(f"import halffull_larry.{name}" for name in modules.split())
    script = f"import sys, halffull_larry; {imports}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert "halffull_larry" in loaded
    assert not {"vllm", "torch", "numpy", "prometheus_client", "grpc", "kopf", "kubernetes"} & set(loaded)


def test_it_depends_on_nothing() -> None:
    assert tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"] == []


def test_vllm_finds_the_entry_point() -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="halffull_larry")
    assert found.value == "halffull_larry.plugin:register"
    assert callable(found.load())
