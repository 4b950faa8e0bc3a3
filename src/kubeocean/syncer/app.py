"""The syncer: everything that lends one worker, wired and run.

`Syncer` is what a leader does: the caches of both clusters, then the controllers on them. It runs
until it is cancelled, and may be run again.
"""

from __future__ import annotations

import asyncio

from kubeocean.runtime.components import Runnable
from kubeocean.syncer.bottomup.bindings import Bindings
from kubeocean.syncer.bottomup.book import Book
from kubeocean.syncer.bottomup.csinodes import CsiNodes
from kubeocean.syncer.bottomup.drain import Unconfirmed
from kubeocean.syncer.bottomup.guests import Guests
from kubeocean.syncer.bottomup.hostports import HostPorts
from kubeocean.syncer.bottomup.leases import Leases
from kubeocean.syncer.bottomup.nodes import Nodes
from kubeocean.syncer.bottomup.policies import Policies
from kubeocean.syncer.bottomup.reclaims import Reclaims
from kubeocean.syncer.figures import Figures
from kubeocean.syncer.leftovers import Leftovers
from kubeocean.syncer.settings import Given
from kubeocean.syncer.sweep import Sweep
from kubeocean.syncer.topdown.dependents import Dependents
from kubeocean.syncer.topdown.logconfigs import LogConfigs
from kubeocean.syncer.topdown.pods import Pods
from kubeocean.syncer.topdown.services import Services
from kubeocean.syncer.topdown.surroundings import Surroundings
from kubeocean.syncer.world import World

__all__ = ["Syncer"]


class Syncer:
    """All controllers of one binding; `given` is what flags say of the computing cluster."""

    def __init__(self, world: World, given: Given | None = None) -> None:
        self.world = world
        book = Book(world)
        reclaims, unconfirmed = Reclaims(), Unconfirmed()
        guests = Guests(world, reclaims, unconfirmed)
        self.nodes = Nodes(world, book, guests, reclaims, unconfirmed)
        self.policies = Policies(world, book, reclaims, self.nodes.enqueue_all)
        self.leases = Leases(world)
        self.csinodes = CsiNodes(world)
        self.hostports = HostPorts(world)
        self.surroundings = Surroundings(world, given)
        self.services = Services(world, self.surroundings)
        self.logconfigs = LogConfigs(world)
        self.dependents = Dependents(world)
        self.pods = Pods(world, self.dependents, self.surroundings)
        self.bindings = Bindings(
            world,
            reclaims,
            unconfirmed,
            held=self.policies.held,
            marked=self.nodes.marks.left,
            claimed=self.policies.claimed,
            leftovers=Leftovers(self.pods, self.dependents, self.services, self.logconfigs),
        )
        self.sweep = Sweep(
            world,
            self.dependents,
            self.csinodes,
            self.hostports,
            nudge=self.pods.controller.enqueue,
        )
        self.figures = Figures(world, self.nodes.counting.of)
        world.vpods.on_change(guests.follow)

    @property
    def ready(self) -> bool:
        return self.world.synced

    @property
    def parts(self) -> tuple[Runnable, ...]:
        """Bottom-up: what others stand on comes first."""
        return (
            self.world.events,
            self.world.worker_events,
            self.world.reach,
            *self.world.caches,
            self.bindings.controller,
            self.policies.controller,
            self.nodes.controller,
            *self.leases.parts,
            *self.csinodes.parts,
            *self.hostports.parts,
            *self.surroundings.parts,
            *self.services.parts,
            *self.logconfigs.parts,
            *self.dependents.parts,
            *self.pods.parts,
            *self.sweep.parts,
        )

    async def run(self) -> None:
        """Lend until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in self.parts:
                group.create_task(part.run())
