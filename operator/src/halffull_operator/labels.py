"""Labels and annotations by which children are found. Pure.

Selectors are immutable, and pods are adopted by them: what `selector` returns never changes between versions.
"""

from typing import Final

GROUP: Final = "serving.halffull.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "LLMServing"
PLURAL: Final = "llmservings"

SERVING: Final = f"{GROUP}/name"
"""Label of every child: the child base name (`names.base_name`), whatever labels the LLMServing has."""
COMPONENT: Final = f"{GROUP}/component"
ENGINE: Final = "engine"
GATEWAY: Final = "gateway"

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OPERATOR: Final = "halffull-operator"
CHILD_SELECTOR: Final = f"{MANAGED_BY}={OPERATOR}"
"""What the operator watches children by."""

PAUSED: Final = f"{GROUP}/paused"
RESTARTED_AT: Final = f"{GROUP}/restartedAt"

TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""Annotation of StatefulSet and Deployment: hash of the pod template as this operator builds it."""
ENGINE_INPUTS: Final = f"{GROUP}/engine-inputs"
"""Annotation of the StatefulSet: hash of what of the LLMServing its pod template was built from (`engine_inputs`)."""
PICKER_CONFIG: Final = f"{GROUP}/picker-config"
"""Annotation of the gateway's pods: hash of what the picker reads only at start."""
SCHEMA_REVISION: Final = f"{GROUP}/schema-revision"
"""Annotation of the CRD: raised with every change of the schema, and never lowered in a cluster."""


def selector(base: str, component: str) -> dict[str, str]:
    """The labels that select the pods of one part of one LLMServing."""
    return {SERVING: base, COMPONENT: component}


def child_labels(base: str, component: str | None, *, extra: dict[str, str]) -> dict[str, str]:
    """All labels of a child: `extra` from the operator's configuration, which cannot replace our own."""
    own = {
        "app.kubernetes.io/name": "halffull",
        "app.kubernetes.io/instance": base,
        "app.kubernetes.io/part-of": "halffull",
        MANAGED_BY: OPERATOR,
        SERVING: base,
    }
    if component is not None:
        own |= {"app.kubernetes.io/component": component, COMPONENT: component}
    return {**extra, **own}
