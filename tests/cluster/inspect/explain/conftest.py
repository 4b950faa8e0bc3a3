"""Fixtures: a worker for these tests, and a binding between it and the shared cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from support.control_planes import plane
from support.crds import install_our_kinds
from support.doctor_env import DoctorEnv


@pytest.fixture(scope="package")
async def staged(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """Run a worker with our kinds, and without kubelets."""
    async with plane("staged", assets, cluster_roots, ours=True) as worker:
        yield worker


@pytest.fixture
async def stage(cluster: Cluster, client: Client, staged: Cluster) -> AsyncIterator[DoctorEnv]:
    """Create a binding for one test."""
    await install_our_kinds(client)
    worker_api = staged.client()
    made = DoctorEnv(cluster, staged, client, worker_api)
    try:
        await made.open()
        yield made
    finally:
        await worker_api.close()
