"""Reading an LLMServing: defaults, nulls, unknown fields, and refusals in words that help."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_operator.spec import SpecError, outline, parse
from tests.operator.crd.cases import BY_BOTH, BY_PARSE
from tests.operator.spec.samples import body, serving, specs


def test_the_smallest_one_has_all_defaults() -> None:
    found = serving()
    spec = found.spec
    assert (found.name, found.namespace, found.uid, found.generation) == ("llama", "ml", "uid-1", 3)
    assert (spec.replicas, spec.scheduler.policy, spec.routing.policy, spec.gateway.mode) == (
        1,
        "LARRY",
        "SAL",
        "Managed",
    )
    assert spec.gateway.effective.paths == ("/v1/*", "/health")
    assert (spec.engine.startup_timeout, spec.engine.drain_timeout) == ("1h", "10m")


@pytest.mark.parametrize("case", [*BY_BOTH, *BY_PARSE])
def test_what_cannot_be_meant_is_refused_with_the_field_and_what_to_write(case: str) -> None:
    spec, field, words = (BY_BOTH | BY_PARSE)[case]
    with pytest.raises(SpecError) as caught:
        serving(spec)
    assert caught.value.field == field
    assert words in caught.value.message
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", BY_PARSE)
def test_what_no_schema_could_refuse_hinders_no_look_at_the_pods(case: str) -> None:
    spec, _, _ = BY_PARSE[case]
    found = outline(body({"replicas": 7, "model": {"uri": "hf://a/b@c"}, **spec}), replicas=2, gateway="Managed")
    assert (found.spec.replicas, found.spec.model.uri) == (2, "hf://a/b@c")


@pytest.mark.parametrize("spec", [None, [], {"rollout": 7}, {"gateway": {"managed": {"tls": 7}}}, {"model": "x"}])
def test_an_outline_of_nonsense_is_refused_in_the_same_way(spec: Any) -> None:
    with pytest.raises(SpecError):
        outline({**body(), "spec": spec}, replicas=1, gateway="Managed")


def test_an_outline_has_what_the_status_is_made_of() -> None:
    gateway = {"mode": "Managed", "managed": {"tls": {"secretName": "s"}, "service": {"annotations": {"a b": "c"}}}}
    given = {"gateway": gateway, "rollout": {"progressDeadline": "2h"}, "routing": {"failureMode": "FailClose"}}
    found = outline(body(given), replicas=1, gateway="Managed").spec
    assert found.gateway.effective.tls is not None
    assert found.rollout.progress_deadline == "2h"
    assert found.routing.failure_mode == "FailClose"


@pytest.mark.parametrize("applied", ["Managed", "InferencePool", "None"])
@pytest.mark.parametrize("wanted", [{"mode": "Managed", "managed": {"replicas": 3}}, {"mode": "None"}, [], 7, None])
def test_the_gateway_of_an_outline_is_the_one_that_was_applied(applied: str, wanted: Any) -> None:
    assert outline(body({"gateway": wanted}), replicas=1, gateway=applied).spec.gateway.mode == applied


@pytest.mark.parametrize(
    ("spec", "field", "words"),
    [
        ({"replicas": "2"}, "spec.replicas", "'2' does not fit: write a whole number from 0 to 1000"),
        ({"replicas": 1.5}, "spec.replicas", "a whole number"),
        ({"replicas": True}, "spec.replicas", "a whole number"),
        ({"engine": []}, "spec.engine", "write the fields image, parallelism"),
        ({"engine": {"args": "--seed"}}, "spec.engine.args", "a list of at most 256 items"),
        ({"engine": {"args": [1]}}, "spec.engine.args[0]", "text of at least 1"),
        ({"engine": {"args": ["--a"] * 257}}, "spec.engine.args", "a list of at most 256 items"),
        ({"engine": {"resources": {"limits": {"cpu": "x"}}}}, "spec.engine.resources.limits.cpu", "a quantity such as"),
        ({"model": {}}, "spec.model.uri", "is missing: write hf://"),
        ({"scheduler": {"policy": "lary"}}, "spec.scheduler.policy", "one of LARRY, LARRYPlus, FCFS, Stock"),
        ({"scheduler": {"larry": {"alpha": -1}}}, "spec.scheduler.larry.alpha", "a number from 0 to 1000000"),
        ({"gateway": {"route": {"parentRefs": []}}}, "spec.gateway.route.parentRefs", "at least 1 and at most 8"),
    ],
)
def test_wrong_types_and_bounds(spec: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        serving(spec)
    assert (caught.value.field, words in caught.value.message) == (field, True), caught.value


@pytest.mark.parametrize("key", ["env", "imagePullSecrets"])
def test_the_same_key_twice_is_refused_as_the_api_server_does(key: str) -> None:
    with pytest.raises(SpecError, match="is there twice"):
        serving({"engine": {key: [{"name": "a"}, {"name": "b"}, {"name": "a"}]}})


@pytest.mark.parametrize("name", ["1a", "a.b", "A", "a" * 64, "a-", "a\n", "ä"])
def test_a_name_must_do_for_services(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(body(name=name))
    assert caught.value.field == "metadata.name"


def test_a_name_of_63_characters_will_do() -> None:
    assert parse(body(name="a" * 63)).name == "a" * 63


def test_nulls_mean_not_given() -> None:
    nothing = {
        "profile": None,
        "replicas": None,
        "engine": {"image": None, "env": None, "parallelism": None},
        "gateway": None,
    }
    assert serving(nothing).spec == serving().spec


def test_a_null_in_the_escape_hatch_is_kept() -> None:
    patch = {"spec": {"affinity": None}}
    assert serving({"engine": {"podTemplate": patch}}).spec.engine.pod_template == patch


def test_fields_of_a_newer_crd_are_listed_and_not_refused() -> None:
    found = serving({"classes": [], "engine": {"turbo": True, "env": [{"name": "A", "secret": 1}]}})
    assert found.unknown == ("spec.classes", "spec.engine.turbo", "spec.engine.env[0].secret")
    assert found.spec == serving({"engine": {"env": [{"name": "A"}]}}).spec


@pytest.mark.parametrize(
    ("value", "paused"), [("true", True), ("True", True), ("false", False), ("", False), ("1", False)]
)
def test_paused_by_annotation(value: str, *, paused: bool) -> None:
    assert serving(annotations={"serving.halffull.dev/paused": value}).paused is paused


def test_restarted_at() -> None:
    assert serving().restarted_at is None
    assert serving(annotations={"serving.halffull.dev/restartedAt": "now"}).restarted_at == "now"


@settings(max_examples=60, deadline=None)
@given(specs)
def test_what_the_types_take_is_parsed_or_refused_by_a_rule(spec: dict[str, Any]) -> None:
    problem = refusal(spec)
    assert problem is None or " does not fit" not in problem.message


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2000) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["model", "uri", "engine", "args", "env", "name", "podTemplate", "spec", "containers", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(_JSON, _JSON, _JSON)
def test_nonsense_is_refused_and_nothing_else_happens(spec: Any, engine: Any, template: Any) -> None:
    for given_spec in (spec, {"model": {"uri": "hf://a/b"}, "engine": engine}, {"model": spec, "gateway": engine}):
        refusal(given_spec)
    refusal({"model": {"uri": "hf://a/b"}, "engine": {"podTemplate": template}})
    refusal({"model": {"uri": "hf://a/b"}, "engine": {"podTemplate": {"spec": template, "metadata": spec}}})


def refusal(spec: Any) -> SpecError | None:
    try:
        parse({**body(), "spec": spec})
    except SpecError as error:
        return error
    return None


def test_very_deep_and_very_large_templates_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2_000):
        deep = {"x": deep}
    for template, words in (({"spec": deep}, "deeper"), ({"spec": {"x": [1] * 6_000}}, "more than 5000 values")):
        with pytest.raises(SpecError, match=words):
            serving({"engine": {"podTemplate": template}})
