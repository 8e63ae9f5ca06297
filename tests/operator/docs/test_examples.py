"""What people copy from the documentation is taken: manifests, values, patches, requests, commands."""

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.route.v3 import route_components_pb2
from google.protobuf import json_format

from halffull_operator.children import Children, build
from halffull_operator.config import OperatorConfig, load_config
from halffull_operator.labels import API_VERSION, KIND
from halffull_operator.spec import parse
from halffull_operator.spec_model import served_names
from tests.extproc.ingress.manifests import problems
from tests.operator.chart.render import CHART, template, values
from tests.operator.chart.render import operator_yaml as written_by_helm
from tests.operator.children.family import ALL_APIS
from tests.operator.docs.pages import DOCS, FIRST, MIGRATION, PAGES, Page

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
DOCUMENTS = [(page, place, body) for page in PAGES for place, body in page.documents()]
SERVINGS = [(place, body) for _, place, body in DOCUMENTS if body.get("kind") == KIND]
VALUES = [(place, body) for page, place, body in DOCUMENTS if page.name == "install.md"]
OTHERS = [(place, body) for page, place, body in DOCUMENTS if page.name != "install.md" and body.get("kind") != KIND]


def layered(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values as Helm lays them over the chart's: mappings key by key, null removes."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = layered(merged[key], value)
        else:
            merged[key] = value
    return merged


def operator_yaml(chart: Mapping[str, Any], tag: str = "1") -> OperatorConfig:
    """What the operator is given for these values."""
    images = {
        name: f"{chart['images'][name]['repository']}:{chart['images'][name]['tag'] or tag}"
        for name in ("vllm", "larry", "extproc", "envoy")
    }
    taken = (
        *("registry", "imagePullSecrets", "engine", "profiles", "gateway", "initResources", "labels", "annotations"),
        *("podLabels", "podAnnotations", "proxy", "listen", "watch"),
    )
    named = chart.get("securityContext") or {}
    users = {"securityContext": {key: named.get(key) for key in ("runAsUser", "runAsGroup", "fsGroup")}}
    text = yaml.safe_dump({"images": images, **users, **{key: chart[key] for key in taken}})
    return load_config(text, source="operator.yaml")


def served(body: dict[str, Any]) -> Children:
    assert body["apiVersion"] == API_VERSION
    body = {**body, "metadata": {"namespace": "llm", **body["metadata"], "uid": "cr-1", "generation": 1}}
    serving = parse(body)
    assert serving.unknown == ()
    return build(serving, operator_yaml(values()), ALL_APIS)


def test_there_is_something_to_test() -> None:
    assert len(SERVINGS) >= 3
    assert len(VALUES) >= 6
    assert {body.get("kind") for _, body in OTHERS} == {"HorizontalPodAutoscaler", "HTTPRoute", None}


@pytest.mark.parametrize(("place", "body"), SERVINGS, ids=[place for place, _ in SERVINGS])
def test_every_llmserving_is_served(place: str, body: dict[str, Any]) -> None:
    children = served(body)
    assert children.missing == ()
    assert "StatefulSet" in {manifest["kind"] for manifest in children.manifests}


@pytest.mark.parametrize(("place", "given"), VALUES, ids=[place for place, _ in VALUES])
def test_all_values_fit_the_chart_and_the_operator(place: str, given: dict[str, Any]) -> None:
    chart = layered(values(), given)
    jsonschema.validate(chart, SCHEMA)
    config = operator_yaml(chart)
    for name, profile in given.get("profiles", {}).items():
        assert (name in config.profiles) == (profile is not None)


@pytest.mark.operator  # Helm is among what hack/cluster builds
def test_helm_takes_all_values(tmp_path: Path) -> None:
    for number, (place, given) in enumerate(VALUES):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(given))
        config = load_config(written_by_helm(template("--values", str(file))), source=place)
        assert config == operator_yaml(layered(values(), given), tag=config.images.larry.rpartition(":")[2])


@pytest.mark.parametrize(("place", "body"), OTHERS, ids=[place for place, _ in OTHERS])
def test_what_is_beside_them_is_valid(place: str, body: dict[str, Any]) -> None:
    match body:
        case {"kind": "HorizontalPodAutoscaler", "spec": spec}:
            assert (spec["scaleTargetRef"]["apiVersion"], spec["scaleTargetRef"]["kind"]) == (API_VERSION, KIND)
        case {"kind": "HTTPRoute"}:
            assert problems(body) == []
        case {"match": _, "route": _}:
            json_format.ParseDict(body, route_components_pb2.Route())
        case {"connect_timeout": _}:
            json_format.ParseDict(body, cluster_pb2.Cluster())
        case _:
            pytest.fail(f"{place}: neither LLMServing nor anything that is tested")


def test_where_traffic_is_shifted_to_is_what_the_operator_makes() -> None:
    """The addresses in the examples are those of the LLMServing of the same page."""
    (body,) = (body for _, body in MIGRATION.documents() if body.get("kind") == KIND)
    (gateway,) = (
        one
        for one in served(body).manifests
        if one["kind"] == "Service" and one["metadata"]["name"].endswith("-gateway")
    )
    (port,) = (one["port"] for one in gateway["spec"]["ports"])
    name, namespace = gateway["metadata"]["name"], gateway["metadata"]["namespace"]
    assert f"{{address: {name}.{namespace}.svc.cluster.local, port_value: {port}}}" in MIGRATION.text
    assert f"{{name: {name}, port: {port}, weight: 10}}" in MIGRATION.text
    assert f"`http://{name}.{namespace}.svc`" in MIGRATION.text


def test_patches_are_taken() -> None:
    (body,) = (body for _, body in MIGRATION.documents() if body.get("kind") == KIND)
    patches = [command for command in MIGRATION.commands if " patch " in command]
    assert patches
    for command in patches:
        words = shlex.split(command)
        patch = json.loads(words[words.index("-p") + 1])
        changed = layered(body, patch)
        assert changed != body
        served(changed)


def test_the_request_asks_for_the_model_that_is_served() -> None:
    (request,) = re.findall(r"chat/completions .* -d '(\{.*?\})'\n", FIRST.text, re.DOTALL)
    tiny, llama = (parse({**b, "metadata": {**b["metadata"], "namespace": "llm", "uid": "1"}}) for _, b in SERVINGS[:2])
    assert json.loads(request)["model"] in served_names(tiny.spec.model, serving_name=tiny.name)
    assert json.loads(request)["stream"] is True
    (model,) = re.findall(r'^    model="([^"]+)"', FIRST.text, re.MULTILINE)
    assert model in served_names(llama.spec.model, serving_name=llama.name)
    assert f"service/{tiny.name}-gateway 8080:80" in FIRST.text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links:
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = (DOCS / name).resolve() if name else page.path
        assert target.exists(), link
        if anchor:
            assert anchor in Page(target.name).anchors, link
