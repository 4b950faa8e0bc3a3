"""Fixtures: a computing cluster and a worker of these tests' own.

They are their own because `status` shows all bindings that there are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from oceans import Sea
from ourkinds import install_our_kinds

_COMPONENTS = ("etcd", "kube-apiserver")


async def _started(name: str, assets: Programs, root: Path) -> AsyncIterator[Cluster]:
    async with Cluster(name, root / name, assets, components=_COMPONENTS, ephemeral=True) as made:
        client = made.client()
        await install_our_kinds(client)
        await client.close()
        yield made


@pytest.fixture(scope="session")
async def seen_computing(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """The cluster that is looked at."""
    async for cluster in _started("seen-computing", assets, cluster_roots):
        yield cluster


@pytest.fixture(scope="session")
async def seen_worker(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """Its worker; who stops it lets it go on again."""
    async for cluster in _started("seen-worker", assets, cluster_roots):
        yield cluster


@pytest.fixture
async def above(seen_computing: Cluster) -> AsyncIterator[Client]:
    """An administrator of the computing cluster."""
    client = seen_computing.client()
    yield client
    await client.close()


@pytest.fixture
async def sea(seen_computing: Cluster, seen_worker: Cluster, above: Client) -> AsyncIterator[Sea]:
    """A binding of this test's own."""
    below = seen_worker.client()
    yield Sea(seen_computing, seen_worker, above, below)
    await below.close()
