"""Fixtures: a rollout in the shared cluster, and a computing cluster with Kubeocean installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.values import Values
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client
from support.control_planes import applier, plane
from support.crds import install_our_kinds
from support.manager_env import SYSTEM, ManagerEnv
from support.rollout_env import RolloutEnv


@pytest.fixture
async def rollout_env(
    cluster: Cluster, client: Client, namespace: str, tmp_path: Path
) -> RolloutEnv:
    await install_our_kinds(client)
    rollout_env = RolloutEnv(cluster, client, namespace, tmp_path)
    await rollout_env.settle()
    rollout_env.binding = await rollout_env.bind()
    return rollout_env


@pytest.fixture(scope="package")
async def computing_cluster(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A computing cluster with Kubeocean installed, without a controller of Deployments."""
    async with plane("home", assets, cluster_roots, audit=True) as computing_cluster:
        async with applier(computing_cluster) as installing:
            await installing.apply_all(computing_objects(Values()))
        yield computing_cluster


@pytest.fixture(scope="package")
async def manager_account(computing_cluster: Cluster) -> Path:
    """The kubeconfig of the manager's own account."""
    return await computing_cluster.service_account(SYSTEM, "kubeocean-manager")


@pytest.fixture
async def env(
    computing_cluster: Cluster,
    cluster: Cluster,
    client: Client,
    manager_account: Path,
    tmp_path: Path,
) -> AsyncIterator[ManagerEnv]:
    """Bindings of this test's own; the shared cluster is their worker."""
    computing_client = computing_cluster.client()
    env = ManagerEnv(
        computing_cluster, cluster, computing_client, client, manager_account, tmp_path
    )
    yield env
    await env.clear()
    await computing_client.close()
