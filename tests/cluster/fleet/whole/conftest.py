"""Fixtures: the control planes of a hub and a member, for whole fleets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.cluster import Programs
from support.fleet_env import HUB_COMPONENTS, FleetEnv


@pytest.fixture(scope="package")
async def planes(assets: Programs, cluster_roots: Path) -> AsyncIterator[FleetEnv]:
    # The garbage collector of the member deletes objects of deleted AppliedWorks.
    running = FleetEnv.start(assets, cluster_roots, member_components=HUB_COMPONENTS)
    async with running as planes:
        yield planes


@pytest.fixture
async def env(planes: FleetEnv) -> AsyncIterator[FleetEnv]:
    """The members of this test."""
    env = planes.of_test()
    yield env
    await env.clear()
