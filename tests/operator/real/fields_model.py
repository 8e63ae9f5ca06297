"""The table of edits: rollout, profile, model, replicas, scheduler."""

from typing import Any, Final

from tests.operator.real.fields import (
    CONFIG,
    ENGINE,
    ENGINES,
    GATEWAYS,
    GONE,
    PICKER,
    POD,
    Edit,
    Row,
    Says,
    Spec,
    of_engines,
)

GROWS: Final = "grows"
"""A StorageClass that lets claims grow, with volumes for the claims that must be bound."""
FIXED: Final = "fixed"
"""One that does not."""
PROFILES: Final = {name: {"image": f"example.test/vllm:{name}"} for name in ("small", "large")}

_CLAIM: Final = "spec.volumeClaimTemplates[0].spec"
_ROLLS: Final = frozenset({ENGINES})


def _cache(**cache: Any) -> Spec:
    return {"model": {"cache": {"size": "1Gi", "storageClassName": GROWS, **cache}}}


def _says_recreated(field: str) -> Says:
    return Says(field, "Applied", "True", "ImmutableFieldChanged", "spec.volumeClaimTemplates of the StatefulSet")


def _claim(field: str, path: str, value: Any) -> Row:
    return of_engines(f"model.cache.{field}", f"{_CLAIM}.{path}", value)


def _additional(scheduler: str) -> str:
    return '{"larry":{' + scheduler + ',"load_port":9400,"load_host":"::"}}'


_MODEL: Final = {
    "deadline": Edit(  # the first one, as it has to wait for a minute
        before={"replicas": 1, "rollout": {"progressDeadline": "24h"}, "engine": {"nodeSelector": {"no": "node"}}},
        after={"rollout": {"progressDeadline": "1m"}},
        rows=(),
        says=(
            Says(
                "rollout.progressDeadline",
                "Progressing",
                "False",
                "ProgressDeadlineExceeded",
                "nothing has gone forward",
            ),
        ),
    ),
    "profile": Edit(
        before={"profile": "small"},
        after={"profile": "large"},
        rows=(of_engines("profile", f"{ENGINE}.image", "example.test/vllm:large"),),
        rolls=_ROLLS,
    ),
    "model": Edit(
        before={"model": {"servedNames": ["org/model"], "credentialsSecret": {"name": "old"}}},
        after={
            "model": {"uri": "hf://org/o@main", "servedNames": ["one", "two"], "credentialsSecret": {"name": "new"}}
        },
        rows=(
            of_engines("model.uri", f"{ENGINE}.args.0", "org/o"),
            of_engines("model.uri", f"{ENGINE}.args.--revision", "main"),
            of_engines("model.servedNames", f"{ENGINE}.args.--served-model-name", "one two"),
            of_engines("model.credentialsSecret.name", f"{ENGINE}.envFrom[0].secretRef.name", "new"),
        ),
        rolls=_ROLLS,
    ),
    "model-claim": Edit(
        before={"model": {"uri": "pvc://weights/a"}},
        after={"model": {"uri": "pvc://others/b/c"}},
        rows=(
            of_engines("model.uri", f"{ENGINE}.args.0", "/mnt/model/b/c"),
            of_engines("model.uri", f"{POD}.volumes[model].persistentVolumeClaim.claimName", "others"),
        ),
        rolls=_ROLLS,
    ),
    "model-secret-gone": Edit(
        before={"model": {"credentialsSecret": {"name": "old"}}},
        after={"model": {"credentialsSecret": None}},
        rows=(of_engines("model.credentialsSecret.name", f"{ENGINE}.envFrom[0].secretRef.name", GONE),),
        rolls=_ROLLS,
    ),
    "cache-grows": Edit(
        before={**_cache(), "replicas": 2},
        after=_cache(size="2Gi"),
        rows=(
            _claim("size", "resources.requests.storage", "2Gi"),
            Row("model.cache.size", "PersistentVolumeClaim/cache-engine-0", "spec.resources.requests.storage", "2Gi"),
            Row("model.cache.size", "PersistentVolumeClaim/cache-engine-1", "spec.resources.requests.storage", "2Gi"),
        ),
        says=(_says_recreated("model.cache.size"),),
        recreated=(ENGINES,),
    ),
    "cache-fixed": Edit(
        before={**_cache(storageClassName=FIXED), "replicas": 1},
        after=_cache(storageClassName=FIXED, size="2Gi"),
        rows=(_claim("size", "resources.requests.storage", "2Gi"),),
        says=(Says("model.cache.size", "Applied", "False", "CacheResizeUnsupported", "cache-cache-fixed-engine-0"),),
        recreated=(ENGINES,),
    ),
    "cache-class": Edit(
        before=_cache(),
        after=_cache(storageClassName=FIXED, accessMode="ReadWriteMany"),
        rows=(
            _claim("storageClassName", "storageClassName", FIXED),
            _claim("accessMode", "accessModes[0]", "ReadWriteMany"),
        ),
        says=(_says_recreated("model.cache.storageClassName"), _says_recreated("model.cache.accessMode")),
        recreated=(ENGINES,),
    ),
    "cache-retention": Edit(
        before=_cache(),
        after=_cache(retention={"whenDeleted": "Delete", "whenScaled": "Retain"}),
        rows=(
            of_engines(
                "model.cache.retention.whenDeleted", "spec.persistentVolumeClaimRetentionPolicy.whenDeleted", "Delete"
            ),
            of_engines(
                "model.cache.retention.whenScaled", "spec.persistentVolumeClaimRetentionPolicy.whenScaled", "Retain"
            ),
        ),
    ),
    "cache-gone": Edit(
        before=_cache(),
        after={"model": {"cache": None}},
        rows=(
            _claim("size", "resources.requests.storage", GONE),
            of_engines("model.cache.size", f"{POD}.volumes[cache].emptyDir", {}),
        ),
        says=(_says_recreated("model.cache.size"),),
        rolls=_ROLLS,
        recreated=(ENGINES,),
        exact=False,
    ),
    "replicas": Edit(
        before={},
        after={"replicas": 2},
        rows=(of_engines("replicas", "spec.replicas", 2),),
        says=(Says("replicas", "EnginesReady", "True", "AllReady", "2 of 2 engines are ready"),),
    ),
}

_SCHEDULER: Final = {
    "alpha": Edit(
        before={},
        after={"scheduler": {"larry": {"alpha": 500}}},
        rows=(
            of_engines(
                "scheduler.larry.alpha",
                f"{ENGINE}.args.--additional-config",
                _additional('"policy":"LARRY","alpha":500.0'),
            ),
        ),
        rolls=_ROLLS,
    ),
    "scheduler": Edit(
        before={},
        after={"scheduler": {"policy": "FCFS"}},
        rows=(of_engines("scheduler.policy", f"{ENGINE}.args.--additional-config", _additional('"policy":"FCFS"')),),
        rolls=_ROLLS,
    ),
    "stock": Edit(
        before={},
        after={"scheduler": {"policy": "Stock"}},
        rows=(
            of_engines("scheduler.policy", f"{ENGINE}.args.--scheduler-cls", GONE),
            of_engines("scheduler.policy", f"{ENGINE}.args.--additional-config", GONE),
            of_engines("scheduler.policy", f"{ENGINE}.env[PYTHONPATH].name", GONE),
            of_engines("scheduler.policy", f"{POD}.initContainers[larry].name", GONE),
            of_engines("scheduler.policy", f"{POD}.volumes[larry].name", GONE),
            Row("scheduler.policy", "Service/engine", "spec.ports[load].port", GONE),
            Row("scheduler.policy", PICKER, f"{CONFIG}.load.report.port", GONE),
            Row("scheduler.policy", PICKER, f"{CONFIG}.load.metrics.pickers", 1),
        ),
        rolls=frozenset({ENGINES, GATEWAYS}),
        exact=False,
    ),
}

EDITS: Final = {**_MODEL, **_SCHEDULER}

REFUSED: Final = (
    ("model.cache.size", "cache-retention", _cache(size="512Mi"), "model.cache.size cannot shrink"),
    ("model.cache.size", "replicas", _cache(), "model.cache cannot be added while there are engines"),
)
"""A field, an LLMServing, what is merged into it, and a part of what the API server says to that."""
