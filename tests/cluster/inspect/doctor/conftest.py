"""Fixtures: a computing cluster with everything installed, and a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.api.group import DNS_SERVICE, SERVER_SERVICE
from kubeocean.install.apply import Applier
from kubeocean.install.computing_objects import computing_objects
from kubeocean.install.values import Values
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.kinds import SERVICES
from support.control_planes import applier, plane
from support.doctor_command import Doctor


@pytest.fixture(scope="package")
async def computing(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """Run a computing cluster with all that `kubeocean install` creates, and the two Services."""
    async with plane("examined", assets, cluster_roots) as cluster:
        async with applier(cluster) as installing:
            await installing.apply_all(computing_objects(Values()))
            for key in (SERVER_SERVICE, DNS_SERVICE):
                await make_service(installing.client, key.namespace, key.name)
        yield cluster


async def make_service(client: Client, namespace: str, name: str) -> None:
    spec = {"type": "LoadBalancer", "ports": [{"port": 443}]}
    await client.create(SERVICES, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)
    given = MergePatch({"status": {"loadBalancer": {"ingress": [{"ip": "10.9.9.9"}]}}})
    await client.patch(SERVICES, name, given, namespace, subresource="status")


@pytest.fixture(scope="package")
async def bare(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """Run a worker with two simulated nodes."""
    async with plane("patient", assets, cluster_roots, nodes=2) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def computing_api(computing: Cluster) -> AsyncIterator[Applier]:
    async with applier(computing) as made:
        yield made


@pytest.fixture(scope="package")
async def worker_api(bare: Cluster) -> AsyncIterator[Applier]:
    async with applier(bare) as made:
        yield made


@pytest.fixture
def doctor(computing: Cluster) -> Doctor:
    return Doctor(computing.kubeconfig)
