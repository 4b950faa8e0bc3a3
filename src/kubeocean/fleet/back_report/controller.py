"""The controller of back reports: writes statuses that members report onto the hub's objects.

A member reports the status of the objects that it applied in the status of their Work. If a
placement asks for it and picks exactly one cluster, these statuses are written onto the objects
that the placement selects. A status is written when the report changes, or when another object has
the name; a status that another program writes in between stays until then, because a controller of
the hub that computes another status would otherwise overwrite it without end.

Writes name UID and resourceVersion of the object that was read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from kubeocean.api.fleet.hashes import content_hash
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.works import WORKS, WorkStatus
from kubeocean.errors import ApiError, Conflict, NotFound
from kubeocean.fleet.back_report.plan import (
    BackReport,
    Claims,
    Original,
    Report,
    has_same_claims,
    not_on_one_cluster,
    picked_clusters,
    reporting_binding,
    reports_of,
    result_of,
    status_patch,
)
from kubeocean.fleet.caches import HubCaches, parent_of
from kubeocean.fleet.metrics import measured
from kubeocean.fleet.selection.reader import SelectedObject, SelectionReader
from kubeocean.fleet.snapshots.contents import SnapshotContents
from kubeocean.fleet.snapshots.plan import latest_policy, usable_group
from kubeocean.fleet.status.placement import is_scheduled
from kubeocean.fleet.works.views import CachedWork, placement_of_work, reported_status
from kubeocean.fleet.writes import in_parallel, is_refusal
from kubeocean.runtime.client import Client, JsonPatch
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.controller import After, Controller, Done, Outcome
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Object, Resource

__all__ = ["BackReports"]

_NAME: Final = "fleet-back-report"
_WORKERS: Final = 4
_IN_FLIGHT: Final = 8  # writes of one placement at a time
_INTERVAL_S: Final = 1.0  # between writes of one placement; a member may report without end
_RETRY_S: Final = 60.0  # after which a refused status is tried again
_NO_STATUS: Final = "the object is gone, or its kind has no status subresource on the hub"

_log = get_logger(__name__)


class _ReportingWork(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A Work with its whole status, and without its spec."""

    status: WorkStatus = WorkStatus()


_REPORTING_WORKS: Final = Resource(
    WORKS.group, WORKS.version, WORKS.plural, WORKS.kind, WORKS.namespaced, _ReportingWork
)


@dataclass(frozen=True, slots=True)
class _Written:
    """A report that was written onto the object with this UID, or refused with an error."""

    uid: str
    digest: str
    error: str = ""
    refused_at: float = 0.0


@dataclass(slots=True)
class _Record:
    """State that the controller keeps of a placement."""

    uid: str
    written: dict[Original, _Written] = field(default_factory=dict)
    next_write_at: float = 0.0  # by the clock's monotonic time
    result: BackReport | None = None


class BackReports:
    """Writes reported statuses onto the objects that placements of both scopes select."""

    def __init__(
        self,
        client: Client,
        caches: HubCaches,
        reader: SelectionReader,
        contents: SnapshotContents,
        *,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._client, self._caches = client, caches
        self._reader, self._contents = reader, contents
        self._clock = clock or RealClock()
        self._records: dict[Key, _Record] = {}
        self._claims = Claims()
        self._handlers: list[Callable[[Key], None]] = []
        self.controller: Controller[Key] = Controller(
            _NAME,
            measured(_NAME, _WORKERS, self.reconcile, metrics, self._clock),
            workers=_WORKERS,
            gate=caches.gate(),
            clock=self._clock,
            metrics=metrics,
        )
        caches.placements.on_change(self._placement_changed)
        caches.policy_snapshots.on_change(self._child_changed)
        caches.resource_snapshots.on_change(self._child_changed)
        caches.bindings.on_change(self._child_changed)
        caches.works.on_change(self._work_changed)
        reader.on_change(self._enqueue)

    def result(self, placement: Placement) -> BackReport | None:
        """Return the result of the back reports of a placement; None if none is known yet."""
        record = self._records.get(placement.key)
        return record.result if record is not None and record.uid == placement.uid else None

    def on_result(self, handler: Callable[[Key], None]) -> None:
        """Call `handler` with the key of a placement whenever its result changes."""
        self._handlers.append(handler)

    # Events

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        for placement in (old, new):
            if placement is not None and _reports_back(placement):
                self.controller.enqueue(placement.key)
        subject = new if new is not None else old
        assert subject is not None
        if old is None or new is None or not has_same_claims(old, new):
            for key in self._claims.update(subject.key, new):
                self._enqueue(key)

    def _child_changed(self, old: Object | None, new: Object | None) -> None:
        subject = new if new is not None else old
        if subject is not None and (placement := parent_of(subject)) is not None:
            self._enqueue(placement)

    def _work_changed(self, old: CachedWork | None, new: CachedWork | None) -> None:
        for work in (old, new):
            if work is not None and (placement := placement_of_work(work)) is not None:
                self._enqueue(placement)

    def _enqueue(self, key: Key) -> None:
        placement = self._caches.placements.get(key)
        if placement is not None and _reports_back(placement):
            self.controller.enqueue(key)

    # Reconcile

    async def reconcile(self, key: Key) -> Outcome:
        """Write the statuses that are reported for one placement, as far as they changed."""
        placement = self._caches.placements.get(key)
        if placement is None or placement.deleting or not _reports_back(placement):
            self._records.pop(key, None)
            return Done()
        record = self._records.get(key)
        if record is None or record.uid != placement.uid:
            record = self._records[key] = _Record(placement.uid)
        snapshot = latest_policy(self._caches.policy_snapshots.of(key))
        if snapshot is None or not is_scheduled(placement, snapshot):
            return Done()  # an event of the scheduler's decision follows
        clusters = picked_clusters(snapshot)
        if len(clusters) != 1:
            record.written.clear()
            self._finish(key, record, not_on_one_cluster(len(clusters)))
            return Done()
        binding = reporting_binding(self._caches.bindings.of(key), clusters[0], snapshot.name)
        group = usable_group(self._caches.resource_snapshots.of(key))
        if binding is None or group is None:
            return Done()  # events of both follow
        works = self._caches.works_of(binding)
        if not any(work.reported for work in works):
            return Done()  # an event of a Work follows
        selected = set(map(Original.of, await self._contents.identifiers_of(group)))
        # A placement writes what its own status claims: of two placements, the later one then sees
        # the claim of the earlier one. An event of the status follows.
        reports = {
            original: report
            for original, report in reports_of(works, clusters[0], selected).items()
            if self._claims.has(key, original)
        }
        return await self._report(key, record, reports)

    async def _report(self, key: Key, record: _Record, reports: dict[Original, Report]) -> Outcome:
        for original in record.written.keys() - reports.keys():
            del record.written[original]
        errors = {
            original: f"the placement {min(others)} reports it back, too"
            for original in reports
            if (others := self._claims.others(key, original))
        }
        due = self._due(record, reports, errors)
        if due:
            left_s = record.next_write_at - self._clock.monotonic()
            if left_s > 0:
                return After(left_s)
            await self._write(record, due)
        refused = {
            original: written.error
            for original, written in record.written.items()
            if written.error and original not in errors
        }
        if reports:
            self._finish(key, record, result_of(reports.keys(), errors | refused))
        return After(_RETRY_S) if refused else Done()

    def _due(
        self, record: _Record, reports: dict[Original, Report], errors: dict[Original, str]
    ) -> dict[Original, tuple[SelectedObject, Report]]:
        """Return the hub's objects whose status may need a write, with their cached metadata."""
        due: dict[Original, tuple[SelectedObject, Report]] = {}
        now = self._clock.monotonic()
        for original, report in reports.items():
            if original in errors:
                record.written.pop(original, None)
                continue
            cached = self._reader.cached(*original)
            if cached is None or cached.metadata.deleting:
                continue  # an event of the object follows when there is one again
            written = record.written.get(original)
            if written is None:
                due[original] = cached, report
            elif (written.uid, written.digest) != (cached.metadata.uid, report.digest) or (
                written.error and now - written.refused_at >= _RETRY_S
            ):
                # The cache may not show the last write yet
                due[original] = cached._replace(content=None), report
        return due

    def _finish(self, key: Key, record: _Record, result: BackReport) -> None:
        if record.result != result:
            record.result = result
            for handler in self._handlers:
                handler(key)

    # Writing

    async def _write(
        self, record: _Record, due: dict[Original, tuple[SelectedObject, Report]]
    ) -> None:
        statuses = await self._statuses({report.work for _, report in due.values()})

        async def write(original: Original) -> None:
            cached, report = due[original]
            if original not in statuses:
                return  # the Work has changed, and its event follows
            status = statuses[original]
            digest = content_hash(status)
            error = ""
            try:
                await self._replace_status(cached, original, status)
            except ApiError as refused:
                if not is_refusal(refused):
                    raise
                error = _NO_STATUS if isinstance(refused, NotFound) else str(refused)
                _log.warning(
                    "Failed to write reported status onto object of the hub",
                    object=str(original), work=str(report.work), error=error,
                )  # fmt: skip
            record.written[original] = _Written(
                cached.metadata.uid, digest, error, self._clock.monotonic()
            )

        record.next_write_at = self._clock.monotonic() + _INTERVAL_S
        await in_parallel(write, due, _IN_FLIGHT)

    async def _statuses(self, works: Iterable[Key]) -> dict[Original, Any]:
        """Return the statuses that these Works report, read from the hub."""
        statuses: dict[Original, Any] = {}

        async def read(key: Key) -> None:
            try:
                work = await self._client.get(_REPORTING_WORKS, key.name, key.namespace)
            except NotFound:
                return
            for entry in work.status.manifest_conditions:
                if (status := reported_status(entry)) is not None:
                    statuses[Original.of(entry.identifier)] = status

        await in_parallel(read, works, _IN_FLIGHT)
        return statuses

    async def _replace_status(
        self, cached: SelectedObject, original: Original, status: Any
    ) -> None:
        """Replace the status of an object of the hub, if it differs.

        :raises Conflict: the object has changed since it was read, or another one has its name.
        """
        resource, metadata, raw = cached
        if raw is None:
            key = original.key
            fresh = await self._client.get(resource, key.name, key.namespace, keep_raw=True)
            if fresh.uid != metadata.uid or fresh.deleting:
                raise Conflict(f"{original} is not the object that was selected")
            metadata, content = fresh, fresh.content()
        else:
            content = _decoded(raw)
        if (content.get("status") or {}) == status:
            return
        patch = JsonPatch(status_patch(metadata.uid, metadata.resource_version, status))
        await self._client.patch(
            resource, metadata.name, patch, metadata.namespace, subresource="status"
        )


def _reports_back(placement: Placement) -> bool:
    return placement.spec.strategy.report_back_strategy.is_for_originals


def _decoded(raw: bytes) -> Json:
    content: Json = msgspec.json.decode(raw)
    return content
