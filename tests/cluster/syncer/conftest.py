"""Fixtures: a computing cluster and a worker, shared, with our kinds installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from oceans import Sea
from ourkinds import install_our_kinds


@pytest.fixture(scope="session")
async def worker(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """The worker cluster of all tests of a session."""
    root = cluster_roots / "worker"
    components = ("etcd", "kube-apiserver")
    async with Cluster(
        "worker", root, assets, components=components, audit=True, ephemeral=True
    ) as worker:
        client = worker.client()
        await install_our_kinds(client)
        await client.close()
        yield worker


@pytest.fixture
async def sea(cluster: Cluster, client: Client, worker: Cluster) -> AsyncIterator[Sea]:
    """A binding of this test's own between the shared clusters."""
    await install_our_kinds(client)
    below = worker.client()
    yield Sea(cluster, worker, client, below)
    await below.close()
