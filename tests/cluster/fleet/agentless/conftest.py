"""Fixtures: a hub that is a computing cluster, and a worker, shared by the tests of bindings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeocean.local.cluster import Programs
from support.agentless_env import AgentlessEnv


@pytest.fixture(scope="package")
async def planes(assets: Programs, cluster_roots: Path) -> AsyncIterator[AgentlessEnv]:
    async with AgentlessEnv.start(assets, cluster_roots) as planes:
        yield planes


@pytest.fixture
async def env(planes: AgentlessEnv) -> AsyncIterator[AgentlessEnv]:
    """The bindings of this test."""
    env = planes.of_test()
    yield env
    await env.clear()
