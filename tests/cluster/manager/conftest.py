"""Fixtures: a place to roll out in, and a computing cluster that is somebody's home."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.installation.computing import computing_objects
from kubeocean.installation.values import Values
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from managing import SYSTEM, Harbour
from ourkinds import install_our_kinds
from planes import applier, plane
from rollouts import Yard


@pytest.fixture
async def yard(cluster: Cluster, client: Client, namespace: str, tmp_path: Path) -> Yard:
    await install_our_kinds(client)
    yard = Yard(cluster, client, namespace, tmp_path)
    await yard.settle()
    yard.binding = await yard.bind()
    return yard


@pytest.fixture(scope="package")
async def home(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A computing cluster where everything is installed, and nobody runs Deployments."""
    async with plane("home", assets, cluster_roots, audit=True) as home:
        async with applier(home) as installing:
            await installing.apply_all(computing_objects(Values()))
        yield home


@pytest.fixture(scope="package")
async def manager_account(home: Cluster) -> Path:
    """The kubeconfig of the manager's own account."""
    return await home.service_account(SYSTEM, "kubeocean-manager")


@pytest.fixture
async def harbour(
    home: Cluster, cluster: Cluster, client: Client, manager_account: Path, tmp_path: Path
) -> AsyncIterator[Harbour]:
    """Bindings of this test's own; the shared cluster is their worker."""
    above = home.client()
    harbour = Harbour(home, cluster, above, client, manager_account, tmp_path)
    yield harbour
    await harbour.clear()
    await above.close()
