"""Host ports: each virtual node has its ports taken that other people's pods hold on the worker's.

Other people are also other bindings: their pods are known to other virtual nodes alone.

The key is the name of the virtual node, which has exactly one reservation if any port is held, else
none. A new one is made before the old one goes, so that no port is free in between. Reservations
that an earlier implementation made are taken over where they fit, and replaced where they do not;
those of other bindings are not even seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.ownership import may_be_ours
from kubeocean.api.reasons import NodeEvent
from kubeocean.errors import AlreadyExists, Conflict, Forbidden, NotFound
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import Controller
from kubeocean.runtime.events import reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES, NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.runtime.outcomes import After, Done, Outcome, Stuck
from kubeocean.runtime.patches import StrategicPatch
from kubeocean.syncer.filedwrites import FiledWrites
from kubeocean.syncer.forge import hostports as forge
from kubeocean.syncer.forge.hostports import (
    PORT_PODS,
    RESERVATION_PODS,
    PortPod,
    Reservation,
    ReservationPod,
)
from kubeocean.syncer.removals import Removals
from kubeocean.syncer.world import World

__all__ = ["HostPorts"]

WORKERS: Final = 8
_LOOK_AGAIN_S: Final = 1.0
_SETTLE_S: Final = 10.0  # what a new namespace may take to get its service account
_UNFINISHED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"

_log = get_logger(__name__)


class HostPorts:
    """The reservations of one binding."""

    def __init__(self, world: World) -> None:
        self.world = world
        domain, binding = world.domain, naming.label_value(world.binding_name)
        placeholder = f"{domain.managed_by}={domain.product},{domain.host_port_pod}={group.TRUE}"
        # All but our own; those of a binding of our name elsewhere cannot be asked for with them.
        named, theirs = f"{domain.cluster_binding}={binding}", domain.computing_cluster_id
        self.holders = self._holders(f"{domain.cluster_binding}!={binding}")
        self.namesakes = self._holders(
            f"{named},{theirs}!={naming.label_value(world.computing_id)}"
        )
        self.reservations = self._reservations(f"{placeholder},{domain.cluster_binding}={binding}")
        self.unclaimed = self._reservations(f"{placeholder},!{domain.cluster_binding}")
        self._writes = FiledWrites()  # by the name of the virtual node
        self._removals = Removals(world.clock)
        self._settles_at = 0.0
        self.controller: Controller[Key] = Controller(
            f"hostport-{world.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            clock=world.clock,
            metrics=world.metrics,
        )
        self.parts: tuple[Runnable, ...] = (
            self.holders,
            self.namesakes,
            self.reservations,
            self.unclaimed,
            self.controller,
        )
        self._follow()

    def _holders(self, labels: str) -> Informer[PortPod]:
        """The worker's pods that hold ports; the others, nearly all, are not kept."""
        world = self.world
        return Informer(
            world.worker,
            PORT_PODS,
            labels=labels,
            fields=_UNFINISHED,
            indexes={"node": lambda pod: (pod.spec.node_name,)},
            prune=partial(forge.lean, ids=world.ids, domain=world.domain),
            clock=world.clock,
            metrics=world.metrics,
            keep=self._holds,
        )

    def _holds(self, pod: PortPod) -> bool:
        ours = may_be_ours(pod, ids=self.world.ids, domain=self.world.domain)
        return not ours and bool(forge.ports_of(pod))

    def _reservations(self, labels: str) -> Informer[ReservationPod]:
        world = self.world
        return Informer(
            world.computing,
            RESERVATION_PODS,
            namespace=world.domain.host_port_namespace,
            labels=labels,
            indexes={"node": lambda pod: (pod.spec.node_name,)},
            clock=world.clock,
            metrics=world.metrics,
        )

    # What makes us look

    def _follow(self) -> None:
        self.world.vnodes.on_change(self._vnode_changed)
        self.world.reach.on_change(self._reached)
        self.holders.on_change(self._holder_changed)
        self.namesakes.on_change(self._holder_changed)
        self.reservations.on_change(self._reservation_changed)
        self.unclaimed.on_change(self._reservation_changed)

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        # Most changes are heartbeats and amounts, and concern no port.
        if old is None or new is None or old.deleting != new.deleting:
            self._enqueue(vnode.name for vnode in (old, new) if vnode is not None)

    def _holder_changed(self, old: PortPod | None, new: PortPod | None) -> None:
        # Ports and node of a pod do not change: what matters is that it comes and goes.
        ids, domain = self.world.ids, self.world.domain
        before, now = (pod is not None and forge.counts(pod, ids, domain) for pod in (old, new))
        if before != now:
            pods = (pod for pod in (old, new) if pod is not None)
            self._enqueue({self.world.vnode_name(pod.spec.node_name) for pod in pods})

    def _reservation_changed(self, old: ReservationPod | None, new: ReservationPod | None) -> None:
        if old is not None and new is None:
            self._removals.forget(old)
        self._enqueue({pod.spec.node_name for pod in (old, new) if pod is not None})

    def _reached(self, answers: bool) -> None:
        if answers:
            self._enqueue(vnode.name for vnode in self.world.vnodes.items())

    def _enqueue(self, vnodes: Iterable[str]) -> None:
        for vnode in vnodes:
            self.controller.enqueue(Key("", vnode))

    async def _caught_up(self, key: Key) -> bool:
        caches = (
            self.world.vnodes,
            self.holders,
            self.namesakes,
            self.reservations,
            self.unclaimed,
        )
        if not all(cache.has_synced for cache in caches):
            return False
        return await self._writes.shown(key.name, self.reservations, self.unclaimed)

    # The reconcile

    async def reconcile(self, key: Key) -> Outcome:
        world = self.world
        vnode = world.vnodes.get(key)
        there = self._on(key.name, vnode)
        if vnode is None or vnode.deleting:
            return await self._remove(there)
        pnode = world.pnode_of(vnode)
        if world.vnode_name(pnode) != vnode.name or not world.reach.answers:
            return Done()  # we are called again when it answers
        holders = (*self.holders.by("node", pnode), *self.namesakes.by("node", pnode))
        ports = forge.held(holders, world.ids, world.domain)
        if not ports:
            return await self._remove(there)
        reservation = Reservation(
            ports=ports,
            vnode=vnode.name,
            vnode_uid=vnode.uid,
            binding=world.binding_name,
            cluster_id=world.cluster_id,
            domain=world.domain,
        )
        return await self._ensure(reservation, vnode, there)

    def _on(self, name: str, vnode: Node | None) -> list[ReservationPod]:
        """What reserves ports on a virtual node, as far as it is ours or, on our node, nobody's."""
        ours = [pod for pod in self.reservations.by("node", name) if self._is_ours(pod)]
        # One that was claimed just now may be in both caches for a moment.
        known = {pod.key for pod in ours}
        unclaimed = self.unclaimed.by("node", name) if vnode is not None else ()
        return [*ours, *(pod for pod in unclaimed if pod.key not in known)]

    async def _ensure(
        self, reservation: Reservation, vnode: Node, there: list[ReservationPod]
    ) -> Outcome:
        fitting = [pod for pod in there if forge.fits(pod, reservation)]
        # The one of our own making, if there are several; always the same one in any case.
        keeper = min(
            fitting, key=lambda pod: (pod.name != reservation.name, pod.name), default=None
        )
        if keeper is None:
            in_the_way = [pod for pod in there if pod.name == reservation.name]
            if any(self._removals.due_in_s(pod) is None for pod in in_the_way):
                return Done()  # it holds its ports, and we are called again when it is gone
            going = await self._remove(in_the_way)
            if isinstance(going, After):
                return going
            made = await self._create(reservation, vnode)
            if not isinstance(made, ReservationPod):
                return made
            keeper = made
        await self._settle(keeper, reservation)
        return await self._remove(pod for pod in there if pod.uid != keeper.uid)

    async def _create(self, reservation: Reservation, vnode: Node) -> ReservationPod | Outcome:
        world = self.world
        try:
            made = await world.computing.create(RESERVATION_PODS, forge.forge(reservation))
        except AlreadyExists:
            return await self._found(reservation, vnode)
        except NotFound:
            with suppress(AlreadyExists):
                await world.computing.create(NAMESPACES, forge.forge_namespace(world.domain))
            self._settles_at = world.clock.monotonic() + _SETTLE_S
            return After(_LOOK_AGAIN_S)
        except Forbidden:
            if world.clock.monotonic() > self._settles_at:
                raise
            return After(_LOOK_AGAIN_S)  # as long as there is no service account
        self._writes.wrote(made.spec.node_name, self.reservations, made)
        _log.info("Reserved host ports", node=reservation.vnode, ports=len(reservation.ports))
        return made

    async def _found(self, reservation: Reservation, vnode: Node) -> ReservationPod | Outcome:
        """The name is taken: by ourselves, of which the cache knows nothing yet, or by others."""
        name, namespace = reservation.name, reservation.namespace
        pod = await self.world.computing.get(RESERVATION_PODS, name, namespace)
        if not self._is_ours(pod):
            message = f"pod {pod.key} belongs to somebody else; host ports are not reserved"
            regarding = reference(NODES, vnode)
            self.world.events.emit(regarding, "Warning", NodeEvent.NAME_TAKEN, message)
            return Stuck(NodeEvent.NAME_TAKEN, message)
        return pod if forge.fits(pod, reservation) else Done()  # we are called when it shows

    async def _settle(self, pod: ReservationPod, reservation: Reservation) -> None:
        change = forge.changes(pod, reservation, now=self.world.now_text())
        if not change:
            return
        precondition = {"uid": pod.uid, "resourceVersion": pod.resource_version}
        body = change | {"metadata": change.get("metadata", {}) | precondition}
        written = await self.world.computing.patch(
            RESERVATION_PODS, pod.name, StrategicPatch(body), pod.namespace, subresource="status"
        )
        self._writes.wrote(written.spec.node_name, self.reservations, written)

    async def _remove(self, pods: Iterable[ReservationPod]) -> Outcome:
        later: list[float] = []
        for pod in pods:
            if due_in_s := self._removals.due_in_s(pod):
                later.append(due_in_s)
            if due_in_s != 0:
                continue
            # Nobody else would end it: there is no kubelet.
            with suppress(NotFound, Conflict):
                await self.world.computing.delete(
                    RESERVATION_PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0
                )
            cache = self.reservations if self._is_ours(pod) else self.unclaimed
            self._writes.deleted(pod.spec.node_name, cache, pod)
            _log.info("Removed reservation of host ports", node=pod.spec.node_name, pod=pod.name)
        return After(min(later)) if later else Done()

    def _is_ours(self, pod: ReservationPod) -> bool:
        world = self.world
        return forge.is_ours(
            pod, binding=world.binding_name, cluster_id=world.cluster_id, domain=world.domain
        )
