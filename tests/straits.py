"""One controller of the syncer at work between two clusters, without all the others.

Virtual nodes are made by hand, as the controller of nodes makes them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from crossings import crossing
from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import NotFound
from kubeocean.local.cluster import Cluster
from kubeocean.local.faults import Crashed, Faults
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.kinds import EVENTS, NODES, Event, Node
from kubeocean.runtime.objects import ObjectT, Resource
from kubeocean.syncer.forge import nodes as forge
from kubeocean.syncer.world import World
from running import running
from waiting import until

__all__ = ["Crash", "Strait", "quiet"]

QUIET_S = 2.5  # longer than a controller waits for anything when all is well
REST_S = 1.0  # longer than an answer takes to show in a watch


class _Part(Protocol):
    @property
    def parts(self) -> tuple[Runnable, ...]: ...


PartT = TypeVar("PartT", bound=_Part)


@dataclass
class Strait:
    """A computing cluster, a worker, and a binding of a test's own between them."""

    computing: Cluster
    worker: Cluster
    above: Client
    below: Client
    name: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")
    domain: Domain = group.DEFAULT

    @property
    def cluster_id(self) -> str:
        return f"id-{self.name}"

    @property
    def mount(self) -> str:
        """Where pods run in the worker; none means the domain's own place."""
        return ""

    def neighbour(self) -> Strait:
        """Another binding between the same clusters."""
        return replace(self, name=f"s{uuid.uuid4().hex[:8]}")

    def vnode(self, pnode: str) -> str:
        return f"vnode-{self.cluster_id}-{pnode}"

    async def lend(self, pnode: str, *, finalizer: bool = False) -> Node:
        """The virtual node of a worker's node, which need not exist; the name is unique."""
        lent = forge.Lent(
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
        return await self.above.create(NODES, body)

    async def take_back(self, vnode: Node) -> None:
        await self.above.delete(NODES, vnode.name, uid=vnode.uid)

    async def seen(
        self, resource: Resource[ObjectT], name: str, namespace: str = ""
    ) -> ObjectT | None:
        """An object above, read fresh, if it is there."""
        try:
            return await self.above.get(resource, name, namespace)
        except NotFound:
            return None

    async def told(self, about: str, reason: str) -> list[Event]:
        """The events about a cluster-scoped object above."""
        fields = f"involvedObject.name={about},reason={reason}"
        return (await self.above.list(EVENTS, "default", fields=fields)).items

    def world(
        self,
        *,
        above: Faults | None = None,
        below: Faults | None = None,
        clock: Clock | None = None,
    ) -> AbstractAsyncContextManager[World]:
        """What a syncer of this binding sees."""
        return crossing(
            self,
            above=above and above.wrap,
            below=below and below.wrap,
            clock=clock,
            domain=self.domain,
            mount_namespace=self.mount,
        )

    @asynccontextmanager
    async def syncing(
        self,
        part: Callable[[World], PartT],
        *,
        above: Faults | None = None,
        below: Faults | None = None,
    ) -> AsyncIterator[PartT]:
        """The part at work, until the block ends."""
        async with self.world(above=above, below=below) as world:
            made = part(world)
            async with running(world.events, world.reach, world.vnodes, *made.parts):
                yield made

    @asynccontextmanager
    async def crashing(self, part: Callable[[World], PartT], n: int) -> AsyncIterator[Crash]:
        """The part at work until its n-th write above, which is its last."""
        faults, crash = Faults(), Crash()
        faults.crash_after_write(n, by=crash.set)
        with suppress(Crashed, BaseExceptionGroup):
            async with self.syncing(part, above=faults):
                yield crash


class Crash(asyncio.Event):
    """Whether it has come to that."""

    async def or_until(self, probe: Callable[[], Awaitable[object]]) -> None:
        """Wait for a state that only those who have not crashed reach."""

        async def either() -> bool:
            return self.is_set() or bool(await probe())

        await until(either)


async def quiet(*plans: Faults) -> None:
    """Nothing is written for a while, once what was begun is done."""
    before = await _at_rest(plans)
    await asyncio.sleep(QUIET_S)  # the passing of time is what is tested
    assert [_sent(plan) for plan in plans] == before, plans[0].requests[-5:]


async def _at_rest(plans: Sequence[Faults]) -> list[int]:
    """What was sent in all, once nothing is added: an answer may still cause a write."""
    sent = [-1]

    async def rests() -> bool:
        before, sent[:] = sent[:], [_sent(plan) for plan in plans]
        return before == sent

    await until(rests, every=REST_S)
    return sent


def _sent(plan: Faults) -> int:
    # Not `plan.writes`: that counts answers, and the last one may be on its way.
    return sum(request.writes for request in plan.requests)
