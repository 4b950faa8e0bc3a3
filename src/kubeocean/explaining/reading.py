"""Reading: the sides of bindings, each read once, and a note of all that could not be read."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, tzinfo

from kubeocean.api import group, naming
from kubeocean.api.binding import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.group import Domain
from kubeocean.api.ownership import Ids
from kubeocean.api.policy import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.bound.identities import identity_of
from kubeocean.bound.notes import Notes
from kubeocean.bound.sides import Below, reach_worker
from kubeocean.explaining.facts import Side
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.kinds import LEASES, Lease

__all__ = ["Reader", "Seen"]


@dataclass(frozen=True, slots=True)
class Seen:
    """A side, and the way to its worker."""

    side: Side
    below: Below

    @property
    def worker(self) -> Client | None:
        return self.below.client


@dataclass
class Reader:
    """Reads for one page; `stack` closes the ways to workers."""

    computing: Client
    stack: AsyncExitStack
    domain: Domain = field(default=group.DEFAULT)
    zone: tzinfo = UTC
    clock: Clock = field(default_factory=RealClock)
    _seen: dict[str, Seen] = field(default_factory=dict)
    _identity: str = ""

    async def side(self, name: str) -> Seen:
        """A binding and its worker."""
        if name not in self._seen:
            self._seen[name] = await self._look(name)
        return self._seen[name]

    async def all_sides(self) -> list[Seen]:
        """Those of all bindings, read at the same time: a dead worker holds up nobody's."""
        names = [each.name for each in (await self.computing.list(CLUSTER_BINDINGS)).items]
        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(self.side(name)) for name in names]
        return [task.result() for task in made]

    async def _look(self, name: str) -> Seen:
        notes = Notes()
        binding = await notes.read(f"binding {name}", self._binding(name), None) if name else None
        if binding is None:
            now, unread = self.clock.now(), tuple(notes.unread)
            side = Side(now=now, name=name, domain=self.domain, zone=self.zone, unread=unread)
            return Seen(side, Below(problem="there is no binding"))
        below = await reach_worker(self.computing, binding, self.stack)
        policies: tuple[ResourceLeasingPolicy, ...] = ()
        if below.client is not None:
            policies = await notes.read("policies of the worker", _policies(below.client), ())
        identity = await notes.read("namespace kube-system", self._identity_of(), "")
        side = Side(
            now=self.clock.now(),
            name=name,
            binding=binding,
            ids=Ids(name, binding.spec.cluster_id, identity),
            problem=below.problem,
            policies=policies,
            election=await self._election(binding, notes),
            zone=self.zone,
            domain=self.domain,
            unread=tuple(notes.unread),
        )
        return Seen(side, below)

    async def _binding(self, name: str) -> ClusterBinding | None:
        return await self.computing.get(CLUSTER_BINDINGS, name)

    async def _identity_of(self) -> str:
        self._identity = self._identity or await identity_of(self.computing)
        return self._identity

    async def _election(self, binding: ClusterBinding, notes: Notes) -> Lease | None:
        """The lease of the syncers: named after the binding, or as charts name it."""
        names = (
            naming.syncer_election(binding.name, self.domain),
            naming.syncer_deployment(binding.spec.cluster_id, self.domain),
        )
        found = [
            await notes.read("leases of syncers", self._lease(name, self.domain), None)
            for name in dict.fromkeys(names)
        ]
        there = [each for each in found if each is not None]
        return max(there, key=lambda each: each.spec.renew_time or "", default=None)

    async def _lease(self, name: str, domain: Domain) -> Lease | None:
        return await self.computing.get(LEASES, name, domain.system_namespace)


async def _policies(worker: Client) -> tuple[ResourceLeasingPolicy, ...]:
    return tuple((await worker.list(RESOURCE_LEASING_POLICIES)).items)
