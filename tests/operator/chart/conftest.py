"""A control plane in which nothing of ours is: the chart brings it all."""

from collections.abc import Iterator

import pytest

from tests.operator.kube import ControlPlane, control_plane


@pytest.fixture(scope="package")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for the chart's tests."""
    with control_plane(tmp_path_factory.mktemp("bare")) as plane:
        yield plane
