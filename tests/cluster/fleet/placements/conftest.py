"""Fixtures: a hub of this package's own, whose MemberClusters are those of one test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.assets import Assets
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.kinds import NAMESPACES
from support.control_planes import plane
from support.fleet_kinds import install_fleet_kinds
from support.placement_env import PlacementEnv

COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager")


@pytest.fixture(scope="package")
async def hub(assets: Assets, cluster_roots: Path) -> AsyncIterator[Cluster]:
    async with plane("hub", assets, cluster_roots, components=COMPONENTS) as hub:
        client = hub.client()
        await install_fleet_kinds(client)
        await client.close()
        yield hub


@pytest.fixture(scope="package")
async def hub_client(hub: Cluster) -> AsyncIterator[Client]:
    client = hub.client()
    yield client
    await client.close()


@pytest.fixture
async def env(hub: Cluster, hub_client: Client) -> AsyncIterator[PlacementEnv]:
    """A namespace of this test's own, and no members but those that the test joins."""
    namespace = f"app-{uuid.uuid4().hex[:8]}"
    await hub_client.create(NAMESPACES, {"metadata": {"name": namespace}})
    env = PlacementEnv(hub, hub_client, namespace)
    yield env
    await env.clear()
