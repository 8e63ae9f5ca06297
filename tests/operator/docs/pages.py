"""The pages of docs/ that people follow, taken apart."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).resolve().parents[3] / "docs"

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Page:
    """One page."""

    name: str

    @property
    def path(self) -> Path:
        return DOCS / self.name

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def prose(self) -> str:
        """Without fenced blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, language: str) -> Iterator[tuple[str, str]]:
        """(place, text) of each fenced block."""
        for match in _FENCE.finditer(self.text):
            if match[2] == language:
                line = self.text.count("\n", 0, match.start()) + 1
                yield f"{self.name}:{line}", match[3]

    def documents(self) -> Iterator[tuple[str, Any]]:
        """(place, content) of each YAML document in the page."""
        for place, text in self.blocks("yaml"):
            for document in yaml.safe_load_all(text):
                yield place, document

    @cached_property
    def commands(self) -> tuple[str, ...]:
        """Lines of indented blocks, continued ones joined, and spans that begin with a program's name."""
        lines = [line.strip() for line in self.prose.replace("\\\n", " ").splitlines() if line.startswith("    ")]
        return (*lines, *(span for span in self.spans if re.match(r"(kubectl|helm|halffull-operator) ", span)))

    @cached_property
    def spans(self) -> tuple[str, ...]:
        """What stands in backticks."""
        return tuple(span.replace("\\|", "|") for span in _SPAN.findall(self.prose))

    @cached_property
    def links(self) -> tuple[str, ...]:
        return tuple(_LINK.findall(self.prose))

    @cached_property
    def anchors(self) -> frozenset[str]:
        """Of its headings, as GitHub makes them."""
        headings = re.findall(r"^#+ (.*)$", self.prose, re.MULTILINE)
        return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)

    def table(self, heading: str) -> list[list[str]]:
        """The rows of the first table below a heading, its head left out; cells as they are written."""
        _, found, rest = self.text.partition(f"\n{heading}\n")
        assert found, f"{self.name} has no heading {heading}"
        lines = rest[rest.index("\n|") + 1 :].split("\n\n", 1)[0].splitlines()
        rows = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in lines]
        return [[cell.strip() for cell in row] for row in rows[2:]]


INSTALL, FIRST, OPERATIONS, MIGRATION = (
    Page(f"{name}.md") for name in ("install", "first-serving", "operations", "migration")
)
PAGES = (INSTALL, FIRST, OPERATIONS, MIGRATION)


def ticked(cell: str) -> list[str]:
    """What stands in backticks in a cell."""
    return _SPAN.findall(cell)
