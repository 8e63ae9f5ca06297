# ruff: noqa: E501 (tables of messages read better with one a line)
import contextlib
import random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from halffull_extproc.policies import Policy
from halffull_extproc.pool import Source
from halffull_extproc.settings import (
    MAX_BYTES,
    FailureMode,
    SettingsError,
    changes,
    load_settings,
    picker_schema,
    seconds,
)
from halffull_extproc.yaml_text import parse_yaml

SMALLEST = "version: 1\npolicy: SAL\nendpoints: {file: endpoints.yaml}\n"
# Everything of the contract, one key a line.
FULL: dict[str, Any] = {
    "version": 1,
    "policy": "SALPlus",
    "failureMode": "FailClose",
    "endpoints": {"service": {"namespace": "serving", "name": "llama", "port": "http"}},
    "load": {"report": {"port": 9400, "ranks": 2}},
    "poll": {"interval": "100ms", "staleAfter": "2s"},
    "sal": {"beta": 6.5},
    "salPlus": {"kvWeight": 0.03, "knee": 3, "speed": "none"},
    "gateway": {
        "listen": "[::]:8000",
        "tls": {"certFile": "/tls/tls.crt", "keyFile": "/tls/tls.key"},
        "paths": ["/v1/*", "/health"],
        "maxRequestBytes": 104857600,
        "retryBufferBytes": 65536,
        "timeouts": {"request": "0s", "idle": "1h"},
    },
    "listen": {"grpc": "unix:/run/picker.sock", "tls": "selfSigned", "health": "[::]:9003", "metrics": "0.0.0.0:9090"},
}


def refused(text: str) -> str:
    with pytest.raises(SettingsError) as error:
        load_settings(text, source="picker.yaml")
    message = str(error.value)
    assert "\n" not in message
    return message


def test_the_smallest_file_has_sensible_defaults() -> None:
    read = load_settings(SMALLEST, source="picker.yaml")
    pool = read.pool_config()
    assert (pool.policy, pool.source, pool.beta, pool.kv_weight, pool.knee) == (
        Policy.SAL,
        Source.REPORT,
        None,
        0.03,
        3,
    )
    assert (pool.learn_speed, pool.poll_interval, pool.stale_after, pool.pickers) == (True, 0.1, 1.0, 1)
    assert (read.failure_mode, read.load_port, read.ranks) == (FailureMode.FailOpen, 9400, 1)
    assert read.gateway.paths == ("/v1/*", "/health")
    assert (read.listen.grpc, read.listen.tls, read.listen.health, read.listen.metrics) == (
        "[::]:9002", "none", "[::]:9003", "[::]:9090",
    )  # fmt: skip


def test_everything_can_be_said() -> None:
    read = load_settings(yaml.safe_dump(FULL, sort_keys=False), source="picker.yaml")
    pool = read.pool_config()
    assert (pool.policy, pool.beta, pool.learn_speed, pool.stale_after, read.ranks) == (
        Policy.SALPlus,
        6.5,
        False,
        2.0,
        2,
    )
    assert not read.fail_open


def test_metrics_are_another_source() -> None:
    read = load_settings(SMALLEST + "load: {metrics: {maxTokensPerBatch: 2048, pickers: 3}}\n", source="p")
    pool = read.pool_config()
    assert (pool.source, pool.max_tokens_per_batch, pool.pickers) == (Source.METRICS, 2048, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2\nfoo: 1\n", "picker.yaml:1: version: 2 is not supported; allowed: the number 1"),
        ("policy: SAL\n", "picker.yaml:1: version: is missing; allowed: 1"),
        (SMALLEST + "\npol: 3\n", "picker.yaml:5: pol: unknown key; allowed: the keys version, policy, endpoints"),
        (SMALLEST + "poll:\n  # slow\n  interval: 100\n", "picker.yaml:6: poll.interval: '100' does not fit; allowed: a dur"),
        (SMALLEST + "poll:\n  interval:\n    5 s\n", "picker.yaml:5: poll.interval: '5 s' does not fit"),
        (SMALLEST + "poll: {interval: 1ms}\n", "picker.yaml:4: poll.interval: 1ms does not fit; allowed: 10ms to 60s"),
        (SMALLEST + "poll:\n  staleAfter: 299ms\n", "picker.yaml:5: poll.staleAfter: 299ms is less than 3 intervals"),
        (SMALLEST + "poll:\n", "picker.yaml:4: poll: has no value; allowed: the keys interval, staleAfter"),
        (SMALLEST + "load: {}\n", "picker.yaml:4: load: nothing is given; allowed: exactly one of report, metrics"),
        (SMALLEST + "load: {report: {}, metrics: {}}\n", "picker.yaml:4: load: report and metrics stand together"),
        ("version: 1\npolicy: SAL\nendpoints:\n  file: a\n  service: {namespace: a, name: b, port: c}\n",
         "picker.yaml:3: endpoints: file and service stand together; allowed: exactly one of file, service, inferencePool"),
        ("version: 1\npolicy: SAL\nendpoints: {}\n", "picker.yaml:3: endpoints: nothing is given"),
        (SMALLEST.replace("SAL", "SALL"), "picker.yaml:2: policy: 'SALL' does not fit; allowed: SAL, SALPlus, LeastRequest"),
        (SMALLEST.replace("SAL", "off"), "picker.yaml:2: policy: YAML reads off as a boolean; allowed: SAL, SALPlus"),
        (SMALLEST + "listen:\n  tls: yes\n", "picker.yaml:5: listen.tls: YAML reads yes as a boolean; allowed: none, self"),
        (SMALLEST + "listen: {tls: {certFile: a}}\n", "picker.yaml:4: listen.tls.keyFile: is missing"),
        (SMALLEST + "listen: {grpc: 'localhost:1'}\n", "picker.yaml:4: listen.grpc: 'localhost' is not an IP address"),
        (SMALLEST + "listen: {grpc: '::1:9'}\n", "picker.yaml:4: listen.grpc: '::1:9' is not IP:PORT (an IPv6 address needs"),
        (SMALLEST + f"listen: {{grpc: 'unix:/{'x' * 120}'}}\n", "picker.yaml:4: listen.grpc: the path of a unix socket has"),
        (SMALLEST + "listen: {health: '[::]:9090'}\n", "picker.yaml:4: listen.metrics: [::]:9090 is listen.health already"),
        (SMALLEST + "listen: {health: '[::]:70000'}\n", "picker.yaml:4: listen.health: port 70000 is not from 1 to 65535"),
        (SMALLEST + "salPlus:\n  knee: -1\n", "picker.yaml:5: salPlus.knee: '-1' does not fit"),
        (SMALLEST + "salPlus:\n  knee: .nan\n", "picker.yaml:5: salPlus.knee: not a finite number"),
        (SMALLEST + "sal:\n  beta: none\n", "picker.yaml:5: sal.beta: 'none' does not fit; allowed: auto"),
        (SMALLEST + "sal: {beta: 0}\n", "picker.yaml:4: sal.beta: '0' does not fit"),
        (SMALLEST + "gateway:\n  paths: [v1]\n", "picker.yaml:5: gateway.paths[0]: 'v1' does not fit; allowed: a path"),
        (SMALLEST + "gateway:\n  paths: []\n", "picker.yaml:5: gateway.paths: a list does not fit; allowed: a list of 1"),
        (SMALLEST + "gateway: {maxRequestBytes: 0}\n", "picker.yaml:4: gateway.maxRequestBytes: 0 does not fit"),
        (SMALLEST + "load: {report: {port: 65535, ranks: 2}}\n", "picker.yaml:4: load.report.ranks: rank 1 would be asked on"),
        (SMALLEST + "policy: SAL\n", "picker.yaml:4: policy: this key stands here a second time, first on line 2"),
        (SMALLEST + "on: 1\n", "picker.yaml:4: a key must be a string, and YAML does not read `on` as one"),
        (SMALLEST + "sal: &a {}\nsalPlus: *a\n", "picker.yaml:5: salPlus: aliases are not allowed"),
        (SMALLEST + "sal: &a\n  beta: 1\nsalPlus:\n  # same\n  *a\n", "picker.yaml:8: salPlus: aliases are not allowed"),
        (SMALLEST + "gateway:\n  listen: &a '[::]:1'\n  paths:\n  - /v1/*\n  - *a\n",
         "picker.yaml:8: gateway.paths[1]: aliases are not allowed, repeat the value"),
        (SMALLEST + "&a sal: {}\nsalPlus: {knee: 1}\n*a : {}\n", "picker.yaml:6: aliases are not allowed"),
        (SMALLEST + "sal: &a\n  beta: *a\n", "picker.yaml:5: sal.beta: aliases are not allowed"),
        (SMALLEST + "sal: &a {}\nsalPlus:\n  <<: *a\n", "picker.yaml:6: salPlus.<<: aliases are not allowed"),
        (SMALLEST + "poll: {}\nsal: *a\n", "picker.yaml:5: not YAML: found undefined alias"),
        (SMALLEST + "sal: !!python/name:os.system x\n", "picker.yaml:4: sal: the tag "),
        (SMALLEST + "sal: {beta: [}\n", "picker.yaml:4: not YAML: "),
        (SMALLEST + "---\na: 1\n", "picker.yaml:4: not YAML: expected a single document"),
        ("", "picker.yaml:1: the text is empty"),
        ("- 1\n", "picker.yaml:1: a list does not fit; allowed: the keys version"),
        ("[" * 100_000, "picker.yaml:1: not YAML"),
        ("#" * (MAX_BYTES + 1), f"picker.yaml:1: the text has {MAX_BYTES + 1} bytes, at most {MAX_BYTES} are read"),
        ("a: \x00", "picker.yaml:1: not YAML"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_by_line_key_and_what_is_allowed(text: str, message: str) -> None:
    assert refused(text).startswith(message)


NUMBERS: dict[str, str] = {  # each numeric setting, and what is allowed there
    "load.report.port": "a whole number from 1 to 65535",
    "load.report.ranks": "a whole number from 1 to 256",
    "load.metrics.maxTokensPerBatch": "a whole number from 1 to 2147483648",
    "load.metrics.pickers": "a whole number from 1 to 1000",
    "sal.beta": "a number above 0 to 1000000",
    "salPlus.kvWeight": "a number from 0 to 100",
    "salPlus.knee": "a number from 0 to 10000",
    "gateway.maxRequestBytes": "from 1 to 4294967295",
    "gateway.retryBufferBytes": "a whole number from 0 to 4294967295",
    "endpoints.service.port": "1 to 65535",
    "poll.interval": "from 10ms to 60s",
}


@pytest.mark.parametrize("value", ["-1", "1e99", "99999999999999999999", "many", "[1]", "yes"])
@pytest.mark.parametrize("key", NUMBERS)
def test_a_number_that_does_not_fit_is_told_the_bounds(key: str, value: str) -> None:
    if key == "endpoints.service.port" and value in ("1e99", "many"):
        return  # names of ports, to YAML
    *parents, last = key.split(".")
    text = "".join(f"{'  ' * depth}{parent}:\n" for depth, parent in enumerate(parents))
    text += f"{'  ' * len(parents)}{last}: {value}\n"
    if key.startswith("endpoints"):
        text = "version: 1\npolicy: SAL\n" + text + "    namespace: a\n    name: b\n"
    else:
        text = SMALLEST + text
    message = refused(text)
    where = f"picker.yaml:{text[: text.index(f' {last}:')].count(chr(10)) + 1}: {key}: "
    assert message.startswith(where)
    assert "allowed: " in message
    assert NUMBERS[key] in message


def test_every_numeric_setting_is_among_them() -> None:
    """As the schema has them: a new one must be told with its bounds too."""

    def numbers(schema: Any, path: tuple[str, ...]) -> list[str]:
        if "$ref" in schema:
            schema = {**DEFINITIONS[schema["$ref"].rpartition("/")[2]]}
        found = [".".join(path)] if schema.get("type") in ("integer", "number") else []
        for option in schema.get("anyOf", ()):
            found += numbers(option, path)
        for name, inner in schema.get("properties", {}).items():
            found += numbers(inner, (*path, name))
        return found

    schema = picker_schema()
    DEFINITIONS = schema["$defs"]  # noqa: N806 (a constant of the recursion)
    assert set(numbers(schema, ())) | {"poll.interval"} == set(NUMBERS)


def test_stale_after_of_exactly_three_intervals_is_enough() -> None:
    assert load_settings(SMALLEST + "poll: {staleAfter: 300ms}\n", source="p").stale_after == pytest.approx(0.3)


@pytest.mark.parametrize(("interval", "stale"), [("50ms", 1.0), ("333ms", 1.0), ("1s", 3.0), ("5s", 15.0)])
def test_auto_is_three_intervals_and_at_least_a_second(interval: str, stale: float) -> None:
    assert load_settings(SMALLEST + f"poll: {{interval: {interval}}}\n", source="p").stale_after == pytest.approx(stale)


@pytest.mark.parametrize(("text", "value"), [("100ms", 0.1), ("1.5s", 1.5), ("5m", 300), ("1h", 3600), ("0s", 0)])
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["1", "s", "-1s", "1d", "1 s", "1e3s", "٣s", "1s\n"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        seconds(text)


# Line numbers, whatever the file looks like


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]


LEAVES = leaves(FULL)


def written(value: dict[str, Any], bad: tuple[str, ...], rng: random.Random, indent: int = 0) -> tuple[list[str], int]:
    """The configuration as somebody may have written it, with nonsense at `bad`; and the index of the bad line."""
    lines: list[str] = []
    at = -1
    keys = list(value)
    rng.shuffle(keys)
    for key in keys:
        lines += rng.choice([[], [], [""], [" " * rng.randrange(4) + "# a: comment"]])
        here = bad[:1] == (key,)
        if here and len(bad) == 1:
            at = len(lines)
            lines.append(" " * indent + f"{key}: " + rng.choice(["{no: such}", "-7"]))
        elif isinstance(value[key], dict):
            lines.append(" " * indent + f"{key}:")
            inner, inner_at = written(value[key], bad[1:] if here else (), rng, indent + rng.randrange(1, 5))
            if inner_at >= 0:
                at = len(lines) + inner_at
            lines += inner
        else:
            scalar = yaml.safe_dump(value[key], default_flow_style=True).removesuffix("\n...\n").strip()
            lines.append(" " * indent + f"{key}: {scalar}")
    return lines, at


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(LEAVES), st.integers(0, 2**32))
def test_the_line_of_the_offending_key_is_named_wherever_it_stands(bad: tuple[str, ...], seed: int) -> None:
    lines, at = written(FULL, bad, random.Random(seed))
    message = refused("\n".join(lines) + "\n")
    assert message.startswith(f"picker.yaml:{at + 1}: {'.'.join(bad)}"), "\n".join(lines)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_a_valid_configuration_is_valid_however_it_is_written(seed: int) -> None:
    lines, _ = written(FULL, ("",), random.Random(seed))
    assert load_settings("\n".join(lines) + "\n", source="p") == load_settings(yaml.safe_dump(FULL), source="p")


@given(st.text(max_size=200))
def test_no_text_raises_anything_but_a_settings_error_of_one_line(text: str) -> None:
    with contextlib.suppress(SettingsError):
        load_settings(text, source="p")
    with pytest.raises(SettingsError) as error:
        load_settings(text + "\n[", source="p")
    assert len(str(error.value).splitlines()) == 1


@given(st.text(alphabet="abc:{}[]-#&*!|>'\"\n ?,%@`\t0", max_size=60))
def test_the_parser_agrees_with_yaml_or_refuses(text: str) -> None:
    try:
        read = parse_yaml(text, source="p", max_bytes=1000).value
    except SettingsError:
        return
    assert read == yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 (both are safe)


# What may change live


def test_the_live_part_of_an_edit_applies_and_the_rest_is_reported() -> None:
    old = load_settings(SMALLEST, source="p")
    new = load_settings(
        "version: 1\npolicy: Random\nendpoints: {file: other.yaml}\nfailureMode: FailClose\nsal: {beta: 3}\n"
        "salPlus: {knee: 1}\npoll: {interval: 1s}\nlisten: {health: '[::]:9999'}\ngateway: {paths: [/v1/*]}\n",
        source="p",
    )
    edit = changes(old, new)
    assert edit.live == ("failureMode", "policy", "poll.interval", "sal.beta", "salPlus.knee")
    assert edit.at_start == ("endpoints.file", "gateway.paths", "listen.health")
    assert (edit.settings.policy, edit.settings.poll_interval) == (Policy.Random, 1.0)
    assert (edit.settings.endpoints, edit.settings.listen) == (old.endpoints, old.listen)
    assert edit.settings.pool_config().beta == 3.0


def test_an_unapplied_edit_stays_reported_until_it_is_taken_back() -> None:
    old = load_settings(SMALLEST, source="p")
    edited = load_settings(SMALLEST + "load: {report: {ranks: 2}}\n", source="p")
    first = changes(old, edited)
    assert first.at_start == ("load.report.ranks",)
    assert changes(first.settings, edited).at_start == ("load.report.ranks",)
    assert changes(first.settings, old).at_start == ()


def test_another_spelling_of_the_defaults_is_no_change() -> None:
    old = load_settings(SMALLEST, source="p")
    same = load_settings(SMALLEST + "load: {report: {port: 9400}}\npoll: {interval: 100ms}\n", source="p")
    assert changes(old, same) == changes(old, old)


def test_another_source_of_load_is_never_live() -> None:
    old = load_settings(SMALLEST, source="p")
    edit = changes(old, load_settings(SMALLEST + "load: {metrics: {}}\n", source="p"))
    assert edit.live == ()
    assert edit.settings.source is Source.REPORT
