"""The controller of virtual nodes: one for each node of the worker that a policy lends.

The key is the name of the worker's node, or the name of a virtual node without a worker's node. A
reconcile decides (`leasing.decision`), forges the virtual node that should exist, and
writes the difference. While the worker does not answer nothing is decided, unless the whole binding
is being deleted. Before a virtual node is deleted because an object is missing in a cache, the API
server confirms that the object is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from kubeocean.api import conditions, naming
from kubeocean.api.bindings import ClusterBinding
from kubeocean.api.conditions import NodeEvent
from kubeocean.api.ownership import may_be_ours
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, ResourceLimit
from kubeocean.errors import AlreadyExists, Conflict, Invalid, NotFound
from kubeocean.leasing.amounts import PODS, Amounts
from kubeocean.leasing.capacity import capped_capacity, node_capacity, shown_offer
from kubeocean.leasing.decision import (
    BindingSelector,
    Decision,
    Ignore,
    LeaveUnchanged,
    Lend,
    Reclaim,
    ReclaimCause,
    WindowClosed,
    decide,
)
from kubeocean.leasing.progress import report_of
from kubeocean.leasing.reclaim import ReclaimInput, ReclaimPlan, plan_reclaim
from kubeocean.leasing.report import cause_text
from kubeocean.leasing.taints import NO_EXECUTE
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import NODES, Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Condition, Json, Key, find_condition
from kubeocean.runtime.quantity import Quantity
from kubeocean.syncer.cleanup.deletion_progress import Unconfirmed, first_few
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes import forge
from kubeocean.syncer.nodes.evictions import Evictor
from kubeocean.syncer.nodes.labels import NodeLabels
from kubeocean.syncer.nodes.policy_cache import PolicyCache
from kubeocean.syncer.nodes.policy_findings import Overlaps, SelectedResources
from kubeocean.syncer.nodes.ports import ProxierPorts
from kubeocean.syncer.nodes.reclaim_progress import ReclaimProgress
from kubeocean.syncer.nodes.usage import UsageTracker
from kubeocean.syncer.pods.views import VirtualPod

__all__ = ["NodeController"]

WORKERS: Final = 40  # keeps an API server busy while a thousand nodes are created
_RETRY_S: Final = 1.0
_VNODE: Final = "vnode"  # in place of a namespace: the key's name is that of a virtual node

_log = get_logger(__name__)
T = TypeVar("T")


@dataclass(slots=True)
class _NodeRecord:
    """The controller's memory of one virtual node between reconciles."""

    lost: bool = False  # gone from the cache without having been deleted
    omitted: tuple[str, ...] = ()  # annotations that the last event named as too large


class NodeController:
    """Creates, updates and deletes the virtual nodes of one binding."""

    def __init__(
        self,
        clusters: Clusters,
        policies: PolicyCache,
        evictor: Evictor,
        progress: ReclaimProgress,
        unconfirmed: Unconfirmed,
        resources: SelectedResources,
        overlaps: Overlaps,
    ) -> None:
        self._clusters = clusters
        self._policies = policies
        self._resources = resources
        self._overlaps = overlaps
        self._evictor = evictor
        self._progress = progress
        self._unconfirmed = unconfirmed
        self._ports = ProxierPorts(clusters.domain)
        self.labels = NodeLabels(clusters, policies)
        self._selector = BindingSelector()
        self._records: dict[str, _NodeRecord] = {}  # by the name of the virtual node
        self.controller: Controller[Key] = Controller(
            f"node-{clusters.binding_name}",
            self.reconcile,
            workers=WORKERS,
            gate=self._caught_up,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self.usage = UsageTracker(
            lambda pod: may_be_ours(pod, ids=clusters.ids, domain=clusters.domain),
            self._enqueue,
            offer=self._offer,
        )
        self._register_handlers()

    # Events that enqueue nodes

    def _register_handlers(self) -> None:
        clusters = self._clusters
        clusters.vnodes.on_change(self._ports.follow)
        clusters.foreign_pods.on_change(self.usage.follow)
        clusters.foreign_pods_in_mount.on_change(self.usage.follow)
        clusters.ppods.on_change(self.usage.follow_labelled)
        clusters.pnodes.on_change(self._pnode_changed)
        clusters.vnodes.on_change(self._vnode_changed)
        clusters.vpods.on_change(lambda old, new: self._vpod_changed(_either(old, new)))
        clusters.proxiers.on_change(lambda old, new: self.enqueue_all())
        clusters.bindings.on_change(self._binding_changed)
        clusters.worker_health.on_change(lambda answers: self.enqueue_all())
        clusters.on_synced(self.enqueue_all)

    def _pnode_changed(self, old: Node | None, new: Node | None) -> None:
        pnode = _either(old, new)
        if new is None:
            self._overlaps.forget(pnode.name)
        self._enqueue(pnode.name)

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        # A change of the binding's status alone concerns no node.
        if old is None or new is None or self._relevant(old) != self._relevant(new):
            self.enqueue_all()

    def _relevant(self, binding: ClusterBinding) -> tuple[object, ...]:
        return binding.spec, binding.deleting, self._clusters.has_finalizer(binding)

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        vnode = _either(old, new)
        if new is None:
            self._records.pop(vnode.name, None)
            if not vnode.deleting:
                self._records[vnode.name] = _NodeRecord(lost=True)
            self._progress.forget_node(vnode.name)
        self._enqueue_owner(vnode)

    def enqueue_all(self) -> None:
        """Enqueue every node, after a change that concerns all of them."""
        for pnode in self._clusters.pnodes.items():
            self._enqueue(pnode.name)
        for vnode in self._clusters.vnodes.items():
            self._enqueue_owner(vnode)

    def _enqueue(self, pnode: str) -> None:
        self.controller.enqueue(Key("", pnode))

    def _enqueue_owner(self, vnode: Node) -> None:
        if self._is_misnamed(vnode):
            self.controller.enqueue(Key(_VNODE, vnode.name))
        else:
            self._enqueue(self._clusters.pnode_of(vnode))

    def _is_misnamed(self, vnode: Node) -> bool:
        """Whether the name of a virtual node does not follow from the worker node that it names."""
        return self._clusters.vnode_name(self._clusters.pnode_of(vnode)) != vnode.name

    def _vpod_changed(self, pod: VirtualPod) -> None:
        """Enqueue the node of a changed virtual pod, if the node is being reclaimed or deleted."""
        clusters = self._clusters
        vnode = clusters.vnodes.get(Key("", pod.spec.node_name))
        if vnode is None:
            return
        keys = {clusters.domain.taint_out_of_time_windows, clusters.domain.taint_vnode_deleting}
        if vnode.deleting or any(taint.key in keys for taint in vnode.spec.taints or ()):
            self._enqueue_owner(vnode)

    def _offer(self, pnode: str) -> Amounts | None:
        vnode = self._clusters.vnodes.get(Key("", self._clusters.vnode_name(pnode)))
        if vnode is None or vnode.status.allocatable is None:
            return None
        amounts = shown_offer(vnode.status.allocatable, vnode.status.capacity).items()
        return {resource: Quantity.stored(amount) for resource, amount in amounts}

    async def _caught_up(self, key: Key) -> bool:
        clusters = self._clusters
        if not await clusters.vnodes.caught_up(self._vnode_key(key)):
            return False
        # A worker that does not answer shows no writes, and nothing is decided from its cache.
        return not clusters.worker_health.answers or await clusters.pnodes.caught_up(key)

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        """Create, update, reclaim or delete the virtual node of a worker's node."""
        clusters = self._clusters
        binding = clusters.binding
        ending = binding is not None and binding.deleting
        if not clusters.worker_health.answers and not ending:
            # Every node is enqueued when the worker answers again.
            return await self._expire(self._vnode_key(key))
        if not (clusters.synced if clusters.worker_health.answers else clusters.computing_synced):
            return After(_RETRY_S)
        pnode = clusters.pnodes.get(key)
        vnode = clusters.vnodes.get(self._vnode_key(key))
        if vnode is not None and vnode.deleting:
            return await self._remove_finalizer(vnode)
        if vnode is None and await self._recovers(self._vnode_key(key).name):
            return Done()
        if key.namespace == _VNODE and vnode is not None and not self._is_misnamed(vnode):
            self._enqueue_owner(vnode)
            return Done()

        same = vnode is None or pnode is None or self._stands_for(vnode, pnode)
        decision = decide(
            pnode,
            applied=self._applied(vnode),
            binding=binding,
            selector=self._selector.of(binding),
            candidates=self._policies.candidates(),
            now=clusters.clock.now(),
            replaced=not same,
        )
        if pnode is not None:
            self._record_overlap(pnode.name, decision)
        match decision:
            case WindowClosed() | Lend():
                assert pnode is not None
                return await self._ensure(pnode, vnode, decision)
            case Reclaim():
                assert vnode is not None
                return await self._reclaim(key.name, pnode if same else None, vnode, decision)
            case LeaveUnchanged(why=why):
                if vnode is not None:
                    status = self._refreshed(pnode if same else None, vnode, capped=True)
                    await self._write(vnode, forge.NodePatches({}, status))
                return Stuck("PolicyInvalid", why)
            case Ignore():
                await self.labels.remove(pnode)
                return Done()

    def _record_overlap(self, pnode: str, decision: Decision) -> None:
        if isinstance(decision, Lend):
            self._overlaps.record(pnode, decision.policy.name, decision.others)
        else:
            self._overlaps.record(pnode)

    async def _ensure(self, pnode: Node, vnode: Node | None, decision: Lend) -> Outcome:
        """Create or update the virtual node of a node that a policy lends.

        While the policy's time windows are closed (`WindowClosed`), also reclaim its pods.
        """
        clusters, policy = self._clusters, decision.policy.name
        name = clusters.vnode_name(pnode.name)
        has_finalizers = clusters.has_finalizer(clusters.binding) and clusters.is_ours(
            clusters.policies.get(Key("", policy))
        )
        if vnode is None and not has_finalizers:
            # Without our finalizers on both, a deletion of the policy would lose its rules, and one
            # of the binding would leave a virtual node behind. Adding a finalizer enqueues all
            # nodes.
            return Done()
        situation = self._evictor.situation(
            name,
            vnode,
            cause=decision.cause,
            rules=decision.rules,
            policy=policy,
            since=decision.since,
        )
        plan = plan_reclaim(situation)
        # Pods that tolerate a closed window may stay, if the policy respects that; else each would
        # be evicted, created again, and bound to the same node.
        closed = bool(plan.taints) and not decision.rules.respect_tolerations
        takes_pods = not closed and not self._is_drained(vnode)
        last_eviction = _cool_down_start(situation)
        lent = self._lent(pnode, name, decision, plan, last_eviction, takes_pods=takes_pods)
        if vnode is None:
            # The label follows when the cache shows the node: first all nodes, then all labels.
            return await self._create(lent, pnode)
        # Kubernetes deletes the pods of a NoExecute taint at once: our evictions and their events
        # come before that.
        deletes = any(taint.effect == NO_EXECUTE for taint in plan.taints)
        if deletes:
            await self._evict(plan, situation, name, policy)
        await self._write(vnode, forge.changes(vnode.content(), lent, now=clusters.now_text()))
        self._report_omitted(vnode, forge.left_out(lent, vnode.annotations))
        if not deletes:
            await self._evict(plan, situation, name, policy)
        await self.labels.set(pnode, policy)
        return self._again(plan.again_at)

    async def _evict(
        self, plan: ReclaimPlan, situation: ReclaimInput, vnode: str, policy: str
    ) -> None:
        """Evict the pods that are due, and record the progress of the reclaim."""
        cause, rules = situation.cause, situation.rules
        plan = await self._evictor.carry_out(plan, rules, vnode, policy)
        if cause is None:
            self._progress.record_lent(vnode, policy)
        else:
            self._progress.record_reclaim(policy, report_of(vnode, cause, rules, plan))

    def _lent(
        self,
        pnode: Node,
        name: str,
        decision: Lend,
        plan: ReclaimPlan,
        last_eviction: str,
        *,
        takes_pods: bool,
    ) -> forge.LentNode:
        clusters, parsed = self._clusters, decision.policy.parsed
        binding = clusters.binding
        assert binding is not None
        return forge.LentNode(
            pnode=pnode.content(),
            vnode=name,
            binding=clusters.binding_name,
            cluster_id=clusters.cluster_id,
            policy=decision.policy.name,
            details=_details(decision.policy.name, parsed.spec.resource_limits or ()),
            offered=self._offered(pnode, decision),
            default_taint=not binding.spec.disable_node_default_taint,
            reclaim_taints=plan.taints,
            unschedulable=plan.unschedulable,
            proxier_ip=clusters.proxier_ip(name),
            proxier_port=self._ports.of(name),
            metrics_port=clusters.metrics_port,
            other_policies=decision.others,
            last_eviction=last_eviction if plan.taints else "",
            trusts_fully=binding.spec.trusts_fully,
            takes_pods=takes_pods,
            domain=clusters.domain,
        )

    def _is_drained(self, vnode: Node | None) -> bool:
        """Whether `kubeocean drain` cordoned the node, and the node was not uncordoned since."""
        if vnode is None or not vnode.spec.unschedulable:
            return False
        return self._clusters.domain.drained in vnode.annotations

    def _offered(self, pnode: Node, decision: Lend) -> Amounts:
        policy, parsed = decision.policy.name, decision.policy.parsed
        selector = self._selector.of(self._clusters.binding)
        unknown = self._resources.unknown(policy, parsed, selector)
        return node_capacity(pnode, self.usage.of(pnode.name), parsed.limits, unknown).offered

    # Writes of the virtual node

    async def _create(self, lent: forge.LentNode, pnode: Node) -> Outcome:
        clusters = self._clusters
        try:
            created = await clusters.computing.create(
                NODES, forge.forge(lent, now=clusters.now_text())
            )
        except AlreadyExists:
            return await self._name_taken(lent.vnode)
        clusters.vnodes.wrote(created)
        _log.info(
            "Created virtual node", node=created.name, physical=pnode.name, policy=lent.policy
        )
        return Done()

    async def _name_taken(self, name: str) -> Outcome:
        clusters = self._clusters
        node = await clusters.computing.get(NODES, name)
        if clusters.is_vnode(node) and self._labels().items() <= node.labels.items():
            return After(_RETRY_S)  # our virtual node; the cache is behind
        if await self._restore_labels(node):
            return Done()
        message = f"node {name} exists and is not a virtual node of this binding"
        clusters.events.emit(
            reference(NODES, node), "Warning", NodeEvent.NAME_TAKEN, f"Kubeocean: {message}"
        )
        return Stuck(NodeEvent.NAME_TAKEN, message)

    async def _recovers(self, name: str) -> bool:
        """Restore the labels of a virtual node that left the cache; False if the node is gone."""
        record = self._records.get(name)
        if record is None or not record.lost:
            return False
        try:
            node = await self._clusters.computing.get(NODES, name)
        except NotFound as error:
            if not error.is_status:
                raise
            self._records.pop(name, None)
            return False
        recovered = not node.deleting and await self._restore_labels(node)
        self._records.pop(name, None)
        return recovered

    async def _restore_labels(self, node: Node) -> bool:
        """Restore the labels that select a virtual node, if it is provably this binding's."""
        clusters, labels = self._clusters, self._labels()
        if self._is_misnamed(node) or not clusters.is_vnode(node):
            return False
        version = {"uid": node.uid, "resourceVersion": node.resource_version}
        body = MergePatch({"metadata": {"labels": labels, **version}})
        clusters.vnodes.wrote(await clusters.computing.patch(NODES, node.name, body))
        _log.info("Restored labels of virtual node", node=node.name)
        return True

    def _labels(self) -> dict[str, str]:
        """Return the labels that select all virtual nodes of this binding."""
        domain, binding = self._clusters.domain, naming.label_value(self._clusters.binding_name)
        return {domain.managed_by: domain.product, domain.cluster_binding: binding}

    def _report_omitted(self, vnode: Node, names: tuple[str, ...]) -> None:
        """Emit an event when other annotations than before are too large to be copied."""
        record = self._records.setdefault(vnode.name, _NodeRecord())
        if record.omitted == names:
            return
        record.omitted = names
        if names:
            message = f"Annotations of the worker's node are too large to copy: {first_few(names)}"
            regarding, reason = reference(NODES, vnode), NodeEvent.ANNOTATIONS_LEFT_OUT
            self._clusters.events.emit(regarding, "Warning", reason, message)

    def _refreshed(self, pnode: Node | None, vnode: Node, *, capped: bool = False) -> Json:
        """Return the status patch of a virtual node that no policy lends at present.

        `capped`: the node stays open for pods, so its offer shrinks with the capacity that other
        pods leave, and never grows.
        """
        clusters = self._clusters
        return forge.refreshed(
            vnode.content(),
            pnode.content() if pnode is not None else None,
            self._capped_offer(pnode, vnode) if capped and pnode is not None else None,
            takes_pods=capped and self._takes_pods(vnode),
            proxier_ip=clusters.proxier_ip(vnode.name),
            metrics_port=clusters.metrics_port,
            name=vnode.name,
            domain=clusters.domain,
        )

    def _takes_pods(self, vnode: Node) -> bool:
        """Whether a virtual node of an unknown policy has allocatable pods and is not drained."""
        present = (vnode.status.allocatable or {}).get(PODS, "")
        return str(present) != "0" and not self._is_drained(vnode)

    def _capped_offer(self, pnode: Node, vnode: Node) -> Amounts:
        return capped_capacity(pnode, self.usage.of(pnode.name), vnode).offered

    async def _write(self, vnode: Node, change: forge.NodePatches) -> None:
        version = vnode.resource_version
        for body, subresource in ((change.main, ""), (change.status, "status")):
            if body:
                version = await self._patch(vnode, body, subresource, version)

    async def _patch(self, vnode: Node, body: Json, subresource: str, version: str) -> str:
        """Patch the virtual node; return its new resourceVersion.

        If the annotations that Kubeocean writes do not fit beside those of users, all other fields
        are still written.
        """
        clusters = self._clusters
        metadata: Json = body.get("metadata", {}) | {"resourceVersion": version}
        patch = MergePatch(body | {"metadata": metadata})
        try:
            written = await clusters.computing.patch(
                NODES, vnode.name, patch, subresource=subresource
            )
        except Invalid as error:
            if not metadata.pop("annotations", None):
                raise
            _log.warning(
                "Could not write annotations of virtual node, retried without them",
                node=vnode.name,
                error=str(error),
            )
            written = await clusters.computing.patch(
                NODES, vnode.name, patch, subresource=subresource
            )
        clusters.vnodes.wrote(written)
        return written.resource_version

    # Reclaim and deletion of the virtual node

    async def _reclaim(
        self, name: str, pnode: Node | None, vnode: Node, decision: Reclaim
    ) -> Outcome:
        """Reclaim the pods of a virtual node that must not exist any more; then delete the node."""
        clusters = self._clusters
        if not await self._is_confirmed(name, vnode, decision):
            return After(_RETRY_S)
        policy = decision.policy.name if decision.policy else self._applied(vnode) or ""
        situation = self._evictor.situation(
            vnode.name,
            vnode,
            cause=decision.cause,
            rules=decision.rules,
            policy=policy,
            since=decision.since,
        )
        plan = plan_reclaim(situation)
        if plan.remove_node:
            return await self._delete(name, vnode, decision.cause)
        notice = forge.notice(vnode.content(), plan.taints, plan.unschedulable, clusters.domain)
        if notice:
            why = cause_text(decision.cause, policy=policy, binding=clusters.binding_name)
            message = f"The reclaim of the node has begun: {why}"
            clusters.events.emit(reference(NODES, vnode), "Normal", NodeEvent.RECLAIMING, message)
        key, last_eviction = clusters.domain.last_eviction_time, _cool_down_start(situation)
        if last_eviction and vnode.annotations.get(key) != last_eviction:
            metadata = notice.setdefault("metadata", {})
            metadata.setdefault("annotations", {})[key] = last_eviction
        await self._write(vnode, forge.NodePatches(notice, self._refreshed(pnode, vnode)))
        await self._evict(plan, situation, vnode.name, policy)
        return self._again(plan.again_at)

    async def _is_confirmed(self, pnode: str, vnode: Node, decision: Reclaim) -> bool:
        """Whether the worker's API server confirms the cause of a reclaim: that the node or the
        policy, which the cache lacks, does not exist.

        A policy that exists but does not concern this binding counts as removed. If the virtual
        node is not named after `pnode`, no node of the worker may exist that it is named after.
        Other causes need no confirmation.
        """
        clusters, worker = self._clusters, self._clusters.worker
        applied = self._applied(vnode) or ""
        try:
            if decision.cause is ReclaimCause.NODE_GONE:
                if clusters.vnode_name(pnode) != vnode.name:
                    return not await self._enqueue_namesakes(vnode)
                await worker.get(NODES, pnode)
                return False
            if (
                decision.cause is ReclaimCause.POLICY_REMOVED
                and self._policies.get(applied) is None
            ):
                return not clusters.concerns(await worker.get(RESOURCE_LEASING_POLICIES, applied))
        except NotFound as error:
            return error.is_status
        return True

    async def _enqueue_namesakes(self, vnode: Node) -> bool:
        """Enqueue the worker's nodes that the virtual node is named after; False if there are none.

        A virtual node that lost the annotation with its worker node's name gets the annotation back
        in the reconcile of that worker node.
        """
        nodes = (await self._clusters.worker.list(NODES)).items
        names = [each.name for each in nodes if self._clusters.vnode_name(each.name) == vnode.name]
        for name in names:
            self._enqueue(name)
        return bool(names)

    async def _delete(self, pnode: str, vnode: Node, cause: ReclaimCause) -> Outcome:
        clusters = self._clusters
        await self.labels.remove(clusters.pnodes.get(Key("", pnode)), self._applied(vnode))
        return await self._delete_object(pnode, vnode, str(cause))

    async def _delete_object(self, pnode: str, vnode: Node, cause: str) -> Outcome:
        clusters = self._clusters
        try:
            await clusters.computing.delete(NODES, vnode.name, uid=vnode.uid)
        except (NotFound, Conflict):
            return Done()  # the node is gone or replaced, as the cache will show
        clusters.vnodes.deleted(vnode)
        if not clusters.worker_health.answers:
            self._unconfirmed.node(pnode)
        _log.info("Deleted virtual node", node=vnode.name, physical=pnode, cause=cause)
        return Done()

    async def _expire(self, key: Key) -> Outcome:
        """Delete a virtual node whose worker has not answered for as long as the flag allows.

        Nothing is deleted in the worker. Kubernetes deletes the pods of deleted nodes.
        """
        clusters, vnode = self._clusters, self._clusters.vnodes.get(key)
        if not clusters.computing_synced or vnode is None or (rest_s := self._expires_s()) is None:
            return Done()
        if vnode.deleting:
            return await self._remove_finalizer(vnode)
        if rest_s > 0:
            return After(rest_s)
        since = text_of(clusters.worker_health.since)
        message = f"Deleted the node: its worker has not answered since {since}"
        clusters.events.emit(reference(NODES, vnode), "Warning", NodeEvent.EXPIRED, message)
        return await self._delete_object(self._clusters.pnode_of(vnode), vnode, "WorkerUnreachable")

    def _expires_s(self) -> float | None:
        """Return the seconds until the nodes of an unreachable worker are deleted; None: never."""
        clusters, health = self._clusters, self._clusters.worker_health
        if health.answers or health.mistaken or not clusters.remove_nodes_after_s:
            return None
        silent_s = (clusters.clock.now() - health.since).total_seconds()
        return max(0.0, clusters.remove_nodes_after_s - silent_s)

    def expiry(self, binding: ClusterBinding) -> list[Condition]:
        """Return the binding's condition about the deletion of an unreachable worker's nodes.

        Empty if no node was ever deleted for that reason.
        """
        generation = binding.metadata.generation
        if self._expires_s() == 0:
            since = text_of(self._clusters.worker_health.since)
            return [conditions.NODES_EXPIRED.condition(generation=generation, since=since)]
        known = find_condition(binding.status.conditions, conditions.EXPIRED) is not None
        return [conditions.NODES_KEPT.condition(generation=generation)] if known else []

    async def _remove_finalizer(self, vnode: Node) -> Outcome:
        """Remove our finalizer from a virtual node that Kubeocean or a user deleted."""
        ours = self._clusters.domain.finalizer_vnode
        finalizers = [each for each in vnode.metadata.finalizers or () if each != ours]
        if len(finalizers) == len(vnode.metadata.finalizers or ()):
            return Done()
        metadata = {"resourceVersion": vnode.resource_version, "finalizers": finalizers}
        try:
            body = MergePatch({"metadata": metadata})
            self._clusters.vnodes.wrote(
                await self._clusters.computing.patch(NODES, vnode.name, body)
            )
        except NotFound:
            pass
        return Done()

    # Helpers

    def _applied(self, vnode: Node | None) -> str | None:
        """Return the name of the policy that lends a virtual node, by the node's annotation."""
        if vnode is None:
            return None
        return vnode.annotations.get(self._clusters.domain.policies_applied, "")

    def _vnode_key(self, key: Key) -> Key:
        return Key("", key.name if key.namespace == _VNODE else self._clusters.vnode_name(key.name))

    def _stands_for(self, vnode: Node, pnode: Node) -> bool:
        """Whether a virtual node's metadata records the UID of this worker's node, or no UID."""
        key = self._clusters.domain.physical_node_uid
        uids = {vnode.labels.get(key), vnode.annotations.get(key)} - {None}
        return not uids or pnode.uid in uids

    def _again(self, at: datetime | None) -> Outcome:
        if at is None:
            return Done()
        return After(max(0.0, (at - self._clusters.clock.now()).total_seconds()))


def _either(old: T | None, new: T | None) -> T:
    either = new if new is not None else old
    assert either is not None
    return either


def _cool_down_start(situation: ReclaimInput) -> str:
    """Return when a node's cool-down began, at its last eviction; empty without a cool-down."""
    return text_of(situation.last_eviction) or "" if situation.rules.cool_down_s else ""


def _details(policy: str, limits: tuple[ResourceLimit, ...]) -> str:
    """Return a policy's name and limits, as earlier versions did: `name(cpu=4/50%,memory=8Gi)`."""
    texts = []
    for limit in limits:
        parts = [str(limit.quantity)] if limit.quantity is not None else []
        parts += [f"{limit.percent}%"] if limit.percent is not None else []
        texts.append(f"{limit.resource}={'/'.join(parts)}")
    return f"{policy}({','.join(texts)})" if texts else policy
