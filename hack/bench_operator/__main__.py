"""`make bench-operator`: 1,000 LLMServings of one replica on a real API server: what they cost the operator and it.

Read the counts and the CPU seconds: wall time depends on who else uses the machine, and the controllers of the control
plane make pods at 20 calls a second. CPU and memory are the operator's process as the kernel counts them; calls are the
API server's audit log, the operator's account only, its heartbeat apart.
"""

import argparse
import json
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probes import Calls, Operator, cpu, memory, one_reconcile, say, watched
from tests.operator.conftest import ACCOUNT, SYSTEM, prepared_plane
from tests.operator.kube import Api, ControlPlane, wait_until
from tests.operator.process import OperatorProcess
from tests.operator.servings import condition, serving

from halffull_operator import kinds, labels
from halffull_operator.kinds import Manifest

PER_NAMESPACE = 50
EDITS = 10
FLAGS = "--service-cluster-ip-range 10.216.0.0/16"  # hack/cluster's own has 254 addresses for Services
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
AUDIT = f"""\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{{level: Metadata, users: ["{USER}"]}}, {{level: None}}]
"""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    servings: int
    quiet: float
    """Seconds with hardly a call of the operator's: it is at rest."""
    rest: float
    """Seconds for which it is measured then."""
    within: float
    """Seconds for it to get there; the machine may have much else to do."""


QUICK = Size(servings=60, quiet=4.0, rest=10.0, within=600.0)
WHOLE = Size(servings=1_000, quiet=20.0, rest=60.0, within=3_600.0)


def names(size: Size) -> list[tuple[str, str]]:
    """(namespace, name) of each LLMServing."""
    return [(f"bench-{number // PER_NAMESPACE}", f"model-{number}") for number in range(size.servings)]


def create(admin: Api, size: Size) -> None:
    """Namespaces and LLMServings, as so many teams would."""
    for namespace in dict.fromkeys(namespace for namespace, _ in names(size)):
        admin.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    for namespace, name in names(size):
        admin.create(serving(name, namespace, replicas=1, engine={}))


def applied(admin: Api, *, every: float) -> int:
    """LLMServings whose children are all there, as their status says, for the newest spec; asked every few seconds."""
    time.sleep(every)
    bodies = admin.list(kinds.SERVING)
    return sum(
        (one := condition(body, "Applied")).get("status") == "True"
        and one.get("observedGeneration") == body["metadata"]["generation"]
        for body in bodies
    )


def all_children(admin: Api) -> dict[tuple[str, str, str], Manifest]:
    """(kind, namespace, name) → every child."""
    found = {}
    for kind in kinds.CHILDREN:
        if kind.optional:
            continue
        for item in admin.list(kind, selector=labels.CHILD_SELECTOR):
            metadata = item["metadata"]
            found[kind.kind, metadata["namespace"], metadata["name"]] = {
                "apiVersion": kind.api_version,
                "kind": kind.kind,
                **item,
            }
    return found


def without_status(child: Manifest) -> Manifest:
    """A child without what a controller writes: a Deployment that gets nowhere is told so after ten minutes."""
    metadata = {name: value for name, value in child["metadata"].items() if name != "resourceVersion"}
    metadata["managedFields"] = [one for one in metadata["managedFields"] if one.get("subresource") != "status"]
    return {**{name: value for name, value in child.items() if name != "status"}, "metadata": metadata}


def settle(plane: ControlPlane, size: Size) -> None:
    """Wait until hardly any status changes: the ages of what waits are told in steps, after 1, 2, 5, 10, 15 minutes."""
    began = since = time.monotonic()
    while time.monotonic() - since < size.quiet:
        calls = Calls(plane)
        time.sleep(size.quiet / 4)
        if (count := calls.by_verb()["write status"]) > max(1, size.servings * size.quiet / 4_000):
            since = time.monotonic()
        assert time.monotonic() - began < size.within, f"still {count} changes of status"


def edit(admin: Api, where: tuple[str, str], policy: str) -> float:
    """Seconds from the patch of one LLMServing until its picker's ConfigMap says so."""
    namespace, name = where
    config_map = kinds.named("v1", "ConfigMap")
    began = time.monotonic()
    admin.merge(kinds.SERVING, name, {"spec": {"routing": {"policy": policy}}}, namespace)

    def changed() -> bool:
        selector = f"{labels.SERVING}={name}"
        return any(policy in json.dumps(one["data"]) for one in admin.list(config_map, namespace, selector=selector))

    end = began + 600
    while not changed():
        assert time.monotonic() < end, "an edit was not carried out within 10 minutes"
        time.sleep(0.02)
    return time.monotonic() - began


def converge(plane: ControlPlane, operator: OperatorProcess, size: Size) -> dict[str, Any]:
    """Make all of them; until all children are there."""
    calls, spent, began = Calls(plane), cpu(operator), time.monotonic()
    with watched(operator) as watcher:
        create(plane.admin, size)
        created = time.monotonic()
        say(f"{size.servings} LLMServings are made, {created - began:.0f} s")
        wait_until(
            "every child is there",
            lambda: applied(plane.admin, every=size.servings / 500) == size.servings,
            within=size.within,
        )
        converged = time.monotonic()
        figures: dict[str, Any] = {
            "create_s": round(created - began, 1),
            "converge_s": round(converged - began, 1),
            "converge_cpu_s": round(cpu(operator) - spent, 1),
            "converge_calls_per_serving": _per_serving(calls.by_verb(), size),
        }
        say(f"all children are there: {json.dumps(figures)}")
        settle(plane, size)
        figures |= {
            "settle_s": round(time.monotonic() - began, 1),
            "settle_cpu_s": round(cpu(operator) - spent, 1),
            "calls_per_serving": _per_serving(calls.by_verb(), size),
            "operator_objects": operator.metric("halffull_operator_objects"),
            **memory(operator),
        }
    return {**figures, **watcher.figures()}


def _per_serving(calls: Mapping[str, int], size: Size) -> dict[str, float]:
    """Without the few that are no matter of an LLMServing: lists, watches."""
    few = size.servings / 50
    return {what: round(count / size.servings, 2) for what, count in sorted(calls.items()) if count > few}


def rest(plane: ControlPlane, operator: OperatorProcess, size: Size) -> dict[str, Any]:
    """Nothing happens."""
    calls, spent, began = Calls(plane), cpu(operator), time.monotonic()
    time.sleep(size.rest)
    took = time.monotonic() - began
    return {
        "seconds": round(took, 1),
        "cpu_percent": round((cpu(operator) - spent) / took * 100, 2),
        "calls": dict(calls.by_verb()),
        "calls_per_serving_and_minute": round(sum(calls.by_verb().values()) / size.servings / took * 60, 4),
    }


def restart(plane: ControlPlane, operator: OperatorProcess, size: Size) -> dict[str, Any]:
    """Start it anew: it lists everything, and applies every child, as it does once an hour."""
    admin, changed = plane.admin, names(size)[-1]
    before = all_children(admin)
    began = time.monotonic()
    assert operator.stop() == 0
    stopped = time.monotonic()
    operator.start(ready=False)
    operator.wait_ready(within=300)
    ready, ready_cpu = time.monotonic(), cpu(operator)
    calls = Calls(plane)
    with watched(operator) as watcher:
        edited = edit(admin, changed, "LeastRequest")
        wait_until(
            "every child was applied",
            lambda: (
                operator.metric("halffull_operator_actions_total", action="apply") >= len(before)
                and not operator.metric("halffull_operator_queue_due")
            ),
            within=size.within,
        )
    passed, passed_cpu = time.monotonic(), cpu(operator)
    after = all_children(admin)
    written = [key for key in before if before[key] != after.get(key) and not key[2].startswith(f"{changed[1]}-")]
    touched = [key for key in written if key not in after or without_status(before[key]) != without_status(after[key])]
    return {
        "stop_s": round(stopped - began, 1),
        "ready_s": round(ready - stopped, 1),
        "ready_cpu_s": round(ready_cpu, 1),
        "pass_s": round(passed - ready, 1),
        "pass_cpu_s": round(passed_cpu - ready_cpu, 1),
        "pass_cpu_ms_per_serving": round((passed_cpu - ready_cpu) / size.servings * 1e3, 2),
        "pass_calls_per_serving": _per_serving(calls.by_verb(), size),
        "edit_meanwhile_s": round(edited, 2),
        "children": len(before),
        "children_touched": len(touched),
        "kinds_touched": dict(Counter(kind for kind, _, _ in touched)),
        "one_touched": {"before": before[touched[0]], "after": after.get(touched[0])} if touched else None,
        "children_whose_status_controllers_wrote": len(written) - len(touched),
        **memory(operator),
        **watcher.figures(),
    }


def measure(size: Size) -> dict[str, Any]:
    """All of it, on a control plane of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="halffull-bench-") as folder,
        prepared_plane(Path(folder), audit_policy=AUDIT, flags=FLAGS) as plane,
    ):
        kubeconfig = plane.kubeconfig_as(account=ACCOUNT, namespace=SYSTEM, folder=Path(folder))
        operator = Operator(kubeconfig=kubeconfig, folder=Path(folder), namespace=SYSTEM).start()
        try:
            figures: dict[str, Any] = {"empty": memory(operator), "converge": converge(plane, operator, size)}
            say(f"settled: {json.dumps(figures['converge'])}")
            figures["rest"] = rest(plane, operator, size)
            say(f"at rest: {json.dumps(figures['rest'])}")
            edits = [edit(plane.admin, where, "SALPlus") for where in names(size)[:: size.servings // EDITS]]
            figures["edit_s"] = {"median": round(statistics.median(edits), 3), "max": round(max(edits), 3)}
            say(f"an edit: {json.dumps(figures['edit_s'])}")
            figures["reconcile_cpu_ms"] = one_reconcile(plane.admin, names(size)[0])
            say(f"a reconcile: {json.dumps(figures['reconcile_cpu_ms'])}")
            figures["restart"] = restart(plane, operator, size)
            say(f"a restart: {json.dumps(figures['restart'])}")
            assert not operator.errors(), operator.errors()[0]
        except BaseException:
            say(operator.tail(10))
            raise
        finally:
            operator.close()
    return figures


def judge(figures: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """(what, how much, how much is allowed). Counts and CPU only: they hold on a busy machine too."""
    rest, converge, restart = figures["rest"], figures["converge"], figures["restart"]
    return [
        *([("CPU at rest, % of a core", rest["cpu_percent"], 2.0)] if rest["seconds"] >= WHOLE.rest else []),
        ("calls at rest, per LLMServing and minute", rest["calls_per_serving_and_minute"], 1.0),
        ("children that a restart touched", restart["children_touched"], 0),
        ("probes that found it unhealthy", converge["unhealthy"] + restart["unhealthy"], 0),
        ("memory at most, MiB (the chart's limit is 1,024)", restart["rss_peak_mib"], 512.0),
    ]


def main() -> None:
    """Measure, print, write, and say which budgets hold: a figure never fails a run."""
    parser = argparse.ArgumentParser(prog="make bench-operator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="60 LLMServings, about a minute: CI runs it")
    parser.add_argument("--servings", type=int, help="so many instead")
    parser.add_argument("--out", type=Path, default=Path("build/bench/operator.json"), help="default: %(default)s")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # the control plane goes then too
    size = QUICK if options.quick else WHOLE
    if options.servings:
        size = replace(size, servings=options.servings)
    began = time.monotonic()
    figures = {
        "servings": size.servings,
        "python": platform.python_version(),
        **measure(size),
        "took_s": round(time.monotonic() - began),
        "command": "make bench-operator" + (" ARGS=--quick" if options.quick else ""),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2) + "\n")
    print(options.out.read_text())
    for what, found, allowed in judge(figures):
        print(f"{'ok  ' if found <= allowed else 'OVER'} {found:>8} ≤ {allowed:<8} {what}")


if __name__ == "__main__":
    main()
