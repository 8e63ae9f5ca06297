"""operator.yaml: what the chart gives the operator, and mistakes in it by line."""

import pytest

from halffull_operator.config import ConfigError, load_config

IMAGES = "images: {vllm: v:1, larry: l:1, extproc: e:1, envoy: envoy:1}\n"


def test_the_smallest_one() -> None:
    config = load_config(IMAGES, source="operator.yaml")
    assert config.security_context.run_as_user == 65532
    assert config.engine.gpu_resource is None
    assert config.watch.namespaces == ()


def test_users_may_be_null() -> None:
    config = load_config(IMAGES + "securityContext: {runAsUser: null, fsGroup: null}", source="x")
    assert (config.security_context.run_as_user, config.security_context.fs_group) == (None, None)
    assert config.security_context.run_as_group == 65532


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x:1: images: is missing: write the fields vllm, larry, extproc, envoy"),
        ("- a", "x: write a mapping of settings"),
        ("images: [", "x:1: "),
        ("images: {vllm: v:1}", "x:1: images.larry: is missing"),
        (IMAGES + "image: x", "x:2: image: there is no such field; write the fields images, registry"),
        (IMAGES + "profiles:\n  h100:\n    image: a b", "x:4: profiles.h100.image: 'a b' does not fit: write an image"),
        (IMAGES + "profiles:\n  h100:\n    args: [--seed, --host]", "x:4: profiles.h100.args[1]: --host belongs"),
        (IMAGES + "profiles:\n  h100:\n    gpu: 1", "x:4: profiles.h100.gpu: there is no such field"),
        (IMAGES + "profiles:\n  H100: {}", "x:3: profiles.H100: 'H100' does not fit: write a name of a-z"),
        (IMAGES + "engine:\n  env:\n  - {name: HF_HOME, value: x}", "x:4: engine.env[0].name: HF_HOME belongs"),
        (
            IMAGES + "engine:\n  podTemplate: {spec: {restartPolicy: Never}}",
            "x:3: engine.podTemplate.spec.restartPolicy",
        ),
        (IMAGES + "labels: {a: 1}", "x:2: labels.a: 1 does not fit: write a label's value"),
        (IMAGES + "securityContext: {runAsUser: 0}", "x:2: securityContext.runAsUser: 0 does not fit"),
        (IMAGES + "registry: ht tp", "x:2: registry: 'ht tp' does not fit: write a registry"),
        (IMAGES + "watch: {namespaces: [a, A]}", "x:2: watch.namespaces[1]"),
        (IMAGES + "listen: '::'\nlisten: '::'", "x:3: the key 'listen' is there twice"),
        (IMAGES + "labels: &a {}\nannotations: *a", "x:3: aliases are not allowed"),
        (IMAGES + "gateway: {workers: 0}", "x:2: gateway.workers: 0 does not fit: write a whole number from 1 to 128"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(text, source="x")
    assert str(caught.value).startswith(message), str(caught.value)
    assert "\n" not in str(caught.value)
