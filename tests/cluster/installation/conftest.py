"""Fixtures: a computing cluster with everything installed, and a worker with nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.installation.applying import Applier
from kubeocean.installation.computing import computing_objects
from kubeocean.installation.values import Values
from kubeocean.local.cluster import Cluster, Programs
from planes import SERVERS, applier, plane


@pytest.fixture(scope="package")
async def computing(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A computing cluster of these tests' own: the shared one stays as others expect it."""
    components = (*SERVERS, "kube-controller-manager")
    async with plane(
        "computing", assets, cluster_roots, components=components, audit=True
    ) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def bare(assets: Programs, cluster_roots: Path) -> AsyncIterator[Cluster]:
    """A worker that has never heard of us, with two simulated nodes."""
    async with plane("bare", assets, cluster_roots, nodes=2, audit=True) as cluster:
        yield cluster


@pytest.fixture(scope="package")
async def above(computing: Cluster) -> AsyncIterator[Applier]:
    """An administrator of the computing cluster, where everything is installed."""
    async with applier(computing) as made:
        await made.apply_all(computing_objects(Values()))
        yield made


@pytest.fixture(scope="package")
async def below(bare: Cluster) -> AsyncIterator[Applier]:
    """An administrator of the worker."""
    async with applier(bare) as made:
        yield made
