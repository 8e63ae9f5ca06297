"""The CRD in the cluster: raised at start to the schema that this operator knows, and never lowered.

Helm installs the CRD once and never touches it again, so an upgrade of the chart alone would leave an old schema, which
drops new fields at the next write of any stored object. And nothing must bring the old one back, for the same reason:
so the operator holds the schema as its own, and who installs another one (Helm 4 applies it) gets a conflict.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from halffull_operator import kinds, labels
from halffull_operator.errors import ApiError
from halffull_operator.kinds import Kind, Manifest
from halffull_operator.ownership import FIELD_MANAGER

CRD_NAME: Final = f"{labels.PLURAL}.{labels.GROUP}"
_WAIT: Final = 5.0  # s between two looks for a CRD that is not there yet

_log = structlog.get_logger(__name__)


class Api(Protocol):
    """What is needed of `cluster.Cluster`."""

    async def get(self, kind: Kind, name: str, *, namespace: str | None = None) -> Manifest | None:
        """One object, or None."""

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply."""


def revision(crd: Manifest) -> int:
    """The schema revision that a CRD carries; 0: none that can be read."""
    value = (crd.get("metadata", {}).get("annotations") or {}).get(labels.SCHEMA_REVISION, "")
    return int(value) if str(value).isascii() and str(value).isdigit() else 0


def established(crd: Manifest) -> bool:
    """Whether the API server serves it."""
    return any(
        condition.get("type") == "Established" and condition.get("status") == "True"
        for condition in crd.get("status", {}).get("conditions") or ()
    )


def held(crd: Manifest) -> bool:
    """Whether an operator has applied it."""
    return any(entry.get("manager") == FIELD_MANAGER for entry in crd["metadata"].get("managedFields") or ())


async def ensure(api: Api, own: Manifest, *, said: Callable[[str], None] = lambda _: None) -> bool:
    """Wait until the CRD is there and served, raise it if it is older than `own`, and hold it. True: it was raised.

    Args:
        api: the API server.
        own: the CRD as this release has it.
        said: told what is waited for.

    Raises:
        ApiError: the API server refused in a way that waiting does not heal.
    """
    raised = holding = False
    while True:
        try:
            found = await api.get(kinds.CRD, CRD_NAME)
            if found is None:
                problem = f"the CRD {CRD_NAME} is not installed: kubectl apply -f what `halffull-operator crd` prints"
            elif revision(found) < revision(own):
                await api.apply(own)
                raised = True
                _log.info("the CRD was raised", before=revision(found), now=revision(own))
                continue
            elif revision(found) == revision(own) and not (holding or held(found)):
                await api.apply(own)
                holding = True
                continue
            elif established(found):
                return raised
            else:
                problem = f"the CRD {CRD_NAME} is not served yet"
        except ApiError as error:
            if not error.retryable:
                raise
            problem = f"the CRD {CRD_NAME} could not be read: {error}"
        said(problem)
        await asyncio.sleep(_WAIT)
