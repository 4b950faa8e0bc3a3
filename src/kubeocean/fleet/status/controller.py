"""The controller of placement statuses: reports the progress of the other placement controllers.

A status is written as a whole, at an interval that grows with the number of clusters: a placement
on many clusters does not cause one write for each cluster. When the last cluster has finished, the
status is written at once. The copy in a namespace is written
first: the condition about the copy is part of the placement's status. A placement that writes
statuses onto the hub's objects has a further condition about these writes, which is an extension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import (
    CLUSTER_RESOURCE_PLACEMENT_STATUSES,
    ClusterResourcePlacementStatus,
    Placement,
    PlacementStatus,
    ResourceIdentifier,
    StatusReportingScope,
)
from kubeocean.api.fleet.strategies import RolloutStrategyType
from kubeocean.errors import Forbidden, Invalid, NotFound
from kubeocean.fleet.back_report.controller import BackReports
from kubeocean.fleet.back_report.plan import kept_condition, picked_clusters, without_back_report
from kubeocean.fleet.caches import HubCaches, parent_of
from kubeocean.fleet.extensions import Extensions
from kubeocean.fleet.metrics import PlacementMetrics, measured
from kubeocean.fleet.snapshots.contents import SnapshotContents
from kubeocean.fleet.snapshots.controller import Snapshots, selected_namespace
from kubeocean.fleet.snapshots.plan import Group, groups, latest_policy, usable_group
from kubeocean.fleet.status.clusters import cluster_entries, has_finished
from kubeocean.fleet.status.mirror import (
    is_same_copy,
    mirror_document,
    mirror_patch,
    source_status,
    with_synced,
)
from kubeocean.fleet.status.placement import (
    expected_types,
    external_index,
    invalid_status,
    is_scheduled,
    pending_status,
    placement_status,
    trimmed,
)
from kubeocean.fleet.steps import chain_of
from kubeocean.fleet.writes import in_thread, write_status
from kubeocean.runtime.client import Client, JsonPatch
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, Object, find_condition

__all__ = ["Statuses"]

_NAME: Final = "fleet-status"
_WORKERS: Final = 8
_INTERVAL_S: Final = 0.2  # between two writes of one status, unless all clusters have finished
_MANY_CLUSTERS: Final = 100  # a status of more clusters would block the event loop for too long
_INTERVAL_PER_CLUSTER_S: Final = 0.005


@dataclass(slots=True)
class _PlacementRecord:
    """State that the controller keeps of a placement."""

    wrote_at: float


class Statuses:
    """Reconciles the status of ClusterResourcePlacements and ResourcePlacements."""

    def __init__(
        self,
        client: Client,
        caches: HubCaches,
        snapshots: Snapshots,
        contents: SnapshotContents,
        back_reports: BackReports,
        *,
        extensions: Extensions,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client, self._caches = client, caches
        self._snapshots, self._contents = snapshots, contents
        self._back_reports, self._extensions = back_reports, extensions
        self._clock = clock or RealClock()
        self._metrics = PlacementMetrics(metrics, self._clock)
        self._records: dict[Key, _PlacementRecord] = {}
        self.controller: Controller[Key] = Controller(
            _NAME,
            measured(_NAME, _WORKERS, self.reconcile, metrics, self._clock),
            workers=_WORKERS,
            gate=caches.gate(
                caches.placements.caught_up,
                caches.policy_snapshots.caught_up,
                caches.resource_snapshots.caught_up,
                caches.bindings.caught_up,
                self._mirror_caught_up,
            ),
            clock=self._clock,
            metrics=metrics,
        )
        snapshots.on_result(self.controller.enqueue)
        back_reports.on_result(self.controller.enqueue)
        caches.placements.on_change(self._placement_changed)
        caches.policy_snapshots.on_change(self._child_changed)
        caches.resource_snapshots.on_change(self._child_changed)
        caches.bindings.on_change(self._child_changed)
        caches.mirrors.on_change(self._mirror_changed)

    # Events

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        subject = new if new is not None else old
        if subject is not None:
            self.controller.enqueue(subject.key)

    def _child_changed(self, old: Object | None, new: Object | None) -> None:
        subject = new if new is not None else old
        if subject is not None and (placement := parent_of(subject)) is not None:
            self.controller.enqueue(placement)

    def _mirror_changed(
        self,
        old: ClusterResourcePlacementStatus | None,
        new: ClusterResourcePlacementStatus | None,
    ) -> None:
        subject = new if new is not None else old
        if subject is not None:
            self.controller.enqueue(Key("", subject.name))

    async def _mirror_caught_up(self, key: Key) -> bool:
        placement = self._caches.placements.get(key)
        if placement is None or not _is_mirrored(placement):
            return True
        return await self._caches.mirrors.caught_up(
            Key(selected_namespace(placement), placement.name)
        )

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        """Write the status of one placement, if it differs."""
        placement = self._caches.placements.get(key)
        if placement is None:
            self._records.pop(key, None)
            self._metrics.forget(key)
            return Done()
        result = self._snapshots.result(placement)
        if placement.deleting or result is None:
            return Done()  # the selection result enqueues the placement again
        left_s = self._left_s(placement)
        if left_s > 0 and not self._has_finished(placement):
            return After(left_s)
        now = text_of(self._clock.now())
        if result.error:
            await self._write(placement, invalid_status(placement, result.error, now))
            return Done()
        status = await self._status(placement, now)
        if status is None:
            return Done()  # a group of snapshots is being made
        status = self._with_back_report(placement, status, now)
        if _is_mirrored(placement):
            status = await self._mirror(placement, status, now)
        await self._write(placement, status)
        return Done()

    def _left_s(self, placement: Placement) -> float:
        record = self._records.get(placement.key)
        if record is None:
            return 0.0
        clusters = len(placement.status.placement_statuses)
        interval_s = _INTERVAL_S + clusters * _INTERVAL_PER_CLUSTER_S
        return record.wrote_at + interval_s - self._clock.monotonic()

    def _has_finished(self, placement: Placement) -> bool:
        """Whether all picked clusters have finished and the placement's status does not show it."""
        last = chain_of(placement.spec.strategy.apply_strategy)[-1].name
        type_ = f"{scope_of(placement.key).prefix}{last}"
        shown = find_condition(placement.status.conditions, type_)
        if shown is not None and shown.status == "True":
            return False
        snapshot = latest_policy(self._caches.policy_snapshots.of(placement.key))
        if snapshot is None or not is_scheduled(placement, snapshot):
            return False
        finished = sum(
            has_finished(binding, last) for binding in self._caches.bindings.of(placement.key)
        )
        return finished >= len(picked_clusters(snapshot))

    async def _write(self, placement: Placement, status: PlacementStatus) -> None:
        resource = scope_of(placement.key).placements
        written = await write_status(self._client, resource, placement, status)
        if written is not None:
            self._records[placement.key] = _PlacementRecord(self._clock.monotonic())
            self._caches.placements.wrote(written)
        self._metrics.reported(
            placement.key,
            placement.metadata.generation,
            expected_types(placement, status),
            status.conditions,
        )

    async def _status(self, placement: Placement, now: str) -> PlacementStatus | None:
        """Return a placement's status computed from the caches; None while they are incomplete."""
        snapshot = latest_policy(self._caches.policy_snapshots.of(placement.key))
        resource_snapshots = self._caches.resource_snapshots.of(placement.key)
        by_name = {
            group.master.name: group
            for group in groups(resource_snapshots)
            if group.master is not None
        }
        external = placement.spec.strategy.type == RolloutStrategyType.EXTERNAL
        latest = usable_group(resource_snapshots)
        if latest is None and not external:
            return None
        if snapshot is None or not is_scheduled(placement, snapshot):
            if external or latest is None:
                old = placement.status
                return pending_status(
                    placement, old.observed_resource_index, old.selected_resources, now
                )
            selected = await self._contents.identifiers_of(latest)
            return pending_status(placement, str(latest.index), selected, now)
        bindings = self._caches.bindings.of(placement.key)
        many = len(bindings) > _MANY_CLUSTERS
        list_clusters = partial(
            cluster_entries,
            placement,
            snapshot,
            bindings,
            latest=_name_and_index(latest),
            index_of=lambda name: str(by_name[name].index) if name in by_name else "",
            now=now,
        )
        entries = await in_thread(list_clusters, many=many)
        index = external_index(placement, entries) if external else _name_and_index(latest)[1]
        observed = next((each for each in by_name.values() if str(each.index) == index), None)
        selected = await self._selected(placement, observed, index)
        aggregate = partial(placement_status, placement, snapshot, entries, index, selected, now)
        return await in_thread(lambda: trimmed(aggregate()), many=many)

    def _with_back_report(
        self, placement: Placement, status: PlacementStatus, now: str
    ) -> PlacementStatus:
        """Return the status with the condition about back reports, if the placement has any."""
        others = without_back_report(placement, status.conditions)
        if not placement.spec.strategy.report_back_strategy.is_for_originals:
            return msgspec.structs.replace(status, conditions=others)
        result = self._back_reports.result(placement)
        condition = result.condition(placement, now) if result else kept_condition(placement)
        conditions = (*others, *self._extensions.report_back(condition))
        return msgspec.structs.replace(status, conditions=conditions)

    async def _selected(
        self, placement: Placement, group: Group | None, index: str
    ) -> tuple[ResourceIdentifier, ...]:
        if group is not None:
            return await self._contents.identifiers_of(group)
        is_same = index and index == placement.status.observed_resource_index
        return placement.status.selected_resources if is_same else ()

    async def _mirror(
        self, placement: Placement, status: PlacementStatus, now: str
    ) -> PlacementStatus:
        """Write the copy of a status, and return the status with the condition about the copy."""
        namespace, source = selected_namespace(placement), source_status(status)
        if not namespace:
            return with_synced(placement, status, "", "no namespace is selected", now)
        mirror = self._caches.mirrors.get(Key(namespace, placement.name))
        resource, error = CLUSTER_RESOURCE_PLACEMENT_STATUSES, ""
        try:
            if mirror is None:
                body = mirror_document(placement, namespace, source, now)
                self._caches.mirrors.wrote(await self._client.create(resource, body))
            elif not is_same_copy(placement, mirror, source):
                patch = JsonPatch(mirror_patch(placement, mirror, source, now))
                self._caches.mirrors.wrote(
                    await self._client.patch(resource, placement.name, patch, namespace)
                )
        except (Forbidden, Invalid, NotFound) as refused:
            error = str(refused)
        return with_synced(placement, status, namespace, error, now)


def _is_mirrored(placement: Placement) -> bool:
    scope = placement.spec.status_reporting_scope
    return not placement.namespace and scope == StatusReportingScope.NAMESPACE_ACCESSIBLE


def _name_and_index(group: Group | None) -> tuple[str, str]:
    if group is None or group.master is None:
        return "", ""
    return group.master.name, str(group.index)
