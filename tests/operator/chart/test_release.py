"""Install, upgrade, rollback, uninstall, reinstall on a real API server: no engine is touched, and nothing is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from halffull_operator.raise_crd import CRD_NAME, revision
from tests.operator.chart import optional_apis
from tests.operator.chart.release import CRD_FILE, DEPLOYMENT, Release, earlier_chart
from tests.operator.chart.render import CHART, NAMESPACE
from tests.operator.chart.team import BOTH, TEAM, Team, restricted
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.servings import engines, uids, wait_ready

pytestmark = [pytest.mark.operator, pytest.mark.timeout(600)]
OWN = yaml.safe_load((CHART / "crds" / CRD_FILE).read_text())
DIFFERENT = (
    "--set=images.vllm.tag=v0.33.0,images.larry.tag=v2,images.extproc.tag=v2,initResources.requests.cpu=1m",
    "--set=labels.cost=a,annotations.note=b,podLabels.mesh=c,securityContext.runAsUser=1234",
    '--set-json=engine.args=["--seed=7"]',
)
"""Values that would make another pod template of every engine."""

NothingChanged = Callable[[], None]


def test_the_life_of_a_release(bare: ControlPlane, tmp_path: Path) -> None:
    admin = bare.admin
    admin.delete(kinds.CRD, CRD_NAME)  # of another test of this package
    wait_until("there is no CRD", lambda: admin.get(kinds.CRD, CRD_NAME) is None, within=60)
    optional_apis.install(admin)
    release = Release(bare, tmp_path, name="halffull")
    admin.apply(restricted(NAMESPACE))
    older = earlier_chart(tmp_path)
    assert "kubectl apply" in release.install(older)
    assert (revision(crd(admin)), "rollout" in schema(crd(admin))) == (0, False)
    wait_until("the CRD is served", lambda: optional_apis.served(admin, kinds.SERVING))
    team = Team(admin)

    nothing_changed = upgraded(release, team)
    upgraded_to_what_would_build_other_engines(release, team, nothing_changed)
    rolled_back_to_the_first(release, team, nothing_changed)
    uninstalled(release, team, nothing_changed)
    reinstalled(Release(bare, tmp_path, name="again", namespace="elsewhere"), older, team, nothing_changed)

    accounts = {f"system:serviceaccount:{NAMESPACE}:halffull", "system:serviceaccount:elsewhere:other"}
    calls = [call for call in bare.calls() if call.user in accounts]
    assert {call.user for call in calls} == accounts
    assert [call for call in calls if not call.allowed] == []


def upgraded(release: Release, team: Team) -> NothingChanged:
    """Helm leaves the CRD alone, the operator raises it, and a field that is new is used."""
    admin = release.admin
    release.upgrade(CHART)
    assert revision(crd(admin)) == 0
    with release.operator():
        team.wait()
        assert (revision(crd(admin)), "rollout" in schema(crd(admin))) == (revision(OWN), True)
        team.write({"rollout": {"progressDeadline": "2h"}})
        team.says(Applied="True", UpdateAvailable="False")
        release.helm("test", "--timeout=60s")
    stored, pods, templates = team.stored(), team.pods(), team.templates()
    assert all(body["spec"]["rollout"] == {"progressDeadline": "2h"} for body in stored)
    assert set(stored[BOTH.index("every")]["spec"]) == set(schema(OWN)), "every field is set"
    assert len(pods) == 3

    def nothing_changed() -> None:
        assert team.pods() == pods
        assert team.templates() == templates
        assert team.stored() == stored
        assert revision(crd(admin)) == revision(OWN)

    return nothing_changed


def upgraded_to_what_would_build_other_engines(release: Release, team: Team, nothing_changed: NothingChanged) -> None:
    """The gateways roll, the engines wait for an edit."""
    release.upgrade(CHART, *DIFFERENT)
    with release.operator():
        team.says(Applied="True", UpdateAvailable="True")
        wait_ready(release.admin, TEAM, "small")
        gateway = release.admin.must_get(DEPLOYMENT, "small-gateway", TEAM)
        assert gateway["spec"]["template"]["metadata"]["labels"]["mesh"] == "c"
        nothing_changed()


def rolled_back_to_the_first(release: Release, team: Team, nothing_changed: NothingChanged) -> None:
    """Its chart brings the older CRD. It must not come, or the next write would drop what it does not know."""
    release.helm("rollback", "1", "--wait", "--timeout=60s")
    nothing_changed()
    with release.operator():
        team.says(Applied="True", UpdateAvailable="False")
        for value in ("b", None):
            release.admin.merge(kinds.SERVING, "every", {"metadata": {"annotations": {"a": value}}}, TEAM)
        nothing_changed()


def uninstalled(release: Release, team: Team, nothing_changed: NothingChanged) -> None:
    """The operator goes, and nothing of the team's."""
    before = team.children()
    release.helm("uninstall", "--wait")
    assert release.admin.list(DEPLOYMENT, NAMESPACE) == []
    nothing_changed()
    assert team.children() == before


def reinstalled(release: Release, older: Path, team: Team, nothing_changed: NothingChanged) -> None:
    """Under another name in another namespace, it takes over what is there. An edit rolls the engines it is about."""
    admin, before = release.admin, team.pods()
    # Helm 4 applies the CRD of what it installs. An older one is refused, as the operator holds it.
    with pytest.raises(AssertionError, match=r'(?s)conflicts with "halffull-operator".*\.spec\.versions'):
        release.install(older, "--set=fullnameOverride=other")
    nothing_changed()
    release.helm("uninstall", "--ignore-not-found")
    release.install(CHART, "--set=fullnameOverride=other")
    with release.operator() as operator:
        # What both say was said by the operator before this one.
        wait_until("it has looked", lambda: operator.metric("halffull_operator_reconciles_total") >= len(BOTH))
        team.says(Applied="True", UpdateAvailable="False")
        nothing_changed()
        admin.merge(kinds.SERVING, "small", {"spec": {"engine": {"args": ["--seed=1"]}}}, TEAM)
        wait_until(
            "the edit has rolled them",
            lambda: not set(uids(engines(admin, TEAM, "small")).values()) & set(before.values()),
            within=60,
        )
        wait_ready(admin, TEAM, "small")
    assert uids(engines(admin, TEAM, "every")).items() <= before.items()
    release.helm("uninstall", "--wait")


def crd(admin: Api) -> Manifest:
    return admin.must_get(kinds.CRD, CRD_NAME)


def schema(body: Manifest) -> Any:
    """Name → schema of each field of the spec."""
    (version,) = body["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
