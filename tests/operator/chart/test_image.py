"""The operator's Dockerfile, as far as it can be read without building it."""

import re
import tomllib
from fnmatch import fnmatch

from halffull_operator import cli
from tests.operator.chart.render import REPOSITORY

TEXT = (REPOSITORY / "images" / "operator.Dockerfile").read_text()


def test_what_is_copied_is_there_and_sent_to_the_builder() -> None:
    sent = re.findall(r"^!(.+)$", (REPOSITORY / ".dockerignore").read_text(), re.MULTILINE)
    copied = [line.split()[:-1] for line in re.findall(r"^COPY (?!--from)(.+)$", TEXT, re.MULTILINE)]
    assert copied
    for source in (source for sources in copied for source in sources):
        assert (REPOSITORY / source).exists(), source
        assert any(fnmatch(source, f"{one}*") for one in sent), source


def test_every_dependency_is_pinned_by_hash() -> None:
    project = tomllib.loads((REPOSITORY / "operator" / "pyproject.toml").read_text())["project"]
    pins = (REPOSITORY / "requirements" / "operator.txt").read_text()
    for dependency in project["dependencies"]:
        name = re.split(r"[^A-Za-z0-9-]", dependency)[0]
        assert re.search(rf"^{name}==\S+ \\\n    --hash=sha256:", pins, re.MULTILINE), name
    assert TEXT.count(" install --require-hashes ") == 2


def test_it_runs_the_command_as_a_user_that_is_seen_not_to_be_root() -> None:
    """By number: of a name a node cannot tell, and refuses it where the chart names no user."""
    assert re.search(r"^USER [1-9]\d+:[1-9]\d+$", TEXT, re.MULTILINE)
    (program,) = re.findall(r'^ENTRYPOINT \["(.+)"\]$', TEXT, re.MULTILINE)
    scripts = tomllib.loads((REPOSITORY / "operator" / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts[program] == f"{cli.__name__}:{cli.main.__name__}"
