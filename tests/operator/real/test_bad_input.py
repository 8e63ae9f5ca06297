"""Bad input of every kind: refused at apply in words that name the field, or named in a condition; nothing breaks."""

import http.client
import json
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from halffull_operator import kinds
from halffull_operator.kinds import Manifest
from tests.operator.crd.cases import BY_PARSE
from tests.operator.kube import Api, ControlPlane, Refused, path_of, wait_until
from tests.operator.process import OperatorProcess, wait_settled
from tests.operator.real.bad_specs import SPEC, bad_specs, smallest
from tests.operator.servings import condition, serving

pytestmark = pytest.mark.timeout(600)

ENGINE: Manifest = {"gpuResource": "none", "resources": {"requests": {"cpu": "10m"}}}


def tried(admin: Api, body: Manifest) -> str:
    """What `kubectl apply --dry-run=server` would be told; "" if the API server would take it."""
    while True:
        try:
            admin.call("POST", f"{path_of(body, name=False)}?dryRun=All&fieldValidation=Strict", body)
        except TimeoutError:
            continue  # a busy machine's, as is a 504
        except Refused as error:
            if error.status == 504:
                continue
            return error.message if error.status in (400, 422) else f"not our words: {error}"
        return ""


def test_what_breaks_the_schema_is_refused_and_named(admin: Api, namespace: str) -> None:
    """Each type, bound, enum, pattern, rule, required field and list key of the CRD; a null means "not given"."""
    bad, count, problems = list(bad_specs()), 0, []
    for one in bad:
        said = tried(admin, {**serving("bad", namespace), "spec": one.spec})
        said = said.replace("[key]", ".key").replace("[a]", ".a")  # how the API server writes a key of a mapping
        named = one.field in said
        if one.what == "null":  # not given, or what is around it says what it needs
            named = not said or one.field.rpartition(".")[0] in said
        if not named:
            problems.append(f"{one.what} at {one.field}: {said or 'accepted'}")
        count += bool(said)
    assert not problems, "\n".join(problems)
    assert count > 600


@pytest.mark.parametrize("name", ["a" * 253, "a" * 64, "😀", "Llama", "1a", "a.b", "-a", "a_b", "a b"], ids=ascii)
def test_names_that_could_not_name_a_service_are_refused(admin: Api, namespace: str, name: str) -> None:
    said = tried(admin, serving(name, namespace))
    assert "metadata.name" in said or "Invalid value" in said
    assert "must" in said or "write a-z" in said or "Too long" in said


def nulls(schema: Manifest) -> Manifest:
    """An object in which everything is null that needs not be there."""
    given: Manifest = smallest(schema)
    for name, inner in schema["properties"].items():
        if name not in given:
            given[name] = nulls(inner) if "properties" in inner and "default" in inner else None
    return given


def template(**pod: Any) -> Manifest:
    return {"engine": {**ENGINE, "podTemplate": {"spec": pod}}}


def container(**fields: Any) -> Manifest:
    return template(containers=[{"name": "engine", **fields}])


def side(**fields: Any) -> Manifest:
    return template(containers=[{"name": "side", "image": "side:1", **fields}])


def metadata(**fields: Any) -> Manifest:
    return {"engine": {**ENGINE, "podTemplate": {"metadata": fields}}}


FINE: dict[str, Manifest] = {
    "nulls": nulls(SPEC),
    "null-affinity": template(affinity=None, tolerations=None) | template(affinity=None),
    "a" * 63: {},
    "emoji-env": {"engine": {**ENGINE, "env": [{"name": "A", "value": "😀 \x7f\u2028\u0085 ☃"}]}},
    "emoji-args": {"engine": {**ENGINE, "args": ["--chat-template=😀"]}},
    "emoji-annotation": metadata(annotations={"mood": "😀"}),
    "huge-args": {"engine": {**ENGINE, "args": ["--x=" + "a" * 8000] * 64}},
    "twice-the-same-volume": template(volumes=[{"name": "a", "emptyDir": {}}] * 2),
}
"""Odd, and all of it can be done."""

_FOUR_OF_MEMORY = [{"name": "a", "emptyDir": {}, "secret": {"secretName": "b"}}]
NAMED: dict[str, tuple[Manifest, str]] = {
    **{f"parse-{name}": (spec, field) for name, (spec, field, _) in BY_PARSE.items()},
    "unknown-field": (template(foo="bar"), ".spec.template.spec.foo"),
    "unknown-in-container": (container(foo=1), 'containers[name="engine"].foo'),
    "text-for-number": (container(livenessProbe={"periodSeconds": "x"}), "livenessProbe.periodSeconds"),
    "text-for-boolean": (template(hostNetwork="yes"), "spec.hostNetwork"),
    "list-for-text": (template(priorityClassName=["a"]), "spec.priorityClassName"),
    "text-for-mapping": (template(affinity="x"), "spec.affinity"),
    "number-for-text": (side(env=[{"name": "A", "value": 1}]), 'env[name="A"].value'),
    "fraction": (template(activeDeadlineSeconds=1.5), "podTemplate.spec.activeDeadlineSeconds"),
    "huge-number": (container(livenessProbe={"periodSeconds": 10**30}), "containers[0].livenessProbe.periodSeconds"),
    "negative": (container(livenessProbe={"periodSeconds": -1}), "livenessProbe.periodSeconds"),
    "two-sources": (template(volumes=_FOUR_OF_MEMORY), "volumes"),
    "no-such-volume": (container(volumeMounts=[{"name": "nope", "mountPath": "/x"}]), "volumeMounts"),
    "no-image": (template(containers=[{"name": "side"}]), "containers[1].image"),
    "emoji-container": (template(containers=[{"name": "😀", "image": "x"}]), "containers[1].name"),
    "emoji-label": (metadata(labels={"mood": "😀"}), "labels"),
    "label-key": (metadata(labels={"a b": "c"}), "labels"),
    "annotation-key": (metadata(annotations={"a b": "c"}), "annotations"),
    "long-key": (metadata(annotations={"a" * 2000: "c"}), "podTemplate.metadata.annotations"),
    "long-annotation": (metadata(annotations={"a": "x" * 300_000}), "annotations"),
    "number-for-name": (template(containers=[{"name": 7}]), "podTemplate.spec.containers[0]"),
    "list-for-variable": (container(env=[{"name": []}]), "podTemplate.spec.containers[0].env"),
    "own-field": (template(restartPolicy="Never"), "podTemplate.spec.restartPolicy"),
    "own-command": (container(command=["sh"]), "podTemplate.spec.containers[0].command"),
    "own-label": (metadata(labels={"app.kubernetes.io/name": "x"}), "podTemplate.metadata.labels"),
    "deadline": (template(activeDeadlineSeconds=5), "activeDeadlineSeconds"),
    "many": (template(hostAliases=[{"ip": f"10.0.{i // 250}.{i % 250}"} for i in range(10_000)]), "podTemplate"),
    "deep": (template(affinity="@deep 200"), "podTemplate"),
    "deeper": (template(affinity="@deep 900"), "podTemplate"),
    "deepest": (template(affinity="@deep 9900"), "podTemplate"),
}
"""Taken by the API server, which cannot look into a free-form field → what the condition Applied names."""


def post(admin: Api, body: Manifest) -> None:
    """Create it; "@deep N" stands for N levels, deeper than Python can write them."""
    text = json.dumps(body)
    for depth in (200, 900, 9900):
        text = text.replace(f'"@deep {depth}"', '{"a":' * depth + "1" + "}" * depth)
    statuses: list[int] = []
    while statuses[-1:] in ([], [504]):  # a busy machine's; the next answer may be that it is there
        connection = http.client.HTTPSConnection(admin.host, admin.port, context=admin.context, timeout=60)
        connection.request("POST", path_of(body, name=False), text.encode(), {"Content-Type": "application/json"})
        response = connection.getresponse()
        statuses.append(response.status)
        answer = response.read()
        connection.close()
    assert statuses[-1] == 201 or statuses[-2:] == [504, 409], answer[:500]


def test_what_the_schema_cannot_see_is_named_in_a_condition(
    plane: ControlPlane, admin: Api, namespace: str, shared_operator: OperatorProcess
) -> None:
    pid = shared_operator.pid
    post(admin, serving("before", namespace, replicas=0))
    for name, spec in FINE.items():
        post(admin, serving(name, namespace, **{"engine": ENGINE, **spec, "replicas": 0}))
    for name, (spec, _) in NAMED.items():
        post(admin, serving(name, namespace, **{**spec, "replicas": 0}))

    for name in ("before", *FINE):
        wait_until(name, applied(admin, namespace, name, "True"), within=120)
    for name, (_, field) in NAMED.items():
        wait_until(name, applied(admin, namespace, name, "False", field), within=120)

    # A deep one may stand in the first list that a new operator makes.
    post(admin, serving("after", namespace, replicas=0))
    wait_until("after", applied(admin, namespace, "after", "True"), within=60)
    assert shared_operator.pid == pid
    assert shared_operator.running()
    settle(shared_operator)
    since = plane.audit_position()
    time.sleep(20)  # the claim is about a while of rest
    settle(shared_operator)
    calls = [
        call
        for call in plane.calls(since=since)
        if call.namespace == namespace and "halffull-operator" in call.user and call.verb != "watch"
    ]
    # Whose text tells of another minute by now is tried once more, too.
    told = Counter(call.name for call in calls if call.resource == "llmservings/status")
    assert max(told.values(), default=0) <= 1, told
    others = [
        f"{call.verb} {call.resource} {call.name}" for call in calls if call.name.removesuffix("-engine") not in told
    ]
    servings = 2 + len(FINE) + len(NAMED)
    assert len(others) <= servings * 20 / 60, others


def settle(operator: OperatorProcess) -> None:
    wait_settled(lambda: operator.metric("halffull_operator_reconciles_total"), for_seconds=5, within=120)


def applied(admin: Api, namespace: str, name: str, status: str, words: str = "") -> Callable[[], bool]:
    def look() -> bool:
        body = admin.must_get(kinds.SERVING, name, namespace)
        one = condition(body, "Applied")
        told = f"{name}: {one.get('status')} {one.get('reason')}: {one.get('message')}"
        assert one.get("status") == status, told
        assert words in one["message"], told
        assert one["observedGeneration"] == body["metadata"]["generation"]
        return True

    return look
