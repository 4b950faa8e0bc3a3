"""The controller of the scheduler: runs cycles over the caches and writes their results.

A cycle changes bindings first and writes the status of the policy snapshot last: until the status
is about the present policy, the placement is shown as pending. A new binding carries the latest
release if a rolling update allows it, which saves a write for each cluster.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding, BindingState
from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import SCHEDULED
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.snapshots import PolicySnapshot
from kubeocean.api.fleet.strategies import (
    DeletePropagationPolicy,
    RollingUpdate,
    RolloutStrategyType,
)
from kubeocean.errors import NotFound
from kubeocean.fleet.applier.three_way import without_nulls
from kubeocean.fleet.caches import HubCaches, parent_of
from kubeocean.fleet.metrics import SchedulingMetrics, measured
from kubeocean.fleet.rollout.plan import Release, plan, release_spec, target_number
from kubeocean.fleet.scheduler.bindings import BindingChanges, BindingPatch, Unscheduling
from kubeocean.fleet.scheduler.cycle import schedule
from kubeocean.fleet.scheduler.documents import (
    binding_document,
    binding_patch,
    release_patch,
    snapshot_status,
    unschedule_patch,
)
from kubeocean.fleet.scheduler.eligibility import ineligibility
from kubeocean.fleet.scheduler.model import BindingView, MemberView
from kubeocean.fleet.scheduler.triggers import Trigger, Verdicts, concerns, trigger
from kubeocean.fleet.scheduler.views import view_binding, view_member, view_policy
from kubeocean.fleet.snapshots.plan import latest_policy, usable_group
from kubeocean.fleet.writes import delete, finalizers_patch, in_parallel, in_thread, write_status
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, find_condition

__all__ = ["Scheduler"]

_NAME: Final = "fleet-scheduler"
_WORKERS: Final = 8
_MANY_CLUSTERS: Final = 200  # a cycle over more clusters would block the event loop for too long


class Scheduler:
    """Reconciles the bindings of ClusterResourcePlacements and ResourcePlacements with policies."""

    def __init__(
        self,
        client: Client,
        caches: HubCaches,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client, self._caches = client, caches
        self._clock = clock or RealClock()
        self._metrics = SchedulingMetrics(metrics, self._clock)
        self._views: dict[str, MemberView] = {}
        # By placement: UID and version of its policy snapshot, and the snapshot's verdicts
        self._verdicts: dict[Key, tuple[tuple[str, str], Verdicts]] = {}
        self.controller: Controller[Key] = Controller(
            _NAME,
            measured(_NAME, _WORKERS, self.reconcile, metrics, self._clock),
            workers=_WORKERS,
            gate=caches.gate(
                caches.placements.caught_up,
                caches.policy_snapshots.caught_up,
                caches.resource_snapshots.caught_up,
                caches.bindings.caught_up,
            ),
            clock=self._clock,
            metrics=metrics,
        )
        caches.members.on_change(self._member_changed)
        caches.placements.on_change(self._placement_changed)
        caches.policy_snapshots.on_change(self._policy_changed)
        caches.bindings.on_change(self._binding_changed)

    # Events

    def _member_changed(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        before = self._views.get(old.name) if old is not None else None
        after = view_member(new) if new is not None else None
        if after is not None:
            self._views[after.name] = after
        elif before is not None:
            self._views.pop(before.name, None)
        if not self._caches.members.has_synced:
            return  # every placement is reconciled after the first listing
        now = self._clock.now()
        change = trigger(before, after, now)
        if before is None and after is not None and ineligibility(after, now) is None:
            change = Trigger.CHANGED  # joined while this program did not watch
        if change is Trigger.NONE:
            return
        for placement in self._caches.placements.items():
            latest = latest_policy(self._caches.policy_snapshots.of(placement.key))
            condition = find_condition(latest.status.conditions, SCHEDULED.name) if latest else None
            fulfilled = condition is not None and condition.status == "True"
            if not concerns(change, placement.spec.policy.placement_type, fulfilled=fulfilled):
                continue
            if latest is not None and before is not None and after is not None:
                verdicts = self._verdicts_of(placement.key, latest)
                if not verdicts.differ(before, after, now):
                    continue
            self.controller.enqueue(placement.key)

    def _verdicts_of(self, placement: Key, snapshot: PolicySnapshot) -> Verdicts:
        """Return the verdicts of a policy snapshot, compiled once for each version of it."""
        record = self._verdicts.get(placement)
        version = snapshot.uid, snapshot.resource_version
        if record is None or record[0] != version:
            record = self._verdicts[placement] = version, Verdicts(view_policy(snapshot))
        return record[1]

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        if new is not None and (old is None or old.deleting != new.deleting):
            self.controller.enqueue(new.key)
        elif new is None and old is not None:
            self._verdicts.pop(old.key, None)

    def _policy_changed(self, old: PolicySnapshot | None, new: PolicySnapshot | None) -> None:
        if old is not None and new is not None and _policy_marks(old) == _policy_marks(new):
            return
        self._enqueue_parent(new if new is not None else old)

    def _binding_changed(self, old: Binding | None, new: Binding | None) -> None:
        """Enqueue the placement of a binding that was deleted, or whose decision was edited."""
        if old is None or new is None or _decision_marks(old) != _decision_marks(new):
            self._enqueue_parent(new if new is not None else old)

    def _enqueue_parent(self, obj: PolicySnapshot | Binding | None) -> None:
        if obj is not None and (placement := parent_of(obj)) is not None:
            self.controller.enqueue(placement)

    # Cycles

    async def reconcile(self, key: Key) -> Outcome:
        """Run one cycle for a placement, or remove its bindings if it is being deleted."""
        placement = self._caches.placements.get(key)
        if placement is None:
            return await self._remove_orphans(key)
        if placement.deleting:
            return await self._delete(placement)
        if names.FINALIZER_SCHEDULER not in (placement.metadata.finalizers or ()):
            return Done()  # the policy snapshot is created after the finalizers are added
        snapshot = latest_policy(self._caches.policy_snapshots.of(key))
        if snapshot is None:
            return Done()
        with self._metrics.cycle():
            await self._schedule(placement, snapshot)
        return Done()

    async def _schedule(self, placement: Placement, snapshot: PolicySnapshot) -> None:
        cycle = partial(
            schedule,
            view_policy(snapshot),
            list(self._views.values()),
            [view_binding(binding) for binding in self._caches.bindings.of(placement.key)],
            self._clock.now(),
        )
        result = await in_thread(cycle, many=len(self._views) > _MANY_CLUSTERS)
        changes = result.changes

        async def unschedule_one(mark: Unscheduling) -> None:
            await self._patch(placement.key, mark.binding, unschedule_patch(mark))

        async def patch_one(patch: BindingPatch) -> None:
            await self._patch(placement.key, patch.binding, binding_patch(patch))

        async def release_one(binding: BindingView) -> None:
            body = release_patch(binding)
            if body is not None:
                await self._patch(placement.key, binding, body)

        async def create_one(body: Json) -> None:
            resource = scope_of(placement.key).bindings
            self._caches.bindings.wrote(await self._client.create(resource, body))

        await in_parallel(unschedule_one, changes.to_unschedule)
        await in_parallel(patch_one, changes.to_patch)
        await in_parallel(create_one, self._new_bindings(placement, changes))
        await in_parallel(release_one, changes.to_release)
        if result.status is not None:
            now = text_of(self._clock.now())
            status = snapshot_status(result.status, snapshot.status, now=now)
            resource = scope_of(placement.key).policy_snapshots
            written = await write_status(self._client, resource, snapshot, status)
            if written is not None:
                self._caches.policy_snapshots.wrote(written)

    def _new_bindings(self, placement: Placement, changes: BindingChanges) -> list[Json]:
        """Return the bindings to create; with the latest release if a rolling update allows it now.

        If the cycle also patches bindings, the release is left to the rollout controller, which
        then sees all changes.
        """
        bodies = [binding_document(placement, new, changes.to_release) for new in changes.to_create]
        strategy = placement.spec.strategy
        group = usable_group(self._caches.resource_snapshots.of(placement.key))
        if (
            strategy.type == RolloutStrategyType.EXTERNAL
            or group is None
            or group.master is None
            or changes.to_unschedule
            or changes.to_patch
        ):
            return bodies
        new = [msgspec.convert(body, Binding) for body in bodies]
        bindings = [*self._caches.bindings.of(placement.key), *new]
        release = Release(group.master.name)
        rollout = plan(
            bindings,
            target_number(placement, bindings),
            release,
            strategy.rolling_update or RollingUpdate(),
            self._clock.now(),
        )
        released = {binding.key for binding in rollout.release}
        spec = release_spec(release, strategy.apply_strategy)
        for body, binding in zip(bodies, new, strict=True):
            if binding.key in released:
                body["spec"] |= without_nulls(spec)
        return bodies

    async def _patch(self, placement: Key, binding: BindingView, body: Json) -> None:
        resource = scope_of(placement).bindings
        written = await self._client.patch(
            resource, binding.name, MergePatch(body), placement.namespace
        )
        self._caches.bindings.wrote(written)

    # Deletion

    async def _delete(self, placement: Placement) -> Outcome:
        """Delete all bindings of a placement, then drop its finalizer; Works may take longer."""
        present = placement.metadata.finalizers or ()
        if names.FINALIZER_SCHEDULER not in present:
            return Done()
        bindings = self._caches.bindings.of(placement.key)

        async def delete_one(binding: Binding) -> None:
            body = _farewell(placement, binding)
            if body is not None:
                await self._patch(placement.key, view_binding(binding), body)
            await self._delete_binding(placement.key, binding)

        await in_parallel(delete_one, bindings)
        kept = [each for each in present if each != names.FINALIZER_SCHEDULER]
        written = await self._client.patch(
            scope_of(placement.key).placements,
            placement.name,
            finalizers_patch(placement, kept),
            placement.namespace,
        )
        self._caches.placements.wrote(written)
        return Done()

    async def _remove_orphans(self, key: Key) -> Outcome:
        """Delete bindings whose placement was removed without its finalizers."""
        bindings = self._caches.bindings.of(key)
        if not bindings:
            return Done()
        try:
            await self._client.get(scope_of(key).placements, key.name, key.namespace)
        except NotFound:
            for binding in bindings:
                view = view_binding(binding)
                body = release_patch(view)
                if body is not None:
                    await self._patch(key, view, body)
                await self._delete_binding(key, binding)
        return Done()

    async def _delete_binding(self, placement: Key, binding: Binding) -> None:
        if not binding.deleting and await delete(
            self._client, scope_of(placement).bindings, binding
        ):
            self._caches.bindings.deleted(binding)


def _policy_marks(snapshot: PolicySnapshot) -> tuple[object, ...]:
    return snapshot.labels, snapshot.annotations, snapshot.spec


def _decision_marks(binding: Binding) -> tuple[object, ...]:
    """Return the fields of a binding on which the next cycle depends."""
    spec = binding.spec
    return (
        binding.deleting,
        spec.target_cluster,
        spec.scheduling_policy_snapshot_name,
        spec.state == BindingState.UNSCHEDULED,
    )


def _farewell(placement: Placement, binding: Binding) -> Json | None:
    """Return the patch that prepares a binding for its deletion; None if nothing changes.

    The scheduler's finalizer is dropped. The placement's delete propagation is copied to an
    annotation: the placement may be gone when the Works of the binding are deleted.
    """
    body = release_patch(view_binding(binding))
    policy = placement.spec.strategy.delete_strategy.propagation_policy
    if policy == DeletePropagationPolicy.ABANDON:
        noted = binding.annotations.get(names.ANNOTATION_DELETE_PROPAGATION)
        if noted != policy:
            body = body or {"metadata": {"resourceVersion": binding.resource_version}}
            body["metadata"]["annotations"] = {names.ANNOTATION_DELETE_PROPAGATION: str(policy)}
    return body
