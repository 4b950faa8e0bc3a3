"""The syncer's part of a binding: finalizer, conditions, and the order of its deletion.

The syncer writes three conditions: `Connected`, whether the worker answers, and if not, since when;
`Conflicted`, if policies that name the binding have the claim of another computing cluster; and,
while the binding is being deleted, `Drained`, with the objects that are still waited for.

When the binding is deleted, its virtual nodes are reclaimed, by rules that have an end. Then its
pods and copies are deleted, our label is removed from the worker's nodes and our finalizer from its
policies. A worker that is a member of the fleet leaves it meanwhile, and is waited for up to
`LEAVES_S`. At last our finalizer is removed from the binding. A worker that has not answered for
`PATIENCE_S` does not hold up the deletion. Neither does anything else beyond one deadline over all
of it (`give_up_at`): a foreign finalizer, a missing right, a list that cannot be read. Then the
virtual nodes that are left are deleted, and condition and event name the objects not confirmed
gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from kubeocean.api import conditions
from kubeocean.api.bindings import CLUSTER_BINDINGS, BindingStatus, ClusterBinding
from kubeocean.api.conditions import BindingEvent
from kubeocean.api.policies import RESOURCE_LEASING_POLICIES, ResourceLeasingPolicy
from kubeocean.errors import Forbidden, NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.clock import instant_of, text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.events import EventType, reference
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import NODES
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Condition, Json, Key, find_condition, set_condition
from kubeocean.syncer.cleanup.deletion_progress import (
    Leftovers,
    Unconfirmed,
    ends_by,
    first_few,
    give_up_at,
    remaining,
)
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.nodes.reclaim_progress import ReclaimProgress

__all__ = ["BindingCleanup"]

PATIENCE_S: Final = 30.0  # a short outage of the worker is waited for
FREE_S: Final = 10.0  # for the cleanup of the computing cluster without the worker
LEAVES_S: Final = 60.0  # for the syncer to leave the fleet, if the hub asks for it
WRITE_EVERY_S: Final = 1.0
_RETRY_S: Final = 1.0
_LIST_EVERY_S: Final = 30.0
_STARTS_S: Final = 10.0  # within which the caches of a syncer usually sync

_MEMBERSHIP: Final = "the worker's membership in the fleet"

_log = get_logger(__name__)
_Names = Callable[[], Iterable[str]]


@dataclass(slots=True)
class _Deletion:
    """The times of a deletion: when this syncer first saw the deletion, and when to give up."""

    uid: str
    seen: datetime
    until: datetime


class BindingCleanup:
    """Writes the conditions of one binding and deletes its objects; the key is the binding's name.

    - `policies_with_finalizer`: returns the policies that have our finalizer.
    - `claimed`: returns the policies with another computing cluster's claim.
    - `labelled_nodes`: returns the worker's nodes with our label.
    - `leftovers`: the pods and copies of the binding.
    - `more_conditions`: returns the conditions that other controllers have about the binding.
    """

    def __init__(
        self,
        clusters: Clusters,
        progress: ReclaimProgress,
        unconfirmed: Unconfirmed,
        *,
        policies_with_finalizer: _Names,
        claimed: _Names,
        labelled_nodes: _Names,
        more_conditions: Callable[[ClusterBinding], list[Condition]],
        leftovers: Leftovers,
    ) -> None:
        self._clusters = clusters
        self._progress = progress
        self._unconfirmed = unconfirmed
        self._finalized_policies = policies_with_finalizer
        self._claimed = claimed
        self._labelled_nodes = labelled_nodes
        self._more_conditions = more_conditions
        self._leftovers = leftovers
        self._written_at = -WRITE_EVERY_S
        self._lists_at = 0.0
        self._deletion: _Deletion | None = None
        self.controller: Controller[Key] = Controller(
            f"clusterbinding-{clusters.binding_name}",
            self.reconcile,
            gate=clusters.bindings.caught_up,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        self._register_handlers()

    # Events that enqueue the binding

    def _register_handlers(self) -> None:
        clusters = self._clusters
        clusters.bindings.on_change(lambda old, new: self._enqueue())
        clusters.vnodes.on_change(lambda old, new: self._enqueue_if(old is None or new is None))
        clusters.pnodes.on_change(lambda old, new: self._enqueue_if(False))
        clusters.policies.on_change(self._policy_changed)
        clusters.worker_health.on_change(self._reached)
        self._progress.on_change(lambda policy: self._enqueue_if(False))

    def _enqueue(self) -> None:
        self.controller.enqueue(Key("", self._clusters.binding_name))

    def _enqueue_if(self, always: bool) -> None:
        """Enqueue the binding, if `always` or during its deletion."""
        binding = self._clusters.binding
        if binding is not None and (always or binding.deleting):
            self._enqueue()

    def _policy_changed(
        self, old: ResourceLeasingPolicy | None, new: ResourceLeasingPolicy | None
    ) -> None:
        named = [p for p in (old, new) if p and p.spec.cluster == self._clusters.binding_name]
        changed = old is None or new is None or old.spec != new.spec
        claimed = any(not self._clusters.concerns(policy) for policy in named)
        self._enqueue_if(claimed or (changed and bool(named)))

    def _reached(self, answers: bool) -> None:
        if answers:
            self._unconfirmed.clear()
            self._emit("Normal", BindingEvent.WORKER_ANSWERS, "The worker answers again")
        elif (worker_health := self._clusters.worker_health).mistaken:
            message = f"The kubeconfig points to another cluster: {worker_health.error}"
            self._emit("Warning", BindingEvent.ANOTHER_WORKER, message)
        elif worker_health.refused:
            message = (
                f"The worker refuses requests; its nodes get no heartbeats: {worker_health.error}"
            )
            self._emit("Warning", BindingEvent.WORKER_UNREACHABLE, message)
        else:
            message = "The worker does not answer; its nodes get no heartbeats until it does"
            self._emit("Warning", BindingEvent.WORKER_UNREACHABLE, message)
        self._enqueue()

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        """Add our finalizer and write the conditions; if the binding is being deleted, clean up."""
        clusters, binding = self._clusters, self._clusters.binding
        if binding is None:
            return Done()
        ours, finalizers = clusters.domain.finalizer_syncer, binding.metadata.finalizers or ()
        if binding.deleting:
            return await self._delete(binding) if ours in finalizers else Done()
        version = binding.resource_version
        if ours not in finalizers:
            version = await self._finalizers(binding, [*finalizers, ours], version)
        if clusters.worker_health.answers and not clusters.synced:
            if not clusters.policies.has_synced:
                await self._report_missing_kind(binding, version)
            return After(_RETRY_S)  # the connection is not known yet
        version = await self._record(binding, version)
        own = [
            self._connected(binding),
            *self._conflicted(binding),
            *self._more_conditions(binding),
        ]
        return _later(await self._write_throttled(binding, own, version))

    def _connected(self, binding: ClusterBinding) -> Condition:
        worker_health, generation = self._clusters.worker_health, binding.metadata.generation
        if worker_health.answers:
            return conditions.CONNECTION_PASSED.condition(generation=generation)
        lost = (
            conditions.CONNECTION_MISTAKEN if worker_health.mistaken else conditions.CONNECTION_LOST
        )
        since, trouble = text_of(worker_health.since), self._trouble
        return lost.condition(
            generation=generation, trouble=trouble, since=since, error=worker_health.error
        )

    @property
    def _trouble(self) -> str:
        """Why the worker does not serve this syncer, as a verb phrase for messages."""
        refused = self._clusters.worker_health.refused
        return "has refused requests that the syncer must make" if refused else "has not answered"

    async def _report_missing_kind(self, binding: ClusterBinding, version: str) -> None:
        """Write the condition of a worker without the CustomResourceDefinition of policies."""
        now = self._clusters.clock.monotonic()
        if now < self._lists_at:
            return
        self._lists_at = now + _LIST_EVERY_S
        try:
            await self._clusters.worker.list(RESOURCE_LEASING_POLICIES)
        except NotFound:
            kind, generation = RESOURCE_LEASING_POLICIES.kind, binding.metadata.generation
            missing = conditions.CONNECTION_WITHOUT_POLICIES.condition(
                generation=generation, kind=kind
            )
            if _differs(binding.status, missing):
                await self._write(binding, [missing], version)
                self._emit("Warning", BindingEvent.POLICY_KIND_MISSING, missing.message)

    def _conflicted(self, binding: ClusterBinding) -> list[Condition]:
        generation, claimed = binding.metadata.generation, list(self._claimed())
        if claimed:
            policies = first_few(claimed)
            return [
                conditions.CONFLICT_POLICIES.condition(generation=generation, policies=policies)
            ]
        known = find_condition(binding.status.conditions, conditions.CONFLICTED) is not None
        return [conditions.CONFLICT_NONE.condition(generation=generation)] if known else []

    # Deletion

    async def _delete(self, binding: ClusterBinding) -> Outcome:
        now = self._clusters.clock.now()
        deletion = self._note_deletion(binding, now)
        unread = self._unread()
        if unread:
            left, patience = f"everything: could not list {first_few(unread)}", None
        else:
            left, patience = self._left(now)
        if left and now >= deletion.until:
            return await self._give_up(binding, left, now)
        if left and (patience is None or now < patience):
            if unread and (now - deletion.seen).total_seconds() < _STARTS_S:
                return After(_RETRY_S)
            await self._write_draining(binding, left)
            # Not every object that is waited for has an event at its end.
            return After(_RETRY_S)
        if conditions.is_in_fleet(binding.status.conditions):
            left = f"{left}, {_MEMBERSHIP}" if left else _MEMBERSHIP
            if now < _leaves_by(binding, now):
                await self._write_draining(binding, left)
                return After(_RETRY_S)
        await self._release(binding, left, now)
        return Done()

    def _note_deletion(self, binding: ClusterBinding, now: datetime) -> _Deletion:
        """Return the times of the binding's deletion, created at the first call.

        The time to give up is moved back where a policy gives its pods longer.
        """
        deleted = instant_of(binding.metadata.deletion_timestamp) or now
        deletion = self._deletion
        if deletion is None or deletion.uid != binding.uid:
            until = give_up_at(deleted, seen=now)
            deletion = self._deletion = _Deletion(binding.uid, now, until)
        # Reports of nodes that are gone count, too: pods and copies are cleaned up after them.
        by_reports = give_up_at(deleted, seen=deletion.seen, reports=self._progress.reports())
        deletion.until = max(deletion.until, by_reports)
        return deletion

    def _unread(self) -> list[str]:
        """Return the API paths of the caches that have not synced and that a deletion needs."""
        clusters = self._clusters
        needed: list[Informer[Any]] = [clusters.vnodes, clusters.vpods]
        if clusters.worker_health.answers:
            needed += [
                clusters.proxiers,
                clusters.pnodes,
                clusters.ppods,
                clusters.policies,
                clusters.foreign_pods,
                clusters.foreign_pods_in_mount,
            ]
        return [cache.scope.path for cache in needed if not cache.has_synced]

    def _left(self, now: datetime) -> tuple[str, datetime | None]:
        """Return a text that names the objects that still exist, and until when to wait for a
        worker that does not answer (None if no such wait applies).
        """
        clusters = self._clusters
        vnodes = [vnode.name for vnode in clusters.vnodes.items()]
        if vnodes:
            reports = self._progress.reports()
            return remaining(reports, vnodes) + ends_by(reports), None
        if not clusters.worker_health.answers:
            return self._unconfirmed.describe(), self._patience_ends(now)
        self._leftovers.drain(confirmed=True)
        policies, nodes = list(self._finalized_policies()), list(self._labelled_nodes())
        texts = [f"the binding's label on nodes {first_few(nodes)}"] if nodes else []
        texts += [f"the binding's finalizer on policies {first_few(policies)}"] if policies else []
        texts += [objects] if (objects := self._leftovers.describe()) else []
        return ", ".join(texts), None

    def _held_pods(self) -> str:
        """Return a text that names the deleted pods that finalizers of other programs block.

        These pods are reported and not waited for.
        """
        clusters = self._clusters
        ours = {clusters.vnode_name(pnode.name) for pnode in clusters.pnodes.items()}
        held = [
            str(pod.key)
            for pod in clusters.vpods.items()
            if pod.spec.node_name in ours and pod.deleting and pod.metadata.finalizers
        ]
        return f"pods that finalizers of other programs hold: {first_few(held)}" if held else ""

    async def _give_up(self, binding: ClusterBinding, left: str, now: datetime) -> Outcome:
        """Clean up the computing cluster and remove our finalizer from the binding, without waiting
        for `left`, the objects that are not confirmed gone.
        """
        assert self._deletion is not None
        self._leftovers.drain(confirmed=False)
        await self._abandon_nodes()
        if self._leftovers.copies and now < self._deletion.until + timedelta(seconds=FREE_S):
            return After(_RETRY_S)
        await self._release(binding, left, now)
        return Done()

    async def _abandon_nodes(self) -> None:
        """Delete the virtual nodes that still exist; those with a foreign finalizer remain."""
        clusters, ours = self._clusters, self._clusters.domain.finalizer_vnode
        try:
            listing = await clusters.computing.list(NODES, labels=clusters.vnodes.scope.labels)
        except Forbidden as error:
            _log.warning("Could not list virtual nodes", error=str(error))
            return
        for vnode in filter(clusters.is_vnode, listing.items):
            finalizers = vnode.metadata.finalizers or ()
            metadata = {
                "resourceVersion": vnode.resource_version,
                "finalizers": [each for each in finalizers if each != ours],
            }
            with suppress(NotFound, Forbidden):
                if ours in finalizers:
                    body = MergePatch({"metadata": metadata})
                    await clusters.computing.patch(NODES, vnode.name, body)
                if not vnode.deleting:
                    await clusters.computing.delete(NODES, vnode.name, uid=vnode.uid)
                    _log.warning(
                        "Deleted virtual node before its cleanup was confirmed", node=vnode.name
                    )

    def _patience_ends(self, now: datetime) -> datetime:
        """Return until when the deletion waits for a worker that does not answer.

        After that time, the computing cluster is cleaned up without the worker.
        """
        ends = self._clusters.worker_health.since + timedelta(seconds=PATIENCE_S)
        if now < ends:
            return ends
        self._leftovers.drain(confirmed=False)
        return ends + timedelta(seconds=FREE_S) if self._leftovers.copies else ends

    async def _write_draining(self, binding: ClusterBinding, left: str) -> float | None:
        generation = binding.metadata.generation
        drained = conditions.DRAIN_RUNNING.condition(generation=generation, remaining=left)
        own = [self._connected(binding), drained]
        return await self._write_throttled(binding, own, binding.resource_version)

    async def _release(self, binding: ClusterBinding, left: str, now: datetime) -> None:
        """Write the binding's last conditions, and remove our finalizer from the binding.

        `left` names the objects whose deletion was not confirmed; a Warning event reports them.
        """
        clusters, generation = self._clusters, binding.metadata.generation
        left = ", ".join(text for text in (left, self._held_pods()) if text)
        drained = conditions.DRAIN_DONE.condition(generation=generation)
        if left:
            since = instant_of(binding.metadata.deletion_timestamp) or now
            after = round((now - since).total_seconds())
            drained = conditions.DRAIN_UNCONFIRMED.condition(
                generation=generation, after=max(after, 0), remaining=left
            )
        version = await self._write(binding, [self._connected(binding), drained])
        if left:
            lost = f"The worker {self._trouble} since {text_of(clusters.worker_health.since)}. "
            message = f"{'' if clusters.worker_health.answers else lost}Not confirmed gone: {left}"
            self._emit("Warning", BindingEvent.CLEANUP_UNCONFIRMED, message)
        ours = clusters.domain.finalizer_syncer
        present = binding.metadata.finalizers or ()
        await self._finalizers(binding, [each for each in present if each != ours], version)
        _log.info(
            "Removed finalizer of syncer from binding", binding=binding.name, unconfirmed=left
        )

    # Writes

    async def _write_throttled(
        self, binding: ClusterBinding, own: list[Condition], version: str
    ) -> float | None:
        """Write the binding's status if it changed; return the seconds until the next write is
        allowed, or None if nothing is left to write.

        A condition with another status or reason is written at once, a condition with only another
        message less often.
        """
        if self._status(binding, own) == binding.status:
            return None
        urgent = any(_differs(binding.status, condition) for condition in own)
        since_s = self._clusters.clock.monotonic() - self._written_at
        if not urgent and since_s < WRITE_EVERY_S:
            return WRITE_EVERY_S - since_s
        await self._write(binding, own, version)
        return None

    async def _write(self, binding: ClusterBinding, own: list[Condition], version: str = "") -> str:
        """Write the binding's status if it changed; return the binding's resourceVersion."""
        version = version or binding.resource_version
        after = self._status(binding, own)
        if after == binding.status:
            return version
        status: Json = msgspec.to_builtins(after)
        body: Json = {
            "metadata": {"resourceVersion": version},
            "status": {
                "conditions": status["conditions"],
                "virtualNodes": status.get("virtualNodes", 0),
            },
        }
        try:
            written = await self._clusters.computing.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch(body), subresource="status"
            )
        except NotFound:
            return version
        self._clusters.bindings.wrote(written)
        self._written_at = self._clusters.clock.monotonic()
        for condition in own:
            conflict = condition.reason == conditions.CONFLICT_POLICIES.reason
            if conflict and _differs(binding.status, condition):
                self._emit("Warning", BindingEvent.POLICY_CLAIMED, condition.message)
        return written.resource_version

    def _status(self, binding: ClusterBinding, own: list[Condition]) -> BindingStatus:
        """Return the binding's status with the conditions `own`; other fields are the manager's."""
        merged = binding.status.conditions
        for condition in own:
            merged = set_condition(merged, condition, now=self._clusters.now_text())
        return msgspec.structs.replace(
            binding.status, conditions=merged, virtual_nodes=len(self._clusters.vnodes)
        )

    async def _finalizers(
        self, binding: ClusterBinding, finalizers: list[str], version: str
    ) -> str:
        return await self._patch(binding, {"resourceVersion": version, "finalizers": finalizers})

    async def _record(self, binding: ClusterBinding, version: str) -> str:
        """Record the worker's identity in an annotation of the binding, to detect later a
        kubeconfig that points to another cluster; return the binding's resourceVersion.
        """
        key, worker = self._clusters.domain.worker_cluster_id, self._clusters.worker_id()
        if not worker or key in binding.annotations:
            return version
        metadata: Json = {"resourceVersion": version, "annotations": {key: worker}}
        return await self._patch(binding, metadata)

    async def _patch(self, binding: ClusterBinding, metadata: Json) -> str:
        """Patch the binding's metadata; return the binding's new resourceVersion."""
        try:
            written = await self._clusters.computing.patch(
                CLUSTER_BINDINGS, binding.name, MergePatch({"metadata": metadata})
            )
        except NotFound:
            return str(metadata["resourceVersion"])
        self._clusters.bindings.wrote(written)
        return written.resource_version

    def _emit(self, type_: EventType, reason: BindingEvent, message: str) -> None:
        binding = self._clusters.binding
        if binding is not None:
            target = reference(CLUSTER_BINDINGS, binding)
            self._clusters.events.emit(target, type_, reason, message)


def _leaves_by(binding: ClusterBinding, now: datetime) -> datetime:
    """Return until when a deleted binding waits for its worker to leave the fleet."""
    deleted = instant_of(binding.metadata.deletion_timestamp) or now
    return deleted + timedelta(seconds=LEAVES_S)


def _later(rest_s: float | None) -> Outcome:
    return Done() if rest_s is None else After(rest_s)


def _differs(status: BindingStatus, condition: Condition) -> bool:
    """Whether a condition has another status or reason than in the binding's present status."""
    before = find_condition(status.conditions, condition.type)
    return before is None or (before.status, before.reason) != (condition.status, condition.reason)
