"""What the pages call by name exists, and what a person can meet is on the pages: reasons, metrics, fields, rights."""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from halffull_larry import config as larry
from halffull_operator import conditions, engine_settings, labels, pods, rolling
from halffull_operator import spec as specification
from halffull_operator.shape import Kind, Shape, shape_of
from halffull_operator.spec_status import LLMServingStatus
from tests.operator.chart.render import CHART, REPOSITORY, unhelmed_rules, values
from tests.operator.chart.test_alerts import exported
from tests.operator.docs.pages import DOCS, FIRST, INSTALL, OPERATIONS, PAGES, Page, ticked
from tests.operator.plan.world import World, container, engine_pod, gateway_pod
from tests.operator.status.reading import said

SOURCES = REPOSITORY / "operator/src/halffull_operator"
CONDITIONS = ("Ready", "EnginesReady", "GatewayReady", "Progressing", "Applied", "UpdateAvailable")
REASON_TABLES = (
    "### While it starts and changes",
    "### Pods of engines and gateways",
    "### What could not be applied",
)
KUBERNETES_OWN = {"Forbidden", "Invalid", "InternalError"}
NEVER_SAID = {"NotObserved", "NamespaceTerminating", "Unreachable", "Timeout"}
"""Reasons that no condition has: tried again at once, or the LLMServing is going; one is of no code any more."""


NOT_REASONS = {
    *(set(CONDITIONS) - {"Applied"}),
    *("True", "False", "Unknown", "None", "Managed", "InferencePool", "FailClose", "Invalid", "Failed"),
    *("StatefulSet", "Deployment", "Service", "FailedCreate", "ReplicaFailure", "Accepted"),
    *("PodScheduled", "Initialized", "PodReadyToStartContainers"),
}


def words(path: Path) -> Iterator[str]:
    """What looks like a reason among what is returned, chosen or compared."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Tuple | ast.Assign | ast.IfExp | ast.Call):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Constant) and isinstance(child.value, str):
                    yield from re.findall(r"^(?:[A-Z][a-z]+){1,5}$", child.value)


def reasons_in_code() -> set[str]:
    """Of conditions and of pods, and those that the edges give to what the API server refuses."""
    found = {*pods.REASONS, *conditions.GOOD, *conditions.PASSING}
    found |= {word for name in ("status.py", "look.py") for word in words(SOURCES / name)}
    for path in SOURCES.glob("*.py"):
        found |= set(re.findall(r'ApiError\(\s*"([A-Z]\w+)"', path.read_text()))
    found |= set(re.findall(r'^ +reason = "([A-Z]\w+)"', (SOURCES / "cluster.py").read_text(), re.MULTILINE))
    return found - NOT_REASONS


def reasons_on_the_page() -> list[str]:
    rows = [row for heading in REASON_TABLES for row in FIRST.table(heading)]
    return [reason for row in rows for reason in ticked(row[0])]


def test_every_reason_is_explained_once_and_no_other() -> None:
    told = reasons_on_the_page()
    assert sorted(told) == sorted(set(told))
    assert set(told) == reasons_in_code() - NEVER_SAID


EVERYTHING_ELSE = {
    *CONDITIONS,
    *("FailOpen", "FailClose", "ReadWriteOnce", "Retain", "InferencePool", "LoadBalancer", "Recreate", "LARRYPlus"),
}


def test_reasons_elsewhere_exist_too() -> None:
    known = reasons_in_code() | KUBERNETES_OWN
    for page in PAGES:
        for span in page.spans:
            if re.fullmatch(r"(?!Halffull)(?:[A-Z][a-z]+){2,5}", span):
                assert span in known | EVERYTHING_ELSE, f"{page.name}: {span}"


def test_conditions() -> None:
    assert [ticked(row[0])[0] for row in FIRST.table("## Conditions")] == list(CONDITIONS)
    world = World()
    found = said(world)
    assert [one["type"] for one in found["conditions"]] == list(CONDITIONS)
    world.body["metadata"]["annotations"] = {labels.PAUSED: "true"}
    unknown = [one["type"] for one in said(world)["conditions"] if one["status"] == "Unknown"]
    assert unknown == ["Progressing", "Applied"]
    assert "Unknown, at `Applied` and `Progressing`: " in FIRST.text
    at = {word for heading in REASON_TABLES[:1] for row in FIRST.table(heading) for word in row[1].split(", ")}
    assert at <= {*CONDITIONS, "all"}


def without_pods(world: World) -> None:
    world.pods = []


def with_engines(*ready: bool, gateways: bool = True, **rest: Any) -> Callable[[World], None]:
    def change(world: World) -> None:
        engines = [
            engine_pod(number, ready=is_ready, **({} if is_ready else rest)) for number, is_ready in enumerate(ready)
        ]
        world.pods = [*engines, gateway_pod(0, ready=gateways)]

    return change


PULLING = [container(state={"waiting": {"reason": "ContainerCreating"}})]
LOADING = [container(state={"running": {"startedAt": "2026-01-01T00:00:00Z"}})]
NO_ROOM = [{"type": "PodScheduled", "status": "False", "message": "0/4 nodes are available"}]
STAGES: list[Callable[[World], None] | None] = [
    None,
    without_pods,
    with_engines(False, False, conditions=NO_ROOM, containerStatuses=[]),
    with_engines(False, False, containerStatuses=PULLING),
    with_engines(False, False, containerStatuses=LOADING),
    with_engines(True, False, containerStatuses=LOADING, gateways=False),
    with_engines(True, False, containerStatuses=LOADING),
    with_engines(True, True),
]


def test_the_columns_at_each_stage() -> None:
    rows = FIRST.table("## What `kubectl get llms` shows")
    assert len(rows) == len(STAGES)
    for row, change in zip(rows, STAGES, strict=True):
        if change is None:
            assert row[:3] == ["", "", ""]
            continue
        world = World()
        change(world)
        found = said(world)
        reason = next(one["reason"] for one in found["conditions"] if one["type"] == "Ready")
        assert [str(found["readyReplicas"]), str(found["updatedReplicas"]), f"`{reason}`"] == row[:3]


def test_the_example_of_the_columns_has_those_of_the_crd() -> None:
    crd = yaml.safe_load((CHART / "crds/llmservings.serving.halffull.dev.yaml").read_text())
    columns = crd["spec"]["versions"][0]["additionalPrinterColumns"]
    narrow = ["NAME", *(one["name"].upper() for one in columns if not one.get("priority"))]
    wide = [one["name"].upper() for one in columns if one.get("priority")]
    lines = [line.split() for line in FIRST.text.splitlines() if line.startswith("    ")]
    heads = [number for number, line in enumerate(lines) if line[:1] == ["NAME"]]
    assert [lines[number] for number in heads] == [narrow, [*narrow[:-1], *wide, narrow[-1]]]
    for number in heads:
        row = dict(zip(lines[number], lines[number + 1], strict=True))
        assert (row["APPLIED"], row["REASON"]) == ("True", "Serving")
    assert f"`-o wide` adds {', '.join(wide[:-1])} and {wide[-1]}" in FIRST.text


def test_who_is_on_call_looks_at_every_column_that_warns() -> None:
    """REASON alone hides an edit that was refused: what was before goes on serving."""
    (rule,) = re.findall(r"^For a person on call: .*", OPERATIONS.text, re.MULTILINE)
    assert "READY below DESIRED anywhere, APPLIED not `True`, or REASON not `Serving`" in rule


def test_commands_about_one_serving_name_its_namespace() -> None:
    named = [command for command in OPERATIONS.commands if re.search(r"\b(llama|NAME|POD)\b", command)]
    assert len(named) >= 7
    for command in named:
        assert command.startswith("kubectl -n llm "), command


def test_the_images_to_build_are_those_that_there_are() -> None:
    (loop,) = (command for command in INSTALL.commands if command.startswith("for name in "))
    names = loop.removeprefix("for name in ").removesuffix("; do").split()
    assert len(names) == 4
    assert "build these four" in INSTALL.text
    for name in names:
        assert (REPOSITORY / f"images/{name}.Dockerfile").exists()


def test_what_was_started_a_moment_ago_is_asked_again() -> None:
    """A request right behind a program that starts in the background is refused once or twice."""
    for page in (DOCS / "own-ingress.md", REPOSITORY / "README.md", *(page.path for page in PAGES)):
        for command in re.findall(r"&\n +(curl .*)", page.read_text()):
            assert "--retry-connrefused" in command, f"{page.name}: {command}"


def test_the_words_of_the_readme_s_table_are_explained_above_it() -> None:
    above = (REPOSITORY / "README.md").read_text().partition("\n|")[0].replace("\n", " ")
    for word in ("TTFT", "TGT", "P2C", "FCFS", "α", "SALPlus", "ext_proc"):
        assert f" {word}: " in above, word


def fields(shape: Shape, prefix: str = "") -> Iterator[str]:
    for member in shape.fields:
        name = f"{prefix}{member.name}"
        yield f"{name}.*" if member.shape.kind is Kind.MAP else name
        yield from fields(member.shape, f"{name}.")
        if member.shape.kind is Kind.LIST and member.shape.item is not None:
            yield from fields(member.shape.item, f"{name}.")


def paths(value: Any, prefix: str = "") -> Iterator[str]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield f"{prefix}{key}"
        yield from paths(inner, f"{prefix}{key}.")


MAPPINGS = {name.removesuffix(".*") for name in fields(shape_of(specification.LLMServingSpec)) if name.endswith(".*")}
SPEC = MAPPINGS | {name for name in fields(shape_of(specification.LLMServingSpec)) if not name.endswith(".*")}
STATUS = {f"status.{name}" for name in fields(shape_of(LLMServingStatus))}
CHART_VALUES = set(paths(values()))
API_GROUPS = {group for rule in unhelmed_rules() for group in rule["apiGroups"]}
ROOTS = {name.partition(".")[0] for name in SPEC | CHART_VALUES} | {"spec", "status", "retention", "parallelism"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_field_and_value_exists(page: Page) -> None:
    known = SPEC | {f"spec.{name}" for name in SPEC} | STATUS | CHART_VALUES
    seen = 0
    for span in page.spans:
        path = re.split("[:=]", span)[0]
        if path.partition(".")[0] not in ROOTS or path in API_GROUPS or not re.fullmatch(r"\w+(\.\w+)+", path):
            continue
        seen += 1
        if path.rpartition(".")[0] not in MAPPINGS:
            assert path in known or any(name.endswith(f".{path}") for name in SPEC), f"{page.name}: {span}"
    assert seen > 5
    for command in page.commands:
        for path in re.findall(r"--set[= ]([\w.]+)=", command):
            assert path in CHART_VALUES, command


def test_the_values_table() -> None:
    for name, *_ in INSTALL.table("## Values one meets first"):
        for path in ticked(name):
            pattern = re.escape(path).replace("…", r"\w+")
            assert any(re.fullmatch(pattern, one) for one in CHART_VALUES), path


def test_defaults_that_the_pages_name() -> None:
    engine, rollout = specification.Engine(), specification.Rollout()
    chart = values()
    assert (engine.drain_timeout, engine.startup_timeout, rollout.progress_deadline) == ("10m", "1h", "1h")
    assert "`engine.drainTimeout` (10m)" in OPERATIONS.text
    assert "`engine.startupTimeout` (1h)" in FIRST.text
    assert "`rollout.progressDeadline` (1h)" in OPERATIONS.text
    assert f"| {engine_settings.PRE_STOP} s later | vLLM is told to end" in OPERATIONS.text
    assert f"| {engine_settings._SLACK} s later | killed" in OPERATIONS.text
    for image in ("vllm", "envoy"):
        assert f"`{chart['images'][image]['repository']}:{chart['images'][image]['tag']}`" in INSTALL.text
    assert ", ".join(f"`{name}`" for name in chart["profiles"]) in INSTALL.text
    tested = " to ".join(".".join(map(str, bound)) for bound in (larry.OLDEST_TESTED, larry.NEWEST_TESTED))
    assert f"here {tested}." in OPERATIONS.text


def test_every_metric_exists() -> None:
    stock = (REPOSITORY / "extproc/src/halffull_extproc/stock_metrics.py").read_text()
    known = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}
    asked = {name for page in PAGES for name in re.findall(r"\bhalffull_(?:picker|larry|operator)_[a-z_]+", page.text)}
    assert len(asked) > 10
    assert asked - known == set()
    for name in {name for page in PAGES for name in re.findall(r"vllm:[a-z_]+", page.text)}:
        assert name in stock


def test_every_alert_is_explained() -> None:
    (group,) = yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"]
    assert [ticked(row[0])[0] for row in OPERATIONS.table("## What to watch")] == [
        one["alert"] for one in group["rules"]
    ]
    alerts = {one["alert"] for one in group["rules"]}
    assert {name for page in PAGES for name in re.findall(r"`(Halffull\w+)`", page.text)} == alerts


def test_the_rights_are_those_of_the_chart() -> None:
    told, group = [], ""
    for row in INSTALL.table("## What the operator may do, and why"):
        group = row[0] or group
        api = "" if group == "core" else ticked(group)[0]
        told += [(api, resource, tuple(row[2].split(", "))) for resource in ticked(row[1])]
    granted = [
        (group, resource, tuple(rule["verbs"]))
        for rule in unhelmed_rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]
    assert sorted(told) == sorted(granted)


def test_labels_and_annotations_exist() -> None:
    known = {value for module in (labels, rolling) for value in vars(module).values() if isinstance(value, str)}
    for page in PAGES:
        for name in re.findall(r"serving\.halffull\.dev/([a-zA-Z-]+[a-z])", page.text):
            assert f"{labels.GROUP}/{name}" in known | {labels.API_VERSION.replace("v1alpha1", "v")}, name


def test_what_clients_are_told_is_what_the_gateway_says() -> None:
    said = "".join(path.read_text() for path in (REPOSITORY / "extproc/src/halffull_extproc/xds").glob("*.py"))
    quoted = re.findall(r"`([A-Z][^`]*\.)`", FIRST.text)
    assert len(quoted) == 3
    for sentence in quoted:
        assert f'"{sentence}"' in said, sentence
