"""What can be said of the chart without Helm."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from halffull_operator import kinds
from halffull_operator.children import build
from halffull_operator.config import OperatorConfig, load_config
from halffull_operator.shape import Kind, Shape, shape_of
from halffull_operator.spec import parse
from halffull_operator.spec_types import Resources
from tests.operator.chart.render import CHART, REPOSITORY, unhelmed_rules, values
from tests.operator.chart.validation import NEWEST, OLDEST, valid
from tests.operator.plan.test_real_children import APIS

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
SERVINGS = [path for path in EXAMPLES if not path.name.startswith("values-")]


def config() -> OperatorConfig:
    """operator.yaml of the chart's values, as the template makes it."""
    chart = values()
    images = {name: f"{chart['images'][name]['repository']}:1" for name in ("vllm", "larry", "extproc", "envoy")}
    same = {
        name: chart[name] for name in ("engine", "profiles", "gateway", "initResources", "securityContext", "listen")
    }
    return load_config(yaml.safe_dump({"images": images, **same}), source="values.yaml")


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """What a reference leads to."""
    found: dict[str, Any] = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def test_the_values_fit_their_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(values(), SCHEMA)


def test_the_schema_knows_every_value_and_no_other() -> None:
    """Whoever writes a value that does not exist is told."""

    def walk(value: Any, schema: dict[str, Any], path: str) -> None:
        schema = {**resolved(schema), "definitions": SCHEMA["definitions"]}
        if schema.get("additionalProperties") is False:
            for key in value:
                assert key in schema["properties"], f"{path}.{key}"
                if isinstance(value[key], dict):
                    walk(value[key], schema["properties"][key], f"{path}.{key}")
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({**value, "notAValue": 1}, schema)

    walk(values(), SCHEMA, "values")
    missing = set(SCHEMA["properties"]) - set(values()) - {"global"}
    assert missing == set()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("registry", "https://registry.example.com"),
        ("images.envoy.digest", "sha256:short"),
        ("images.envoy.repository", "envoy@sha256:abc"),
        ("watch.namespaces", ["Not_A_Name"]),
        ("watch.namespaces", "team"),
        ("securityContext.runAsUser", 0),
        ("securityContext.runAsUser", "65532"),
        ("profiles", {"H 100": {}}),
        ("profiles.h100.replicas", 3),
        ("operator.logLevel", "verbose"),
        ("podMonitor.interval", "30"),
        ("labels", {"a": 1}),
        ("proxy", {"noProxy": False}),
        ("listen", "127.0.0.1"),
        ("engine.resources.requests.cpu", "lots"),
        ("profiles.h100.resources.requests.memory", "96 Gi"),
        ("gateway.envoy.limits.memory", "1GiB"),
        ("gateway.picker.requests.cpu", -1),
        ("initResources.requests.cpu", 0.5),
        ("operator.resources.limits", {"a b": "1"}),
        ("operator.resources.limits.memory", "much"),
        ("engine.gpuResource", "gpu"),
        ("profiles.h100.gpuResource", "gpu"),
        ("profiles.h100.shmSize", "0Gi"),
        ("profiles.cpu.image", "vllm latest"),
        ("engine.runtimeClassName", "Nvidia"),
        ("engine.tolerations", [{"effect": "Never"}]),
        ("imagePullSecrets", [{"name": "My_Secret"}]),
    ],
)
def test_bad_values_are_refused(path: str, value: Any) -> None:
    changed = copy.deepcopy(values())
    target = changed
    *steps, last = path.split(".")
    for step in steps:
        target = target[step]
    target[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed, SCHEMA)


BY_THE_CHART = {"images", "registry", "securityContext"}
"""Values that the chart asks more of than the operator, or writes in another form."""
BOUNDS = ("pattern", "enum", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "maxProperties")


def bounds(shape: Shape) -> dict[str, Any]:
    """What a setting of the operator may be, in the schema's words."""
    sized = {Kind.LIST: ("minItems", "maxItems"), Kind.MAP: ("", "maxProperties")}
    least, most = sized.get(shape.kind, ("minLength", "maxLength"))
    found = {
        "pattern": shape.cel_pattern,
        "enum": list(shape.enum) or None,
        "minimum": 0 if shape.kind is Kind.QUANTITY else shape.minimum,
        "maximum": shape.maximum,
        least: shape.min_length,
        most: shape.max_length,
    }
    return {name: value for name, value in found.items() if value is not None}


def compare(schema: dict[str, Any], shape: Shape, path: str) -> None:
    schema = resolved(schema)
    assert {name: schema[name] for name in BOUNDS if name in schema} == bounds(shape), path
    if shape.kind is Kind.OBJECT:
        assert schema["additionalProperties"] is False, path
        assert set(schema["properties"]) == {member.name for member in shape.fields}, path
        assert set(schema.get("required", ())) == {member.name for member in shape.fields if member.required}, path
        for member in shape.fields:
            compare(schema["properties"][member.name], member.shape, f"{path}.{member.name}")
    if shape.kind is Kind.MAP and shape.key is not None:
        compare(schema["propertyNames"], shape.key, f"keys of {path}")
    if shape.item is not None:
        compare(schema["items" if shape.kind is Kind.LIST else "additionalProperties"], shape.item, f"{path}[]")


def test_the_schema_is_the_operator_s_own() -> None:
    """What Helm lets pass, the operator takes: it would not start with anything else."""
    shapes = {member.name: member.shape for member in shape_of(OperatorConfig).fields}
    for name in shapes.keys() - BY_THE_CHART:
        compare(SCHEMA["properties"][name], shapes[name], name)
    compare(SCHEMA["properties"]["operator"]["properties"]["resources"], shape_of(Resources), "operator.resources")


def test_every_setting_of_the_operator_can_be_set_by_the_chart() -> None:
    template = (CHART / "templates" / "_helpers.tpl").read_text()
    (written,) = re.findall(r'define "halffull.config" -}}\n(.*?)\{\{- end }}\n\n', template, re.DOTALL)
    keys = set(re.findall(r"^(\w+):", written, re.MULTILINE))
    for names in re.findall(r"^\{\{- range \$key := list (.*) }}", written, re.MULTILINE):
        keys |= set(re.findall(r"\w+", names))
    assert keys == {field.encode_name for field in msgspec.structs.fields(OperatorConfig)}


def test_every_value_is_explained() -> None:
    """A `# --` above each, or above the group when its members speak for themselves."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    explained, bare = [False] * 8, []
    comment = False
    for line in lines:
        stripped = line.strip()
        if stripped.startswith("# --"):
            comment = True
        elif match := re.match(r'( *)("?[\w:.-]+"?):', line):
            depth = len(match.group(1)) // 2
            explained[depth] = comment or any(explained[:depth])
            explained[depth + 1 :] = [False] * (7 - depth)
            group = stripped.endswith(":")
            if not explained[depth] and not group:
                bare.append(stripped)
            comment = False
        elif not stripped.startswith("#"):
            comment = False
    assert bare == []


def test_the_operator_takes_the_chart_s_defaults() -> None:
    assert set(config().profiles) == {"h100", "l40s", "mi300x", "cpu"}
    defaults = OperatorConfig(images=config().images)
    for name in ("gateway", "init_resources", "security_context", "listen", "proxy", "watch"):
        assert getattr(config(), name) == getattr(defaults, name), name


@pytest.mark.parametrize("path", SERVINGS, ids=lambda path: path.stem)
def test_every_example_can_be_served(path: Path) -> None:
    body = yaml.safe_load(path.read_text())
    body["metadata"] |= {"namespace": "team", "uid": "cr-1", "generation": 1}
    serving = parse(body)
    assert serving.unknown == ()
    children = build(serving, config(), APIS)
    assert children.missing == ()
    assert "StatefulSet" in {manifest["kind"] for manifest in children.manifests}
    for manifest in children.manifests:
        valid(manifest, OLDEST, NEWEST)


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path not in SERVINGS], ids=lambda path: path.stem)
def test_every_example_of_values_fits(path: Path) -> None:
    jsonschema.validate({**values(), **yaml.safe_load(path.read_text())}, SCHEMA)


def test_the_crd_is_the_repository_s() -> None:
    name = "llmservings.serving.halffull.dev.yaml"
    assert [file.name for file in (CHART / "crds").iterdir()] == [name]
    assert (CHART / "crds" / name).read_text() == (REPOSITORY / "crds" / name).read_text()
    made = subprocess.run(
        [sys.executable, "-m", "halffull_operator.crd"], capture_output=True, text=True, check=True, timeout=60
    )
    assert (CHART / "crds" / name).read_text() == made.stdout, "make crd"


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = (REPOSITORY / "VERSION").read_text().strip()
    assert (chart["version"], chart["appVersion"]) == (version, version)


@pytest.mark.parametrize("name", ["_rbac.tpl", "rbac.yaml", "rbac-aggregated.yaml"])
def test_every_rule_is_explained(name: str) -> None:
    """By a comment above it, or above the Role whose only rule it is."""
    for document in (CHART / "templates" / name).read_text().split("\n---\n"):
        lines = [line.strip() for line in document.splitlines()]
        rules = [number for number, line in enumerate(lines) if line.startswith("- apiGroups:")]
        for number in rules:
            above = number - 1
            if len(rules) == 1 and lines[above] == "rules:":
                above = next(number for number, line in enumerate(lines) if line.startswith("apiVersion:")) - 1
            assert lines[above].startswith("# "), lines[number : number + 3]


def test_the_rules_cover_every_kind_and_nothing_else() -> None:
    granted: dict[tuple[str, str], set[str]] = {}
    for rule in unhelmed_rules():
        assert "*" not in (*rule["apiGroups"], *rule["resources"], *rule["verbs"])
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                assert (group, resource) not in granted, "one rule for each"
                granted[group, resource] = set(rule["verbs"])
    for kind in kinds.CHILDREN:
        assert granted.pop((kind.group, kind.plural)) == {"get", "list", "watch", "create", "patch", "delete"}
    assert granted == {
        ("serving.halffull.dev", "llmservings"): {"get", "list", "watch"},
        ("serving.halffull.dev", "llmservings/status"): {"patch"},
        ("serving.halffull.dev", "llmservings/finalizers"): {"update"},
        ("", "pods"): {"get", "list", "watch"},
        ("", "persistentvolumeclaims"): {"get", "list", "watch", "patch"},
        ("", "events"): {"create", "list"},
        ("coordination.k8s.io", "leases"): {"list", "watch"},
        ("discovery.k8s.io", "endpointslices"): {"get", "list", "watch"},
    }


@pytest.mark.parametrize("path", SERVINGS, ids=lambda path: path.stem)
def test_the_operator_may_do_all_that_it_grants(path: Path) -> None:
    granted = {
        (group, resource, verb)
        for rule in unhelmed_rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    body = yaml.safe_load(path.read_text())
    body["metadata"] |= {"namespace": "team", "uid": "cr-1", "generation": 1}
    for manifest in build(parse(body), config(), APIS).manifests:
        for rule in manifest.get("rules", ()) if manifest["kind"] == "Role" else ():
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    assert {(group, resource, verb) for verb in rule["verbs"]} <= granted
