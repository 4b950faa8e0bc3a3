"""The controller of Works: writes the Works of each binding's release, and reports their progress.

Works are written as soon as a release is in the binding. The status of the binding is then built
from the status of its Works, a moment after a write of a Work, so that a member that applies
quickly causes one write of the binding, not two.

When a binding is deleted, its Works are deleted first; the member agent deletes the placed objects
and then removes the finalizers of the Works.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding, BindingState
from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import ROLLOUT_STARTED
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.strategies import (
    DeletePropagationPolicy,
    ReportBackStrategy,
    RolloutStrategyType,
)
from kubeocean.errors import ApiError, NotFound
from kubeocean.fleet.caches import HubCaches, parent_of
from kubeocean.fleet.metrics import measured
from kubeocean.fleet.snapshots.contents import SnapshotContent, SnapshotContents
from kubeocean.fleet.snapshots.plan import Group, groups, usable_group
from kubeocean.fleet.steps import fresh
from kubeocean.fleet.works.documents import adjust_patch, replace_patch, work_document
from kubeocean.fleet.works.plan import (
    DesiredWork,
    WorksPlan,
    belong_to_release,
    desired_works,
    has_envelopes,
    plan_kept_works,
    plan_works,
)
from kubeocean.fleet.works.report import awaits_works, report
from kubeocean.fleet.works.views import CACHED_WORKS, CachedWork, binding_of_work, placement_of_work
from kubeocean.fleet.writes import delete, finalizers_patch, is_refusal, write_status
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome, Stuck
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Object

__all__ = ["Works"]

_NAME: Final = "fleet-works"
_WORKERS: Final = 32
# A Work that was just written is usually reported on by then. A member that takes longer costs a
# second status of its binding, which a hub under load should not have to write for most members.
_PROCESSING_S: Final = 3.0
_MISSING_S: Final = 1.0  # until a cache that lacks a snapshot is looked at again
_LONGEST_ERROR: Final = 2000  # characters; a server may repeat a whole object in its answer
_NO_ENVELOPES: Final = "this hub unpacks no envelopes; the Works of this cluster stay as they are"
_PRESET: Final = "preset"
_DELIVERED_STATES: Final = (BindingState.BOUND, BindingState.UNSCHEDULED)


@dataclass(slots=True)
class _BindingRecord:
    """State that the controller keeps of a binding."""

    wrote_works_at: float  # by the clock's monotonic time


class Works:
    """Reconciles the Works and status of ClusterResourceBindings and ResourceBindings."""

    def __init__(
        self,
        client: Client,
        caches: HubCaches,
        contents: SnapshotContents,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client, self._caches, self._contents = client, caches, contents
        self._clock = clock or RealClock()
        self._records: dict[Key, _BindingRecord] = {}
        # By Work of another binding, the bindings that need its name
        self._blocked: dict[Key, set[Key]] = {}
        # Of Works by UID, as this process wrote them or first compared them with their snapshots
        self._generations: dict[str, int] = {}
        self.controller: Controller[Key] = Controller(
            _NAME,
            measured(_NAME, _WORKERS, self.reconcile, metrics, self._clock),
            workers=_WORKERS,
            gate=caches.gate(caches.bindings.shows, caches.works_caught_up),
            clock=self._clock,
            metrics=metrics,
        )
        caches.placements.on_change(self._placement_changed)
        caches.bindings.on_change(self._binding_changed)
        caches.works.on_change(self._work_changed)
        caches.members.on_change(self._member_changed)
        caches.resource_snapshots.on_change(self._snapshot_changed)

    # Events

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        """Enqueue the bindings of a placement whose `reportBackStrategy` changed.

        Works contain that strategy; all other settings of Works are copied from the bindings.
        """
        if old is None or new is None or _report_back_of(old) == _report_back_of(new):
            return
        for binding in self._caches.bindings.of(new.key):
            self.controller.enqueue(binding.key)

    def _binding_changed(self, old: Binding | None, new: Binding | None) -> None:
        subject = new if new is not None else old
        if subject is not None:
            self.controller.enqueue(subject.key)

    def _work_changed(self, old: CachedWork | None, new: CachedWork | None) -> None:
        for work in (old, new):
            if work is not None and (binding := binding_of_work(work)) is not None:
                self.controller.enqueue(binding)
        if old is not None and (new is None or new.uid != old.uid):
            self._generations.pop(old.uid, None)
        if old is not None and (new is None or binding_of_work(new) != binding_of_work(old)):
            for waiting in self._blocked.pop(old.key, ()):  # the name of the Work may be free now
                self.controller.enqueue(waiting)

    def _member_changed(self, old: MemberCluster | None, new: MemberCluster | None) -> None:
        if (old is None) == (new is None):
            return
        name = new.name if new is not None else old.name if old is not None else ""
        for binding in self._caches.bindings.items():
            if binding.spec.target_cluster == name:
                self.controller.enqueue(binding.key)

    def _snapshot_changed(self, old: Object | None, new: Object | None) -> None:
        """Enqueue the bindings whose release the changed resource snapshot may complete."""
        if new is None or (placement := parent_of(new)) is None:
            return
        for binding in self._caches.bindings.of(placement):
            self.controller.enqueue(binding.key)

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        """Write the Works and the status of one binding, or delete its Works with it."""
        binding = self._caches.bindings.get(key)
        if binding is None:
            self._records.pop(key, None)
            return await self._remove_orphans(key)
        await self._remove_strays(binding)
        if binding.deleting:
            return await self._delete(binding)
        placement = parent_of(binding)
        if placement is None or binding.spec.state not in _DELIVERED_STATES:
            return Done()
        if not binding.spec.resource_snapshot_name or not self._has_member(binding):
            return Done()
        if binding.spec.names_overrides:
            return await self._refresh(placement, binding)
        if not self._is_released(placement, binding):
            if not self._caches.works_of(binding):
                return Done()
            return await self._refresh(placement, binding)
        return await self._deliver(placement, binding)

    def _has_member(self, binding: Binding) -> bool:
        return self._caches.members.get(Key("", binding.spec.target_cluster)) is not None

    def _is_released(self, placement: Key, binding: Binding) -> bool:
        """Whether the Works of a binding may be written.

        With a rolling update the release in the binding suffices. A staged update run sets the
        binding's condition RolloutStarted when it updates the cluster.
        """
        if not self._is_external(placement):
            return True
        conditions, generation = binding.status.conditions, binding.metadata.generation
        started = fresh(conditions, ROLLOUT_STARTED.name, generation)
        return started is not None and started.status == "True"

    def _is_external(self, placement: Key) -> bool:
        parent = self._caches.placements.get(placement)
        return parent is not None and parent.spec.strategy.type == RolloutStrategyType.EXTERNAL

    async def _deliver(self, placement: Key, binding: Binding) -> Outcome:
        existing = self._caches.works_of(binding)
        if has_envelopes(existing):
            return await self._report_failure(placement, binding, _NO_ENVELOPES)
        group = self._group(placement, binding)
        if group is None:
            if not belong_to_release(existing, binding):
                return await self._report_missing(placement, binding)
            kept = plan_kept_works(binding, existing, self._report_back(placement))
            return await self._carry_out(placement, binding, kept)
        namespace = names.member_namespace(binding.spec.target_cluster)
        wanted = desired_works(placement, binding, group, self._report_back(placement))
        await self._compare_unknown(binding, wanted, existing)
        decided = plan_works(
            binding.key,
            wanted,
            existing,
            lambda name: self._caches.works.get(Key(namespace, name)),
            self._is_edited,
        )
        if decided.blocked:
            return await self._report_blocked(placement, binding, decided.blocked[0])
        return await self._carry_out(placement, binding, decided)

    async def _carry_out(self, placement: Key, binding: Binding, decided: WorksPlan) -> Outcome:
        """Write the planned Works; if there is nothing to write, the status of the binding."""
        if decided:
            try:
                await self._write(binding, decided)
            except ApiError as error:
                if not is_refusal(error):
                    raise
                return await self._report_failure(placement, binding, str(error))
            self._records[binding.key] = _BindingRecord(self._clock.monotonic())
            return Done()  # events of the Works follow
        return await self._refresh(placement, binding)

    def _group(self, placement: Key, binding: Binding) -> Group | None:
        """Return the resource snapshots of the binding's release; None unless all of them exist."""
        name = binding.spec.resource_snapshot_name
        for group in groups(self._caches.resource_snapshots.of(placement)):
            if group.master is not None and group.master.name == name and group.is_complete:
                return group
        return None

    def _report_back(self, placement: Key) -> ReportBackStrategy:
        parent = self._caches.placements.get(placement)
        return _report_back_of(parent) if parent else ReportBackStrategy()

    async def _write(self, binding: Binding, decided: WorksPlan) -> None:
        # All contents are read before the first write
        contents = {
            work.snapshot.name: (await self._contents.of(work.snapshot)).objects
            for work in (*decided.create, *(new for _, new in decided.replace))
        }
        for work in decided.create:
            body = work_document(
                binding,
                work,
                contents[work.snapshot.name],
                preset_finalizer=self._presets_finalizer(binding),
            )
            self._wrote(binding.key, await self._client.create(CACHED_WORKS, body))
        for existing, work in decided.replace:
            body = replace_patch(existing, work, contents[work.snapshot.name])
            await self._patch_work(binding.key, existing, body)
        for existing, settings in decided.adjust:
            await self._patch_work(binding.key, existing, adjust_patch(existing, settings))
        for obsolete in decided.delete:
            await self._delete_work(binding.key, obsolete)

    def _presets_finalizer(self, binding: Binding) -> bool:
        cluster = binding.spec.target_cluster
        member = self._caches.internal_members.get(Key(names.member_namespace(cluster), cluster))
        if member is None:
            return False
        return member.annotations.get(names.ANNOTATION_WORK_FINALIZER) == _PRESET

    async def _patch_work(self, binding: Key, work: CachedWork, body: Json) -> None:
        written = await self._client.patch(
            CACHED_WORKS, work.name, MergePatch(body), work.namespace
        )
        self._wrote(binding, written)

    def _wrote(self, binding: Key, work: CachedWork) -> None:
        self._generations[work.uid] = work.metadata.generation
        self._caches.wrote_work(binding, work)

    async def _compare_unknown(
        self, binding: Binding, wanted: Iterable[DesiredWork], existing: Iterable[CachedWork]
    ) -> None:
        """Compare the manifests of Works that this process has not seen before with snapshots.

        A Work may have been edited while no hub ran. Its generation then counts as newer than the
        one that a hub wrote.
        """
        snapshots = {each.name: each.snapshot for each in wanted}
        for work in existing:
            if work.uid in self._generations or work.name not in snapshots:
                continue
            if not belong_to_release([work], binding):
                continue  # gets other manifests anyway
            content = await self._contents.of(snapshots[work.name])
            is_same = work.digest == content.digest or await self._has_objects(work, content)
            self._generations[work.uid] = work.metadata.generation - (not is_same)

    async def _has_objects(self, work: CachedWork, content: SnapshotContent) -> bool:
        """Return whether the manifests of a Work equal objects that are encoded differently."""
        stored = await self._client.get(CACHED_WORKS, work.name, work.namespace)
        manifests = [msgspec.json.decode(each) for each in stored.spec.workload.manifests]
        return manifests == [msgspec.json.decode(each) for each in content.objects]

    def _is_edited(self, work: CachedWork) -> bool:
        """Whether the spec of a Work is not the one that a hub wrote, as far as is known."""
        generation = work.metadata.generation
        return generation > self._generations.setdefault(work.uid, generation)

    async def _delete_work(self, binding: Key, work: CachedWork) -> None:
        if await delete(self._client, CACHED_WORKS, work):
            self._caches.deleted_work(binding, work)

    # Status

    async def _refresh(self, placement: Key, binding: Binding) -> Outcome:
        """Write the status of a binding from the status of its Works."""
        works = _reporting(self._caches.works_of(binding))
        if awaits_works(binding, works):
            record = self._records.get(binding.key)
            if record is not None:
                left_s = record.wrote_works_at + _PROCESSING_S - self._clock.monotonic()
                if left_s > 0:
                    return After(left_s)
        self._records.pop(binding.key, None)
        await self._write_status(placement, binding, works)
        return Done()

    async def _write_status(
        self, placement: Key, binding: Binding, works: list[CachedWork], sync_error: str = ""
    ) -> None:
        status = report(
            binding,
            works,
            is_latest=self._is_latest(placement, binding),
            sync_error=sync_error,
            now=text_of(self._clock.now()),
        )
        written = await write_status(self._client, scope_of(binding.key).bindings, binding, status)
        if written is not None:
            self._caches.bindings.wrote(written)

    def _is_latest(self, placement: Key, binding: Binding) -> bool:
        if binding.spec.state != BindingState.BOUND or self._is_external(placement):
            return False
        group = usable_group(self._caches.resource_snapshots.of(placement))
        return (
            group is not None
            and group.master is not None
            and group.master.name == binding.spec.resource_snapshot_name
        )

    async def _report_missing(self, placement: Key, binding: Binding) -> Outcome:
        name = binding.spec.resource_snapshot_name
        try:
            await self._client.get(
                scope_of(placement).resource_snapshots, name, placement.namespace
            )
        except NotFound as error:
            return await self._report_failure(placement, binding, str(error))
        return After(_MISSING_S)  # the cache does not show all snapshots yet

    async def _report_blocked(self, placement: Key, binding: Binding, work: CachedWork) -> Outcome:
        self._blocked.setdefault(work.key, set()).add(binding.key)
        error = f"Work {work.key} belongs to another binding"
        if not work.deleting and placement_of_work(work) != placement:
            return await self._report_failure(placement, binding, error)
        return Done()  # an event of its deletion follows

    async def _report_failure(self, placement: Key, binding: Binding, error: str) -> Outcome:
        works, error = self._caches.works_of(binding), error[:_LONGEST_ERROR]
        await self._write_status(placement, binding, works, error)
        return Stuck("SyncWorkFailed", error)

    # Deletion

    async def _delete(self, binding: Binding) -> Outcome:
        """Delete the Works of a binding, and drop the binding's finalizer when they are gone."""
        works = self._caches.works_of(binding)
        if not works:
            present = binding.metadata.finalizers or ()
            if names.FINALIZER_WORK in present:
                kept = [each for each in present if each != names.FINALIZER_WORK]
                written = await self._client.patch(
                    scope_of(binding.key).bindings,
                    binding.name,
                    finalizers_patch(binding, kept),
                    binding.namespace,
                )
                self._caches.bindings.wrote(written)
            return Done()
        policy = binding.annotations.get(names.ANNOTATION_DELETE_PROPAGATION)
        for work in works:
            if work.deleting:
                continue
            if policy == DeletePropagationPolicy.ABANDON:
                await self._abandon(binding.key, work)
            await self._delete_work(binding.key, work)
        return Done()  # an event of each removed Work follows

    async def _abandon(self, binding: Key, work: CachedWork) -> None:
        """Annotate the Work so that its placed objects stay in the member."""
        name, value = names.ANNOTATION_DELETE_PROPAGATION, str(DeletePropagationPolicy.ABANDON)
        if work.annotations.get(name) != value:
            metadata = {"resourceVersion": work.resource_version, "annotations": {name: value}}
            await self._patch_work(binding, work, {"metadata": metadata})

    async def _remove_strays(self, binding: Binding) -> None:
        """Delete Works that name a binding in the namespace of another cluster than the binding's.

        This happens if the member of that cluster changed the label, or a user edited the binding.
        """
        namespace = names.member_namespace(binding.spec.target_cluster)
        for work in self._caches.works_naming(binding.key):
            if work.namespace != namespace and not work.deleting:
                await self._delete_work(binding.key, work)

    async def _remove_orphans(self, key: Key) -> Outcome:
        """Delete Works whose binding was removed without its finalizers."""
        works = [work for work in self._caches.works_naming(key) if not work.deleting]
        if not works:
            return Done()
        try:
            await self._client.get(scope_of(key).bindings, key.name, key.namespace)
        except NotFound:
            for work in works:
                await self._delete_work(key, work)
        return Done()


def _reporting(works: list[CachedWork]) -> list[CachedWork]:
    """Return the Works without obsolete ones, whose objects may take long to be deleted."""
    return [work for work in works if not work.deleting] or works


def _report_back_of(placement: Placement) -> ReportBackStrategy:
    return placement.spec.strategy.report_back_strategy
