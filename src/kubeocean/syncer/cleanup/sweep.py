"""The sweep: a slow comparison of both clusters, for differences that no controller noticed.

Controllers are level-triggered and should leave nothing behind; the sweep is a safety net for a
mistake in one of them. The sweep compares caches, and sends no request while they agree. A
difference in one comparison may be temporary. One in two comparisons in a row is reported, by an
event of the binding and a metric, and its controller is asked to reconcile. An object that is ours,
wanted by nothing, and still there in the third comparison is deleted, once both clusters have
confirmed it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final

from kubeocean.api.bindings import CLUSTER_BINDINGS
from kubeocean.api.conditions import BindingEvent
from kubeocean.errors import ApiError
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.events import EventType, reference
from kubeocean.runtime.kinds import SECRETS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Key, Object, Resource, Untyped
from kubeocean.syncer.cleanup.diff import (
    CSI_NODE,
    POD,
    PORT_RESERVATION,
    TOKEN,
    Counterpart,
    Difference,
    DifferenceKind,
    ObjectSet,
    beside_node,
    compare,
    compared_pod,
    counterparts,
    untyped,
)
from kubeocean.syncer.cleanup.orphan_removal import OrphanFate, Remover
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.metrics import SweepMetrics
from kubeocean.syncer.nodes.csinodes import CSI_NODES, CsiNodes
from kubeocean.syncer.nodes.host_port_forge import RESERVATION_PODS
from kubeocean.syncer.nodes.host_ports import HostPorts
from kubeocean.syncer.pods.views import PHYSICAL_PODS, VIRTUAL_PODS
from kubeocean.syncer.replication.kinds.table import KIND_NAMES
from kubeocean.syncer.replication.pod_copies import PodCopies
from kubeocean.syncer.replication.replicator import Replicator

__all__ = ["Sweep"]

EVERY_S: Final = 120.0
_REPORT_AT: Final = 2  # comparisons in a row; an orphan is deleted at the next comparison
_KINDS: Final = (POD, TOKEN, *KIND_NAMES, CSI_NODE, PORT_RESERVATION)

_log = get_logger(__name__)


class Sweep:
    """Compares both clusters of one binding periodically; `nudge` enqueues a virtual pod."""

    def __init__(
        self,
        clusters: Clusters,
        pod_copies: PodCopies,
        csinodes: CsiNodes,
        hostports: HostPorts,
        *,
        nudge: Callable[[Key], None],
        every_s: float = EVERY_S,
    ) -> None:
        self.clusters = clusters
        self._pod_copies = pod_copies
        self._csinodes = csinodes
        self._hostports = hostports
        self._nudge = nudge
        self._every_s = every_s
        self._remover = Remover(clusters.computing, clusters.worker, clusters.ids, clusters.domain)
        self._in_a_row: dict[tuple[str, str], int] = {}  # comparisons with this difference
        self._metrics = SweepMetrics(clusters.metrics, _KINDS, DifferenceKind)
        self.parts: tuple[Runnable, ...] = (self,)

    async def run(self) -> None:
        """Compare the clusters every `every_s` seconds, until cancelled."""
        while True:
            await self.clusters.clock.sleep(self._every_s)
            await self.run_once()

    async def run_once(self) -> tuple[Difference, ...]:
        """Compare the clusters once, report lasting differences and delete lasting orphans; return
        the differences seen in two or more comparisons in a row.
        """
        if not self._can_judge():
            self._in_a_row = {}
            return ()
        present = {each.identity: each for each in await self._compare()}
        self._in_a_row = {identity: self._in_a_row.get(identity, 0) + 1 for identity in present}
        lasting = [each for each in present.values() if self._in_a_row[each.identity] >= _REPORT_AT]
        self._count(lasting)
        for difference in lasting:
            if self._in_a_row[difference.identity] == _REPORT_AT:
                self._report(difference)
            elif difference.removable:
                await self._remove(difference)
        return tuple(lasting)

    async def _compare(self) -> list[Difference]:
        differences: list[Difference] = []
        for objects in self._object_sets():
            differences += compare([objects], {})
            await asyncio.sleep(0)  # lets other tasks run
        domain = self.clusters.domain
        vpods = {pod.key: compared_pod(pod, domain) for pod in self.clusters.vpods.items()}
        ppods = ObjectSet(self._physical_pods(), lambda each: True)
        return [*differences, *compare([ppods], vpods)]

    def _can_judge(self) -> bool:
        """Whether the caches are complete, the worker answers, and the binding stays."""
        clusters, pod_copies = self.clusters, self._pod_copies
        binding = clusters.binding
        return (
            clusters.synced
            and clusters.worker_health.answers
            and binding is not None
            and not binding.deleting
            and all(copies.synced for copies in self._replicators())
            and pod_copies.tokens.secrets.has_synced
            and self._csinodes.copies.has_synced
            and self._hostports.reservations.has_synced
        )

    # Existing and expected objects

    def _replicators(self) -> tuple[Replicator, ...]:
        return tuple(self._pod_copies.replicators.values())

    def _object_sets(self) -> Iterator[ObjectSet]:
        yield ObjectSet(self._physical_pods(), self._has_virtual_pod)
        secrets = self._pod_copies.tokens.secrets.items()
        tokens = self._counterparts(secrets, TOKEN, untyped(SECRETS), untyped(VIRTUAL_PODS))
        yield ObjectSet(tokens, self._has_virtual_pod)
        for replicator in self._replicators():
            yield ObjectSet(self._copies(replicator), partial(_is_wanted, replicator))
        csinodes = self._csinodes.copies.items()
        yield ObjectSet(
            [beside_node(each, CSI_NODE, CSI_NODES, each.name) for each in csinodes],
            self._has_virtual_node,
        )
        reservations = self._hostports.reservations.items()
        yield ObjectSet(
            [
                beside_node(pod, PORT_RESERVATION, RESERVATION_PODS, pod.spec.node_name)
                for pod in reservations
            ],
            self._has_virtual_node,
        )

    def _physical_pods(self) -> list[Counterpart]:
        ppods, resource = self.clusters.ppods.items(), untyped(PHYSICAL_PODS)
        return self._counterparts(ppods, POD, resource, untyped(VIRTUAL_PODS))

    def _copies(self, replicator: Replicator) -> list[Counterpart]:
        recipe, copies = replicator.definition, replicator.copies.items()
        resource, source = untyped(recipe.copies), untyped(recipe.sources)
        return self._counterparts(copies, replicator.kind, resource, source)

    def _counterparts(
        self,
        objects: Iterable[Object],
        kind: str,
        resource: Resource[Untyped],
        original: Resource[Untyped],
    ) -> list[Counterpart]:
        ids, domain = self.clusters.ids, self.clusters.domain
        vnodes = {vnode.name for vnode in self.clusters.vnodes.items()} if kind == POD else ()
        return counterparts(
            objects, kind, resource, original, ids=ids, domain=domain, vnodes=vnodes
        )

    def _has_virtual_pod(self, each: Counterpart) -> bool:
        pod = self.clusters.vpods.get(each.virtual)
        return pod is not None and pod.uid == each.virtual_uid

    def _has_virtual_node(self, each: Counterpart) -> bool:
        return self.clusters.vnodes.get(each.virtual) is not None

    # Reports and deletions

    def _report(self, difference: Difference) -> None:
        removable = difference.removable
        reason = BindingEvent.ORPHAN_FOUND if removable else BindingEvent.INCONSISTENCY_FOUND
        self._emit("Warning", reason, difference.message)
        _log.warning(
            "Found difference between the clusters",
            problem=difference.problem,
            what=difference.message,
        )
        self._enqueue(difference.subject)

    def _enqueue(self, subject: Counterpart) -> None:
        """Enqueue the virtual object of `subject` at the controller of its kind."""
        if subject.kind in (POD, TOKEN) and subject.virtual.name:
            self._nudge(subject.virtual)
        for replicator in self._replicators():
            if subject.kind == replicator.kind:
                replicator.check(subject.virtual)

    async def _remove(self, difference: Difference) -> None:
        subject = difference.subject
        try:
            fate = await self._remover.remove(difference, self._is_unused)
        except ApiError as error:
            _log.warning("Could not delete orphaned object", what=str(subject), error=str(error))
            return
        _log.info("Tried to delete orphaned object", what=str(subject), uid=subject.uid, fate=fate)
        if fate is OrphanFate.REMOVED:
            self._metrics.removed(subject.kind)
            self._emit("Normal", BindingEvent.ORPHAN_REMOVED, f"Removed {subject}, an orphan")

    async def _is_unused(self, subject: Counterpart, obj: Untyped) -> bool:
        """Whether no object uses a copy, as its kind's replicator reads from the API servers."""
        for replicator in self._replicators():
            copy = replicator.copies.get(subject.key)
            if subject.kind == replicator.kind and copy is not None and copy.uid == obj.uid:
                return await replicator.is_unused(subject.virtual, copy)
        return False

    def _emit(self, type_: EventType, reason: str, message: str) -> None:
        binding = self.clusters.binding
        if binding is not None:
            self.clusters.events.emit(reference(CLUSTER_BINDINGS, binding), type_, reason, message)

    def _count(self, differences: Iterable[Difference]) -> None:
        self._metrics.compared(
            Counter((each.subject.kind, str(each.problem)) for each in differences)
        )


def _is_wanted(replicator: Replicator, each: Counterpart) -> bool:
    return replicator.wanted(each.virtual)
