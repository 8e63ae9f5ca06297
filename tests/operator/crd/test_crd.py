"""The CustomResourceDefinition: generated, structural, bounded, and each rule with a message and a case."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given, settings

from halffull_operator import crd, spec_docs
from halffull_operator.spec import SpecError, parse
from tests.operator.crd.cases import BY_BOTH
from tests.operator.spec.samples import body, specs

ROOT = Path(__file__).parents[3]
CRD = crd.build()
VERSION = CRD["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC = SCHEMA["properties"]["spec"]


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, inner in schema.get("properties", {}).items():
        yield from nodes(inner, f"{path}.{name}")
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


PARTS = dict(nodes(SPEC, "spec")) | dict(nodes(SCHEMA["properties"]["status"], "status"))


@pytest.mark.parametrize(
    ("path", "text"),
    [("crds/llmservings.serving.halffull.dev.yaml", crd.text), ("docs/llmserving.md", spec_docs.text)],
)
def test_the_generated_file_is_up_to_date(path: str, text: Any) -> None:
    assert (ROOT / path).read_text() == text(), f"make crd writes {path} anew"


def test_what_it_is() -> None:
    assert CRD["metadata"]["name"] == "llmservings.serving.halffull.dev"
    assert CRD["spec"]["names"]["shortNames"] == ["llms"]
    assert CRD["spec"]["scope"] == "Namespaced"
    assert VERSION["subresources"]["status"] == {}
    assert VERSION["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    assert int(CRD["metadata"]["annotations"]["serving.halffull.dev/schema-revision"]) >= 1
    assert len(crd.text()) < 200_000, "others hit the limits of annotations and Helm's secret"


def test_columns() -> None:
    columns = {column["name"]: column.get("priority", 0) for column in VERSION["additionalPrinterColumns"]}
    assert [name for name, priority in columns.items() if not priority] == [
        "Model",
        "Desired",
        "Ready",
        "Updated",
        "Applied",
        "Reason",
        "URL",
        "Age",
    ]
    assert [name for name, priority in columns.items() if priority] == ["Scheduler", "Routing", "Image"]
    for column in VERSION["additionalPrinterColumns"]:
        group, *names = column["jsonPath"].partition("[")[0].strip(".").split(".")
        if group in ("spec", "status"):
            assert ".".join([group, *names]) in PARTS


@pytest.mark.parametrize("path", PARTS)
def test_every_part_is_typed_and_bounded(path: str) -> None:
    part = PARTS[path]
    if part.get("x-kubernetes-int-or-string"):
        assert "maxLength" in part
        return
    kind = part["type"]
    if kind == "string":
        assert "enum" in part or part["maxLength"] <= 32_768
    elif kind == "array":
        assert part["maxItems"] <= 256
        assert part["x-kubernetes-list-type"] in ("atomic", "set", "map")
    elif kind == "object":
        free = part.get("x-kubernetes-preserve-unknown-fields")
        assert free or "properties" in part or part["maxProperties"] <= 64
    elif kind in ("integer", "number") and path.startswith("spec"):
        assert {"minimum", "maximum"} <= set(part)
    if not path.endswith(("[]", "{}")):
        assert part["description"].strip()


@pytest.mark.parametrize("path", [path for path, part in PARTS.items() if "x-kubernetes-validations" in part])
def test_every_rule_says_what_to_write_and_has_a_case(path: str) -> None:
    for rule in PARTS[path]["x-kubernetes-validations"]:
        assert "write " in rule["message"] or "leave " in rule["message"] or "need" in rule["message"]
        assert "\n" not in rule["message"]
        assert len(rule["message"]) < 600
        if "oldSelf" not in rule["rule"]:
            assert any(words in rule["message"] for _, _, words in BY_BOTH.values()), (
                f"{path}: no case for {rule['message']}"
            )


def test_rules_on_changes() -> None:
    rules = [
        rule["rule"]
        for part in PARTS.values()
        for rule in part.get("x-kubernetes-validations", [])
        if "oldSelf" in rule["rule"]
    ]
    assert len(rules) == 2
    assert any("has(oldSelf.model.cache) || self.replicas == 0" in rule for rule in rules)
    assert any("quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0" in rule for rule in rules)


def test_rules_use_what_kubernetes_1_30_knows() -> None:
    text = json.dumps(SCHEMA)
    for newer in ("isCIDR", "cidr(", "isIP", "format.", "optional.", "semver"):
        assert newer not in text


def with_defaults(schema: dict[str, Any], value: Any) -> Any:
    """As the API server fills them in."""
    if isinstance(value, dict):
        filled = dict(value)
        for name, inner in schema.get("properties", {}).items():
            if name not in filled and "default" in inner:
                filled[name] = inner["default"]
            if name in filled:
                filled[name] = with_defaults(inner, filled[name])
        return filled
    if isinstance(value, list) and "items" in schema:
        return [with_defaults(schema["items"], item) for item in value]
    return value


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The structural schema in JSON Schema's words: unknown fields refused, as with strict field validation."""
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"], "minimum": schema["minimum"], "pattern": schema["pattern"]}
    found = {key: value for key, value in schema.items() if not key.startswith("x-")}
    if "properties" in schema:
        found["properties"] = {name: json_schema(inner) for name, inner in schema["properties"].items()}
        found["additionalProperties"] = False
    elif isinstance(schema.get("additionalProperties"), dict):
        found["additionalProperties"] = json_schema(schema["additionalProperties"])
    if "items" in schema:
        found["items"] = json_schema(schema["items"])
    return found


VALIDATOR = jsonschema.Draft202012Validator(json_schema(SPEC))


@settings(max_examples=60, deadline=None)
@given(specs)
def test_what_parse_takes_the_schema_takes_with_the_same_defaults(spec: dict[str, Any]) -> None:
    try:
        found = parse({**body(), "spec": spec})
    except SpecError:
        return
    filled = with_defaults(SPEC, spec)
    VALIDATOR.validate(filled)
    assert parse({**body(), "spec": filled}) == found


def test_defaults_fit_their_own_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema(SPEC))
    for path, part in PARTS.items():
        if "default" in part:
            jsonschema.validate(with_defaults(part, part["default"]), json_schema(part)), path


def test_a_default_is_complete() -> None:
    """The API server checks the rules of a default before it fills in the defaults inside, and refuses the CRD."""
    for part in PARTS.values():
        if "default" in part:
            assert with_defaults(part, part["default"]) == part["default"]


def test_it_is_yaml_that_reads_back() -> None:
    assert yaml.safe_load(crd.text()) == json.loads(json.dumps(CRD))
