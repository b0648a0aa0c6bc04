"""Engines of tests: each is started for real, once for all tests, and these are skipped aloud where it is not there.

`make test-engines` installs what it can and runs them; the ordinary suite leaves them out.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import kubernetes_schemas
import pod_runner
import pytest
import ray_cluster
import slurm_cluster

NOT_TESTED = "NOT TESTED HERE"
"""Begins the reason of a test that is skipped because the machine lacks what it needs."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave these tests to `make test-engines`."""
    if os.environ.get("ORCHESTRA_ENGINES"):
        return
    here = Path(__file__).parent
    mine = [item for item in items if here in item.path.parents]
    config.hook.pytest_deselected(items=mine)
    items[:] = [item for item in items if here not in item.path.parents]


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm_cluster.SlurmCluster]:
    """A SLURM cluster of three virtual nodes."""
    if reason := slurm_cluster.why_unavailable():
        pytest.skip(f"{NOT_TESTED}: {reason}")
    with slurm_cluster.SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def ray() -> Iterator[ray_cluster.RayCluster]:
    """A Ray cluster of two nodes."""
    if reason := ray_cluster.why_unavailable():
        pytest.skip(f"{NOT_TESTED}: {reason}")
    with ray_cluster.RayCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def kubernetes_python() -> Path:
    """An interpreter with the published schemas of Kubernetes."""
    if reason := kubernetes_schemas.kubernetes_missing():
        pytest.skip(f"{NOT_TESTED}: {reason}")
    return kubernetes_schemas.kubernetes_python()


@pytest.fixture
def pods() -> None:
    """Skip a test where pods cannot be run."""
    if reason := pod_runner.why_unavailable():
        pytest.skip(f"{NOT_TESTED}: {reason}")
