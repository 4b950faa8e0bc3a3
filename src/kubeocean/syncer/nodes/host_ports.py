"""The controller of host port reservations, for ports that other pods hold on worker nodes.

Pods of other bindings count as others: only their own virtual nodes show their ports.

The key is the name of a virtual node, which has exactly one reservation if any port is held, else
none. A new reservation is created before the old one is deleted, so that no port is free in
between. Reservations of an earlier implementation are adopted where they fit, and replaced where
they do not; reservations of other bindings are not in the caches.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from kubeocean.api import group, naming
from kubeocean.api.conditions import NodeEvent
from kubeocean.api.ownership import may_be_ours
from kubeocean.errors import AlreadyExists, Conflict, Forbidden, NotFound
from kubeocean.runtime.client import StrategicPatch
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
from kubeocean.runtime.events import reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NAMESPACES, NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key
from kubeocean.runtime.pending_writes import PendingWritesByKey
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes import host_port_forge as forge
from kubeocean.syncer.nodes.host_port_forge import (
    PORT_PODS,
    RESERVATION_PODS,
    PortPod,
    Reservation,
    ReservationPod,
)
from kubeocean.syncer.pods.record import Removals

__all__ = ["HostPorts"]

WORKERS: Final = 8
_RETRY_S: Final = 1.0
_SETTLE_S: Final = 10.0  # in which a new namespace gets its service account
_UNFINISHED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"

_log = get_logger(__name__)


class HostPorts:
    """Creates, replaces and deletes the host port reservations of one binding's virtual nodes."""

    def __init__(self, clusters: Clusters) -> None:
        self.clusters = clusters
        domain, binding = clusters.domain, naming.label_value(clusters.binding_name)
        placeholder = f"{domain.managed_by}={domain.product},{domain.host_port_pod}={group.TRUE}"
        # All but our own; pods of a binding with our name in another computing cluster need another
        # selector.
        named, computing = f"{domain.cluster_binding}={binding}", domain.computing_cluster_id
        self.holders = self._holders(f"{domain.cluster_binding}!={binding}")
        self.namesakes = self._holders(
            f"{named},{computing}!={naming.label_value(clusters.computing_id)}"
        )
        self.reservations = self._reservations(f"{placeholder},{domain.cluster_binding}={binding}")
        self.unclaimed = self._reservations(f"{placeholder},!{domain.cluster_binding}")
        self._writes = PendingWritesByKey()  # by the name of the virtual node
        self._removals = Removals(clusters.clock)
        self._settles_at = 0.0
        self.controller: Controller[Key] = Controller(
            f"hostport-{clusters.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self.parts: tuple[Runnable, ...] = (
            self.holders,
            self.namesakes,
            self.reservations,
            self.unclaimed,
            self.controller,
        )
        self._register_handlers()

    def _holders(self, labels: str) -> Informer[PortPod]:
        """Return an informer of the worker's pods with host ports; other pods are not kept."""
        clusters = self.clusters
        return Informer(
            clusters.worker,
            PORT_PODS,
            labels=labels,
            fields=_UNFINISHED,
            indexes={"node": lambda pod: (pod.spec.node_name,)},
            prune=partial(forge.lean, ids=clusters.ids, domain=clusters.domain),
            clock=clusters.clock,
            metrics=clusters.metrics,
            keep=self._holds,
        )

    def _holds(self, pod: PortPod) -> bool:
        ours = may_be_ours(pod, ids=self.clusters.ids, domain=self.clusters.domain)
        return not ours and bool(forge.ports_of(pod))

    def _reservations(self, labels: str) -> Informer[ReservationPod]:
        clusters = self.clusters
        return Informer(
            clusters.computing,
            RESERVATION_PODS,
            namespace=clusters.domain.host_port_namespace,
            labels=labels,
            indexes={"node": lambda pod: (pod.spec.node_name,)},
            clock=clusters.clock,
            metrics=clusters.metrics,
        )

    # Events that enqueue virtual nodes

    def _register_handlers(self) -> None:
        self.clusters.vnodes.on_change(self._vnode_changed)
        self.clusters.worker_health.on_change(self._reached)
        self.holders.on_change(self._holder_changed)
        self.namesakes.on_change(self._holder_changed)
        self.reservations.on_change(self._reservation_changed)
        self.unclaimed.on_change(self._reservation_changed)

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        # Most changes are heartbeats and capacity, and concern no port.
        if old is None or new is None or old.deleting != new.deleting:
            self._enqueue(vnode.name for vnode in (old, new) if vnode is not None)

    def _holder_changed(self, old: PortPod | None, new: PortPod | None) -> None:
        # Ports and node of a pod do not change: only the begin and end of holding them count.
        ids, domain = self.clusters.ids, self.clusters.domain
        before, now = (pod is not None and forge.counts(pod, ids, domain) for pod in (old, new))
        if before != now:
            pods = (pod for pod in (old, new) if pod is not None)
            self._enqueue({self.clusters.vnode_name(pod.spec.node_name) for pod in pods})

    def _reservation_changed(self, old: ReservationPod | None, new: ReservationPod | None) -> None:
        if old is not None and new is None:
            self._removals.forget(old)
        self._enqueue({pod.spec.node_name for pod in (old, new) if pod is not None})

    def _reached(self, answers: bool) -> None:
        if answers:
            self._enqueue(vnode.name for vnode in self.clusters.vnodes.items())

    def _enqueue(self, vnodes: Iterable[str]) -> None:
        for vnode in vnodes:
            self.controller.enqueue(Key("", vnode))

    async def _caught_up(self, key: Key) -> bool:
        caches = (
            self.clusters.vnodes,
            self.holders,
            self.namesakes,
            self.reservations,
            self.unclaimed,
        )
        if not all(cache.has_synced for cache in caches):
            return False
        return await self._writes.shown(key.name, self.reservations, self.unclaimed)

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        """Reserve on a virtual node exactly the host ports that pods outside this binding hold."""
        clusters = self.clusters
        vnode = clusters.vnodes.get(key)
        present = self._on(key.name, vnode)
        if vnode is None or vnode.deleting:
            return await self._remove(present)
        pnode = clusters.pnode_of(vnode)
        if clusters.vnode_name(pnode) != vnode.name or not clusters.worker_health.answers:
            return Done()  # every node is enqueued when the worker answers again
        holders = (*self.holders.by("node", pnode), *self.namesakes.by("node", pnode))
        ports = forge.taken_ports(holders, clusters.ids, clusters.domain)
        if not ports:
            return await self._remove(present)
        reservation = Reservation(
            ports=ports,
            vnode=vnode.name,
            vnode_uid=vnode.uid,
            binding=clusters.binding_name,
            cluster_id=clusters.cluster_id,
            domain=clusters.domain,
        )
        return await self._ensure(reservation, vnode, present)

    def _on(self, name: str, vnode: Node | None) -> list[ReservationPod]:
        """Return our reservations on a virtual node, and those that no binding has claimed.

        Unclaimed reservations are returned only if `vnode` exists.
        """
        ours = [pod for pod in self.reservations.by("node", name) if self._is_ours(pod)]
        # A reservation that was adopted just now may be in both caches for a moment.
        known = {pod.key for pod in ours}
        unclaimed = self.unclaimed.by("node", name) if vnode is not None else ()
        return [*ours, *(pod for pod in unclaimed if pod.key not in known)]

    async def _ensure(
        self, reservation: Reservation, vnode: Node, present: list[ReservationPod]
    ) -> Outcome:
        fitting = [pod for pod in present if forge.fits(pod, reservation)]
        # Of several reservations, the one with our name; in any case always the same one.
        keeper = min(
            fitting, key=lambda pod: (pod.name != reservation.name, pod.name), default=None
        )
        if keeper is None:
            in_the_way = [pod for pod in present if pod.name == reservation.name]
            if any(self._removals.due_in_s(pod) is None for pod in in_the_way):
                return Done()  # the old pod holds the ports; its deletion enqueues the node
            removal = await self._remove(in_the_way)
            if isinstance(removal, After):
                return removal
            created = await self._create(reservation, vnode)
            if not isinstance(created, ReservationPod):
                return created
            keeper = created
        await self._patch(keeper, reservation)
        return await self._remove(pod for pod in present if pod.uid != keeper.uid)

    async def _create(self, reservation: Reservation, vnode: Node) -> ReservationPod | Outcome:
        clusters = self.clusters
        try:
            created = await clusters.computing.create(RESERVATION_PODS, forge.forge(reservation))
        except AlreadyExists:
            return await self._name_taken(reservation, vnode)
        except NotFound:
            with suppress(AlreadyExists):
                await clusters.computing.create(NAMESPACES, forge.forge_namespace(clusters.domain))
            self._settles_at = clusters.clock.monotonic() + _SETTLE_S
            return After(_RETRY_S)
        except Forbidden:
            if clusters.clock.monotonic() > self._settles_at:
                raise
            return After(_RETRY_S)  # the namespace has no service account yet
        self._writes.wrote(created.spec.node_name, self.reservations, created)
        _log.info("Reserved host ports", node=reservation.vnode, ports=len(reservation.ports))
        return created

    async def _name_taken(self, reservation: Reservation, vnode: Node) -> ReservationPod | Outcome:
        """Return our reservation of that name, which the cache lacks; report a foreign pod."""
        name, namespace = reservation.name, reservation.namespace
        pod = await self.clusters.computing.get(RESERVATION_PODS, name, namespace)
        if not self._is_ours(pod):
            message = (
                f"pod {pod.key} is not Kubeocean's; host ports are not reserved until it is deleted"
            )
            regarding = reference(NODES, vnode)
            self.clusters.events.emit(regarding, "Warning", NodeEvent.NAME_TAKEN, message)
            return Stuck(NodeEvent.NAME_TAKEN, message)
        return (
            pod if forge.fits(pod, reservation) else Done()
        )  # the event of that pod enqueues the node

    async def _patch(self, pod: ReservationPod, reservation: Reservation) -> None:
        change = forge.changes(pod, reservation, now=self.clusters.now_text())
        if not change:
            return
        precondition = {"uid": pod.uid, "resourceVersion": pod.resource_version}
        body = change | {"metadata": change.get("metadata", {}) | precondition}
        written = await self.clusters.computing.patch(
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
            # Without a grace period: no kubelet would end the pod.
            with suppress(NotFound, Conflict):
                await self.clusters.computing.delete(
                    RESERVATION_PODS, pod.name, pod.namespace, uid=pod.uid, grace_s=0
                )
            cache = self.reservations if self._is_ours(pod) else self.unclaimed
            self._writes.deleted(pod.spec.node_name, cache, pod)
            _log.info("Deleted reservation of host ports", node=pod.spec.node_name, pod=pod.name)
        return After(min(later)) if later else Done()

    def _is_ours(self, pod: ReservationPod) -> bool:
        clusters = self.clusters
        return forge.is_ours(
            pod,
            binding=clusters.binding_name,
            cluster_id=clusters.cluster_id,
            domain=clusters.domain,
        )
