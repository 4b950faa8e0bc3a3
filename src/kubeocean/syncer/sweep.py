"""Sweep: both sides are compared, slowly, for what no controller noticed.

The controllers are level-triggered and should leave nothing behind; this is for the day when one of
them is wrong. It looks at the caches alone, so while they agree it costs no request. What it sees
once may be on its way out. What it sees twice is told, in an event of the binding and a metric, and
the controller that is responsible is asked to look. What is ours, wanted by nothing, and still
there at the third look is deleted, once both clusters have confirmed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final

from kubeocean.api.binding import CLUSTER_BINDINGS
from kubeocean.api.reasons import BindingEvent
from kubeocean.errors import ApiError
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.correlator import EventType
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import NODES, SECRETS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Object, ObjectT, Resource, Untyped
from kubeocean.syncer.bottomup.csinodes import CsiNodes
from kubeocean.syncer.bottomup.hostports import HostPorts
from kubeocean.syncer.comparison import (
    POD,
    TOKEN,
    Bound,
    Finding,
    Kept,
    Problem,
    Trace,
    compare,
    trace,
    untyped,
)
from kubeocean.syncer.forge.csinodes import CSI_NODES
from kubeocean.syncer.forge.hostports import RESERVATION_PODS
from kubeocean.syncer.podviews import PHYSICAL_PODS, VIRTUAL_PODS
from kubeocean.syncer.removal import Fate, Remover
from kubeocean.syncer.topdown.copies import Copies
from kubeocean.syncer.topdown.dependents import Dependents
from kubeocean.syncer.world import World

__all__ = ["Sweep"]

EVERY_S: Final = 120.0
_TELL: Final = 2  # at which sight; what can be removed is at the next one
_KINDS: Final = ("ConfigMap", "Secret", "PersistentVolumeClaim", "PersistentVolume")
_ABOVE: Final = ("CSINode", "port reservation")

_log = get_logger(__name__)


class Sweep:
    """Compares the two sides of one binding; `nudge` asks for a look at a virtual pod."""

    def __init__(
        self,
        world: World,
        dependents: Dependents,
        csinodes: CsiNodes,
        hostports: HostPorts,
        *,
        nudge: Callable[[Key], None],
        every_s: float = EVERY_S,
    ) -> None:
        self.world = world
        self._dependents = dependents
        self._csinodes = csinodes
        self._hostports = hostports
        self._nudge = nudge
        self._every_s = every_s
        self._remover = Remover(world.computing, world.worker, world.ids, world.domain)
        self._sights: dict[tuple[str, str], int] = {}  # how often in a row
        labels = ["kind", "problem"]
        self._found = world.metrics.gauge(
            "kubeocean_sweep_inconsistencies", "What the last look found, by kind", labels
        )
        self._removed = world.metrics.counter(
            "kubeocean_sweep_removed_total", "Orphans that were removed, by kind", ["kind"]
        )
        for kind in (POD, TOKEN, *_KINDS, *_ABOVE):
            self._removed.labels(kind)
            for problem in Problem:
                self._found.labels(kind, problem).set(0)
        self.parts: tuple[Runnable, ...] = (self,)

    async def run(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            await self.world.clock.sleep(self._every_s)
            await self.look()

    async def look(self) -> tuple[Finding, ...]:
        """Compare once, and act on what was seen before; all that is wrong for longer."""
        if not self._can_judge():
            self._sights = {}
            return ()
        seen = {finding.identity: finding for finding in await self._compare()}
        self._sights = {identity: self._sights.get(identity, 0) + 1 for identity in seen}
        known = [each for each in seen.values() if self._sights[each.identity] >= _TELL]
        self._count(known)
        for finding in known:
            if self._sights[finding.identity] == _TELL:
                self._tell(finding)
            elif finding.removable:
                await self._remove(finding)
        return tuple(known)

    async def _compare(self) -> list[Finding]:
        found: list[Finding] = []
        for kept in self._kept():
            found += compare([kept], {})
            await asyncio.sleep(0)  # others have work to do
        pods = Kept(self._pods(), lambda each: True)
        return [*found, *compare([pods], self._bound())]

    def _can_judge(self) -> bool:
        """Nothing is concluded from caches that are not whole, nor while a binding is let go."""
        world, dependents = self.world, self._dependents
        binding = world.binding
        return (
            world.synced
            and world.reach.answers
            and binding is not None
            and not binding.deleting
            and all(copies.pairs.synced for copies in self._copies())
            and dependents.tokens.secrets.has_synced
            and self._csinodes.copies.has_synced
            and self._hostports.reservations.has_synced
        )

    # What there is, and what is wanted

    def _copies(self) -> tuple[Copies, ...]:
        found = self._dependents
        return found.config_maps, found.secrets, found.claims, found.volumes

    def _kept(self) -> Iterator[Kept]:
        yield Kept(self._pods(), self._has_virtual_pod)
        tokens = self._dependents.tokens.secrets.items()
        found = self._traces(tokens, TOKEN, untyped(SECRETS), untyped(VIRTUAL_PODS))
        yield Kept(found, self._has_virtual_pod)
        for copies in self._copies():
            yield Kept(self._copied(copies), partial(_is_wanted, copies))
        drivers = [(each.key, each) for each in self._csinodes.copies.items()]
        yield Kept(self._above(drivers, "CSINode", CSI_NODES), self._has_virtual_node)
        reservations = self._hostports.reservations.items()
        held = [(Key("", pod.spec.node_name), pod) for pod in reservations]
        yield Kept(self._above(held, "port reservation", RESERVATION_PODS), self._has_virtual_node)

    def _pods(self) -> list[Trace]:
        where, what = untyped(PHYSICAL_PODS), untyped(VIRTUAL_PODS)
        return self._traces(self.world.ppods.items(), POD, where, what)

    def _copied(self, copies: Copies) -> list[Trace]:
        recipe, found = copies.pairs.recipe, copies.pairs.copies.items()
        return self._traces(found, copies.kind, untyped(recipe.copies), untyped(recipe.originals))

    def _traces(
        self,
        objects: Iterable[Object],
        kind: str,
        resource: Resource[Untyped],
        original: Resource[Untyped],
    ) -> list[Trace]:
        ids, domain = self.world.ids, self.world.domain
        found = (
            trace(each, kind=kind, resource=resource, original=original, ids=ids, domain=domain)
            for each in objects
        )
        return [each for each in found if each is not None]

    def _above(
        self, objects: Sequence[tuple[Key, Object]], kind: str, resource: Resource[ObjectT]
    ) -> list[Trace]:
        where, nodes = untyped(resource), untyped(NODES)
        return [
            Trace(kind, where, each.key, each.uid, vnode, "", nodes, above=True)
            for vnode, each in objects
            if not each.deleting
        ]

    def _has_virtual_pod(self, each: Trace) -> bool:
        pod = self.world.vpods.get(each.virtual)
        return pod is not None and pod.uid == each.virtual_uid

    def _has_virtual_node(self, each: Trace) -> bool:
        return self.world.vnodes.get(each.virtual) is not None

    def _bound(self) -> dict[Key, Bound]:
        domain = self.world.domain
        return {
            pod.key: Bound(
                pod.uid,
                pod.annotations.get(domain.physical_pod_uid, ""),
                runs=not pod.finished and not pod.deleting,
            )
            for pod in self.world.vpods.items()
        }

    # What is done about it

    def _tell(self, finding: Finding) -> None:
        orphan = finding.problem is Problem.ORPHAN
        reason = BindingEvent.ORPHAN_FOUND if orphan else BindingEvent.INCONSISTENCY_FOUND
        self._emit("Warning", reason, finding.message)
        _log.warning("Found inconsistency", problem=finding.problem, what=finding.message)
        self._ask_controller(finding.subject)

    def _ask_controller(self, subject: Trace) -> None:
        if subject.kind in (POD, TOKEN):
            self._nudge(subject.virtual)
        for copies in self._copies():
            if subject.kind == copies.kind:
                copies.check(subject.virtual)

    async def _remove(self, finding: Finding) -> None:
        subject = finding.subject
        try:
            fate = await self._remover.remove(finding, self._is_unused)
        except ApiError as error:
            _log.warning("Could not remove orphan", what=str(subject), error=str(error))
            return
        _log.info("Looked at orphan again", what=str(subject), uid=subject.uid, fate=fate)
        if fate is Fate.REMOVED:
            self._removed.labels(subject.kind).inc()
            self._emit("Normal", BindingEvent.ORPHAN_REMOVED, f"Removed {subject}, an orphan")

    async def _is_unused(self, subject: Trace, there: Untyped) -> bool:
        """Whether nothing needs a copy, asked of the servers by those who know its kind."""
        for copies in self._copies():
            copy = copies.pairs.copies.get(subject.key)
            if subject.kind == copies.kind and copy is not None and copy.uid == there.uid:
                return await copies.is_unused(subject.virtual, copy)
        return False

    def _emit(self, type_: EventType, reason: str, message: str) -> None:
        binding = self.world.binding
        if binding is not None:
            self.world.events.emit(reference(CLUSTER_BINDINGS, binding), type_, reason, message)

    def _count(self, found: Iterable[Finding]) -> None:
        counts: dict[tuple[str, str], int] = {}
        for each in found:
            labels = each.subject.kind, each.problem
            counts[labels] = counts.get(labels, 0) + 1
        for kind in (POD, TOKEN, *_KINDS, *_ABOVE):
            for problem in Problem:
                self._found.labels(kind, problem).set(counts.get((kind, problem), 0))


def _is_wanted(copies: Copies, each: Trace) -> bool:
    return copies.wanted(each.virtual)
