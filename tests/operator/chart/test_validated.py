"""Everything that the chart renders, with every switch, against Kubernetes' own schemas."""

import json
import re
from pathlib import Path

import pytest

from halffull_operator.config import load_config
from tests.operator.chart.render import CHART, only, operator_yaml, run, template, values
from tests.operator.chart.validation import NEWEST, OLDEST, RUN, valid

pytestmark = pytest.mark.operator  # Helm is among what hack/cluster builds
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = sorted((CHART / "examples").glob("values-*.yaml"))

SWITCHES = {
    "defaults": (),
    "names": ("--set=nameOverride=other,fullnameOverride=another",),
    "registry": ("--set=registry=registry.example.com/mirror,imagePullSecrets[0].name=mirror",),
    "digest": (f"--set=images.operator.digest=sha256:{'0' * 64}", "--set=images.operator.pullPolicy=Always"),
    "namespaces": ("--set=watch.namespaces={a,b}",),
    "no user": ("--set=securityContext.runAsUser=null,securityContext.runAsGroup=null,securityContext.fsGroup=null",),
    "no security context": ("--set=securityContext=null",),
    "account of one's own": ("--set=serviceAccount.create=false,serviceAccount.name=mine",),
    "annotated account": ("--set=serviceAccount.annotations.a=b",),
    "no roles": ("--set=rbac.create=false,rbac.aggregate=false",),
    "no profiles": ("--set=profiles=null",),
    "proxy": ("--set=proxy.httpsProxy=http://proxy.example.com:3128,proxy.noProxy=.svc",),
    "IPv4": ("--set=listen=0.0.0.0",),
    "labels": ("--set=labels.a=b,annotations.a=b,podLabels.a=b,podAnnotations.a=b",),
    "PDB": ("--set=podDisruptionBudget.enabled=true",),
    "PodMonitor": ("--set=podMonitor.enabled=true,podMonitor.labels.a=b,podMonitor.interval=1m",),
    "alerts": ("--set=prometheusRule.enabled=true,prometheusRule.labels.a=b",),
    "dashboard": (
        "--set=grafanaDashboard.enabled=true,grafanaDashboard.labels.a=b,grafanaDashboard.annotations.folder=LLM",
    ),
    "the operator's pod": (
        "--set=operator.podLabels.a=b,operator.podAnnotations.a=b,operator.nodeSelector.a=b",
        "--set=operator.priorityClassName=high,operator.logLevel=debug",
        '--set-json=operator.tolerations=[{"key":"a","operator":"Exists"}]',
        '--set-json=operator.affinity={"podAntiAffinity":{"preferredDuringSchedulingIgnoredDuringExecution":[]}}',
    ),
    "engines and gateways": (
        "--set=engine.gpuResource=none,gateway.workers=4,initResources.limits.memory=1Gi",
        '--set-json=engine.env=[{"name":"A","value":"b"}]',
    ),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch(name: str) -> None:
    manifests = template(*SWITCHES[name])
    for manifest in manifests:
        valid(manifest, RUN)
    load_config(operator_yaml(manifests), source="operator.yaml")


def test_the_versions_of_kubernetes() -> None:
    for manifest in template(
        *(setting for settings in SWITCHES.values() for setting in settings if "null" not in setting)
    ):
        valid(manifest, OLDEST, NEWEST)


def test_every_value_is_switched() -> None:
    """What a template reads is set by one of the above, itself or a part of it."""
    read = set()
    for path in (CHART / "templates").rglob("*.*"):
        read |= set(re.findall(r"\.Values\.([\w.]+)", path.read_text()))
    settings = ",".join(setting for some in SWITCHES.values() for setting in some)
    unset = {path for path in read if not re.search(rf"[=,]{re.escape(path)}[=.\[]", settings)}
    assert unset == {"operator.resources"}  # of free form, as those of engines and gateways


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("engine.resources.requests.cpu=lots", "at '/engine/resources/requests/cpu'"),
        ("profiles.h100.gpuResource=gpu", "at '/profiles/h100/gpuResource'"),
        ("operator.resources.limits.memory=10 Gi", "at '/operator/resources/limits/memory'"),
        ("labels.a b=c", "invalid propertyName 'a b'"),  # Helm errs about the place of a key
    ],
)
def test_helm_refuses_what_the_operator_would(setting: str, words: str) -> None:
    answer = run("template", "x", str(CHART), "--set", setting)
    assert answer.returncode != 0
    assert words in answer.stderr, answer.stderr


@pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)
def test_every_example_of_values(path: Path) -> None:
    for manifest in template("--values", str(path)):
        valid(manifest, RUN)


def test_null_takes_a_value_away() -> None:
    """Each value of the first and second level, where the schema does not insist on it."""
    groups = {name for name, value in values().items() if isinstance(value, dict)}
    free = groups - set(SCHEMA["required"])
    assert {"engine", "profiles", "gateway", "labels", "proxy"} <= free
    lists = {name for name, value in values().items() if isinstance(value, list)}
    members = [
        f"{name}.{member}=null"
        for name in sorted(groups - {"images"})
        for member in values()[name]
        if member != "create"
    ]
    for settings in ([f"{name}=null" for name in sorted(free | lists)], members):
        manifests = template("--set=" + ",".join(settings))
        load_config(operator_yaml(manifests), source="operator.yaml")
        for manifest in manifests:
            valid(manifest, RUN)
    answer = run("template", "x", str(CHART), "--set=" + ",".join(f"{name}=null" for name in SCHEMA["required"]))
    assert answer.returncode != 0
    assert "nil pointer" not in answer.stderr
    for name in SCHEMA["required"]:
        assert f"'{name}'" in answer.stderr, answer.stderr


def test_what_is_wrong_is_found() -> None:
    manifest = only(template(), "Deployment")
    manifest["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(pytest.fail.Exception, match="imagePullPolice"):
        valid(manifest, RUN)
