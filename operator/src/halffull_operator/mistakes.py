"""msgspec's words about a wrong value → ours: which field, what was found, what to write instead. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from halffull_operator.shape import Kind, Shape, shape_of

Path = tuple[str | int, ...]
T = TypeVar("T")

_ERROR: Final = re.compile(r"(?s)(.*?)(?: - at (`key` in )?`([^`]*)`)?")
_STEP: Final = re.compile(r"\[(\d+)\]|\[(\.\.\.)\]|\.([^.\[\]]+)")
_SHOWN: Final = 60


class Mistake(ValueError):  # noqa: N818  it is one, and an error only to the caller
    """A value that does not fit; `path` is where, the message what to write instead."""

    def __init__(self, path: Path, message: str) -> None:
        """Keep both."""
        super().__init__(message)
        self.path = path
        self.message = message


def convert(value: Any, type_: type[T]) -> T:
    """`value` as a `type_`.

    Raises:
        Mistake: the first field that does not fit.
    """
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise _mistake(value, shape_of(type_), str(error)) from None


def dotted(path: Path) -> str:
    """`spec.engine.args[3]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def shown(value: Any) -> str:
    """A value in a message, shortened."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def known_part(value: Any, shape: Shape, path: Path = ()) -> tuple[Any, tuple[Path, ...]]:
    """`value` without nulls and without fields that the type does not have, and where those unknown fields are.

    A null means "not given" wherever a type is known. Free-form objects stay as they are.
    """
    unknown: list[Path] = []

    def walk(value: Any, shape: Shape | None, path: Path) -> Any:
        if shape is None or shape.kind is Kind.ANY:
            return value
        if isinstance(value, Mapping) and shape.kind is Kind.OBJECT:
            members = {member.name: member.shape for member in shape.fields}
            unknown.extend((*path, name) for name in value if name not in members)
            return {
                name: walk(inner, members[name], (*path, name))
                for name, inner in value.items()
                if name in members and inner is not None
            }
        if isinstance(value, Mapping) and shape.kind is Kind.MAP:
            return {name: walk(inner, shape.item, (*path, name)) for name, inner in value.items() if inner is not None}
        if isinstance(value, list | tuple) and shape.kind is Kind.LIST:
            return [walk(inner, shape.item, (*path, index)) for index, inner in enumerate(value)]
        return value

    return walk(value, shape, path), tuple(unknown)


def allowed(shape: Shape) -> str:
    """What may stand there, for people."""
    if shape.words is not None:
        return shape.words.allowed
    if shape.enum:
        return f"one of {', '.join(shape.enum)}"
    if shape.kind in (Kind.INTEGER, Kind.NUMBER):
        return f"{'a whole number' if shape.kind is Kind.INTEGER else 'a number'}{_range(shape)}"
    least = f"at least {shape.min_length} and " if shape.min_length else ""
    texts = {
        Kind.OBJECT: "the fields " + ", ".join(member.name for member in shape.fields),
        Kind.LIST: f"a list of {least}at most {shape.max_length} items",
        Kind.MAP: f"a mapping of at most {shape.max_length} entries",
        Kind.BOOLEAN: "true or false",
        Kind.QUANTITY: "a quantity such as 500m, 2 or 16Gi",
        Kind.ANY: "a mapping",
        Kind.STRING: f"text of {least}at most {shape.max_length} characters",
    }
    return texts[shape.kind]


def _range(shape: Shape) -> str:
    if shape.minimum is None:
        return ""
    if shape.maximum is None:
        return f" of at least {shape.minimum:.0f}"
    return f" from {shape.minimum:.0f} to {shape.maximum:.0f}"


def _mistake(value: Any, root: Shape, message: str) -> Mistake:
    match = _ERROR.fullmatch(message)
    problem, of_key, where = (match[1], match[2], match[3] or "$") if match else (message, None, "$")
    path: list[str | int] = []
    shape: Shape | None = root
    for index, any_key, name in _STEP.findall(where):
        if any_key:  # msgspec does not say which key of a mapping
            break
        path.append(int(index) if index else name)
        shape = _child(shape, path[-1])
        value = value[path[-1]] if _has(value, path[-1]) else None
    if shape is not None and shape.kind is Kind.MAP and (of_key or "[...]" in where):
        return _in_mapping(value, shape, tuple(path), keys=bool(of_key))
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL):
        return Mistake((*path, unknown[1]), f"there is no such field; write {allowed(shape or root)}")
    if lacking := re.fullmatch(r"Object missing required field `(.*)`", problem):
        child = _child(shape, lacking[1])
        return Mistake((*path, lacking[1]), f"is missing: write {allowed(child) if child else 'it'}")
    if shape is None:
        return Mistake(tuple(path), problem)
    return Mistake(tuple(path), f"{shown(value)} does not fit: write {allowed(shape)}")


def _in_mapping(value: Any, shape: Shape, path: Path, *, keys: bool) -> Mistake:
    """Msgspec says only that some entry is wrong: find it."""
    part = shape.key if keys else shape.item
    assert part is not None  # noqa: S101  a map has both
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if part.struct is not None and not keys:
            try:
                convert(inner, part.struct)
            except Mistake as mistake:
                return Mistake((*path, key, *mistake.path), mistake.message)
        elif not fits(key if keys else inner, part):
            return Mistake((*path, key), f"{shown(key if keys else inner)} does not fit: write {allowed(part)}")
    return Mistake(path, f"an entry does not fit: write {allowed(part)}")


def fits(value: Any, shape: Shape) -> bool:
    """Whether a scalar has the kind, the length and the pattern of its shape."""
    match shape.kind:
        case Kind.STRING:
            return (
                isinstance(value, str)
                and (shape.min_length or 0) <= len(value) <= (shape.max_length or len(value))
                and (shape.pattern is None or re.search(shape.pattern, value) is not None)
                and (not shape.enum or value in shape.enum)
            )
        case Kind.QUANTITY:
            return (isinstance(value, int) and not isinstance(value, bool)) or (
                isinstance(value, str) and (shape.pattern is None or re.search(shape.pattern, value) is not None)
            )
        case _:
            return True


def _child(shape: Shape | None, step: str | int) -> Shape | None:
    if shape is None:
        return None
    if isinstance(step, int):
        return shape.item
    if shape.kind is Kind.MAP:
        return shape.item
    return next((member.shape for member in shape.fields if member.name == step), None)


def _has(value: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(value, list | tuple) and step < len(value)
    return isinstance(value, Mapping) and step in value
