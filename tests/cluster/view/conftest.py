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
from planes import plane


@pytest.fixture(scope="package")
async def seen_computing(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """The cluster that is looked at."""
    async with plane("seen-computing", assets, cluster_roots, ours=True) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def seen_worker(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """Its worker; who stops it lets it go on again."""
    async with plane("seen-worker", assets, cluster_roots, ours=True) as cluster:
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
