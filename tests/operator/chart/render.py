"""The chart's files, and what Helm makes of them."""

import copy
import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[3]
CHART = REPOSITORY / "charts" / "halffull"
NAMESPACE = "halffull-system"


def helm() -> str:
    """Helm's program: on PATH, or the one that `hack/cluster` has built."""
    home = Path(os.environ.get("CLUSTER_HOME", "~/.cache/halffull-cluster")).expanduser()
    found = shutil.which("helm", path=os.pathsep.join([str(home / "bin"), os.environ.get("PATH", "")]))
    if found is None:
        pytest.fail("no helm: hack/cluster/cluster build makes one")
    return found


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


def template(*arguments: str, name: str = "halffull") -> list[dict[str, Any]]:
    """Every manifest of `helm template`; the caller may change them."""
    return copy.deepcopy(_rendered(arguments, name))


@functools.cache
def _rendered(arguments: tuple[str, ...], name: str) -> list[dict[str, Any]]:
    answer = run("template", name, str(CHART), "--namespace", NAMESPACE, *arguments)
    assert answer.returncode == 0, answer.stderr
    return [one for one in yaml.safe_load_all(answer.stdout) if one]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([helm(), *arguments], capture_output=True, text=True, timeout=60, check=False)


def only(manifests: list[dict[str, Any]], kind: str, suffix: str = "") -> dict[str, Any]:
    (found,) = (one for one in manifests if one["kind"] == kind and one["metadata"]["name"].endswith(suffix))
    return found


def operator_yaml(manifests: list[dict[str, Any]]) -> str:
    text: str = next(one["data"]["operator.yaml"] for one in manifests if "operator.yaml" in one.get("data", {}))
    return text


def unhelmed_rules() -> list[dict[str, Any]]:
    """The operator's rules as they are written in the chart: they need no Helm."""
    text = (CHART / "templates" / "_rbac.tpl").read_text()
    (rules,) = re.findall(r'define "halffull.rules" -}}\n(.*?)\{\{- end }}', text, re.DOTALL)
    loaded: list[dict[str, Any]] = yaml.safe_load(rules)
    return loaded
