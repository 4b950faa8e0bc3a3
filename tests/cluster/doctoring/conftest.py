"""Fixtures: a computing cluster with everything installed, and a worker to bind to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from doctors import Doctor
from kubeocean.api.group import DEFAULT, DNS_SERVICE, SERVER_SERVICE
from kubeocean.installation.applying import FIELD_MANAGER, Applier
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.values import Values
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.kwok import SimulatedNodes
from kubeocean.runtime.client import Client, connect
from kubeocean.runtime.kinds import SERVICES
from kubeocean.runtime.patches import MergePatch

SERVERS = ("etcd", "kube-apiserver")


@pytest.fixture(scope="session")
async def computing(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A computing cluster with all that `kubeocean install` makes, and the two Services."""
    root = cluster_roots / "examined"
    async with Cluster("examined", root, assets, components=SERVERS, ephemeral=True) as cluster:
        client = connect(cluster.kubeconfig, field_manager=FIELD_MANAGER)
        await Applier(client, domain=DEFAULT).apply_all(computing_objects(Values()))
        for key in (SERVER_SERVICE, DNS_SERVICE):
            await make_service(client, key.namespace, key.name)
        await client.close()
        yield cluster


async def make_service(client: Client, namespace: str, name: str) -> None:
    spec = {"type": "LoadBalancer", "ports": [{"port": 443}]}
    await client.create(SERVICES, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)
    given = MergePatch({"status": {"loadBalancer": {"ingress": [{"ip": "10.9.9.9"}]}}})
    await client.patch(SERVICES, name, given, namespace, subresource="status")


@pytest.fixture(scope="session")
async def bare(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A worker with two simulated nodes."""
    root = cluster_roots / "patient"
    async with (
        Cluster("patient", root, assets, components=SERVERS, ephemeral=True) as cluster,
        SimulatedNodes(cluster, await ensure(["kwok"])) as nodes,
    ):
        await nodes.add(2, prefix="patient")
        yield cluster


async def _applier(cluster: Cluster) -> AsyncIterator[Applier]:
    client = connect(cluster.kubeconfig, cluster=cluster.name, field_manager=FIELD_MANAGER)
    yield Applier(client, domain=DEFAULT)
    await client.close()


@pytest.fixture(scope="session")
async def above(computing: Cluster) -> AsyncIterator[Applier]:
    async for applier in _applier(computing):
        yield applier


@pytest.fixture(scope="session")
async def below(bare: Cluster) -> AsyncIterator[Applier]:
    async for applier in _applier(bare):
        yield applier


@pytest.fixture
def doctor(computing: Cluster) -> Doctor:
    return Doctor(computing.kubeconfig)
