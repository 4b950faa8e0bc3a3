"""Fixtures: a computing cluster with everything installed, and a worker with nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.install.apply import Applier
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.values import Values
from kubeocean.local.cluster import Cluster, Programs
from support.control_planes import SERVERS, applier, plane


@pytest.fixture(scope="package")
async def computing_cluster(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A computing cluster of these tests' own: the shared one stays as others expect it."""
    components = (*SERVERS, "kube-controller-manager")
    async with plane(
        "computing", assets, cluster_roots, components=components, audit=True
    ) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def worker_cluster(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A worker without any object of Kubeocean, with two simulated nodes."""
    async with plane("bare", assets, cluster_roots, nodes=2, audit=True) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def computing_applier(computing_cluster: Cluster) -> AsyncIterator[Applier]:
    """An applier for the computing cluster, in which Kubeocean is installed."""
    async with applier(computing_cluster) as made:
        await made.apply_all(computing_objects(Values()))
        yield made


@pytest.fixture(scope="package")
async def worker_applier(worker_cluster: Cluster) -> AsyncIterator[Applier]:
    """An applier for the worker."""
    async with applier(worker_cluster) as made:
        yield made
