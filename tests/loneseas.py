"""A worker and a computing cluster of a test's own, which may be broken: nobody else uses them.

There is no controller and no kubelet; a loop plays the kubelets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

from kubeocean.errors import ApiError, NotFound
from kubeocean.local.assets import Assets
from kubeocean.runtime.kinds import SERVICE_ACCOUNTS
from kubeocean.syncer.podviews import PHYSICAL_PODS
from ourkinds import install_our_kinds
from planes import plane
from podseas import PodSea
from waiting import until

__all__ = ["lone_sea"]


@asynccontextmanager
async def lone_sea(assets: Assets, root: Path) -> AsyncIterator[PodSea]:
    """A binding between two clusters that start now and end with it."""
    async with AsyncExitStack() as stack:
        clusters = [
            await stack.enter_async_context(plane(name, assets, root, audit=True))
            for name in ("pods-up", "pods-low")
        ]
        above, below = (each.client() for each in clusters)
        for client in (above, below):
            stack.push_async_callback(client.close)
        await install_our_kinds(above)
        sea = PodSea(clusters[0], clusters[1], above, below, pnodes=["n0"])
        account = asyncio.create_task(_account(sea))
        await sea.open()
        await account
        await stack.enter_async_context(_kubelet(sea))
        yield sea


async def _account(sea: PodSea) -> None:
    """What a controller above would make."""

    async def made() -> bool:
        try:
            body = {"metadata": {"name": "default"}}
            await sea.above.create(SERVICE_ACCOUNTS, body, namespace=f"v-{sea.name}")
        except NotFound:
            return False
        return True

    await until(made)


@asynccontextmanager
async def _kubelet(sea: PodSea) -> AsyncIterator[None]:
    async def play() -> None:
        while True:
            with suppress(ApiError):
                for pod in await sea.ppods():
                    if pod.deleting:
                        await sea.below.delete(
                            PHYSICAL_PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0
                        )
                    elif pod.status.phase == "Pending":
                        await sea.patch_below(pod, "status", status={"phase": "Running"})
            await asyncio.sleep(0.1)

    task = asyncio.create_task(play())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
