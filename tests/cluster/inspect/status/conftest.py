"""Fixtures: a computing cluster and a worker for these tests, as `status` shows all bindings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from support.binding_env import BindingEnv
from support.control_planes import plane


@pytest.fixture(scope="package")
async def computing_cluster(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """Run the computing cluster."""
    async with plane("status-computing", assets, cluster_roots, ours=True) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def worker_cluster(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """Run its worker; a test that stops it resumes it."""
    async with plane("status-worker", assets, cluster_roots, ours=True) as cluster:
        yield cluster


@pytest.fixture
async def computing_api(computing_cluster: Cluster) -> AsyncIterator[Client]:
    """Return a client of an administrator of the computing cluster."""
    client = computing_cluster.client()
    yield client
    await client.close()


@pytest.fixture
async def env(
    computing_cluster: Cluster, worker_cluster: Cluster, computing_api: Client
) -> AsyncIterator[BindingEnv]:
    """Return an environment for one binding."""
    worker_api = worker_cluster.client()
    yield BindingEnv(computing_cluster, worker_cluster, computing_api, worker_api)
    await worker_api.close()
