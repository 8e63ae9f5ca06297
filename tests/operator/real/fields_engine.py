"""The table of edits: engine."""

from typing import Any, Final

from tests.operator.real.fields import CONFIG, ENGINE, ENGINES, GATEWAYS, GONE, PICKER, POD, Edit, Row, Spec, of_engines

_REFERENCE: Final[Spec] = {"secretKeyRef": {"name": "s", "key": "k"}}
_SERVICE: Final = "Service/engine"
_ROLLS: Final = frozenset({ENGINES})
_BOTH: Final = frozenset({ENGINES, GATEWAYS})


def _env(field: str, name: str, path: str, value: Any) -> Row:
    return of_engines(f"engine.env[].{field}", f"{ENGINE}.env[{name}].{path}", value)


def _toleration(field: str, value: Any) -> Row:
    return of_engines(f"engine.tolerations[].{field}", f"{POD}.tolerations[0].{field}", value)


_ENGINE: Final = {
    "image": Edit(
        before={},
        after={"engine": {"image": "example.test/mine@sha256:" + "0" * 64}},
        rows=(of_engines("engine.image", f"{ENGINE}.image", "example.test/mine@sha256:" + "0" * 64),),
        rolls=_ROLLS,
    ),
    "tensor": Edit(
        before={"engine": {"gpuResource": None}},
        after={"engine": {"parallelism": {"tensor": 4}}},
        rows=(
            of_engines("engine.parallelism.tensor", f"{ENGINE}.args.--tensor-parallel-size", "4"),
            of_engines("engine.parallelism.tensor", f"{ENGINE}.resources.limits[nvidia.com/gpu]", "4"),
        ),
        rolls=_ROLLS,
    ),
    "pipeline": Edit(
        before={},
        after={"engine": {"parallelism": {"pipeline": 2}}},
        rows=(of_engines("engine.parallelism.pipeline", f"{ENGINE}.args.--pipeline-parallel-size", "2"),),
        rolls=_ROLLS,
    ),
    "data": Edit(
        before={},
        after={"engine": {"parallelism": {"data": 2}}},
        rows=(
            of_engines("engine.parallelism.data", f"{ENGINE}.args.--data-parallel-size", "2"),
            of_engines("engine.parallelism.data", f"{ENGINE}.ports[load-1].containerPort", 9401),
            of_engines("engine.parallelism.data", f"{ENGINE}.ports[load-1].name", "load-1"),
            of_engines("engine.parallelism.data", f"{ENGINE}.ports[load-1].protocol", "TCP"),
            Row("engine.parallelism.data", _SERVICE, "spec.ports[load-1].name", "load-1"),
            Row("engine.parallelism.data", _SERVICE, "spec.ports[load-1].port", 9401),
            Row("engine.parallelism.data", _SERVICE, "spec.ports[load-1].targetPort", 9401),
            Row("engine.parallelism.data", _SERVICE, "spec.ports[load-1].protocol", "TCP"),
            Row("engine.parallelism.data", PICKER, f"{CONFIG}.load.report.ranks", 2),
        ),
        rolls=_BOTH,
    ),
    "gpu": Edit(
        before={"engine": {"gpuResource": "nvidia.com/gpu"}},
        after={"engine": {"gpuResource": "amd.com/gpu"}},
        rows=(
            of_engines("engine.gpuResource", f"{ENGINE}.resources.limits[nvidia.com/gpu]", GONE),
            of_engines("engine.gpuResource", f"{ENGINE}.resources.limits[amd.com/gpu]", "1"),
            of_engines("engine.gpuResource", f"{POD}.tolerations[0].key", "amd.com/gpu"),
        ),
        rolls=_ROLLS,
    ),
    "length": Edit(
        before={},
        after={"engine": {"maxModelLen": 4096}},
        rows=(of_engines("engine.maxModelLen", f"{ENGINE}.args.--max-model-len", "4096"),),
        rolls=_ROLLS,
    ),
    "args": Edit(
        before={"engine": {"args": ["--seed=1", "--dtype", "auto"]}},
        after={"engine": {"args": ["--seed=2", "--enforce-eager"]}},
        rows=(
            of_engines("engine.args", f"{ENGINE}.args.--seed", "2"),
            of_engines("engine.args", f"{ENGINE}.args.--enforce-eager", ""),
            of_engines("engine.args", f"{ENGINE}.args.--dtype", GONE),
        ),
        rolls=_ROLLS,
    ),
    "env": Edit(
        before={
            "engine": {
                "env": [
                    {"name": "OLD", "value": "1"},
                    {"name": "KEPT", "value": "1"},
                    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "a", "key": "a"}}},
                    {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "a"}}},
                    {"name": "FIELD", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                ]
            }
        },
        after={
            "engine": {
                "env": [
                    {"name": "NEW", "value": "1"},
                    {"name": "KEPT", "value": "2"},
                    {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "b", "key": "c", "optional": True}}},
                    {"name": "MAP", "valueFrom": {"configMapKeyRef": {"name": "b", "key": "c", "optional": True}}},
                    {"name": "FIELD", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
                ]
            }
        },
        rows=(
            _env("name", "OLD", "name", GONE),
            _env("name", "OLD", "value", GONE),
            _env("name", "NEW", "name", "NEW"),
            _env("value", "NEW", "value", "1"),
            _env("value", "KEPT", "value", "2"),
            _env("valueFrom.secretKeyRef.name", "SECRET", "valueFrom.secretKeyRef.name", "b"),
            _env("valueFrom.secretKeyRef.key", "SECRET", "valueFrom.secretKeyRef.key", "c"),
            _env("valueFrom.secretKeyRef.optional", "SECRET", "valueFrom.secretKeyRef.optional", True),
            _env("valueFrom.configMapKeyRef.name", "MAP", "valueFrom.configMapKeyRef.name", "b"),
            _env("valueFrom.configMapKeyRef.key", "MAP", "valueFrom.configMapKeyRef.key", "c"),
            _env("valueFrom.configMapKeyRef.optional", "MAP", "valueFrom.configMapKeyRef.optional", True),
            _env("valueFrom.fieldRef.fieldPath", "FIELD", "valueFrom.fieldRef.fieldPath", "status.hostIP"),
        ),
        rolls=_ROLLS,
    ),
    "env-source": Edit(  # from a value to a reference and back: the other one has to go
        before={
            "engine": {
                "env": [
                    {"name": "A", "value": "1"},
                    {"name": "B", "valueFrom": _REFERENCE},
                ]
            }
        },
        after={
            "engine": {
                "env": [
                    {"name": "A", "valueFrom": _REFERENCE},
                    {"name": "B", "value": "1"},
                ]
            }
        },
        rows=(
            _env("value", "A", "value", GONE),
            _env("valueFrom.secretKeyRef.name", "A", "valueFrom.secretKeyRef.name", "s"),
            _env("valueFrom.secretKeyRef.key", "A", "valueFrom.secretKeyRef.key", "k"),
            _env("value", "B", "value", "1"),
            _env("valueFrom.secretKeyRef.name", "B", "valueFrom.secretKeyRef.name", GONE),
            _env("valueFrom.secretKeyRef.key", "B", "valueFrom.secretKeyRef.key", GONE),
        ),
        rolls=_ROLLS,
    ),
    "resources": Edit(
        before={"engine": {"resources": {"limits": {"memory": "100Mi"}}}},
        after={"engine": {"resources": {"requests": {"cpu": "250m", "memory": None}, "limits": {"memory": "200Mi"}}}},
        rows=(
            of_engines("engine.resources.requests", f"{ENGINE}.resources.requests.cpu", "250m"),
            of_engines("engine.resources.requests", f"{ENGINE}.resources.requests.memory", GONE),
            of_engines("engine.resources.limits", f"{ENGINE}.resources.limits.memory", "200Mi"),
        ),
        rolls=_ROLLS,
    ),
    "placing": Edit(
        before={
            "engine": {
                "nodeSelector": {"pool": "a", "zone": "1"},
                "tolerations": [{"key": "a", "operator": "Exists"}],
                "runtimeClassName": "a",
                "shmSize": "1Gi",
                "serviceAccountName": "a",
                "imagePullSecrets": [{"name": "a"}],
            }
        },
        after={
            "engine": {
                "nodeSelector": {"pool": "b", "zone": None},
                "tolerations": [
                    {"key": "b", "operator": "Equal", "value": "c", "effect": "NoExecute", "tolerationSeconds": 5}
                ],
                "runtimeClassName": "b",
                "shmSize": "2Gi",
                "serviceAccountName": "b",
                "imagePullSecrets": [{"name": "b"}],
            }
        },
        rows=(
            of_engines("engine.nodeSelector", f"{POD}.nodeSelector.pool", "b"),
            of_engines("engine.nodeSelector", f"{POD}.nodeSelector.zone", GONE),
            _toleration("key", "b"),
            _toleration("operator", GONE),  # Equal is the default
            _toleration("value", "c"),
            _toleration("effect", "NoExecute"),
            _toleration("tolerationSeconds", 5),
            of_engines("engine.runtimeClassName", f"{POD}.runtimeClassName", "b"),
            of_engines("engine.shmSize", f"{POD}.volumes[shm].emptyDir.sizeLimit", "2Gi"),
            of_engines("engine.serviceAccountName", f"{POD}.serviceAccountName", "b"),
            of_engines("engine.serviceAccountName", f"{POD}.serviceAccount", "b"),  # the server's old name for it
            of_engines("engine.imagePullSecrets[].name", f"{POD}.imagePullSecrets[a].name", GONE),
            of_engines("engine.imagePullSecrets[].name", f"{POD}.imagePullSecrets[b].name", "b"),
        ),
        rolls=_ROLLS,
    ),
    "placing-gone": Edit(
        before={
            "engine": {
                "nodeSelector": {"pool": "a"},
                "tolerations": [{"key": "a", "operator": "Exists"}],
                "runtimeClassName": "a",
                "serviceAccountName": "a",
                "imagePullSecrets": [{"name": "a"}],
            }
        },
        after={
            "engine": {
                "nodeSelector": None,
                "tolerations": [],
                "runtimeClassName": None,
                "serviceAccountName": None,
                "imagePullSecrets": [],
            }
        },
        rows=(
            of_engines("engine.nodeSelector", f"{POD}.nodeSelector.pool", GONE),
            _toleration("key", GONE),
            _toleration("operator", GONE),
            of_engines("engine.runtimeClassName", f"{POD}.runtimeClassName", GONE),
            of_engines("engine.serviceAccountName", f"{POD}.serviceAccountName", "default"),
            of_engines("engine.serviceAccountName", f"{POD}.serviceAccount", "default"),
            of_engines("engine.imagePullSecrets[].name", f"{POD}.imagePullSecrets[a].name", GONE),
        ),
        rolls=_ROLLS,
    ),
    "times": Edit(
        before={},
        after={"engine": {"startupTimeout": "2h", "drainTimeout": "20m"}},
        rows=(
            of_engines("engine.startupTimeout", f"{ENGINE}.startupProbe.failureThreshold", 720),
            of_engines("engine.drainTimeout", f"{ENGINE}.args.--shutdown-timeout", "1200"),
            of_engines("engine.drainTimeout", f"{POD}.terminationGracePeriodSeconds", 1235),
            Row("engine.drainTimeout", GATEWAYS, f"{POD}.terminationGracePeriodSeconds", 1235),
            Row(
                "engine.drainTimeout",
                GATEWAYS,
                f"{POD}.containers[envoy].lifecycle.preStop.exec.command[6]",
                "1200",
            ),
        ),
        rolls=_BOTH,
    ),
    "pod-template": Edit(
        before={
            "engine": {
                "podTemplate": {
                    "metadata": {"labels": {"team": "a"}},
                    "spec": {"schedulerName": "mine", "containers": [{"name": "side", "image": "side:1"}]},
                }
            }
        },
        after={
            "engine": {
                "podTemplate": {
                    "metadata": {"labels": {"team": "b"}, "annotations": {"note": "x"}},
                    "spec": {
                        "schedulerName": None,
                        "affinity": None,
                        "containers": [{"name": "engine", "workingDir": "/cache"}, {"name": "side", "image": "side:2"}],
                    },
                }
            }
        },
        rows=(
            of_engines("engine.podTemplate", "spec.template.metadata.labels.team", "b"),
            of_engines("engine.podTemplate", "spec.template.metadata.annotations.note", "x"),
            of_engines("engine.podTemplate", f"{POD}.schedulerName", "default-scheduler"),
            of_engines("engine.podTemplate", f"{ENGINE}.workingDir", "/cache"),
            of_engines("engine.podTemplate", f"{POD}.containers[side].image", "side:2"),
        ),
        rolls=_ROLLS,
    ),
}

_TEMPLATE: Final[Spec] = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "x"}},
    "spec": {
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "dnsConfig": {"searches": ["a.test"]},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a.test"]}],
        "securityContext": {"supplementalGroups": [7]},
        "volumes": [{"name": "more", "emptyDir": {}}],
        "initContainers": [{"name": "first", "image": "first:1"}],
        "containers": [
            {
                "name": "engine",
                "env": [{"name": "A", "value": "1"}],
                "volumeMounts": [{"name": "more", "mountPath": "/more"}],
                "startupProbe": {"initialDelaySeconds": 3},
                "securityContext": {"privileged": False, "capabilities": {"add": ["IPC_LOCK"]}},
                "imagePullPolicy": "Always",
            },
            {"name": "side", "image": "side:1"},
        ],
    },
}
"""More of a template than anybody writes, to be taken away again."""

_HATCH: Final = {
    "template-gone": Edit(
        before={"engine": {"podTemplate": _TEMPLATE}},
        after={"engine": {"podTemplate": None}},
        rows=tuple(
            of_engines("engine.podTemplate", path, value)
            for path, value in {
                "spec.template.metadata.labels.team": GONE,
                "spec.template.metadata.annotations.note": GONE,
                f"{POD}.hostNetwork": GONE,
                f"{POD}.dnsPolicy": "ClusterFirst",
                f"{POD}.dnsConfig.searches[0]": GONE,
                f"{POD}.hostAliases[10.0.0.1].ip": GONE,
                f"{POD}.securityContext.supplementalGroups[0]": GONE,
                f"{POD}.volumes[more].name": GONE,
                f"{POD}.initContainers[first].name": GONE,
                f"{POD}.containers[side].name": GONE,
                f"{ENGINE}.env[A].value": GONE,
                f"{ENGINE}.volumeMounts[/more].name": GONE,
                f"{ENGINE}.startupProbe.initialDelaySeconds": GONE,
                f"{ENGINE}.securityContext.privileged": GONE,
                f"{ENGINE}.securityContext.capabilities.add[0]": GONE,
                f"{ENGINE}.imagePullPolicy": "IfNotPresent",
            }.items()
        ),
        rolls=_ROLLS,
        exact=False,
    ),
}

EDITS: Final = {**_ENGINE, **_HATCH}
