"""Fixtures: a computing cluster and a worker, shared by all tests of a process, with our kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.kwok import SimulatedNodes
from kubeocean.runtime.client import Client
from oceans import Sea
from ourkinds import install_our_kinds
from planes import plane
from podseas import PodSea
from porters import MOUNT, make_namespace
from straits import Strait


@pytest.fixture(scope="session")
async def worker(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """The worker cluster of all these tests."""
    async with plane("worker", assets, cluster_roots, ours=True, audit=True) as worker:
        yield worker


@pytest.fixture
async def sea(cluster: Cluster, client: Client, worker: Cluster) -> AsyncIterator[Sea]:
    """A binding of this test's own between the shared clusters."""
    await install_our_kinds(client)
    below = worker.client()
    yield Sea(cluster, worker, client, below)
    await below.close()


@pytest.fixture(scope="session")
async def kubelets(worker: Cluster) -> AsyncIterator[SimulatedNodes]:
    """What plays the kubelets of the worker."""
    async with SimulatedNodes(worker, await ensure(["kwok"])) as nodes:
        yield nodes


@pytest.fixture(scope="session")
async def simulated(kubelets: SimulatedNodes) -> list[str]:
    """Nodes of the worker on which pods run; shared, because every binding lends them anew."""
    return await kubelets.add(2, prefix="shared")


@pytest.fixture
async def podsea(
    cluster: Cluster, client: Client, worker: Cluster, simulated: list[str]
) -> AsyncIterator[PodSea]:
    """A binding of this test's own, with two virtual nodes and namespaces on both sides."""
    await install_our_kinds(client)
    below = worker.client()
    sea = PodSea(cluster, worker, client, below, pnodes=simulated)
    try:
        await sea.open()
        yield sea
    finally:
        await below.close()


@pytest.fixture
async def bare(cluster: Cluster, client: Client, worker: Cluster) -> AsyncIterator[Strait]:
    """A binding of this test's own, for one controller alone; nobody controls the worker."""
    below = worker.client()
    await make_namespace(below, MOUNT, account=False)
    yield Strait(cluster, worker, client, below)
    await below.close()


@pytest.fixture
def strait(bare: Strait) -> Strait:
    """What most tests mean by it."""
    return bare


@pytest.fixture
async def home(client: Client, namespace: str) -> str:
    """A namespace above with room for pods."""
    await make_namespace(client, namespace)
    return namespace
