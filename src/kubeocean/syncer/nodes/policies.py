"""The controller of policies: finalizer, status, and the exact times when windows open and close.

The key is a policy's name. A reconcile adds the finalizer, writes the status if it changed, and
requeues at the next edge of the time windows; at an edge, it enqueues every node. A policy keeps
the finalizer until the last node that it lent is reclaimed: if the policy is deleted, if its
binding is deleted, or if the policy names another binding now.

Together with the finalizer, the claim of this computing cluster is written: a binding of the same
name in another computing cluster does not use a policy that has our claim, nor do we use a policy
that has another cluster's claim, until the claim is removed.

The progress of reclaims is written at most once in `WRITE_EVERY_S`, however much happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

import msgspec

from kubeocean.api.bindings import CLUSTER_BINDINGS, ClusterBinding
from kubeocean.api.conditions import ACTIVE, POLICY_WITHOUT_BINDING, PolicyEvent
from kubeocean.api.ownership import policy_claim
from kubeocean.api.policies import (
    RESOURCE_LEASING_POLICIES,
    PolicyStatus,
    ReclaimStatus,
    ResourceLeasingPolicy,
)
from kubeocean.errors import Conflict, Forbidden, NotFound
from kubeocean.leasing.cached_policy import CachedPolicy
from kubeocean.leasing.capacity import resources_of
from kubeocean.leasing.decision import BindingSelector
from kubeocean.leasing.parsed_policy import ParsedPolicy
from kubeocean.leasing.progress import PolicyProgress
from kubeocean.leasing.windows import next_edge, within
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Condition, Json, Key, find_condition, merge_patch
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes.policy_cache import PolicyCache
from kubeocean.syncer.nodes.policy_findings import (
    Overlaps,
    PolicyFindings,
    SelectedResources,
)
from kubeocean.syncer.nodes.policy_status import (
    events_of,
    own_status,
    policies_condition,
    status_without_binding,
    with_progress,
)
from kubeocean.syncer.nodes.reclaim_progress import ReclaimProgress

__all__ = ["PolicyController"]

# The wall clock may be set; a longer sleep that was computed before would not notice.
LONGEST_SLEEP_S: Final = 30.0
WRITE_EVERY_S: Final = 1.0
CLAIMED_WITHIN_S: Final = 30.0  # a syncer that works claims a new policy in much less

_log = get_logger(__name__)


# The parsed form of a policy, whether it lends, whether it is deleted, and its unknown resources
_Effect: TypeAlias = tuple[ParsedPolicy | None, bool, bool, tuple[str, ...]]


@dataclass(slots=True)
class _PolicyRecord:
    """The controller's memory of one policy between reconciles."""

    effect: _Effect | None = None  # for which nodes were enqueued
    written_at: float = -WRITE_EVERY_S  # when its status was written; monotonic
    without_binding_since: float | None = None  # monotonic; the policy names another binding


class PolicyController:
    """Adds our finalizer and claim to the policies of one binding, and writes their status."""

    def __init__(
        self,
        clusters: Clusters,
        policies: PolicyCache,
        progress: ReclaimProgress,
        resources: SelectedResources,
        overlaps: Overlaps,
        enqueue_nodes: Callable[[], None],
    ) -> None:
        self._clusters = clusters
        self._policies = policies
        self._progress = progress
        self._resources = resources
        self._overlaps = overlaps
        self._selector = BindingSelector()
        self._enqueue_nodes = enqueue_nodes
        self._records: dict[str, _PolicyRecord] = {}
        self.controller: Controller[Key] = Controller(
            f"resourceleasingpolicy-{clusters.binding_name}",
            self.reconcile,
            gate=clusters.policies.caught_up,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        clusters.policies.on_change(self._policy_changed)
        clusters.pnodes.on_change(self._pnode_changed)
        clusters.vnodes.on_change(self._vnode_changed)
        clusters.bindings.on_change(self._binding_changed)
        clusters.worker_health.on_change(lambda answers: self._enqueue_all())
        clusters.on_synced(self._enqueue_all)
        progress.on_change(self._enqueue)
        overlaps.on_change(self._enqueue)

    # Events that enqueue policies

    def _policy_changed(
        self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None
    ) -> None:
        policy = new if new is not None else old
        assert policy is not None
        self._policies.follow(old, new)
        before, after = self._clusters.concerns(old), self._clusters.concerns(new)
        if new is None or (old is not None and before != after):
            if policy.name in self._records:
                self._records[policy.name].effect = None
            self._enqueue_nodes()
        elif self._clusters.is_ours(new) and not self._clusters.is_ours(old):
            self._enqueue_nodes()
        self.controller.enqueue(policy.key)

    def _pnode_changed(self, old: Node | None, new: Node | None) -> None:
        """Enqueue the policies whose limits may name other resources than before."""
        if old is None or new is None or _selectable(old) != _selectable(new):
            for policy in self._clusters.policies.items():
                if policy.spec.resource_limits:
                    self._enqueue(policy.name)

    def _vnode_changed(self, old: Node | None, new: Node | None) -> None:
        applied = self._clusters.domain.policies_applied
        before, after = (
            vnode.annotations.get(applied, "") if vnode is not None else "" for vnode in (old, new)
        )
        if before != after:
            for name in (before, after):
                self._enqueue(name)

    def _enqueue(self, name: str) -> None:
        if self._clusters.policies.get(Key("", name)) is not None:
            self.controller.enqueue(Key("", name))

    def _enqueue_all(self) -> None:
        for policy in self._clusters.policies.items():
            self.controller.enqueue(policy.key)

    def _binding_changed(self, old: ClusterBinding | None, new: ClusterBinding | None) -> None:
        has_finalizer = self._clusters.has_finalizer
        if (
            old is None
            or new is None
            or old.deleting != new.deleting
            or has_finalizer(old) != has_finalizer(new)
        ):
            self._enqueue_all()

    @property
    def _is_ending(self) -> bool:
        """Whether the binding is being deleted or does not exist."""
        binding = self._clusters.binding
        return binding is None or binding.deleting

    def _has_finalizer(self, policy: ResourceLeasingPolicy) -> bool:
        return self._clusters.domain.finalizer_policy in (policy.metadata.finalizers or ())

    def with_finalizer(self) -> Iterator[str]:
        """Return the policies of this binding that have our finalizer."""
        for policy in self._clusters.policies.items():
            if self._clusters.concerns(policy) and self._has_finalizer(policy):
                yield policy.name

    def summary(self, generation: int) -> Condition:
        """Return the binding's condition about its policies: how many, and which are invalid."""
        own = [p.name for p in self._clusters.policies.items() if self._clusters.concerns(p)]
        cached = {name: self._policies.get(name) for name in own}
        invalid = sorted(name for name, each in cached.items() if each and each.parsed is None)
        return policies_condition(sorted(own), invalid, generation)

    def claimed(self) -> Iterator[str]:
        """Return the policies that name this binding and have another cluster's claim."""
        for policy in self._clusters.policies.items():
            named = policy.spec.cluster == self._clusters.binding_name
            if named and not self._clusters.concerns(policy):
                yield policy.name

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        """Add our finalizer, write the policy's status, and requeue at its windows' next edge."""
        policy, cached = self._clusters.policies.get(key), self._policies.get(key.name)
        if policy is None:
            self._records.pop(key.name, None)
            self._progress.forget_policy(key.name)
            self._resources.forget(key.name)
            return Done()
        if not self._clusters.synced:
            return After(1.0)
        if not self._clusters.worker_health.answers:
            return After(LONGEST_SLEEP_S)
        now = self._clusters.clock.now()
        if cached is not None:
            self._enqueue_nodes_at_edge(cached, now)
        if self._is_unclaimed(policy):
            return await self._check_binding(policy, now)
        if cached is None or policy.deleting or self._is_ending:
            return await self._release(policy, cached, now)
        if not self._clusters.has_finalizer(self._clusters.binding):
            return Done()  # every policy is enqueued when the binding has our finalizer
        version = await self._hold(policy)
        rest_s = await self._write_status(cached, now, version)
        return self._until_edge(cached, now, rest_s)

    def _enqueue_nodes_at_edge(self, cached: CachedPolicy, now: datetime) -> None:
        """Enqueue every node when a policy changes, is deleted, or a window opens or closes."""
        lends = cached.effective is not None and within(cached.effective.calendar, now)
        effect = (
            cached.effective,
            lends,
            cached.policy.deleting,
            self._findings(cached).unknown,
        )
        record = self._records.setdefault(cached.policy.name, _PolicyRecord())
        if record.effect != effect:
            record.effect = effect
            self._enqueue_nodes()

    def _findings(self, cached: CachedPolicy) -> PolicyFindings:
        """Return the mistakes of a policy that only nodes and other policies reveal."""
        name, parsed = cached.policy.name, cached.effective
        pnodes = self._clusters.pnodes.items()
        complete = all(self._overlaps.is_recorded(pnode.name) for pnode in pnodes)
        overlaps = self._overlaps.of(name) if complete else None
        if parsed is None:
            return PolicyFindings(overlaps=overlaps)
        selector = self._selector.of(self._clusters.binding)
        return PolicyFindings(
            self._resources.unknown(name, parsed, selector),
            self._resources.withheld(name, parsed, selector),
            overlaps,
        )

    def _until_edge(self, cached: CachedPolicy, now: datetime, rest_s: float | None) -> Outcome:
        edge = next_edge(cached.effective.calendar, now) if cached.effective is not None else None
        waits = [] if rest_s is None else [rest_s]
        if edge is not None:
            waits.append(min(LONGEST_SLEEP_S, max(0.0, (edge - now).total_seconds())))
        return After(min(waits)) if waits else Done()

    # Policies that name a binding which does not exist

    def _is_unclaimed(self, policy: ResourceLeasingPolicy) -> bool:
        """Whether a policy names another binding, and no syncer has claimed the policy."""
        clusters = self._clusters
        if policy.spec.cluster == clusters.binding_name or policy.deleting:
            return False
        return not policy.annotations.get(clusters.domain.computing_cluster_id)

    async def _check_binding(self, policy: ResourceLeasingPolicy, now: datetime) -> Outcome:
        """Report a policy whose binding does not exist, unless a syncer claims the policy soon.

        Several computing clusters may use this worker: each claims the policies of its bindings.
        """
        clusters = self._clusters
        if _is_reported_without_binding(policy):
            return Done()
        record = self._records.setdefault(policy.name, _PolicyRecord())
        if record.without_binding_since is None:
            record.without_binding_since = clusters.clock.monotonic()
        rest_s = record.without_binding_since + CLAIMED_WITHIN_S - clusters.clock.monotonic()
        if rest_s > 0:
            return After(rest_s)
        try:
            await clusters.computing.get(CLUSTER_BINDINGS, policy.spec.cluster)
        except NotFound as error:
            if error.is_status:
                status = status_without_binding(policy, clusters.binding_name, now=now)
                await self._patch_status(policy, status, policy.resource_version)
        except Forbidden:
            pass  # not read is not absent
        except Conflict:
            pass  # another syncer was first; its write enqueues the policy
        return Done()

    # Finalizer and claim

    async def _hold(self, policy: ResourceLeasingPolicy) -> str:
        """Add our finalizer and claim to a policy; return the policy's resourceVersion."""
        if self._clusters.is_ours(policy):
            return policy.resource_version
        ours, present = self._clusters.domain.finalizer_policy, policy.metadata.finalizers or ()
        finalizers = [*(each for each in present if each != ours), ours]
        claim: Json = dict(policy_claim(self._clusters.ids, self._clusters.domain))
        written = await self._patch_metadata(policy, finalizers, claim)
        return policy.resource_version if written is None else written.resource_version

    async def _release(
        self, policy: ResourceLeasingPolicy, cached: CachedPolicy | None, now: datetime
    ) -> Outcome:
        """Remove our finalizer and claim from a policy, once it lends no node any more.

        The finalizer of a policy of another binding is not ours to remove.
        """
        rest_s, version, clusters = None, policy.resource_version, self._clusters
        lent = clusters.vnodes.by("policy", policy.name)
        # Other syncers report that the binding is gone; this one does not replace their report.
        reported = self._is_ending and not lent and _is_reported_without_binding(policy)
        if cached is not None and (lent or not policy.deleting) and not reported:
            rest_s = await self._write_status(cached, now, version)
        ours = clusters.concerns(policy) or clusters.was_ours(policy)
        claim = policy_claim(clusters.ids, clusters.domain)
        has_ours = self._has_finalizer(policy) or not claim.keys().isdisjoint(policy.annotations)
        if lent or not ours or not has_ours or rest_s is not None:
            return Done() if rest_s is None else After(rest_s)
        if cached is not None and policy.deleting:
            self._emit_reclaimed(policy)
        present = policy.metadata.finalizers or ()
        finalizers = [each for each in present if each != clusters.domain.finalizer_policy]
        await self._patch_metadata(policy, finalizers, dict.fromkeys(claim))
        return Done()

    def _emit_reclaimed(self, policy: ResourceLeasingPolicy) -> None:
        """Emit the event that a policy's nodes are reclaimed; a deleted policy gets no status."""
        reclaim = policy.status.reclaim or ReclaimStatus()
        if reclaim.start_time is not None and reclaim.completion_time is None:
            message = "Reclaimed; no node is lent by this policy any more"
            target = reference(RESOURCE_LEASING_POLICIES, policy)
            self._clusters.worker_events.emit(target, "Normal", PolicyEvent.RECLAIMED, message)

    async def _patch_metadata(
        self, policy: ResourceLeasingPolicy, finalizers: list[str], claim: Json
    ) -> ResourceLeasingPolicy | None:
        metadata: Json = {
            "resourceVersion": policy.resource_version,
            "finalizers": finalizers,
            "annotations": claim,
        }
        try:
            written = await self._clusters.worker.patch(
                RESOURCE_LEASING_POLICIES, policy.name, MergePatch({"metadata": metadata})
            )
        except NotFound:
            return None
        self._clusters.policies.wrote(written)
        return written

    # Status

    async def _write_status(
        self, cached: CachedPolicy, now: datetime, version: str
    ) -> float | None:
        """Write the policy's status if it changed; return the seconds to wait if it is too early.

        A change of the policy itself is written at once, the progress of reclaims less often.
        """
        policy, name = cached.policy, cached.policy.name
        progress = self._progress_of(cached, now)
        own = own_status(cached, now=now, ending=self._is_ending, findings=self._findings(cached))
        status = with_progress(
            own,
            progress,
            leased=len(self._clusters.vnodes.by("policy", name)),
            generation=policy.metadata.generation,
            now=now,
        )
        if status != policy.status:
            record = self._records.setdefault(name, _PolicyRecord())
            since_s = self._clusters.clock.monotonic() - record.written_at
            if own == policy.status and since_s < WRITE_EVERY_S:
                return WRITE_EVERY_S - since_s
            await self._patch_status(policy, status, version)
            record.written_at = self._clusters.clock.monotonic()
        if progress is not None:
            self._progress.mark_written(name, progress)
        return None

    def _progress_of(self, cached: CachedPolicy, now: datetime) -> PolicyProgress | None:
        """Return the progress of a policy's reclaims; None until its nodes were reconciled.

        A policy that does not lend reclaims each of its nodes. A node without a report was not
        reconciled since a window closed: its pods would not count.
        """
        name, domain = cached.policy.name, self._clusters.domain
        keys = (domain.taint_out_of_time_windows, domain.taint_vnode_deleting)
        lends = cached.lends(now) and not (cached.policy.deleting or self._is_ending)
        for vnode in self._clusters.vnodes.by("policy", name):
            if not lends and not vnode.deleting and not self._progress.is_reclaimed(vnode.name):
                return None
            tainted = any(taint.key in keys for taint in vnode.spec.taints or ())
            if tainted and not self._progress.is_known(vnode.name):
                return None
        return self._progress.of_policy(name, lends=lends)

    async def _patch_status(
        self, policy: ResourceLeasingPolicy, status: PolicyStatus, version: str
    ) -> None:
        before: Json = msgspec.to_builtins(policy.status)
        change = merge_patch(before, msgspec.to_builtins(status))
        body: Json = {"metadata": {"resourceVersion": version}, "status": change}
        written = await self._clusters.worker.patch(
            RESOURCE_LEASING_POLICIES, policy.name, MergePatch(body), subresource="status"
        )
        self._clusters.policies.wrote(written)
        _log.info("Updated status of policy", policy=policy.name, phase=status.phase)
        target = reference(RESOURCE_LEASING_POLICIES, policy)
        for event in events_of(policy.status, status):
            self._clusters.worker_events.emit(target, event.type, event.reason, event.message)


def _is_reported_without_binding(policy: ResourceLeasingPolicy) -> bool:
    """Whether a policy's status reports, for the present spec, that its binding does not exist."""
    active = find_condition(policy.status.conditions, ACTIVE)
    reported = active is not None and active.reason == POLICY_WITHOUT_BINDING.reason
    return reported and policy.status.observed_generation == policy.metadata.generation


def _selectable(pnode: Node) -> tuple[object, ...]:
    """Return the labels and resources of a worker's node, by which policies and limits select."""
    return pnode.labels, resources_of(pnode)
