"""A hub and a member for Work appliers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from support.applier_env import ApplierEnv
from support.control_planes import plane
from support.fleet_kinds import install_fleet_kinds


@pytest.fixture(scope="session")
async def hub_cluster(assets: Assets, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A hub: nothing but an API server, so that only the applier writes."""
    async with plane("hub", assets, cluster_roots, audit=True) as hub:
        yield hub


@pytest.fixture(scope="session")
async def hub(hub_cluster: Cluster) -> AsyncIterator[Client]:
    client = hub_cluster.client()
    await install_fleet_kinds(client)
    yield client
    await client.close()


@pytest.fixture(scope="session")
async def member(client: Client) -> Client:
    """Return the shared control plane, whose garbage collector deletes objects of AppliedWorks."""
    await install_fleet_kinds(client)
    return client


@pytest.fixture
async def env(
    hub_cluster: Cluster, cluster: Cluster, hub: Client, member: Client
) -> AsyncIterator[ApplierEnv]:
    env = ApplierEnv(hub_cluster, cluster, hub, member)
    await env.set_up()
    yield env
