"""YAML from people, checked against a msgspec type, with errors that name the line, the key and what is allowed.

Used for picker.yaml and endpoints.yaml. Stricter than YAML on purpose: no duplicate keys, no aliases, no tags, one
document, bounded size and depth.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import yaml
from msgspec import inspect

from halffull_extproc.errors import InputError

T = TypeVar("T")
Path = tuple[str | int, ...]

_DEPTH: Final = 16
_YAML: Final = "tag:yaml.org,2002:"
_AS_WRITTEN: Final = {_YAML + name for name in ("str", "timestamp", "merge", "value")}
_MSGSPEC_ERROR: Final = re.compile(r"(?s)(.*?)(?: - at `(\$.*)`)?$")
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster where libyaml is built in
_constructor = yaml.constructor.SafeConstructor()


class SettingsError(InputError, ValueError):
    """A configuration that cannot be used. The message is one line: `picker.yaml:7: poll.interval: …`."""


@dataclass(slots=True)
class Document:
    """A parsed text: plain values, and for each path the line of its key (from 1) and a scalar's own spelling."""

    source: str
    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    spelled: dict[Path, str] = field(default_factory=dict)

    def error(self, path: Path, problem: str) -> SettingsError:
        """An error at the key that `path` names, or at its nearest parent that the text has."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        where = dotted(path)
        return SettingsError(f"{self.source}:{self.lines.get(known, 1)}: {where + ': ' if where else ''}{problem}")


def dotted(path: Path) -> str:
    """A path as people write it: `endpoints[0].address`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def parse_yaml(text: str, *, source: str, max_bytes: int) -> Document:
    """Parse one YAML document.

    Raises:
        SettingsError: too large, not YAML, or one of the things that this module refuses.
    """
    document = Document(source)
    size = len(text.encode(errors="surrogatepass"))
    if size > max_bytes:
        raise document.error((), f"the text has {size} bytes, at most {max_bytes} are read")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise SettingsError(f"{source}:{mark.line + 1 if mark else 1}: not YAML: {problem}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise document.error((), f"not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise document.error((), f"nested deeper than {_DEPTH} levels") from error
    if node is None:
        raise document.error((), "the text is empty")
    document.lines[()] = node.start_mark.line + 1
    try:
        document.value = _value(node, (), document, set())
    except _AliasError as error:
        document.lines[error.path] = _first_alias(text)
        raise document.error(error.path, "aliases are not allowed, repeat the value") from None
    return document


class _AliasError(Exception):
    """The node at `path` is one that came before. It has the anchor's marks: the alias has left none of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


def _first_alias(text: str) -> int:
    """The line of the first alias, from 1."""
    events = yaml.parse(text, Loader=_Loader)
    marks = (event.start_mark for event in events if isinstance(event, yaml.AliasEvent))
    return next(mark.line for mark in marks if mark is not None) + 1


def _value(node: yaml.Node, path: Path, document: Document, seen: set[int]) -> Any:
    _once(node, path, seen)
    if len(path) > _DEPTH:
        raise document.error(path[:4], f"nested deeper than {_DEPTH} levels")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, path, document)
    if node.tag not in (_YAML + "map", _YAML + "seq"):
        raise document.error(path, f"the tag {node.tag!r} is not allowed")
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            at = (*path, index)
            document.lines[at] = item.start_mark.line + 1
            items.append(_value(item, at, document, seen))
        return items
    result: dict[str, Any] = {}
    for key_node, value_node in node.value:
        _once(key_node, path, seen)
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag not in _AS_WRITTEN:
            shown = f"`{key_node.value}`"[:60] if isinstance(key_node, yaml.ScalarNode) else "this"
            document.lines[path] = line
            raise document.error(path, f"a key must be a string, and YAML does not read {shown} as one")
        key = str(key_node.value)
        at = (*path, key)
        if key in result:
            first, document.lines[at] = document.lines[at], line
            raise document.error(at, f"this key stands here a second time, first on line {first}")
        document.lines[at] = line
        result[key] = _value(value_node, at, document, seen)
    return result


def _once(node: yaml.Node, path: Path, seen: set[int]) -> None:
    if id(node) in seen:
        raise _AliasError(path)
    seen.add(id(node))


def _scalar(node: yaml.ScalarNode, path: Path, document: Document) -> Any:
    document.spelled[path] = node.value
    if node.tag in _AS_WRITTEN:
        return str(node.value)
    try:
        match node.tag.removeprefix(_YAML):
            case "null":
                return None
            case "bool":
                return _constructor.construct_yaml_bool(node)
            case "int":
                return _constructor.construct_yaml_int(node)
            case "float" if math.isfinite(number := _constructor.construct_yaml_float(node)):
                return number
            case "float":
                raise document.error(path, "not a finite number")
    except (ValueError, KeyError, IndexError) as error:
        if isinstance(error, SettingsError):
            raise
        raise document.error(path, f"{_shown(node.value)} cannot be read as {node.tag.removeprefix(_YAML)}") from error
    raise document.error(path, f"the tag {node.tag!r} is not allowed")


def convert(document: Document, type_: type[T]) -> T:
    """The document as a `type_`.

    Raises:
        SettingsError: at the first key that does not fit, with what is allowed there.
    """
    try:
        return msgspec.convert(document.value, type_)
    except msgspec.ValidationError as error:
        raise _explain(document, type_, str(error)) from error


def _explain(document: Document, type_: Any, message: str) -> SettingsError:
    """Msgspec's words → ours: which key, what was found there, what is allowed."""
    match = _MSGSPEC_ERROR.match(message)
    problem, where = (match[1], match[2] or "$") if match else (message, "$")
    path: Path = tuple(int(index) if index else name for name, index in _STEP.findall(where))
    if unknown := re.fullmatch(r"(?s)Object contains unknown field `(.*)`", problem):
        return document.error(
            (*path, unknown[1]), f"unknown key; allowed: {_allowed(_type_at(type_, path), keys=True)}"
        )
    if lacking := re.fullmatch(r"Object missing required field `(.*)`", problem):
        needed = (*path, lacking[1])
        return document.error(needed, f"is missing; allowed: {_allowed(_type_at(type_, needed))}")
    value: Any = document.value
    for step in path:
        value = value[step]
    allowed = f"; allowed: {_allowed(_type_at(type_, path))}"
    if isinstance(value, bool):
        return document.error(path, f"YAML reads {document.spelled[path]} as a boolean{allowed}")
    if value is None:
        return document.error(path, f"has no value{allowed}")
    if isinstance(value, dict | list):
        return document.error(path, f"a {'mapping' if isinstance(value, dict) else 'list'} does not fit{allowed}")
    return document.error(path, f"{_shown(document.spelled[path])} does not fit{allowed}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")


def _type_at(type_: Any, path: Path) -> inspect.Type:
    here = inspect.type_info(type_)
    for step in path:
        here = _child(here, step)
    return here


def _child(parent: inspect.Type, step: str | int) -> inspect.Type:
    for option in _options(parent):
        if isinstance(option, inspect.StructType):
            for member in option.fields:
                if member.encode_name == step:
                    return member.type
        if isinstance(option, inspect.ListType | inspect.VarTupleType) and isinstance(step, int):
            return option.item_type
    return inspect.AnyType()


def _options(type_: inspect.Type) -> list[inspect.Type]:
    while isinstance(type_, inspect.Metadata):
        type_ = type_.type
    if isinstance(type_, inspect.UnionType):
        return [inner for option in type_.types for inner in _options(option)]
    return [type_]


def _allowed(type_: inspect.Type, *, keys: bool = False) -> str:
    """What may stand there, for people. With `keys`: the keys of the mapping, whatever its description says."""
    if isinstance(type_, inspect.Metadata) and not keys:
        described = (type_.extra_json_schema or {}).get("description")
        if described:
            number = type_.type if isinstance(type_.type, inspect.IntType | inspect.FloatType) else None
            # The bounds of a number are written once, in its type.
            return f"{_allowed_option(number)} ({described})" if number and _bounds(number) else str(described)
    return " or ".join(filter(None, (_allowed_option(option) for option in _options(type_))))


def _allowed_option(option: inspect.Type) -> str:
    if isinstance(option, inspect.StructType):
        return "the keys " + ", ".join(member.encode_name for member in option.fields)
    if isinstance(option, inspect.EnumType):
        return ", ".join(str(member.value) for member in option.cls)
    if isinstance(option, inspect.LiteralType):
        return ", ".join(str(value) for value in option.values)
    if isinstance(option, inspect.IntType | inspect.FloatType):
        kind = "a whole number" if isinstance(option, inspect.IntType) else "a number"
        return " ".join([kind, *_bounds(option)])
    if isinstance(option, inspect.ListType | inspect.VarTupleType):
        return "a list"
    return "a string" if isinstance(option, inspect.StrType) else ""


def _bounds(number: inspect.IntType | inspect.FloatType) -> list[str]:
    bounds = ((number.ge, "from"), (number.gt, "above"), (number.le, "to"), (number.lt, "below"))
    return [f"{word} {bound:.12g}" for bound, word in bounds if bound is not None]
