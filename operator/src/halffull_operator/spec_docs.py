"""Every field for a reader: `python -m halffull_operator.spec_docs` prints docs/llmserving.md. Pure."""

import json
import sys
from collections.abc import Iterable, Iterator
from typing import Final

from halffull_operator.crd import plain
from halffull_operator.labels import API_VERSION, KIND, PAUSED, RESTARTED_AT
from halffull_operator.mistakes import allowed
from halffull_operator.shape import Field, Kind, Rule, Shape, shape_of
from halffull_operator.spec import LLMServingSpec
from halffull_operator.spec_status import LLMServingStatus
from halffull_operator.vllm_args import OWNED, OWNED_BY_PLUGIN

_INTRODUCTION: Final = f"""\
<!-- Generated from the operator's types: make crd. Do not edit. -->
# LLMServing

`{API_VERSION}`, kind `{KIND}`, short name `llms`, namespaced. The smallest one:

```yaml
apiVersion: {API_VERSION}
kind: {KIND}
metadata: {{name: llama}}
spec:
  model: {{uri: hf://meta-llama/Llama-3.1-8B-Instruct}}
```

A name has at most 63 characters and begins with a letter. Names of children are its name up to 40 characters, else its
first 31 and a hash: `llama-engine` (StatefulSet, headless Service), `llama-gateway` (Deployment, Service) and
`llama-picker` (ConfigMap).

| annotation | meaning |
|---|---|
| `{PAUSED}: "true"` | nothing is reconciled until it is removed |
| `{RESTARTED_AT}: <time>` | a new value rolls the engines, one at a time |
"""


def text() -> str:
    """The page."""
    parts = [_INTRODUCTION]
    spec = shape_of(LLMServingSpec)
    simple = [member for member in spec.fields if member.shape.kind is not Kind.OBJECT]
    parts.append(_section("spec", "", simple, spec))
    for member in spec.fields:
        if member.shape.kind is Kind.OBJECT:
            description = f"{member.shape.description}\n"
            parts.append(_section(f"spec.{member.name}", description, member.shape.fields, member.shape))
    parts.append(_flags())
    parts.append(_status())
    return "\n".join(parts)


def _section(title: str, description: str, fields: Iterable[Field], shape: Shape) -> str:
    rows = [row for member in fields for row in _rows(member, "")]
    rules = dict.fromkeys(f"- {rule.message}" for rule in _rules(shape, deep=title != "spec"))
    told = ("\nRefused otherwise:\n\n" + "\n".join(rules) + "\n") if rules else ""
    table = "| field | what may be written | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"
    return f"## {title}\n\n{description}{chr(10) if description else ''}{table}{told}"


def _rows(member: Field, prefix: str) -> Iterator[str]:
    shape, name = member.shape, prefix + member.name
    meaning = shape.description
    if shape.kind is Kind.OBJECT:
        if meaning:
            yield _row(name, "", "required" if member.required else "", meaning)
        for inner in shape.fields:
            yield from _rows(inner, f"{name}.")
        return
    yield _row(name, _bounds(shape), _default(member), meaning)
    if shape.kind is Kind.LIST and shape.item is not None and shape.item.kind is Kind.OBJECT:
        for inner in shape.item.fields:
            yield from _rows(inner, f"{name}[].")


def _bounds(shape: Shape) -> str:
    if shape.enum:
        return ", ".join(f"`{value}`" for value in shape.enum)
    text = allowed(shape)
    if shape.kind in (Kind.LIST, Kind.MAP) and shape.item is not None and shape.item.words is not None:
        text += f", each {allowed(shape.item)}"
    return text


def _default(member: Field) -> str:
    if member.required:
        return "required"
    value = plain(member)
    return "" if value in (None, {}, []) else f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _row(*cells: str) -> str:
    name, *rest = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| `{name}` | " + " | ".join(rest) + " |"


def _rules(shape: Shape, *, deep: bool = True) -> Iterator[Rule]:
    yield from shape.rules
    if deep:
        for member in shape.fields:
            yield from _rules(member.shape)
        if shape.item is not None:
            yield from _rules(shape.item)


def _flags() -> str:
    rows = [f"| `--{flag}` | {reason} |" for flag, reason in (OWNED | OWNED_BY_PLUGIN).items()]
    return (
        "## Flags that engine.args may not name\n\n"
        "vLLM's spellings with `_`, its abbreviations and short forms are refused too.\n\n"
        "| flag | instead |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def _status() -> str:
    rows = [row for member in shape_of(LLMServingStatus).fields for row in _status_rows(member, "")]
    return "## status\n\n| field | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"


def _status_rows(member: Field, prefix: str) -> Iterator[str]:
    yield f"| `{prefix}{member.name}` | {member.shape.description} |"
    if member.shape.item is not None:
        for inner in member.shape.item.fields:
            yield from _status_rows(inner, f"{prefix}{member.name}[].")


if __name__ == "__main__":
    sys.stdout.write(text())
