"""Bad specs from the CRD itself: one for each type, bound, enum, pattern, required field and list key in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from halffull_operator import crd
from halffull_operator.kinds import Manifest
from tests.operator.crd.cases import BY_BOTH

Path = tuple[str | int, ...]

SPEC: Manifest = crd.build()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
NOT_A_WORD = "☃ 😀\t" + "'\"\\"
"""Breaks every pattern."""
_WRONG: dict[str, tuple[Any, ...]] = {
    "string": (7, True, {"a": "b"}, ["a"]),
    "integer": ("7", 1.5, {}, 10**30),
    "number": ("7", [], True),
    "boolean": ("true", 1, {}),
    "array": ("a", {"0": "a"}, 7),
    "object": ("a", ["a"], 7),
}


@dataclass(frozen=True)
class Bad:
    """One spec that breaks one thing."""

    what: str
    field: str
    """As a message names it."""
    spec: dict[str, Any]
    typed: bool
    """Every value has its type, so that a looser CRD would take it."""


def bad_specs() -> Iterator[Bad]:
    """All of them; the hand-written ones, which break the rules between fields, come first."""
    for name, (spec, field, _) in BY_BOTH.items():
        yield Bad(f"rule {name}", field, _with_model(spec), typed=True)
    yield from _of(SPEC, ())


def dotted(path: Path) -> str:
    text = "spec"
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}"
    return text


def _of(schema: Manifest, path: Path) -> Iterator[Bad]:
    def bad(what: str, value: Any, *, typed: bool = True, below: Path = ()) -> Bad:
        return Bad(what, dotted((*path, *below)), spec_with(path, value), typed=typed)

    if path:
        yield from (bad(what, value, typed=typed) for what, value, typed in _values(schema))
    for name in schema.get("required", ()):
        whole = {field: value for field, value in smallest(schema).items() if field != name}
        spec = spec_with(path, whole) if path else whole
        yield Bad(f"without {name}", dotted((*path, name)), spec, typed=False)
    for name, inner in schema.get("properties", {}).items():
        yield from _of(inner, (*path, name))
    if "properties" in schema:
        yield bad("unknown field", {**smallest(schema), "unheardOf": 1}, typed=False, below=("unheardOf",))
    if "items" in schema:
        items = schema["items"]
        if schema["x-kubernetes-list-type"] != "atomic":
            yield bad("twice", [smallest(items), smallest(items)], below=(1,))
        yield from _of(items, (*path, 0))
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _of(schema["additionalProperties"], (*path, "key"))


def _values(schema: Manifest) -> Iterator[tuple[str, Any, bool]]:
    """(what, value, whether it has the type)."""
    if schema.get("x-kubernetes-int-or-string"):
        yield from (("type", True, False), ("type", {}, False), ("minimum", -1, True), ("pattern", NOT_A_WORD, True))
        return
    for value in _WRONG[schema["type"]]:
        yield "type", value, False
    if "default" not in schema:
        yield "null", None, False
    if "pattern" in schema or any("matches" in rule["rule"] for rule in _rules(schema)):
        yield "pattern", NOT_A_WORD[: schema["maxLength"]], True
    for bound in schema.keys() & _BEYOND.keys():
        yield from ((bound, value, True) for value in _BEYOND[bound](schema))


_BEYOND: dict[str, Callable[[Manifest], tuple[Any, ...]]] = {
    "enum": lambda _: (NOT_A_WORD,),
    "minimum": lambda schema: (schema["minimum"] - 1,),
    "maximum": lambda schema: (schema["maximum"] + 1,),
    "minLength": lambda _: ("",),
    "maxLength": lambda schema: ("a" * (schema["maxLength"] + 1),),
    "minItems": lambda _: ([],),
    "maxItems": lambda schema: tuple(_many(schema["items"], count) for count in (schema["maxItems"] + 1, 10_000)),
    "maxProperties": lambda schema: (
        {f"k{number}": smallest(schema["additionalProperties"]) for number in range(schema["maxProperties"] + 1)},
    ),
}
"""What lies beyond each bound."""


def _rules(schema: Manifest) -> list[Manifest]:
    found: list[Manifest] = schema.get("x-kubernetes-validations", [])
    return found


def _many(items: Manifest, count: int) -> list[Any]:
    one = smallest(items)
    if isinstance(one, dict):
        return [{**one, **({"name": f"n{number}"} if "name" in one else {})} for number in range(count)]
    return [f"/n{number}" if one.startswith("/") else f"n{number}" for number in range(count)]


def smallest(schema: Manifest) -> Any:
    """A value of the type with what is required, good as far as the type alone can say."""
    if schema.get("x-kubernetes-int-or-string"):
        return 1
    match schema["type"]:
        case "object":
            return {name: smallest(schema["properties"][name]) for name in schema.get("required", ())}
        case "array":
            return [smallest(schema["items"])] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case _:
            return schema["enum"][0] if "enum" in schema else _text(_rules(schema))


def _text(rules: list[Manifest]) -> str:
    told = " ".join(rule["message"] for rule in rules)
    examples = {"hf://": "hf://org/model", "a size": "1Gi", "duration": "2m", "a path": "/a", "a range": "10.0.0.0/8"}
    return next((text for words, text in examples.items() if words in told), "a")


def spec_with(path: Path, value: Any) -> dict[str, Any]:
    """The smallest spec that has that value there."""
    spec: dict[str, Any] = _put(SPEC, path, value)
    return _with_model(spec)


def _put(schema: Manifest, path: Path, value: Any) -> Any:
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return [_put(schema["items"], rest, value)]
    if "properties" in schema:
        return {**smallest(schema), step: _put(schema["properties"][step], rest, value)}
    return {step: _put(schema["additionalProperties"], rest, value)}


def _with_model(spec: dict[str, Any]) -> dict[str, Any]:
    return {"model": {"uri": "hf://org/model"}, **spec}
