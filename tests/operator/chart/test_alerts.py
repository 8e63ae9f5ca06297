"""Alerts and dashboard ask for what our programs export, in what Prometheus takes, and say it when it is so."""

import functools
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from halffull_extproc.metrics import Metrics as PickerMetrics
from halffull_extproc.pool import Outcome
from halffull_extproc.xds.access_log import AccessLogEntry
from halffull_larry.accounts import Accounts
from halffull_larry.metrics import exposition
from halffull_larry.report import Identity
from halffull_larry.snapshot import Snapshot
from halffull_operator.metrics import Metrics as OperatorMetrics
from tests.extproc.edge.snapshots import pool_of, snapshot_of
from tests.operator.chart.render import CHART, REPOSITORY

ALERTS = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
RULES = {rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]}
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OUTCOME = Outcome(picked="10.0.0.1:80", served="10.0.0.1:80", failed=(), succeeded="10.0.0.1:80")
TARGET = {"namespace", "pod", "container", "job", "instance"}
"""Labels that Prometheus adds."""


def queries() -> Iterator[tuple[str, str]]:
    """(where it is, the query), with Grafana's variables put in."""
    for name, rule in RULES.items():
        yield name, rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "5m").replace("$namespace", ".*")
            assert "$" not in text
            yield panel["title"], text


@functools.cache
def exported() -> dict[str, dict[str, set[str]]]:
    """Sample name → label → values, of picker, plugin and operator, as each writes them."""
    pool = pool_of("10.0.0.1:80", "10.0.0.2:80")
    snapshot = snapshot_of(pool)
    snapshot = replace(snapshot, pool=replace(snapshot.pool, estimate_error=0.1))  # known after some requests
    picker = PickerMetrics(lambda: snapshot)
    for status in (200, 503):
        picker.requests.record(AccessLogEntry(OUTCOME, True, status, (), 1, 0.1, 1, 1, 1, True))
    identity = Identity(scheduler="LARRY", max_tokens_per_batch=1, max_model_len=1)
    plugin = exposition(identity, Snapshot(), Accounts(), vllm_version="0.32.0")
    operator = OperatorMetrics()
    source = (REPOSITORY / "operator/src/halffull_operator/app.py").read_text()
    for name in re.findall(r'gauge\(\s*"(\w+)"', source):
        operator.gauge(name, "As app.py has it.", lambda: 1.0)
    for result in re.findall(r'return "(\w+)"$', source, re.MULTILINE):
        operator.reconciles.labels(result).inc()
    operator.count_request("get", "pods", "ok")
    found: dict[str, dict[str, set[str]]] = {}
    for text in (picker.text(), plugin, operator.exposition()):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)
    return found


@pytest.mark.parametrize(("where", "query"), list(queries()), ids=lambda one: one[:40])
def test_a_query_asks_for_what_is_exported(where: str, query: str) -> None:
    asked = re.findall(r"\b((?:halffull_|vllm:)\w+)(?:\{([^}]*)\})?", query)
    assert asked or "up{" in query
    labels: set[str] = set()
    for name, matchers in asked:
        if name.startswith("vllm:"):
            continue  # vLLM's own: tests/vllm reads them
        assert name in exported(), name
        labels |= set(exported()[name])
        for label, operator, value in re.findall(r'(\w+)(=~|!~|=|!=)"([^"]*)"', matchers):
            if label in TARGET:
                continue
            have = exported()[name].get(label)
            assert have, f"{name} has no label {label}"
            assert value in have if operator == "=" else any(re.fullmatch(value, one) for one in have), (value, have)
    for names in re.findall(r"(?:by|on|without)\s*\(([^)]*)\)", query):
        for label in re.split(r"\s*,\s*", names.strip()):
            assert label in TARGET | labels | {"le"}, label


def test_alerts_are_complete() -> None:
    for rule in RULES.values():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}
    # What issue 5 asks for: stale engines, picker bypassed, engines not progressing, operator not watching.
    assert {
        "HalffullEngineStale",
        "HalffullEngineNotProgressing",
        "HalffullPickerBypassed",
        "HalffullOperatorNotWatching",
    } <= set(RULES)


# Series by the minute, as promtool writes them (value±step×minutes), and what fires with them after half an hour.
QUIET = {
    'halffull_picker_endpoints{namespace="n",pod="g",state="stale"}': "0x60",
    'halffull_picker_endpoints{namespace="n",pod="g",state="not-progressing"}': "0x60",
    'halffull_picker_endpoints{namespace="n",pod="g",state="failing"}': "0x60",
    'halffull_picker_policy{namespace="n",pod="g",policy="SAL"}': "1x60",
    'halffull_picker_picks_obeyed_total{namespace="n",pod="g"}': "0+600x60",
    'halffull_picker_requests_total{namespace="n",pod="g",status="2xx",flag="none"}': "0+600x60",
    'up{namespace="n",pod="g",container="picker"}': "1x60",
    'halffull_picker_config_refused{namespace="n",pod="g"}': "0x60",
    'halffull_picker_trouble{namespace="n",pod="g",about="endpoints"}': "0x60",
    'halffull_larry_active{namespace="n",pod="e"}': "1x60",
    'halffull_operator_heartbeat_age_seconds{namespace="o",pod="o"}': "15x60",
    'halffull_operator_reconciles_total{namespace="o",pod="o",result="error"}': "0x60",
}
CASES: list[tuple[str, str, str, dict[str, str]]] = [
    # series, instead, alert, its labels
    ('halffull_picker_endpoints{namespace="n",pod="g",state="stale"}', "1x60", "HalffullEngineStale", {}),
    (
        'halffull_picker_endpoints{namespace="n",pod="g",state="not-progressing"}',
        "2x60",
        "HalffullEngineNotProgressing",
        {},
    ),
    ('halffull_picker_endpoints{namespace="n",pod="g",state="failing"}', "1x60", "HalffullEngineFailing", {}),
    ('halffull_picker_picks_obeyed_total{namespace="n",pod="g"}', "0+500x60", "HalffullPickerBypassed", {}),
    ('up{namespace="n",pod="g",container="picker"}', "0x60", "HalffullPickerDown", {"container": "picker"}),
    ('halffull_picker_config_refused{namespace="n",pod="g"}', "1x60", "HalffullPickerConfigRefused", {}),
    (
        'halffull_picker_trouble{namespace="n",pod="g",about="endpoints"}',
        "1x60",
        "HalffullPickerTrouble",
        {"about": "endpoints"},
    ),
    ('halffull_larry_active{namespace="n",pod="e"}', "0x60", "HalffullLarryInactive", {"pod": "e"}),
    (
        'halffull_operator_heartbeat_age_seconds{namespace="o",pod="o"}',
        "15+60x60",
        "HalffullOperatorNotWatching",
        {"namespace": "o", "pod": "o"},
    ),
    (
        'halffull_operator_heartbeat_age_seconds{namespace="o",pod="o"}',
        "NaN " * 61,
        "HalffullOperatorNotWatching",
        {"namespace": "o", "pod": "o"},
    ),
    (
        'halffull_operator_heartbeat_age_seconds{namespace="o",pod="o"}',
        "15 _x60",
        "HalffullOperatorNotWatching",
        {"namespace": "", "pod": ""},
    ),
    (
        'halffull_operator_reconciles_total{namespace="o",pod="o",result="error"}',
        "0+1x60",
        "HalffullOperatorErrors",
        {"namespace": "", "pod": ""},
    ),
]


@pytest.fixture(scope="module")
def promtool() -> str:
    where = [REPOSITORY / "hack" / "prometheus", "promtool"]
    found = subprocess.run(where, capture_output=True, text=True, check=False)
    assert found.returncode == 0, f"no promtool: put it on PATH (Prometheus' release has it): {found.stderr[-200:]}"
    return found.stdout.strip()


@pytest.mark.operator  # where what has to be fetched first is fetched
def test_prometheus_takes_every_query(promtool: str, tmp_path: Path) -> None:
    recording = [{"record": f"query_{number}", "expr": query} for number, (_, query) in enumerate(queries())]
    rules = {"groups": [*ALERTS["groups"], {"name": "queries", "rules": recording}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    done = subprocess.run(
        [promtool, "check", "rules", "--lint-fatal", "rules.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES) + len(recording)} rules found" in done.stdout


@pytest.mark.operator
def test_every_alert_fires_when_it_should_and_no_other(promtool: str, tmp_path: Path) -> None:
    assert {alert for _, _, alert, _ in CASES} == set(RULES)
    tests = [_test("all is well", QUIET, {})]
    for series, values, alert, labels in CASES:
        assert series in QUIET
        own = {"namespace": "n", "pod": "g", **labels, "severity": RULES[alert]["labels"]["severity"]}
        fires = {alert: {label: value for label, value in own.items() if value}}
        tests.append(_test(f"{alert} at {values}", {**QUIET, series: values}, fires))
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(ALERTS))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["alerts.yaml"], "tests": tests}))
    done = subprocess.run(
        [promtool, "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _test(name: str, series: dict[str, str], fires: dict[str, dict[str, str]]) -> dict[str, Any]:
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "30m",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in fires],
            },
            *(
                {
                    "expr": f'ALERTS{{alertname="{alert}"}}',
                    "eval_time": "30m",
                    "exp_samples": [
                        {
                            "labels": "ALERTS{"
                            + ",".join(
                                f'{label}="{value}"'
                                for label, value in {**labels, "alertname": alert, "alertstate": "firing"}.items()
                            )
                            + "}",
                            "value": 1,
                        }
                    ],
                }
                for alert, labels in fires.items()
            ),
        ],
    }
