"""What one team has in its namespace, while releases of the chart come and go."""

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from tests.operator.chart.everything import RUNTIME_CLASS, SERVICE_ACCOUNT, everything
from tests.operator.chart.release import stored
from tests.operator.kube import Api, wait_until
from tests.operator.servings import children, engines, says, serving, uids, wait_ready

TEAM = "team"
BOTH = ("small", "every")


def restricted(namespace: str) -> Manifest:
    """A namespace with Pod Security's strictest level."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}


class Team:
    """An LLMServing that gets ready, and one with every field set."""

    def __init__(self, admin: Api) -> None:
        self.admin = admin
        admin.apply(restricted(TEAM))
        account = {"apiVersion": "v1", "kind": "ServiceAccount"}
        admin.create({**account, "metadata": {"name": SERVICE_ACCOUNT, "namespace": TEAM}})
        runtime_class = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "any"}
        path = "/apis/node.k8s.io/v1/runtimeclasses"
        admin.call("POST", path, {**runtime_class, "metadata": {"name": RUNTIME_CLASS}})
        # As a person writes them, with kubectl: it is they who own these fields.
        for body in (serving("small", TEAM), everything("every", TEAM)):
            body["spec"].pop("rollout", None)  # the earlier CRD does not know it
            admin.apply(body, manager="kubectl")

    def write(self, spec: Manifest) -> None:
        """Have somebody else set more of both specs."""
        for name in BOTH:
            body = {"apiVersion": kinds.SERVING.api_version, "kind": kinds.SERVING.kind, "spec": spec}
            self.admin.apply({**body, "metadata": {"name": name, "namespace": TEAM}}, manager="somebody")

    def wait(self) -> None:
        wait_ready(self.admin, TEAM, "small")
        wait_until("the other has its engine", lambda: engines(self.admin, TEAM, "every"), within=60)
        wait_until(
            "it has been looked at",
            lambda: says(self.admin.must_get(kinds.SERVING, "every", TEAM), Applied="True"),
            within=60,
        )

    def pods(self) -> dict[str, str]:
        """Name → uid of every engine pod."""
        return {**uids(engines(self.admin, TEAM, "small")), **uids(engines(self.admin, TEAM, "every"))}

    def children(self) -> dict[str, set[tuple[str, str]]]:
        """Which children each has."""
        return {name: set(children(self.admin, TEAM, name, optional=True)) for name in BOTH}

    def templates(self) -> list[Manifest]:
        return [self.admin.must_get(kinds.STATEFUL_SET, f"{name}-engine", TEAM)["spec"]["template"] for name in BOTH]

    def stored(self) -> list[Manifest]:
        return [stored(self.admin, name, TEAM) for name in BOTH]

    def says(self, **wanted: str) -> None:
        """Wait until both say so, of the newest generation."""
        for name in BOTH:
            wait_until(
                f"{name} says so",
                lambda name=name: says(self.admin.must_get(kinds.SERVING, name, TEAM), **wanted),
                within=60,
            )
