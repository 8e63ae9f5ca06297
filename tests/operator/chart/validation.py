"""Kubernetes' own schemas."""

from typing import Any

import jsonschema
import kubernetes_validate
import pytest

OLDEST, RUN, NEWEST = "1.30", "1.34", kubernetes_validate.latest_version()
FOREIGN = frozenset({"monitoring.coreos.com", "inference.networking.k8s.io", "gateway.networking.k8s.io"})
"""API groups that are not Kubernetes' own."""


def valid(manifest: dict[str, Any], *versions: str) -> None:
    """Of these versions of Kubernetes, with no field that they do not know."""
    for version in versions:
        try:
            kubernetes_validate.validate(manifest, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            assert manifest["apiVersion"].split("/")[0] in FOREIGN, manifest["kind"]
        except jsonschema.ValidationError as error:
            pytest.fail(f"{version} {manifest['kind']} {manifest['metadata']['name']}: {error.message} at {error.path}")
