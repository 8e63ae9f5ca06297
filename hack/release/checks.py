"""What must be true before a release is made."""

import re
import subprocess
from pathlib import Path

import yaml


def problems(root: Path, asked: str | None) -> list[str]:
    """What in the files contradicts a release of VERSION, in words that say what to do; `asked` is `--version`."""
    version = (root / "VERSION").read_text().strip()
    found = []
    if asked not in {None, version}:
        found.append(f"--version {asked}, but VERSION says {version}: edit VERSION, or ask for {version}")
    if not re.search(rf"^## {re.escape(version)}(\s|$)", (root / "CHANGELOG.md").read_text(), re.MULTILINE):
        found.append(f'CHANGELOG.md has no heading "## {version}": rename "## Unreleased" to "## {version} (DATE)"')
    chart = yaml.safe_load((root / "charts/halffull/Chart.yaml").read_text())
    found += [
        f"charts/halffull/Chart.yaml: {key} is {chart[key]}, VERSION says {version}: edit it"
        for key in ("version", "appVersion")
        if chart[key] != version
    ]
    return found


def uncommitted(root: Path) -> list[str]:
    """Changes that no commit has: what is made from them nobody can make again."""
    changed = [line[3:] for line in _git(root, "status", "--porcelain").splitlines()]
    return (
        [f"{len(changed)} changes are not committed ({', '.join(changed[:3])}, …): commit them first"]
        if changed
        else []
    )


def commit_time(root: Path) -> int:
    """Seconds since 1970 of the commit that is released: the date of everything in the release."""
    return int(_git(root, "log", "-1", "--format=%ct"))


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout  # noqa: S607
