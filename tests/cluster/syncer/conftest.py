"""Fixtures: a computing cluster and a worker, shared by all tests of a process, with our kinds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import Client
from support.binding_env import BindingEnv
from support.control_planes import plane
from support.controller_env import ControllerEnv
from support.crds import install_our_kinds
from support.pod_copies_driver import MOUNT, make_namespace
from support.pod_env import PodEnv


@pytest.fixture(scope="session")
async def worker(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """The worker cluster of all these tests."""
    async with plane("worker", assets, cluster_roots, ours=True, audit=True) as worker:
        yield worker


@pytest.fixture
async def binding_env(
    cluster: Cluster, client: Client, worker: Cluster
) -> AsyncIterator[BindingEnv]:
    """A binding of this test's own between the shared clusters."""
    await install_our_kinds(client)
    worker_api = worker.client()
    yield BindingEnv(cluster, worker, client, worker_api)
    await worker_api.close()


@pytest.fixture(scope="session")
async def kubelets(worker: Cluster) -> AsyncIterator[SimulatedNodes]:
    """Simulation of the worker's kubelets."""
    async with SimulatedNodes(worker, await ensure(["kwok"])) as nodes:
        yield nodes


@pytest.fixture(scope="session")
async def simulated(kubelets: SimulatedNodes) -> list[str]:
    """Nodes of the worker on which pods run; shared, because they can be lent to each binding."""
    return await kubelets.add(2, prefix="shared")


@pytest.fixture
async def pod_env(
    cluster: Cluster, client: Client, worker: Cluster, simulated: list[str]
) -> AsyncIterator[PodEnv]:
    """A binding of this test's own, with two virtual nodes and namespaces on both sides."""
    await install_our_kinds(client)
    worker_api = worker.client()
    binding_env = PodEnv(cluster, worker, client, worker_api, pnodes=simulated)
    try:
        await binding_env.open()
        yield binding_env
    finally:
        await worker_api.close()


@pytest.fixture
async def bare(cluster: Cluster, client: Client, worker: Cluster) -> AsyncIterator[ControllerEnv]:
    """A binding of this test's own, for one controller alone; the worker has no controllers."""
    worker_api = worker.client()
    await make_namespace(worker_api, MOUNT, account=False)
    yield ControllerEnv(cluster, worker, client, worker_api)
    await worker_api.close()


@pytest.fixture
def controller_env(bare: ControllerEnv) -> ControllerEnv:
    """Yield a `ControllerEnv` with the settings that most tests use."""
    return bare


@pytest.fixture
async def home(client: Client, namespace: str) -> str:
    """A namespace of the computing cluster in which pods can be created."""
    await make_namespace(client, namespace)
    return namespace
