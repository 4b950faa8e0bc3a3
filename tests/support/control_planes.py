"""Control planes that tests share: an API server with its etcd, and no controllers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from kubeocean.api.group import DEFAULT
from kubeocean.install.apply import FIELD_MANAGER, Applier
from kubeocean.local.assets import ensure
from kubeocean.local.cluster import Cluster, Programs
from kubeocean.local.simulated_nodes import SimulatedNodes
from kubeocean.runtime.client import connect
from support.crds import install_our_kinds

__all__ = ["SERVERS", "applier", "plane"]

SERVERS = ("etcd", "kube-apiserver")


@asynccontextmanager
async def plane(
    name: str,
    assets: Programs,
    roots: Path,
    *,
    ours: bool = False,
    nodes: int = 0,
    components: tuple[str, ...] = SERVERS,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """Run a control plane with the definitions `ours` and simulated nodes until the block ends."""
    async with AsyncExitStack() as stack:
        root = roots / f"{uuid.uuid4().hex[:6]}-{name}"
        made = Cluster(name, root, assets, components=components, ephemeral=True, **options)
        await stack.enter_async_context(made)
        if ours:
            client = made.client()
            await install_our_kinds(client)
            await client.close()
        if nodes:
            kubelets = SimulatedNodes(made, await ensure(["kwok"]))
            await stack.enter_async_context(kubelets)
            await kubelets.add(nodes, prefix=name)
        yield made


@asynccontextmanager
async def applier(cluster: Cluster) -> AsyncIterator[Applier]:
    """Yield an Applier that writes as the cluster's administrator."""
    client = connect(cluster.kubeconfig, cluster=cluster.name, field_manager=FIELD_MANAGER)
    try:
        yield Applier(client, domain=DEFAULT)
    finally:
        await client.close()
