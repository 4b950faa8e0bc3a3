"""Fixtures: a worker of these tests' own, and a stage between it and the shared cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from ourkinds import install_our_kinds
from planes import plane
from stages import Stage


@pytest.fixture(scope="package")
async def staged(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A worker, with our kinds and nothing that plays a kubelet."""
    async with plane("staged", assets, cluster_roots, ours=True) as worker:
        yield worker


@pytest.fixture
async def stage(cluster: Cluster, client: Client, staged: Cluster) -> AsyncIterator[Stage]:
    """A binding of this test's own."""
    await install_our_kinds(client)
    below = staged.client()
    made = Stage(cluster, staged, client, below)
    try:
        await made.open()
        yield made
    finally:
        await below.close()
