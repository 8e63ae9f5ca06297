"""What Helm makes of the chart."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from halffull_operator.config import load_config
from halffull_operator.spec import parse
from tests.operator.chart.render import CHART, NAMESPACE, only, operator_yaml, run, template, unhelmed_rules

pytestmark = pytest.mark.operator  # Helm is among what hack/cluster builds

EVERYTHING = (
    "--set=podDisruptionBudget.enabled=true,podMonitor.enabled=true,prometheusRule.enabled=true",
    "--set=grafanaDashboard.enabled=true",
)


def test_lint() -> None:
    answer = run("lint", "--strict", str(CHART))
    assert answer.returncode == 0, answer.stdout + answer.stderr


@pytest.mark.parametrize("path", sorted((CHART / "examples").glob("values-*.yaml")), ids=lambda path: path.stem)
def test_lint_of_every_example_of_values(path: Path) -> None:
    answer = run("lint", "--strict", str(CHART), "--values", str(path))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    load_config(operator_yaml(template("--values", str(path))), source="operator.yaml")


def test_the_operator_s_pod() -> None:
    manifests = template()
    deployment = only(manifests, "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    pod = deployment["spec"]["template"]["spec"]
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "runAsGroup": 65532,
        "fsGroup": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = pod["containers"]
    assert container["image"] == "halffull-operator:0.1.0"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["resources"]["requests"]
    assert pod["enableServiceLinks"] is False


def test_its_configuration_is_one_it_takes() -> None:
    config = load_config(operator_yaml(template()), source="operator.yaml")
    assert config.images.envoy == "envoyproxy/envoy:v1.40.0"
    assert config.images.larry == "halffull-larry:0.1.0"
    assert config.security_context.run_as_user == 65532
    assert config.watch.namespaces == ()


def test_a_change_of_its_configuration_starts_it_anew_and_nothing_else_does() -> None:
    def checksum(*arguments: str) -> str:
        pod = only(template(*arguments), "Deployment")["spec"]["template"]
        text: str = pod["metadata"]["annotations"]["checksum/config"]
        return text

    assert checksum() == checksum("--set=operator.logLevel=debug")
    assert checksum() != checksum("--set=images.larry.tag=v2")


def test_no_user_where_none_is_wanted() -> None:
    for arguments in (
        ("--set=securityContext.runAsUser=null,securityContext.runAsGroup=null,securityContext.fsGroup=null",),
        ("--values", str(CHART / "examples" / "values-openshift.yaml")),
    ):
        manifests = template(*arguments)
        for kind in ("Deployment", "Job"):
            context = only(manifests, kind)["spec"]["template"]["spec"]["securityContext"]
            assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        config = load_config(operator_yaml(manifests), source="operator.yaml")
        assert config.security_context.run_as_user is None
        assert config.security_context.fs_group is None


@pytest.mark.parametrize(
    ("settings", "image"),
    [
        ("images.operator.tag=x", "halffull-operator:x"),
        (f"images.operator.digest=sha256:{'a' * 64}", f"halffull-operator@sha256:{'a' * 64}"),
        ("registry=r.example.com/m", "r.example.com/m/halffull-operator:0.1.0"),
        ("registry=r.example.com/m,images.operator.repository=other.example.com:5000/a/b", "r.example.com/m/a/b:0.1.0"),
        ("registry=r.example.com,images.operator.repository=r.example.com/a", "r.example.com/a:0.1.0"),
        ("registry=r.example.com,images.operator.repository=org/a", "r.example.com/org/a:0.1.0"),
    ],
)
def test_images(settings: str, image: str) -> None:
    manifests = template(f"--set={settings}")
    assert only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]["image"] == image
    job = only(manifests, "Job")["spec"]["template"]["spec"]
    assert {container["image"] for container in (*job["containers"], *job["initContainers"])} == {image}


def test_one_registry_and_one_secret_reach_every_pod() -> None:
    manifests = template("--values", str(CHART / "examples" / "values-airgapped.yaml"))
    for kind in ("Deployment", "Job"):
        pod = only(manifests, kind)["spec"]["template"]["spec"]
        assert pod["imagePullSecrets"] == [{"name": "mirror"}]
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            assert container["image"].startswith("registry.example.com/mirror/")
    config = load_config(operator_yaml(manifests), source="operator.yaml")
    assert config.registry == "registry.example.com/mirror"
    assert [secret.name for secret in config.image_pull_secrets] == ["mirror"]


def rules(manifests: list[dict[str, Any]], kind: str, namespace: str | None = None) -> list[Any]:
    return [
        rule
        for one in manifests
        if one["kind"] == kind
        and one["metadata"].get("namespace") == namespace
        and not one["metadata"]["name"].endswith(("-view", "-edit"))
        for rule in one["rules"]
    ]


CRD_RULE = {
    "apiGroups": ["apiextensions.k8s.io"],
    "resources": ["customresourcedefinitions"],
    "resourceNames": ["llmservings.serving.halffull.dev"],
    "verbs": ["get", "patch"],
}
LEASE_RULES = [
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "resourceNames": ["halffull-operator"],
        "verbs": ["create", "patch"],
    },
]


def test_all_namespaces_by_a_clusterrole() -> None:
    manifests = template()
    assert rules(manifests, "ClusterRole") == [CRD_RULE, *unhelmed_rules()]
    assert rules(manifests, "Role", NAMESPACE) == LEASE_RULES
    assert bound(manifests) == {
        ("ClusterRole", "halffull-system-halffull", None),
        ("Role", "halffull-heartbeat", NAMESPACE),
    }


def test_named_namespaces_by_a_role_in_each() -> None:
    manifests = template("--set=watch.namespaces={a,b}")
    assert rules(manifests, "ClusterRole") == [CRD_RULE]
    assert rules(manifests, "Role", "a") == [*unhelmed_rules(), *LEASE_RULES]
    assert rules(manifests, "Role", "b") == unhelmed_rules()
    assert rules(manifests, "Role", NAMESPACE) == []
    assert bound(manifests) == {
        ("ClusterRole", "halffull-system-halffull", None),
        ("Role", "halffull", "a"),
        ("Role", "halffull", "b"),
        ("Role", "halffull-heartbeat", "a"),
    }
    assert load_config(operator_yaml(manifests), source="x").watch.namespaces == ("a", "b")


def test_the_own_namespace_keeps_the_lease_when_it_is_watched() -> None:
    manifests = template(f"--set=watch.namespaces={{a,{NAMESPACE}}}")
    assert rules(manifests, "Role", NAMESPACE) == [*unhelmed_rules(), *LEASE_RULES]


def bound(manifests: list[dict[str, Any]]) -> set[tuple[str, str, str | None]]:
    found = set()
    for one in manifests:
        if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}:
            assert one["subjects"] == [{"kind": "ServiceAccount", "name": "halffull", "namespace": NAMESPACE}]
            found.add((one["roleRef"]["kind"], one["roleRef"]["name"], one["metadata"].get("namespace")))
    return found


def test_no_roles_where_somebody_else_makes_them() -> None:
    manifests = template("--set=rbac.create=false,rbac.aggregate=false")
    assert not {one["kind"] for one in manifests} & {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}


def test_people_get_their_rights_by_aggregation() -> None:
    manifests = template()
    view, edit = only(manifests, "ClusterRole", "-view"), only(manifests, "ClusterRole", "-edit")
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    assert {label for label in view["metadata"]["labels"] if label.startswith(prefix)} == {
        prefix + name for name in ("view", "edit", "admin")
    }
    assert {label for label in edit["metadata"]["labels"] if label.startswith(prefix)} == {
        prefix + name for name in ("edit", "admin")
    }
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert not any("status" in resource for rule in edit["rules"] for resource in rule["resources"])


def test_what_is_optional_is_off_and_can_be_on() -> None:
    quiet = {one["kind"] for one in template()}
    assert not quiet & {"PodDisruptionBudget", "PodMonitor", "PrometheusRule"}
    manifests = template(*EVERYTHING)
    assert only(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
    assert only(manifests, "PrometheusRule")["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert "halffull.json" in only(manifests, "ConfigMap", "-dashboard")["data"]
    assert only(manifests, "PodDisruptionBudget")


def test_the_crd_is_no_template() -> None:
    assert "CustomResourceDefinition" not in {one["kind"] for one in template()}
    assert "CustomResourceDefinition" in {one["kind"] for one in template("--include-crds")}


def test_everything_is_labelled_and_nothing_as_a_child() -> None:
    for one in template(*EVERYTHING):
        assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "halffull"


def test_the_service_sends_nobody_to_the_test() -> None:
    manifests = template()
    selector = only(manifests, "Service")["spec"]["selector"]
    job = only(manifests, "Job")["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= job.items()
    assert selector.items() <= only(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"].items()


def test_two_releases_do_not_meet() -> None:
    first, second = template(name="one"), template(name="two")
    names = [
        {(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in each}
        for each in (first, second)
    ]
    assert not names[0] & names[1]


def test_a_long_release_name_is_cut() -> None:
    for one in template(name="a" * 53):
        assert len(one["metadata"]["name"]) <= 63 or one["kind"].startswith("ClusterRole")


def test_bad_values_are_refused_by_helm() -> None:
    answer = run("template", "x", str(CHART), "--set=securityContext.runAsUser=0")
    assert answer.returncode != 0
    answer = run("template", "x", str(CHART), "--set=profile.h100.image=x")
    assert answer.returncode != 0


def test_notes_can_be_written() -> None:
    for arguments in ((), ("--set=watch.namespaces={a}",), ("--set=rbac.create=false",), ("--set=profiles=null",)):
        answer = run("install", "x", str(CHART), "--dry-run=client", "--namespace", NAMESPACE, *arguments)
        assert answer.returncode == 0, answer.stderr
        (manifest,) = re.findall(r"<<YAML\n(.*)\n  YAML\n", answer.stdout, re.DOTALL)
        parse({**(body := yaml.safe_load(manifest)), "metadata": {**body["metadata"], "namespace": "n", "uid": "u"}})
