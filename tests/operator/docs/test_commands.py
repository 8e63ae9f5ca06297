"""kubectl and helm know every flag that the pages give them."""

import re
import shlex
import subprocess
from functools import cache

import pytest

from tests.operator.chart.render import helm
from tests.operator.docs.pages import PAGES, Page

pytestmark = pytest.mark.operator  # the programs are among what hack/cluster builds

TWO_WORDS = {"create", "rollout"}
GROUPS = {("create", "secret"): ("generic", "docker-registry")}


def calls(page: Page) -> list[list[str]]:
    """Calls of the two programs, in words."""
    found = []
    for command in page.commands:
        without = re.sub(r"\$\([^)]*\)", "VALUE", command.partition(" #")[0])
        found += [shlex.split(part) for part in without.split(" | ") if re.match(r"(kubectl|helm) [a-z-]", part)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_flag_exists(page: Page) -> None:
    assert len(calls(page)) >= 5
    for program, *words in calls(page):
        if words[0] == "-n":
            words = words[2:]  # noqa: PLW2901  before the verb
        verbs = tuple(words[: 2 if words[0] in TWO_WORDS else 1])
        for flag in {word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)}:
            known = re.search(rf"(^|[\s,]){flag}(=|,|\s|$)", help_of(program, verbs), re.MULTILINE)
            assert known, f"{program} {' '.join(words)}: {flag}"


@cache
def help_of(program: str, verbs: tuple[str, ...]) -> str:
    """What it says about a verb, and about flags that all verbs have."""
    path = helm() if program == "helm" else re.sub(r"helm$", "kubectl", helm())
    asked = [[*verbs, *more, "--help"] for more in ([], *([kind] for kind in GROUPS.get(verbs, ())))]
    asked.append(["options"] if program == "kubectl" else ["--help"])
    return "\n".join(
        subprocess.run([path, *words], capture_output=True, text=True, timeout=60, check=True).stdout for words in asked
    )
