"""Pods: each pod that is bound to a virtual node runs in the worker cluster.

The key of a reconcile is the virtual pod's. A reconcile reads both pods from the caches, makes a
plan, and writes the difference to either cluster: changes of the virtual pod are applied to the
physical pod, the physical pod's status is reported on the virtual pod. This controller is the only
writer of both, and never conflicts with itself.

A pod that a cache no longer shows is read from its API server before another pod is deleted or
failed because of its absence: a cache that is empty, old or behind does no harm. While the worker
cluster does not answer, nothing is decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.conditions import PodEvent
from kubeocean.api.ownership import Ownership, bears_ids, ownership_labels
from kubeocean.errors import (
    AlreadyExists,
    BadRequest,
    ConfigError,
    Forbidden,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
)
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.node_selectors import NodeSelector
from kubeocean.runtime.objects import Json, Key
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.pods import status as pod_status
from kubeocean.syncer.pods.admission import Admission, AdmissionRejection, ClosedNode
from kubeocean.syncer.pods.changes import (
    PodPatch,
    changes,
    digest_of,
    is_whole_when_created,
)
from kubeocean.syncer.pods.dns import uses_cluster_dns
from kubeocean.syncer.pods.events import PodEvents
from kubeocean.syncer.pods.forge import forge
from kubeocean.syncer.pods.forge_context import Context, CopyNames, Refused
from kubeocean.syncer.pods.metadata import is_copied, shown_metadata, users_own
from kubeocean.syncer.pods.metrics import PodMetrics
from kubeocean.syncer.pods.physical_pods import PhysicalPods
from kubeocean.syncer.pods.plan import (
    UNSCHEDULED_S,
    Action,
    bound_for_s,
    excluded_because,
    grace_of,
    is_due,
    is_live,
    is_own_node,
    is_stray,
    may_run_in_worker,
    ownership_of,
    physical_names,
    physical_node,
    plan,
)
from kubeocean.syncer.pods.record import (
    LONGEST_MESSAGE,
    LONGEST_RETRY_S,
    PhysicalPodRecord,
    PodProblem,
    PodRecord,
    PodRecords,
    awaits_removal,
    removal_due_in_s,
)
from kubeocean.syncer.pods.referenced_objects import References, references
from kubeocean.syncer.pods.views import (
    PhysicalPod,
    VirtualPod,
    has_no_news,
    virtual_key,
)
from kubeocean.syncer.pods.virtual_pods import VirtualPods
from kubeocean.syncer.replication.cluster_endpoints import ClusterEndpoints
from kubeocean.syncer.replication.missing import Missing
from kubeocean.syncer.replication.pod_copies import PodCopies
from kubeocean.syncer.shard_filter import ShardFilter

__all__ = ["PodController"]

WORKERS: Final = 100

_BEHIND_S: Final = 1.0  # our watch will soon show the pod as the server has it
_LONGEST_RECHECK_S: Final = 30.0  # between two reads of a pod that is in no cache of the syncer
_LATE_S: Final = 3.0  # a pod that was bound longer ago may have been deleted since
_SLOW_S: Final = 1.0  # after so long a wait the virtual pod is read again
_NOT_READY_S: Final = 0.2
_SOON_S: Final = 0.05
_FIRST_STATUS_S: Final = 0.4  # within which a kubelet reports a status of a new pod, if it runs
_NO_ACCOUNT_S: Final = 30.0  # service accounts are not watched

# Errors that another attempt will not change by itself.
_LASTING: Final = (BadRequest, Forbidden, InternalError, Invalid, RequestTooLarge)

_log = get_logger(__name__)


class PodController:
    """Runs the pods of one binding's virtual nodes in its worker cluster."""

    def __init__(self, clusters: Clusters, copies: PodCopies, endpoints: ClusterEndpoints) -> None:
        self.clusters = clusters
        self.copies = copies
        self._endpoints = endpoints
        self.records = PodRecords(clusters.ppods.get)
        self._metrics = PodMetrics(clusters.binding_name, clusters.clock, clusters.metrics)
        self._admission = Admission(clusters, self.records)
        self._physical = PhysicalPods(clusters, self._metrics)
        self._virtual = VirtualPods(clusters)
        self.controller: Controller[Key] = Controller(
            f"virtualpod-{clusters.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self.events = PodEvents(clusters)
        self.parts: tuple[Runnable, ...] = (self.controller, self.events)
        # In this order: a pod is counted on its node before it is enqueued.
        clusters.vpods.on_change(self._admission.pod_changed)
        clusters.vpods.on_change(self._virtual_changed)
        clusters.bindings.on_change(self._admission.binding_changed)
        clusters.bindings.on_change(self._binding_changed)
        clusters.ppods.on_change(self._physical_changed)
        clusters.vnodes.on_change(self._vnode_changed)
        clusters.worker_health.on_change(self._health_changed)
        clusters.on_synced(self._enqueue_all)
        copies.on_change(self._retry)
        endpoints.on_change(self._retry_waiting)

    def share(self, shards: ShardFilter) -> None:
        """Restrict metrics and copied events to the pods of these shards.

        Call before anything runs.
        """
        self.events.share(shards)
        self._metrics.share(shards)

    def remaining(self) -> list[PhysicalPod]:
        """Return the physical pods of this binding that the cache shows."""
        clusters = self.clusters
        return [
            p
            for p in clusters.ppods.items()
            if bears_ids(p, ids=clusters.ids, domain=clusters.domain)
        ]

    # Events that enqueue a pod

    def _virtual_changed(self, old: VirtualPod | None, new: VirtualPod | None) -> None:
        if new is None:
            assert old is not None
            self.records.forget(old)
            self.controller.enqueue(old.key)
            return
        record = self.records.of(new)
        if old is None and not new.deleting:
            self._metrics.bound(record)
            late = bound_for_s(new, self.clusters.clock.now()) > _LATE_S
            record.may_be_outdated |= late or not self.clusters.vpods.has_synced
        if not record.is_own_write(new) and not record.removed:
            self.controller.enqueue(new.key)

    def _physical_changed(self, old: PhysicalPod | None, new: PhysicalPod | None) -> None:
        ppod = new or old
        assert ppod is not None
        domain = self.clusters.domain
        key = virtual_key(ppod, domain)
        vpod = self.clusters.vpods.get(key)
        record: PodRecord | None = None
        if vpod is not None and vpod.uid == ppod.annotations.get(domain.virtual_pod_uid, ""):
            record = self.records.of(vpod)
            record.had_physical = True
            if (
                old is not None
                and new is not None
                and record.has_shown(old)
                and has_no_news(old, new)
            ):
                record.show_also(new)
            else:
                self._metrics.changed(record)
            if new is None:
                record.physical_pod_left(ppod, reported=vpod.finished and ppod.finished)
        if new is None:
            self.records.forget_physical(ppod)
            self.controller.enqueue(key)
        elif record is None or self._first_status_in_s(new, record) == 0:
            self.controller.enqueue(key)
        if old is not None and (key_before := virtual_key(old, domain)) != key:
            self.controller.enqueue(key_before)  # annotations name another virtual pod now

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        # Most changes are heartbeats and amounts, and concern no pod.
        ids, domain = self.clusters.ids, self.clusters.domain
        was_own, is_own = (is_own_node(vnode, ids, domain) for vnode in (old, new))
        if old is None or new is None or was_own != is_own:
            vnode = new or old
            assert vnode is not None
            for vpod in self.clusters.vpods.by("node", vnode.name):
                self.records.of(vpod).unsettle()
                self.controller.enqueue(vpod.key)

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        if old is None or new is None or old.spec != new.spec:
            self._retry_waiting()  # the binding may allow now a privilege that was denied
            self._enqueue_all()

    def _health_changed(self, answers: bool) -> None:
        if answers:
            self._enqueue_all()

    def _enqueue_all(self) -> None:
        clusters = self.clusters
        for vpod in clusters.vpods.items():
            self.records.of(vpod).unsettle()
            self.controller.enqueue(vpod.key)
        for ppod in clusters.ppods.items():
            self.controller.enqueue(virtual_key(ppod, clusters.domain))

    def _retry(self, key: Key) -> None:
        """Reconcile a virtual pod whose copies changed, without waiting for its retry."""
        if (vpod := self.clusters.vpods.get(key)) is not None:
            record = self.records.of(vpod)
            record.retry_now()
            record.unsettle()
        self.controller.enqueue(key)

    def _retry_waiting(self) -> None:
        for record in self.records.waiting():
            self._retry(record.key)

    async def _caught_up(self, key: Key) -> bool:
        """Whether all caches have synced and show all our writes for this virtual pod."""
        clusters = self.clusters
        caches = (clusters.bindings, clusters.vnodes, clusters.vpods, clusters.ppods)
        if not all(cache.has_synced for cache in caches):
            return False
        if not await clusters.vpods.caught_up(key):
            return False
        # A worker that does not answer will not show our writes, and `reconcile` does nothing.
        return not clusters.worker_health.answers or await self._physical.caught_up(key)

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        clusters, ids, domain = self.clusters, self.clusters.ids, self.clusters.domain
        if not (key.namespace and key.name):
            return Done()  # a physical pod without the annotations that name its virtual pod
        if not clusters.worker_health.answers:
            return Done()  # every pod is enqueued when the worker answers again
        vpod = clusters.vpods.get(key)
        vnode = clusters.vnodes.get(Key("", vpod.spec.node_name)) if vpod is not None else None
        record = self.records.of(vpod) if vpod is not None else PodRecord(key)
        own_node = is_own_node(vnode, ids, domain)
        todo = plan(
            vpod,
            clusters.ppods.by("virtual", str(key)),
            own_node=own_node,
            may_run=vpod is not None and may_run_in_worker(vpod, clusters.binding, domain),
            had_physical=lambda: vpod is not None and self._had_physical(vpod, record),
            ids=ids,
            domain=domain,
        )
        ppod = todo.ppod
        if ppod is not None:
            self._metrics.exists(record)
        outcomes = [await self._delete_stray(key, stray, runs=ppod) for stray in todo.strays]
        if vpod is None:
            self.copies.release(key)
            return _soonest(outcomes)
        match todo.action:
            case Action.CREATE:
                assert vnode is not None
                outcomes.append(await self._create(vpod, vnode, record))
            case Action.SYNC:
                assert ppod is not None
                outcomes.append(await self._sync(vpod, ppod, vnode, record))
            case Action.DELETE:
                assert ppod is not None
                outcomes.append(await self._delete(vpod, ppod, record, own_node=own_node))
            case Action.FINALIZE:
                outcomes.append(await self._finalize(vpod, record))
            case Action.REPORT_LOST:
                outcomes.append(await self._report_lost(vpod, record))
            case Action.REPORT_EXCLUDED:
                await self._report_excluded(vpod)
            case Action.NONE | Action.DELETE_STRAYS:
                pass
        return _soonest(outcomes)

    def _had_physical(self, vpod: VirtualPod, record: PodRecord) -> bool:
        """Whether a virtual pod had a physical pod, by its record or by its own annotations."""
        domain = self.clusters.domain
        if record.had_physical:
            return True
        recorded = domain.physical_pod_uid in vpod.annotations
        return recorded and not is_copied(vpod.content(), domain)

    async def _is_current(self, vpod: VirtualPod, record: PodRecord) -> bool:
        """Read a virtual pod, whose cached version may be old, and return whether the pod should
        run.
        """
        live = await self._virtual.get(vpod.key)
        if live is None or not is_live(vpod, live) or self._had_physical(live, record):
            return False
        record.may_be_outdated = False
        return True

    # CREATE

    async def _create(self, vpod: VirtualPod, vnode: Node, record: PodRecord) -> Outcome:
        clusters, clock = self.clusters, self.clusters.clock
        if (left_s := record.retry_in_s(clock.monotonic())) > 0:
            return After(left_s)
        if record.may_be_outdated and not await self._is_current(vpod, record):
            return After(_BEHIND_S)
        if not self._endpoints.synced:
            return _postpone(record, _NOT_READY_S)
        if (rejection := await self._admission.check(vpod, vnode, record)) is not None:
            await self._reject(vpod, rejection)
            return Done()
        if physical_node(vnode, clusters.ids, clusters.domain) is None:
            key = clusters.domain.physical_node_name
            message = (
                f"node {vnode.name}: its annotation {key} does not name its node of the worker"
            )
            return await self._refuse(vpod, record, message, at_most_s=_BEHIND_S)
        pod = users_own(vpod.content(), clusters.domain)
        refs = references(pod)
        lacking = self._endpoints.lacking(dns=uses_cluster_dns(pod))
        if lacking is not None:
            return await self._refuse(vpod, record, lacking.message)
        began_s = clock.monotonic()
        try:
            names = await self._prepare(vpod, refs)
            if isinstance(names, Missing):
                return await self._refuse(vpod, record, names.message, at_most_s=names.retry_s)
            slow = clock.monotonic() - began_s > _SLOW_S
            if slow and not await self._is_current(vpod, record):
                return _postpone(record, _NOT_READY_S)
            body = forge(pod, self._context(vpod, vnode, names))
            ppod, created = await self._create_physical(vpod, body)
        except (Refused, NotFound, *_LASTING) as error:
            return await self._refuse(vpod, record, str(error))
        ownership = Ownership.OURS if created else self._ownership(vpod, ppod)
        if ownership is Ownership.FOREIGN:
            message = f"pod {ppod.key} of the worker has the name of the copy and another owner"
            return await self._refuse(vpod, record, message)
        if ownership is Ownership.STALE:  # the pod runs for an earlier virtual pod of this name
            return await self._delete_stray(vpod.key, ppod, runs=None)
        record.clear_retry()
        record.had_physical = True
        self._metrics.created(record)
        if not created:
            return After(_BEHIND_S)  # the cache will show the pod, which is synced then
        record.physical_created_at_s = clock.monotonic()
        if is_whole_when_created(pod):
            record.applied = digest_of(pod, body)
        return _soonest([After(_FIRST_STATUS_S), await self._attach(vpod, ppod, refs, record)])

    async def _reject(self, vpod: VirtualPod, rejection: AdmissionRejection) -> None:
        """Fail a pod that its node does not admit, as a kubelet does."""
        status = pod_status.rejected(rejection)
        if isinstance(rejection, ClosedNode):
            now = self.clusters.now_text()
            status = pod_status.with_disruption(vpod.content(), status, now=now)
        if await self._virtual.patch_status(vpod, status) is not None:
            self._virtual.warn(vpod, rejection.reason, rejection.message)
            _log.info(
                "Rejected pod",
                vpod=str(vpod.key),
                node=vpod.spec.node_name,
                why=rejection.message,
            )

    async def _create_physical(self, vpod: VirtualPod, body: Json) -> tuple[PhysicalPod, bool]:
        """Create the physical pod under its first name, or its second if the first is taken.

        Return the pod and whether it was created now; the pod is foreign if both names are taken.
        """
        first, second = physical_names(vpod)
        body["metadata"]["name"] = first
        ppod, created = await self._physical.create(vpod.key, body)
        if created or self._ownership(vpod, ppod) is not Ownership.FOREIGN:
            return ppod, created
        _log.info(
            "Chose second name for physical pod, the first one was taken",
            vpod=str(vpod.key),
            taken=first,
            instead=second,
        )
        body["metadata"]["name"] = second
        return await self._physical.create(vpod.key, body)

    async def _prepare(self, vpod: VirtualPod, refs: References) -> CopyNames | Missing:
        try:
            return await self.copies.prepare(vpod, refs)
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None  # copies are made at once; any error will do

    def _context(self, vpod: VirtualPod, vnode: Node, names: CopyNames) -> Context:
        """Return everything that the forge makes a physical pod from, besides the virtual pod."""
        clusters, endpoints, binding = self.clusters, self._endpoints, self.clusters.binding
        return Context(
            name=physical_names(vpod)[0],
            namespace=clusters.mount_namespace,
            node=physical_node(vnode, clusters.ids, clusters.domain) or "",
            vnode=vnode.name,
            names=names,
            ownership_labels=ownership_labels(clusters.ids, clusters.domain),
            direct_scheduling=binding is not None and binding.spec.direct_scheduling,
            node_terms=_node_terms(binding),
            priority_class=binding.spec.pod_priority_class_name if binding is not None else "",
            server=endpoints.server,
            dns=endpoints.dns,
            cluster_domain=endpoints.cluster_domain,
            services=endpoints.services(vpod.namespace),
            privileges=endpoints.privileges,
            domain=clusters.domain,
        )

    async def _refuse(
        self,
        vpod: VirtualPod,
        record: PodRecord,
        message: str,
        *,
        at_most_s: float = LONGEST_RETRY_S,
    ) -> Outcome:
        """Report in an event and a condition why a physical pod was not created; retry later."""
        delay_s = record.put_off(self.clusters.clock.monotonic(), at_most_s=at_most_s)
        _log.info(
            "Could not create physical pod", vpod=str(vpod.key), why=message, retry_in_s=delay_s
        )
        self._virtual.warn(vpod, PodEvent.FAILED_CREATE, message)
        status = pod_status.not_created(
            vpod.content(), message[:LONGEST_MESSAGE], now=self.clusters.now_text()
        )
        if status:
            await self._virtual.patch_status(vpod, status)
        return _postpone(record, delay_s)

    # SYNC

    async def _sync(
        self, vpod: VirtualPod, ppod: PhysicalPod, vnode: Node | None, record: PodRecord
    ) -> Outcome:
        """Report the status of the physical pod, and apply changes of the virtual pod.

        Each direction costs one write for a real change and no write otherwise. Without `vnode`,
        only the status is reported.
        """
        if (left_s := self._first_status_in_s(ppod, record)) > 0:
            return After(left_s)
        if record.synced == (vpod.resource_version, ppod.resource_version):
            return Done()
        sync = _Sync(vpod, ppod, record)
        await self._report_status(sync)
        outcomes: list[Outcome] = []
        if vnode is not None and not ppod.deleting and not ppod.finished:
            outcomes = [
                await self._apply_changes(sync, vnode),
                await self._open_gates(sync),
                await self._attach(vpod, ppod, references(sync.virtual), record),
                await self._delete_unscheduled(sync),
                await self._report_problems(sync),
            ]
        return sync.finish(_soonest(outcomes))

    def _first_status_in_s(self, ppod: PhysicalPod, record: PodRecord) -> float:
        """Return the seconds to wait for the kubelet's first status of a new physical pod.

        The first status and the name of the physical pod are reported in one write.
        """
        created_at_s = record.physical_created_at_s
        if created_at_s is None or not ppod.has_only_scheduled:
            return 0.0
        return max(0.0, created_at_s + _FIRST_STATUS_S - self.clusters.clock.monotonic())

    async def _report_status(self, sync: _Sync) -> None:
        """Write the physical pod's status, name and annotations to the virtual pod."""
        clusters, record = self.clusters, sync.record
        vpod, ppod = sync.vpod, sync.ppod
        status = pod_status.status_patch(sync.virtual, sync.physical, cidrs=self._cidrs)
        metadata = shown_metadata(
            sync.virtual, sync.physical, clusters.domain, trusts_fully=clusters.trusts_fully
        )
        if not status and not metadata:
            record.clear_problem(PodProblem.STATUS)
            self._metrics.reported(record, written=False)
            return
        versions = (vpod.resource_version, ppod.resource_version)
        if record.futile == versions:
            return
        sync.written = await self._show(vpod, record, status, metadata)
        if sync.written is not None and sync.written.resource_version == vpod.resource_version:
            # A server of another version drops fields that it does not know: the same patch would
            # be written for ever.
            record.futile = versions
        self._metrics.reported(record, written=True)
        record.physical_created_at_s = None

    @property
    def _cidrs(self) -> tuple[str, ...] | None:
        """The worker's networks that the binding names, if any."""
        binding = self.clusters.binding
        return binding.spec.worker_cidrs if binding is not None else None

    async def _show(
        self, vpod: VirtualPod, record: PodRecord, status: Json, metadata: Json
    ) -> VirtualPod | None:
        """Write a status to the virtual pod; record fields that are refused as a problem."""
        written, refused = await self._virtual.show(vpod, status, metadata)
        if refused:
            # Another attempt makes sense only when one of the pods has changed.
            message = f"The worker's status is not shown as a whole: {refused}"
            self._note_problem(vpod, record, PodProblem.STATUS, message)
        else:
            record.clear_problem(PodProblem.STATUS)
        return written

    async def _apply_changes(self, sync: _Sync, vnode: Node) -> Outcome:
        """Apply the changes that the virtual pod has had to its physical pod."""
        vpod, record = sync.vpod, sync.record
        pod = users_own(sync.virtual, self.clusters.domain)
        digest = digest_of(pod, sync.physical)
        if record.applied == digest:
            return Done()
        names = CopyNames()
        if pod["spec"].get("ephemeralContainers"):  # no other part can refer to new objects
            prepared = await self._prepare(vpod, references(pod))
            if isinstance(prepared, Missing):
                return self._retry_problem(vpod, record, PodProblem.CHANGES, prepared.message)
            names = prepared
        try:
            pending = changes(pod, sync.physical, self._context(vpod, vnode, names))
            for patch in pending.patches:
                await self._patch_physical(sync, patch)
        except (Refused, *_LASTING) as error:
            return self._retry_problem(vpod, record, PodProblem.CHANGES, str(error))
        except NotFound as error:
            if not await self._physical.exists(sync.ppod):
                return Done()  # the pod is gone, as the cache will show
            # The worker's Kubernetes does not serve the subresource: `resize` is new in 1.33.
            message = f"The worker does not support this change of a running pod: {error}"
            return self._retry_problem(vpod, record, PodProblem.CHANGES, message)
        if pending.refused:
            # Refused changes stay refused until the virtual pod changes.
            message = "; ".join(map(str, pending.refused))
            self._note_problem(vpod, record, PodProblem.CHANGES, message)
        else:
            record.clear_problem(PodProblem.CHANGES)
        if not pending.patches:
            record.applied = digest
        return Done()

    async def _open_gates(self, sync: _Sync) -> Outcome:
        """Write the readiness gates that were opened on the virtual pod to the physical pod."""
        conditions = pod_status.gates(sync.virtual, sync.physical)
        if conditions:
            body = {"metadata": {"uid": sync.ppod.uid}, "status": {"conditions": conditions}}
            with suppress(NotFound):
                await self._patch_physical(sync, PodPatch(body, "status"))
        return Done()

    async def _patch_physical(self, sync: _Sync, patch: PodPatch) -> None:
        await self._physical.patch(sync.vpod.key, sync.ppod, patch)
        sync.patched = True

    async def _attach(
        self, vpod: VirtualPod, ppod: PhysicalPod, refs: References, record: PodRecord
    ) -> Outcome:
        """Create the Secrets that the physical pod owns: its service account tokens."""
        if PodProblem.TOKENS in record.problems:
            left_s = record.retry_in_s(self.clusters.clock.monotonic())
            if left_s > 0:
                return After(left_s)
        try:
            await self.copies.attach(vpod, ppod, refs)
        except (*_LASTING, AlreadyExists, NotFound) as error:
            return self._retry_problem(
                vpod, record, PodProblem.TOKENS, str(error), at_most_s=_NO_ACCOUNT_S
            )
        record.clear_problem(PodProblem.TOKENS)
        return Done()

    async def _delete_unscheduled(self, sync: _Sync) -> Outcome:
        """Delete a physical pod that the worker's scheduler found no node for in time."""
        vpod, ppod = sync.vpod, sync.ppod
        if ppod.spec.node_name:
            return Done()
        # Our own clock decides: the worker's may be another.
        waited_s = self.records.physical(ppod).unscheduled_for_s(self.clusters.clock.monotonic())
        left_s = UNSCHEDULED_S - waited_s
        if left_s > 0:
            return After(left_s)
        why = pod_status.waits_for_node(sync.physical) or "the worker's scheduler gives no reason"
        if await self._physical.delete_version(
            vpod.key, ppod
        ):  # refused if the pod was bound meanwhile
            message = f"Not scheduled in the worker within {UNSCHEDULED_S:g} s: {why}"
            self._virtual.warn(vpod, PodEvent.FAILED_SCHEDULING, message)
            self._metrics.unscheduled.inc()
            _log.info("Deleted physical pod that was not scheduled", vpod=str(vpod.key), why=why)
        return Done()

    async def _report_problems(self, sync: _Sync) -> Outcome:
        """Write the virtual pod's condition about problems; remove it when there are none."""
        message = sync.record.problem_text
        now = self.clusters.now_text() if message else ""
        status = pod_status.not_synced(sync.virtual, message, now=now)
        if not status:
            return Done()
        if sync.written is not None:
            return After(_SOON_S)  # the virtual pod's version has changed since it was read
        sync.written = await self._virtual.patch_status(sync.vpod, status)
        return Done()

    def _note_problem(
        self, vpod: VirtualPod, record: PodRecord, problem: PodProblem, message: str
    ) -> None:
        record.problems[problem] = message
        self._virtual.warn(vpod, PodEvent.FAILED_UPDATE, message)

    def _retry_problem(
        self,
        vpod: VirtualPod,
        record: PodRecord,
        problem: PodProblem,
        message: str,
        *,
        at_most_s: float = LONGEST_RETRY_S,
    ) -> Outcome:
        self._note_problem(vpod, record, problem, message)
        return After(record.put_off(self.clusters.clock.monotonic(), at_most_s=at_most_s))

    # DELETE, FINALIZE, REPORT_EXCLUDED, REPORT_LOST

    async def _delete(
        self, vpod: VirtualPod, ppod: PhysicalPod, record: PodRecord, *, own_node: bool
    ) -> Outcome:
        """Delete the physical pod, and report its status until its end."""
        await self._delete_physical(vpod.key, ppod, self.records.physical(ppod), grace_of(vpod))
        if not own_node or vpod.finished or record.has_shown(ppod):
            return Done()  # if its node is not ours, another binding may write the virtual pod
        sync = _Sync(vpod, ppod, record)
        await self._report_status(sync)
        return sync.finish(Done())

    async def _finalize(self, vpod: VirtualPod, record: PodRecord) -> Outcome:
        """Remove a deleted virtual pod that has no physical pod, as a kubelet would do."""
        if record.removed:
            return Done()
        if not record.is_end_certain and (ppod := await self._physical.find(vpod)) is not None:
            deleted = await self._delete(vpod, ppod, record, own_node=True)
            await self._physical.restore_marks(vpod, ppod)
            return _soonest([deleted, After(_BEHIND_S)])
        exists = await self._report_end(vpod, record)
        now_s = self.clusters.clock.monotonic()
        if awaits_removal(vpod) and record.removal_seen_s is None:
            record.removal_seen_s = now_s
        due_in_s = removal_due_in_s(vpod, seen_s=record.removal_seen_s, now_s=now_s)
        if not exists or due_in_s is None:
            return Done()
        if due_in_s > 0:
            return After(due_in_s)
        record.removed = True  # before the request: its events come before its answer
        try:
            await self._virtual.remove(vpod)
        except BaseException:  # also a cancellation: the pod may still exist
            record.removed = False
            raise
        return Done()

    async def _report_excluded(self, vpod: VirtualPod) -> None:
        """Report, once, that a virtual pod is not meant to run in the worker."""
        binding = self.clusters.binding
        if binding is None:
            return
        message = excluded_because(vpod, binding, self.clusters.domain)
        now = self.clusters.now_text()
        status = pod_status.excluded(vpod.content(), message, now=now)
        if status and await self._virtual.patch_status(vpod, status) is not None:
            self._virtual.inform(vpod, PodEvent.NOT_REPLICATED, message)

    async def _report_lost(self, vpod: VirtualPod, record: PodRecord) -> Outcome:
        """Report how a physical pod that the cache lost has ended; if unknown, that it was lost."""
        if (ppod := await self._physical.find(vpod)) is not None:
            if ppod.namespace == self.clusters.mount_namespace:
                await self._physical.restore_marks(vpod, ppod)
                return After(_BEHIND_S)
            return _soonest([await self._sync(vpod, ppod, None, record), After(_LONGEST_RECHECK_S)])
        if record.last_physical is not None and record.last_physical.finished:
            await self._report_end(vpod, record)
            return Done()
        status = pod_status.lost(vpod.content(), now=self.clusters.now_text())
        await self._virtual.patch_status(vpod, status)
        self._virtual.warn(vpod, PodEvent.LOST, status["message"])
        _log.warning("Lost physical pod", vpod=str(vpod.key))
        return Done()

    async def _report_end(self, vpod: VirtualPod, record: PodRecord) -> bool:
        """Report how the containers of a virtual pod ended; False if the virtual pod is gone."""
        if vpod.finished:
            return True
        last = record.last_physical
        ended = last.content() if last is not None and last.finished else None
        status = pod_status.final(
            vpod.content(), ended, now=self.clusters.now_text(), cidrs=self._cidrs
        )
        return not status or await self._show(vpod, record, status, {}) is not None

    async def _delete_stray(
        self, key: Key, stray: PhysicalPod, *, runs: PhysicalPod | None
    ) -> Outcome:
        """Delete a physical pod that has no virtual pod, or whose virtual pod runs as `runs`.

        The virtual pod is read from its API server first, because no cache proves its absence.
        """
        record = self.records.physical(stray)
        if not _is_deletion_due(stray, record, grace_of(None)):
            return Done()
        live = await self._virtual.get(key)
        if not is_stray(stray, live, runs=runs, domain=self.clusters.domain):
            # The cache is behind; or it does not select the virtual pod, and there is no hurry.
            wait_s = _BEHIND_S if record.recheck_s is None else record.recheck_s
            record.recheck_s = min(wait_s * 2, _LONGEST_RECHECK_S)
            return After(wait_s)
        _log.info("Found physical pod without virtual pod", vpod=str(key), ppod=str(stray.key))
        await self._delete_physical(key, stray, record, grace_of(None))
        return Done()

    async def _delete_physical(
        self, key: Key, ppod: PhysicalPod, record: PhysicalPodRecord, grace_s: int | None
    ) -> None:
        if not _is_deletion_due(ppod, record, grace_s):
            return
        if await self._physical.delete(key, ppod, grace_s):
            record.deletion_requested = True
            record.deletion_grace_s = grace_s

    def _ownership(self, vpod: VirtualPod, ppod: PhysicalPod) -> Ownership:
        return ownership_of(vpod, ppod, ids=self.clusters.ids, domain=self.clusters.domain)


@dataclass(slots=True)
class _Sync:
    """The sync of a virtual pod with its physical pod: their contents, and the writes so far."""

    vpod: VirtualPod
    ppod: PhysicalPod
    record: PodRecord
    revision: int = field(init=False)
    virtual: Json = field(init=False)
    physical: Json = field(init=False)
    written: VirtualPod | None = None  # the virtual pod after our last patch
    patched: bool = False  # the physical pod has a newer version, which is to be compared

    def __post_init__(self) -> None:
        self.revision = self.record.revision
        self.virtual, self.physical = self.vpod.content(), self.ppod.content()

    def finish(self, outcome: Outcome) -> Outcome:
        """Record both pods' versions as synced if nothing is left to do; return `outcome`."""
        if isinstance(outcome, Done) and not self.patched:
            versions = (self.written or self.vpod).resource_version, self.ppod.resource_version
            self.record.settle(versions, revision=self.revision)
        return outcome


def _node_terms(binding: ClusterBinding | None) -> tuple[Json, ...]:
    """Return the terms of the binding's node selector; empty if it has no valid selector."""
    selector = binding.spec.node_selector if binding is not None else None
    try:
        NodeSelector.from_document(selector or {})
    except ConfigError:
        return ()  # the manager's condition names the field and the value
    return tuple((selector or {}).get("nodeSelectorTerms") or ())


def _soonest(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the earliest requeue among the outcomes; Done if there is none."""
    waits = [outcome.seconds for outcome in outcomes if isinstance(outcome, After)]
    return After(min(waits)) if waits else Done()


def _postpone(record: PodRecord, seconds: float) -> Outcome:
    """Requeue a virtual pod that has no physical pod yet; it is read again before the retry."""
    record.may_be_outdated = True
    return After(seconds)


def _is_deletion_due(ppod: PhysicalPod, record: PhysicalPodRecord, grace_s: int | None) -> bool:
    return is_due(ppod, grace_s) and not record.was_deleted_with(grace_s)
