"""Who may view, edit or administer a namespace may do so with its LLMServings, and no more."""

from pathlib import Path

import pytest

from tests.operator.chart.release import Release
from tests.operator.chart.render import CHART
from tests.operator.kube import Api, ControlPlane, wait_until

pytestmark = [pytest.mark.operator, pytest.mark.timeout(300)]
API = "rbac.authorization.k8s.io"
READ = {"get", "list", "watch"}
WRITE = {"create", "update", "patch", "delete", "deletecollection"}
MAY = {
    "view": {"": READ, "status": READ, "scale": READ},
    "edit": {"": READ | WRITE, "status": READ, "scale": READ | {"update", "patch"}},
    "admin": {"": READ | WRITE, "status": READ, "scale": READ | {"update", "patch"}},
}


def allowed(admin: Api, user: str, verb: str, subresource: str, namespace: str) -> bool:
    attributes = {
        "group": "serving.halffull.dev",
        "resource": "llmservings",
        "subresource": subresource,
        "verb": verb,
        "namespace": namespace,
    }
    review = admin.call(
        "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        },
    )
    answer: bool = review["status"]["allowed"]
    return answer


def test_rights_of_people(bare: ControlPlane, tmp_path: Path) -> None:
    admin = bare.admin
    namespace = "people"
    release = Release(bare, tmp_path, name="people", namespace=namespace)
    release.install(CHART)
    for role in MAY:
        admin.create(
            {
                "apiVersion": f"{API}/v1",
                "kind": "RoleBinding",
                "metadata": {"name": role, "namespace": namespace},
                "roleRef": {"apiGroup": API, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": API, "kind": "User", "name": f"{role}er"}],
            }
        )

    def look() -> bool:
        for role, wanted in MAY.items():
            for subresource, verbs in wanted.items():
                found = {verb for verb in READ | WRITE if allowed(admin, f"{role}er", verb, subresource, namespace)}
                assert found == verbs, f"{role} {subresource}: {sorted(found)}"
        return True

    wait_until("the controller has put them together", look)
    assert not allowed(admin, "editer", "get", "", "default")
    release.helm("uninstall", "--wait")
