"""Fixtures: a computing cluster with everything installed, and a worker with nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.api.group import DEFAULT
from kubeocean.installation.applying import FIELD_MANAGER, Applier
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.values import Values
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.kwok import SimulatedNodes
from kubeocean.runtime.client import connect


@pytest.fixture(scope="session")
async def computing(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A computing cluster of these tests' own: the shared one stays as others expect it."""
    components = ("etcd", "kube-apiserver", "kube-controller-manager")
    root = cluster_roots / "installed"
    async with Cluster(
        "computing", root, assets, components=components, audit=True, ephemeral=True
    ) as cluster:
        yield cluster


@pytest.fixture(scope="session")
async def bare(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A worker that has never heard of us, with two simulated nodes."""
    root = cluster_roots / "bare"
    components = ("etcd", "kube-apiserver")
    async with (
        Cluster("bare", root, assets, components=components, audit=True, ephemeral=True) as cluster,
        SimulatedNodes(cluster, await ensure(["kwok"])) as nodes,
    ):
        await nodes.add(2, prefix="bare")
        yield cluster


async def _applier(cluster: Cluster) -> AsyncIterator[Applier]:
    client = connect(cluster.kubeconfig, cluster=cluster.name, field_manager=FIELD_MANAGER)
    yield Applier(client, domain=DEFAULT)
    await client.close()


@pytest.fixture(scope="session")
async def above(computing: Cluster) -> AsyncIterator[Applier]:
    """An administrator of the computing cluster, where everything is installed."""
    async for applier in _applier(computing):
        await applier.apply_all(computing_objects(Values()))
        yield applier


@pytest.fixture(scope="session")
async def below(bare: Cluster) -> AsyncIterator[Applier]:
    """An administrator of the worker."""
    async for applier in _applier(bare):
        yield applier
