"""A controller of the syncer between two clusters, without all the others.

The environment creates virtual nodes as the node controller does.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.kinds import EVENTS, NODES, Event, Node
from kubeocean.runtime.objects import ObjectT, Resource
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes import forge
from support.background import running
from support.faults import Crashed, Faults
from support.syncer_context import crossing
from support.wait import until

__all__ = ["QUIET_S", "REST_S", "ControllerEnv", "Crash", "quiet"]

QUIET_S = 2.5  # longer than a controller waits before any regular write
REST_S = 1.0  # longer than a write takes to show in a watch


class _Part(Protocol):
    @property
    def parts(self) -> tuple[Runnable, ...]: ...


PartT = TypeVar("PartT", bound=_Part)


@dataclass
class ControllerEnv:
    """A computing cluster, a worker, and a binding of a test's own between them."""

    computing: Cluster
    worker: Cluster
    computing_api: Client
    worker_api: Client
    name: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")
    domain: Domain = group.DEFAULT

    @property
    def cluster_id(self) -> str:
        return f"id-{self.name}"

    @property
    def mount(self) -> str:
        """The namespace of pods in the worker; empty means the domain's default."""
        return ""

    def neighbour(self) -> ControllerEnv:
        """Return another binding between the same clusters."""
        return replace(self, name=f"s{uuid.uuid4().hex[:8]}")

    def vnode(self, pnode: str) -> str:
        return f"vnode-{self.cluster_id}-{pnode}"

    async def lend(self, pnode: str, *, finalizer: bool = False) -> Node:
        """Create the virtual node of a worker's node, which need not exist."""
        lent = forge.LentNode(
            pnode={"metadata": {"name": pnode, "uid": str(uuid.uuid4())}},
            vnode=self.vnode(pnode),
            binding=self.name,
            cluster_id=self.cluster_id,
            policy="policy",
            details="policy",
            offered={},
            default_taint=True,
            reclaim_taints=(),
            unschedulable=False,
            proxier_ip="10.0.0.1",
            proxier_port=15_000,
            metrics_port=9006,
            domain=self.domain,
        )
        body = forge.forge(lent, now="2026-01-01T00:00:00Z")
        if not finalizer:
            del body["metadata"]["finalizers"]
        return await self.computing_api.create(NODES, body)

    async def take_back(self, vnode: Node) -> None:
        await self.computing_api.delete(NODES, vnode.name, uid=vnode.uid)

    async def seen(
        self, resource: Resource[ObjectT], name: str, namespace: str = ""
    ) -> ObjectT | None:
        """Return an object of the computing cluster; None if it does not exist."""
        try:
            return await self.computing_api.get(resource, name, namespace)
        except NotFound:
            return None

    async def events_about(self, about: str, reason: str) -> list[Event]:
        """Return the events about a cluster-scoped object of the computing cluster."""
        fields = f"involvedObject.name={about},reason={reason}"
        return (await self.computing_api.list(EVENTS, "default", fields=fields)).items

    def clusters(
        self,
        *,
        computing_api: Faults | None = None,
        worker_api: Faults | None = None,
        clock: Clock | None = None,
    ) -> AbstractAsyncContextManager[Clusters]:
        """Return the `Clusters` of a syncer of this binding."""
        return crossing(
            self,
            computing_api=computing_api and computing_api.wrap,
            worker_api=worker_api and worker_api.wrap,
            clock=clock,
            domain=self.domain,
            mount_namespace=self.mount,
        )

    @asynccontextmanager
    async def syncing(
        self,
        part: Callable[[Clusters], PartT],
        *,
        computing_api: Faults | None = None,
        worker_api: Faults | None = None,
    ) -> AsyncIterator[PartT]:
        """Run the controller until the block ends."""
        async with self.clusters(computing_api=computing_api, worker_api=worker_api) as clusters:
            controller = part(clusters)
            async with running(
                clusters.events, clusters.worker_health, clusters.vnodes, *controller.parts
            ):
                yield controller

    @asynccontextmanager
    async def crashing(self, part: Callable[[Clusters], PartT], n: int) -> AsyncIterator[Crash]:
        """Run the controller until its n-th write to the computing cluster, which is its last."""
        faults, crash = Faults(), Crash()
        faults.crash_after_write(n, by=crash.set)
        with suppress(Crashed, BaseExceptionGroup):
            async with self.syncing(part, computing_api=faults):
                yield crash


class Crash(asyncio.Event):
    """An event that is set when the controller has crashed."""

    async def or_until(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Wait for the crash, or for a state that the controller reaches without one."""

        async def either() -> bool:
            return self.is_set() or bool(await probe())

        await until(either)


async def quiet(*plans: Faults) -> None:
    """Wait until all writes are done, and check that none follows."""
    before = await _at_rest(plans)
    await asyncio.sleep(QUIET_S)  # the test needs this time to pass
    assert [_sent(plan) for plan in plans] == before, plans[0].requests[-5:]


async def _at_rest(plans: Sequence[Faults]) -> list[int]:
    """Return the number of writes, once it stays the same: an answer may cause another write."""
    sent = [-1]

    async def rests() -> bool:
        before, sent[:] = sent[:], [_sent(plan) for plan in plans]
        return before == sent

    await until(rests, every=REST_S)
    return sent


def _sent(plan: Faults) -> int:
    # Not `plan.writes`, which counts answers: the last answer may be outstanding.
    return sum(request.writes for request in plan.requests)
