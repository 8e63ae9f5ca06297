"""What pickers and the operator may ask of the API server: calls with the tokens that lie in their pods."""

import ssl
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.cluster.node import RELEASE, SYSTEM, Cluster
from tests.cluster.servings import Manifest, Serving
from tests.operator.kube import Api, Refused, admin_of

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105  where it lies
READ = ("get", "list", "watch")
Right = tuple[str, str, str, str]
"""Verb, API group, resource, name ("": any)."""


def api_as(cluster: Cluster, token: str) -> Api:
    """The API server, as whose token it is, from where pods ask it."""
    admin = admin_of(cluster.kubeconfig)
    context = ssl.create_default_context(cafile=str(cluster.folder / "certs" / "ca.crt"))
    return Api(admin.host, admin.port, context=context, token=token.strip())


def rights(api: Api, namespace: str) -> set[Right]:
    """What `kubectl auth can-i --list` asks for."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    status = api.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)["status"]
    assert not status["incomplete"], status
    return {
        (verb, group, resource, name)
        for rule in status["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or ("",)
    }


def forbidden(api: Api, method: str, path: str, body: Manifest | None = None) -> None:
    """Assert that the API server refuses a call for want of rights."""
    with pytest.raises(Refused) as refused:
        api.call(method, path, body)
    assert refused.value.status == 403, (method, path, refused.value)


def reading(namespace: str, name: str) -> Iterator[str]:
    """Every way to read a Secret."""
    for listed in ("/api/v1/secrets", f"/api/v1/namespaces/{namespace}/secrets"):
        yield listed
        yield f"{listed}?watch=true&timeoutSeconds=1"
        yield f"{listed}?fieldSelector={quote(f'metadata.name={name}')}"
    yield f"/api/v1/namespaces/{namespace}/secrets/{name}"
    yield f"/api/v1/watch/namespaces/{namespace}/secrets/{name}"


@pytest.fixture(scope="module")
def picker(cluster: Cluster, secure: Serving) -> Api:
    pod = secure.gateways()[0]["metadata"]["name"]
    return api_as(cluster, secure.kubectl("exec", pod, "--container", "picker", "--", "cat", TOKEN))


@pytest.fixture(scope="module")
def operator(cluster: Cluster, restricted: str) -> Api:
    assert restricted  # the operator is not started anew any more
    return api_as(cluster, cluster.kubectl("exec", f"deployment/{RELEASE}", "--", "cat", TOKEN, namespace=SYSTEM))


@pytest.fixture(scope="module")
def secret(cluster: Cluster, secure: Serving) -> str:
    """One that is there to be read; it goes with the namespace."""
    manifest = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"key": "value"}}
    cluster.apply(manifest, namespace=secure.namespace)
    return "key"


def test_a_picker_may_read_its_config_map_and_endpoint_slices(
    cluster: Cluster, secure: Serving, picker: Api, elsewhere: str
) -> None:
    anybody = api_as(cluster, secure.kubectl("create", "token", "default"))
    config_map = f"{secure.name}-picker"
    expected = {(verb, "", "configmaps", config_map) for verb in READ} | {
        (verb, "discovery.k8s.io", "endpointslices", "") for verb in READ
    }
    assert rights(picker, secure.namespace) - rights(anybody, secure.namespace) == expected
    for namespace in (elsewhere, SYSTEM, "default", "kube-system"):
        assert rights(picker, namespace) == rights(anybody, namespace), namespace


def test_a_picker_s_calls_are_answered_and_refused_accordingly(
    secure: Serving, picker: Api, elsewhere: str, secret: str
) -> None:
    core, name = f"/api/v1/namespaces/{secure.namespace}", f"{secure.name}-picker"
    slices = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
    selected = f"{core}/configmaps?fieldSelector={quote(f'metadata.name={name}')}"
    assert "picker.yaml" in picker.call("GET", f"{core}/configmaps/{name}")["data"]
    assert len(picker.call("GET", selected)["items"]) == 1
    assert picker.call("GET", slices.format(secure.namespace))["items"]
    for path in (
        f"{core}/configmaps",
        f"{core}/configmaps/kube-root-ca.crt",
        f"/api/v1/namespaces/{SYSTEM}/configmaps/{RELEASE}",
        slices.format(elsewhere),
        "/apis/discovery.k8s.io/v1/endpointslices",
        f"{core}/pods",
        f"{core}/services",
        f"{core}/serviceaccounts",
        "/api/v1/nodes",
        "/api/v1/namespaces",
        f"/apis/serving.halffull.dev/v1alpha1/namespaces/{secure.namespace}/llmservings",
        f"/apis/apps/v1/namespaces/{secure.namespace}/statefulsets",
        *reading(secure.namespace, secret),
    ):
        forbidden(picker, "GET", path)
    for method, path in (
        ("PUT", f"{core}/configmaps/{name}?dryRun=All"),
        ("PATCH", f"{core}/configmaps/{name}?dryRun=All"),
        ("DELETE", f"{core}/configmaps/{name}?dryRun=All"),
        ("POST", f"{slices.format(secure.namespace)}?dryRun=All"),
        ("POST", f"{core}/pods?dryRun=All"),
        ("POST", f"{core}/serviceaccounts/{secure.name}-gateway/token"),
    ):
        forbidden(picker, method, path, {})


def test_engines_have_no_token(secure: Serving) -> None:
    for pod in secure.engines():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not [volume for volume in pod["spec"]["volumes"] if "projected" in volume or "secret" in volume]
        said = secure.kubectl("exec", pod["metadata"]["name"], "--", "sh", "-c", "ls /var/run/secrets 2>&1 || true")
        assert "No such file" in said, said


def test_envoy_has_no_token_either(secure: Serving) -> None:
    for pod in secure.gateways():
        name, look = pod["metadata"]["name"], "ls /var/run/secrets 2>&1 || true"
        said = secure.kubectl("exec", name, "--container", "envoy", "--", "sh", "-c", look)
        assert "No such file" in said, said


def test_the_operator_reads_no_secret_in_any_namespace(
    cluster: Cluster, secure: Serving, operator: Api, secret: str
) -> None:
    names = [one["metadata"]["name"] for one in cluster.get("namespaces", namespace="default")]
    assert {secure.namespace, SYSTEM, "kube-system"} <= set(names)
    for namespace in names:
        for path in reading(namespace, secret):
            forbidden(operator, "GET", path)
        for right in rights(operator, namespace):
            assert "*" not in right, right
            assert right[2].partition("/")[0] != "secrets", right


def test_nor_does_the_operator_get_at_one_by_other_rights(secure: Serving, operator: Api, secret: str) -> None:
    """It may write Roles, and only such as grant what it may itself; and it is nobody else."""
    core = f"/api/v1/namespaces/{secure.namespace}"
    grants = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{secure.namespace}"
    pod = secure.engines()[0]["metadata"]["name"]
    metadata = {"name": "more", "namespace": secure.namespace}
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"], "resourceNames": [secret]}
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata}
    binding = {
        **role,
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": secure.namespace}],
    }
    harmless = {**rule, "resources": ["pods"]}
    operator.call("POST", f"{grants}/roles?dryRun=All", {**role, "rules": [harmless]})
    forbidden(operator, "POST", f"{grants}/roles?dryRun=All", {**role, "rules": [rule]})
    forbidden(operator, "POST", f"{grants}/rolebindings?dryRun=All", binding)
    for method, path in (
        ("POST", f"{core}/secrets?dryRun=All"),
        ("POST", f"{core}/pods?dryRun=All"),
        ("POST", f"{core}/pods/{pod}/exec?command=env&stdout=true"),
        ("GET", f"{core}/pods/{pod}/log"),
        ("GET", f"{core}/pods/{pod}/proxy/metrics"),
        ("GET", "/api/v1/nodes/node/proxy/pods"),
        ("POST", f"{core}/serviceaccounts/default/token"),
    ):
        forbidden(operator, method, path, None if method == "GET" else {})
