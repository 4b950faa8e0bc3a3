"""A worker and a computing cluster of one test alone, which the test may break.

They have no controller manager and no kubelet; a loop simulates the kubelets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from kubeocean.errors import ApiError, NotFound
from kubeocean.local.assets import Assets
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.syncer.pods.views import PHYSICAL_PODS
from support.control_planes import plane
from support.crds import install_our_kinds
from support.pod_env import PodEnv
from support.wait import until

__all__ = ["private_binding_env"]


@asynccontextmanager
async def private_binding_env(assets: Assets, root: Path) -> AsyncIterator[PodEnv]:
    """Start two clusters with a binding between them; they end with the block."""
    async with AsyncExitStack() as stack:
        clusters = [
            await stack.enter_async_context(plane(name, assets, root, audit=True))
            for name in ("pods-computing", "pods-worker")
        ]
        computing_api, worker_api = (each.client() for each in clusters)
        for client in (computing_api, worker_api):
            stack.push_async_callback(client.close)
        await install_our_kinds(computing_api)
        env = PodEnv(clusters[0], clusters[1], computing_api, worker_api, pnodes=["n0"])
        account = asyncio.create_task(_create_account(env))
        await env.open()
        await account
        await stack.enter_async_context(_kubelet(env))
        yield env


async def _create_account(env: PodEnv) -> None:
    """Create the ServiceAccount that a controller manager would create."""

    async def created() -> bool:
        try:
            body = {"metadata": {"name": "default"}}
            await env.computing_api.create(SERVICE_ACCOUNTS, body, namespace=f"v-{env.name}")
        except NotFound:
            return False
        return True

    await until(created)


@asynccontextmanager
async def _kubelet(env: PodEnv) -> AsyncIterator[None]:
    async def simulate() -> None:
        while True:
            with suppress(ApiError):
                for pod in await env.ppods():
                    if pod.deleting:
                        await env.worker_api.delete(
                            PHYSICAL_PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0
                        )
                    elif pod.status.phase == "Pending":
                        await env.patch_below(pod, "status", status={"phase": "Running"})
            await asyncio.sleep(0.1)

    task = asyncio.create_task(simulate())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
