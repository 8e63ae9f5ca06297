"""A YAML document with the line of each key, so that a mistake can be shown where it is. Pure."""

from collections.abc import Hashable
from typing import Any

import yaml

from halffull_operator.errors import InputError
from halffull_operator.mistakes import Path, dotted

_MAX_BYTES = 1024 * 1024


class ConfigError(InputError):
    """A configuration that cannot be used: source, line, key, and what is allowed, in one line."""


class _Loader(yaml.SafeLoader):
    """Refuses what YAML lets pass in silence: a key that is there twice, and aliases, which can grow without bound."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002  PyYAML's signature
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # the stubs leave it out
            raise yaml.MarkedYAMLError(problem="aliases are not allowed", problem_mark=mark)
        return super().compose_node(parent, index)


class Document:
    """A parsed document."""

    def __init__(self, text: str, *, source: str) -> None:
        """Parse it.

        Raises:
            ConfigError: it is no YAML, or no mapping.
        """
        self.source = source
        self._lines: dict[Path, int] = {}
        if len(text.encode()) > _MAX_BYTES:
            raise ConfigError(f"{source}: more than {_MAX_BYTES} bytes")
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is not None:
                self._note(node, ())
            self.value: Any = loader.construct_document(node) if node is not None else {}
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            raise ConfigError(f"{source}:{line}: {error.problem or error.context}") from None
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"{source}: {' '.join(str(error).split())}") from None
        finally:
            loader.dispose()
        if not isinstance(self.value, dict):
            raise ConfigError(f"{source}: write a mapping of settings")

    def error(self, path: Path, message: str) -> ConfigError:
        """A mistake at a key, or at the nearest one above it."""
        known = path
        while known and known not in self._lines:
            known = known[:-1]
        return ConfigError(f"{self.source}:{self._lines.get(known, 1)}: {dotted(path) or 'settings'}: {message}")

    def _note(self, node: yaml.Node, path: Path) -> None:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                self._lines[(*path, key.value)] = key.start_mark.line + 1
                self._note(value, (*path, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._note(item, (*path, index))
