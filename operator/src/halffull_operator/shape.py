"""What a typed setting looks like: one description of a type for the CRD, its documentation and error messages. Pure.

Types are msgspec Structs and `Annotated` types. msgspec's `Meta` says what is checked (bounds, pattern) and, by
`description`, what a field means; `Words` says in a person's words what may be written.
"""

import functools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

END: Final = r"$(?!\n)"
"""Ends a pattern: Python's `$` would let a newline follow; RE2, which CEL uses, knows no look-ahead and needs none."""


class Kind(StrEnum):
    """Kinds of values."""

    OBJECT = "object"
    MAP = "map"
    LIST = "list"
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    QUANTITY = "quantity"
    ANY = "any"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on an object. `message` says what to write instead."""

    cel: str
    """What the API server checks."""
    message: str
    holds: Callable[[Any], bool] | None = None
    """The same in Python, on the Struct; None for a rule that compares with the object before."""


@dataclass(frozen=True, slots=True)
class Words:
    """What may be written, for people: completes "write …"."""

    allowed: str
    cel: str | None = None
    """How the API server checks it, where a pattern does not say it all."""
    holds: Callable[[Any], bool] | None = None
    """The rest of it in Python."""


@dataclass(frozen=True, slots=True)
class ListOf:
    """How the API server treats a list: `atomic`, `set`, or `map` by `keys`."""

    type: Literal["atomic", "set", "map"]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object."""

    name: str
    """As it is written, in camelCase."""
    shape: "Shape"
    required: bool
    default: Any
    """`msgspec.NODEFAULT` when there is none, None when the field may be left out."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A type."""

    kind: Kind
    description: str = ""
    words: Words | None = None
    rules: tuple[Rule, ...] = ()
    pattern: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    enum: tuple[str, ...] = ()
    item: "Shape | None" = None
    """Of a list's items or a map's values."""
    key: "Shape | None" = None
    list_of: ListOf = field(default_factory=lambda: ListOf("atomic"))
    fields: tuple[Field, ...] = ()
    struct: type[msgspec.Struct] | None = None

    @property
    def cel_pattern(self) -> str | None:
        """The pattern as RE2 takes it."""
        return self.pattern.replace(END, "$") if self.pattern is not None else None


def shape_of(hint: Any) -> Shape:  # noqa: PLR0911  one for each form of a type
    """The shape of a type.

    Raises:
        TypeError: a type that a custom resource has no use for.
    """
    if typing.get_origin(hint) is Annotated:
        inner, *marks = typing.get_args(hint)
        return _marked(shape_of(inner), marks)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        if len(options) == 2 and int in options:
            text = shape_of(next(option for option in options if option is not int))
            return replace(text, kind=Kind.QUANTITY)
        if len(options) == 1:
            return shape_of(options[0])
    elif typing.get_origin(hint) is Literal:
        return Shape(Kind.STRING, enum=typing.get_args(hint))
    elif typing.get_origin(hint) is tuple:
        return Shape(Kind.LIST, item=shape_of(typing.get_args(hint)[0]))
    elif typing.get_origin(hint) is dict:
        key, value = typing.get_args(hint)
        return Shape(Kind.ANY) if value is Any else Shape(Kind.MAP, key=shape_of(key), item=shape_of(value))
    elif isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return _struct(hint)
    elif hint in _SCALARS:
        return Shape(_SCALARS[hint])
    raise TypeError(f"{hint!r} has no shape")


_SCALARS: Final[dict[Any, Kind]] = {
    str: Kind.STRING,
    int: Kind.INTEGER,
    float: Kind.NUMBER,
    bool: Kind.BOOLEAN,
}


def _marked(shape: Shape, marks: list[Any]) -> Shape:
    for mark in marks:
        match mark:
            case Meta():
                given: dict[str, Any] = {
                    "description": mark.description,
                    "pattern": mark.pattern,
                    "minimum": mark.ge,
                    "maximum": mark.le,
                    "above": mark.gt,
                    "min_length": mark.min_length,
                    "max_length": mark.max_length,
                }
                shape = replace(shape, **{name: value for name, value in given.items() if value is not None})
            case Words():
                shape = replace(shape, words=mark)
            case Rule():
                shape = replace(shape, rules=(*shape.rules, mark))
            case ListOf():
                shape = replace(shape, list_of=mark)
    return shape


@functools.cache
def _struct(struct: type[msgspec.Struct]) -> Shape:
    hints = typing.get_type_hints(struct, include_extras=True)
    fields = []
    for info in msgspec.structs.fields(struct):
        default = info.default
        if info.default_factory is not msgspec.NODEFAULT:
            default = info.default_factory()
        fields.append(
            Field(name=info.encode_name, shape=shape_of(hints[info.name]), required=info.required, default=default)
        )
    return Shape(Kind.OBJECT, fields=tuple(fields), rules=getattr(struct, "RULES", ()), struct=struct)
