"""Work applier: places the objects of a member's Works, and reports on them.

One pass over a Work:

    read manifests      decode them, look up their kinds, refuse those that cannot be placed
    write ahead         list new objects in the AppliedWork before the first of them is written
    remove left-overs   objects that were placed and that no manifest names any more
    apply               wave by wave; a failure stops nothing else
    report              AppliedWork: placed objects; Work: conditions of each manifest and of all

A pass follows each change of a Work, of an AppliedWork, of a placed object (a `WatchPool` watches
them), and of the definition of a kind that a Work lacks. Passes scheduled by `Backoff` come on top:
they retry failed manifests, and read objects that cannot be watched. A pass reads only objects that
have changed since the last one, and writes only differences.

With ReportDiff nothing is written to the member but the AppliedWork. When a Work is deleted, its
objects are deleted (see `deletion`); a member that leaves the fleet keeps them (`release_works`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from kubeocean.api.fleet.conditions import ManifestReason, WorkCondition
from kubeocean.api.fleet.hashes import content_hash
from kubeocean.api.fleet.names import (
    ANNOTATION_PARENT_SNAPSHOT,
    FIELD_MANAGER,
    FINALIZER_WORK,
)
from kubeocean.api.fleet.strategies import (
    ApplyStrategy,
    ApplyStrategyType,
    ReportBackStrategy,
    ReportBackType,
)
from kubeocean.api.group import DEFAULT, Domain
from kubeocean.errors import ConfigError
from kubeocean.fleet.applier.applied_work import (
    applied_resources,
    listed,
    write_ahead,
)
from kubeocean.fleet.applier.availability import TrackerOf, extended_tracker
from kubeocean.fleet.applier.deletion import DELETION_WAIT_S, WorkDeletion
from kubeocean.fleet.applier.finished_jobs import note_of, notes_after, notes_of
from kubeocean.fleet.applier.health_checks import HealthChecks
from kubeocean.fleet.applier.leftovers import left_overs
from kubeocean.fleet.applier.manifest_pass import ManifestOutcomes, ManifestPass, ReadManifests
from kubeocean.fleet.applier.manifests import Identifier, Owner, Rejected
from kubeocean.fleet.applier.metrics import ApplierMetrics
from kubeocean.fleet.applier.objects import MemberObjects, PassFacts
from kubeocean.fleet.applier.plan import Result, check_strategy, rejected
from kubeocean.fleet.applier.records import Backoff, ObjectIdentity, WorkRecord
from kubeocean.fleet.applier.report import Processed, work_status
from kubeocean.fleet.applier.stores import AppliedWorks, HubWorks, version_of
from kubeocean.fleet.pool import ChangedPart, ObjectRef, WatchPool
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock, text_of
from kubeocean.runtime.controller import Controller, Done, Outcome
from kubeocean.runtime.discovery import Discovery
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.kinds import CUSTOM_RESOURCE_DEFINITIONS
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Object, Resource, Untyped
from kubeocean.runtime.workqueue import WorkQueue

__all__ = ["WorkApplier"]

WORKERS: Final = 5
OUTAGE_S: Final = 60.0  # longer outages of a member are reported in the status of its Works
STATUS_DELAY_S: Final = 1.0  # collects changes of status, and of definitions
OBJECT_INTERVAL_S: Final = 1.0  # between passes after changes of objects, which may be endless

_HAND_OVER_S: Final = 5.0  # until the deletion of a Work that waits for others is tried again

RETRY_LIMIT_S: Final = 10.0  # after an outage Works are up to date again within this time
_MANY: Final = 200  # manifests; the report on more of them would block the event loop for too long

# Priorities of the queue
_SCHEDULED: Final = 0
_OBJECT: Final = 1
_WORK: Final = 2

_DEFINITIONS: Final = Resource(
    CUSTOM_RESOURCE_DEFINITIONS.group,
    CUSTOM_RESOURCE_DEFINITIONS.version,
    CUSTOM_RESOURCE_DEFINITIONS.plural,
    CUSTOM_RESOURCE_DEFINITIONS.kind,
    CUSTOM_RESOURCE_DEFINITIONS.namespaced,
    Object,
)

_UNLISTED: Final = "the Work has more objects than its AppliedWork can list; split the placement"

_log = get_logger(__name__)
PartT = TypeVar("PartT", ApplyStrategy, ReportBackStrategy)


class WorkApplier:
    """Applies the Works of one namespace of the hub to the member.

    - `hub`, `member`: clients of the two clusters.
    - `namespace`: the member's namespace on the hub.
    - `trackers`: looks up the availability tracker of a kind; `kubefleet_tracker` leaves out the
      kinds that only Kubeocean tracks.
    - `health_checks`: expressions of users, which come before trackers; None to evaluate none.
    - `backoff`: when a Work is processed again without an event.
    - `deletion_wait_s`: for how long objects with finalizers may delay the end of a deleted Work.
    - `domain`: labels by which copies that leasing made are recognized; these are never taken over.
    """

    name = "work-applier"

    def __init__(
        self,
        hub: Client,
        member: Client,
        *,
        namespace: str,
        trackers: TrackerOf = extended_tracker,
        health_checks: HealthChecks | None = None,
        backoff: Backoff | None = None,
        deletion_wait_s: float = DELETION_WAIT_S,
        domain: Domain = DEFAULT,
        workers: int = WORKERS,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        clock, metrics = clock or RealClock(), metrics or Metrics()
        self.namespace = namespace
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._records: dict[Key, WorkRecord] = {}
        self._waiting: set[Key] = set()  # Works that remove objects when others have been read
        member = member.with_field_manager(FIELD_MANAGER)
        self._works = HubWorks(hub, namespace, clock=clock, metrics=metrics)
        self._applied_works = AppliedWorks(member, namespace, clock=clock, metrics=metrics)
        self._metrics = ApplierMetrics(metrics)
        self._definitions = Informer(
            member, _DEFINITIONS, metadata_only=True, clock=clock, metrics=metrics
        )
        self._pool = WatchPool(member, self._on_object, clock=clock, metrics=metrics)
        self._discovery = Discovery(member, clock=clock)
        objects = MemberObjects(member, domain=domain, discovery=self._discovery)
        self._health_checks = health_checks
        self._manifests = ManifestPass(
            objects, self._pool, tracker_of=trackers, health_checks=health_checks
        )
        self._deletion = WorkDeletion(member, objects, wait_s=deletion_wait_s, clock=clock)
        self._controller: Controller[Key] = Controller(
            self.name,
            self._reconcile,
            queue=WorkQueue(self.name, max_s=RETRY_LIMIT_S, clock=clock, metrics=metrics),
            workers=workers,
            gate=self._caught_up,
            clock=clock,
            metrics=metrics,
        )
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()
        self._works.cache.on_change(self._on_work)
        self._applied_works.cache.on_change(self._on_applied_work)
        self._definitions.on_change(self._on_definition)

    # Life

    @property
    def ready(self) -> bool:
        """Whether the caches of Works and AppliedWorks are filled."""
        return self._works.cache.has_synced and self._applied_works.cache.has_synced

    async def run(self) -> None:
        """Apply Works until stopped or cancelled."""
        self._stop.clear()
        self._ended.clear()
        caches = self._works.cache, self._applied_works.cache, self._definitions
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part.run()) for part in (*caches, self._pool)]
                tasks.append(group.create_task(self._process_works()))
                await self._stop.wait()
                await self._controller.stop()
                for task in tasks:
                    task.cancel()
        finally:
            if self._health_checks is not None:
                await self._health_checks.close()
            self._ended.set()

    async def _process_works(self) -> None:
        await self._works.cache.synced()
        await self._applied_works.cache.synced()
        await self._controller.run()

    async def stop(self) -> None:
        """Stop the applier after the passes in progress; return when `run` has ended."""
        self._stop.set()
        await self._ended.wait()

    async def release_works(self) -> None:
        """Remove the finalizers of all Works of the namespace; placed objects stay.

        For a member that leaves the fleet: from now on the Works can be deleted without the member.
        The applier must be stopped, or it would add its finalizer again.

        :raises Conflict: a Work was replaced meanwhile; call again.
        """
        released = await self._works.release_all()
        _log.info("Removed finalizers from Works", namespace=self.namespace, works=released)

    # Events

    def _on_work(self, old: Untyped | None, new: Untyped | None) -> None:
        if new is None or new.deleting:
            self._end_waits()
        if new is None:
            assert old is not None
            self._controller.enqueue(old.key, priority=_WORK)
            return
        record = self._records.get(new.key)
        if record is None or record.uid != new.uid:
            self._controller.enqueue(new.key, priority=_WORK)
        elif not record.is_busy and version_of(new) > record.written:
            changed = old is None or _is_other_spec(old, new)
            self._controller.enqueue(new.key, priority=_WORK if changed else _OBJECT)

    def _on_applied_work(self, old: Untyped | None, new: Untyped | None) -> None:
        subject = new or old
        assert subject is not None
        if old is None:
            self._end_waits()
        key = Key(self.namespace, subject.name)
        record = self._records.get(key)
        if record is None or record.is_busy:
            return  # the first pass follows anyway; a pass in progress compares versions at its end
        if new is None or version_of(new) > record.applied_work_written:
            self._controller.enqueue(key, priority=_WORK if new is None else _OBJECT)

    def _on_object(
        self, owner: str, ref: ObjectRef, change: ChangedPart, obj: Untyped | None
    ) -> None:
        key = Key(self.namespace, owner)
        record = self._records.get(key)
        if record is None:
            return
        if (note := note_of(obj)) is not None:
            record.finished_jobs |= [note]
        if record.is_busy:
            return
        if change is not ChangedPart.STATUS:
            wait_s = record.passed_at + OBJECT_INTERVAL_S - self._clock.monotonic()
            self._controller.queue.add_after(key, wait_s, priority=_OBJECT)
        elif self._is_outdated(record, ref):
            self._controller.queue.add_after(key, STATUS_DELAY_S, priority=_OBJECT)

    def _on_definition(self, old: Object | None, new: Object | None) -> None:
        self._discovery.expire()
        for key, record in self._records.items():
            if record.lacks_kinds or new is None:
                self._controller.queue.add_after(key, STATUS_DELAY_S, priority=_OBJECT)

    async def _caught_up(self, key: Key) -> bool:
        applied_works = self._applied_works.cache
        return await self._works.cache.caught_up(key) and await applied_works.caught_up(
            Key("", key.name)
        )

    # One Work

    async def _reconcile(self, key: Key) -> Outcome:
        work = self._works.cache.get(key)
        if work is None:
            self._forget(key)
            return Done()
        record = self._records.get(key)
        if record is None or record.uid != work.uid:
            record = self._records[key] = WorkRecord(work.uid)
        before = self._applied_works.get(key.name)
        passes = record.passes
        if passes is not None and self._is_settled(work, before, record):
            self._schedule(key, record, passes.generation, passes.result, settled=True)
            return Done()
        record.is_busy, record.settled_at = True, None
        try:
            content = await self._works.content(work)
            if work.deleting:
                await self._delete(content, record)
            elif await self._apply(content, record):
                versions = version_of(work), version_of(before)
                written = record.written, record.applied_work_written
                record.settled_at = max(versions[0], written[0]), max(versions[1], written[1])
        finally:
            record.is_busy = False
            record.passed_at = self._clock.monotonic()
        if self._has_news(work, before, record):
            self._controller.enqueue(key, priority=_OBJECT)
        return Done()

    def _forget(self, key: Key) -> None:
        if self._records.pop(key, None) is not None:
            self._metrics.forget(key.name)
        self._pool.need(key.name, ())

    def _is_settled(self, work: Untyped, applied_work: Untyped | None, record: WorkRecord) -> bool:
        """Whether Work, AppliedWork and objects are unchanged since a complete pass."""
        if record.settled_at != (version_of(work), version_of(applied_work)):
            return False
        return all(
            self._pool.is_current(each.ref, each.version, with_status=each.with_status)
            for each in record.results.values()
        )

    def _has_news(self, work: Untyped, applied_work: Untyped | None, record: WorkRecord) -> bool:
        """Whether another writer changed the Work, the AppliedWork or an object during the pass.

        `work` and `applied_work` are the versions with which the pass began.
        """
        now = self._works.cache.get(work.key)
        if now is None or now.uid != record.uid or _is_newer(now, work, record.written):
            return True
        owner = self._applied_works.get(work.name)
        if owner is None:
            return applied_work is not None
        return _is_newer(owner, applied_work, record.applied_work_written) or any(
            self._pool.has_changed(each.ref, each.version, with_status=each.with_status)
            for each in record.results.values()
        )

    def _is_outdated(self, record: WorkRecord, ref: ObjectRef) -> bool:
        """Whether the result for an object depends on its status, and the status has changed."""
        kind = ref.resource.group, ref.resource.kind
        result = record.results.get((*kind, ref.key.namespace, ref.key.name))
        return result is not None and self._pool.has_changed(
            ref, result.version, with_status=result.with_status
        )

    # Applying

    async def _apply(self, work: Json, record: WorkRecord) -> bool:
        """Make one pass over a Work; return whether the next pass can wait for a change."""
        began_at = self._clock.monotonic()
        name = work["metadata"]["name"]
        work = await self._works.add_finalizer(work, record)
        applied_work = await self._applied_works.ensure(name, record)
        spec = work.get("spec") or {}
        read = await self._manifests.read((spec.get("workload") or {}).get("manifests") or ())
        record.lacks_kinds = read.lacks_kinds
        self._note_objects(work, read, record)
        self._pool.need(name, read.watchable)
        settings, problem = _settings_of(spec)
        if applied_work["metadata"].get("deletionTimestamp"):
            problem = "the AppliedWork is being deleted; objects are placed again after that"
        unremoved: list[Identifier] = []
        if problem:
            outcomes = ManifestOutcomes(_all_failed(read, problem))
        else:
            outcomes, unremoved = await self._place(work, applied_work, read, settings, record)
        reports_diff = settings.reports_diff
        status = await self._report(work, outcomes, record, reports_diff=reports_diff)
        seconds = self._clock.monotonic() - began_at
        self._metrics.passed(name, status, outcomes.processed, seconds)
        self._schedule_after(work, outcomes, status, record, settled=not unremoved)
        return not unremoved and _is_final(outcomes, record)

    async def _place(
        self,
        work: Json,
        applied_work: Json,
        read: ReadManifests,
        settings: _ApplySettings,
        record: WorkRecord,
    ) -> tuple[ManifestOutcomes, list[Identifier]]:
        """Apply or compare the manifests; return the outcomes and the left-overs not removed."""
        metadata = applied_work["metadata"]
        owner = Owner(metadata["name"], metadata["uid"])
        record.hold_for((owner, settings))
        unremoved: list[Identifier] = []
        if not settings.reports_diff:
            ahead, unlisted = write_ahead(listed(applied_work), read.identifiers_to_place)
            read = read.refuse(unlisted, _UNLISTED)
            applied_work = await self._applied_works.write_list(applied_work, ahead, record)
            unremoved = await self._remove_left_overs(work, applied_work, read, owner)
        outcomes = await self._manifests.apply(
            read,
            PassFacts(owner, settings.strategy, hub_works=self._works),
            record,
            finished_jobs=notes_of(applied_work) | record.finished_jobs,
            reports_back=settings.reports_back,
            generation=_generation(work),
        )
        self._check_answers(outcomes, record)
        if not settings.reports_diff:
            await self._record_applied(applied_work, outcomes, unremoved, record)
        return outcomes, unremoved

    async def _remove_left_overs(
        self, work: Json, applied_work: Json, read: ReadManifests, owner: Owner
    ) -> list[Identifier]:
        """Remove objects that no manifest names any more, after reading the Work once more.

        Returns the left-overs that could not be removed, or not yet.

        :raises Conflict: the Work has changed since it was cached.
        """
        identifiers = left_overs(work, applied_work, read.identifiers)
        if not identifiers:
            return []
        await self._works.check_unchanged(work)
        heirs = self._heirs(work)
        if heirs is None:
            return list(identifiers)
        return await self._remove(identifiers, owner, heirs)

    async def _remove(
        self,
        identifiers: Iterable[Identifier],
        owner: Owner,
        heirs: Mapping[ObjectIdentity, Owner],
    ) -> list[Identifier]:
        unremoved = await self._manifests.remove(identifiers, owner, heirs)
        for heir in {heirs[each.object] for each in identifiers if each.object in heirs}:
            self._controller.enqueue(Key(self.namespace, heir.name), priority=_OBJECT)
        return unremoved

    # Objects that move to another Work of their binding

    def _note_objects(self, work: Json, read: ReadManifests, record: WorkRecord) -> None:
        """Note which objects a Work names; other Works of its binding may wait for that."""
        version = _generation(work), _release(work["metadata"].get("annotations"))
        if record.version != version:
            record.version = version
            record.named = frozenset(each.object for each in read.identifiers)
            self._end_waits()

    def _end_waits(self) -> None:
        """Enqueue the Works that wait for another one."""
        waiting, self._waiting = self._waiting, set()
        for key in waiting:
            self._controller.enqueue(key, priority=_OBJECT)

    def _heirs(self, work: Json) -> dict[ObjectIdentity, Owner] | None:
        """Return the AppliedWorks of the other Works of a binding, by the objects that these name.

        None while another Work has not been read, has no AppliedWork, or has another release: an
        object that this Work no longer names may be in that Work.
        """
        metadata = work["metadata"]
        release = _release(metadata.get("annotations"))
        is_deleted = bool(metadata.get("deletionTimestamp"))
        heirs: dict[ObjectIdentity, Owner] = {}
        for other in self._works.others_of_binding(work):
            version = other.metadata.generation, _release(other.annotations)
            record, owner = self._records.get(other.key), self._applied_works.get(other.name)
            is_read = record is not None and (record.uid, record.version) == (other.uid, version)
            is_same_release = is_deleted or not release or version[1] in ("", release)
            if record is None or not is_read or not is_same_release:
                break
            if not record.named:
                continue
            if owner is None or owner.deleting:
                break
            heirs |= dict.fromkeys(record.named, Owner(owner.name, owner.uid))
        else:
            return heirs
        self._waiting.add(Key(self.namespace, metadata["name"]))
        return None

    async def _hand_over(self, work: Json, applied_work: Json) -> bool:
        """Hand over the objects of a deleted Work that other Works of its binding name.

        Returns False if objects are left that may have to be handed over.
        """
        heirs = self._heirs(work)
        if heirs is None:
            return False
        moved = [each for each in left_overs(work, applied_work, ()) if each.object in heirs]
        metadata = applied_work["metadata"]
        return not await self._remove(moved, Owner(metadata["name"], metadata["uid"]), heirs)

    def _check_answers(self, outcomes: ManifestOutcomes, record: WorkRecord) -> None:
        """Raise the error of a member that does not answer, for the first minute of an outage.

        A restart of the member's API server thus changes no status; a long outage does.
        """
        if outcomes.unanswered is None:
            record.unanswered_since = None
            return
        now = self._clock.monotonic()
        if record.unanswered_since is None:
            record.unanswered_since = now
        if now - record.unanswered_since < OUTAGE_S:
            raise outcomes.unanswered

    # Reporting

    async def _record_applied(
        self,
        applied_work: Json,
        outcomes: ManifestOutcomes,
        unremoved: list[Identifier],
        record: WorkRecord,
    ) -> None:
        entries = applied_resources(listed(applied_work), outcomes.processed, unremoved)
        applied_work = await self._applied_works.write_list(applied_work, entries, record)
        fresh = dict(record.finished_jobs)
        notes = notes_after(notes_of(applied_work) | fresh, outcomes.jobs)
        await self._applied_works.note_finished_jobs(applied_work, notes, record)
        record.forget_notes(fresh)

    async def _report(
        self, work: Json, outcomes: ManifestOutcomes, record: WorkRecord, *, reports_diff: bool
    ) -> Json:
        """Write the status of the Work if it differs; return the status."""
        now = text_of(self._clock.now())
        build = partial(work_status, work, outcomes.processed, reports_diff=reports_diff, now=now)
        is_large = len(outcomes.processed) > _MANY
        status = await asyncio.to_thread(build) if is_large else build()
        await self._works.write_status(work, status, record)
        return status

    def _schedule_after(
        self,
        work: Json,
        outcomes: ManifestOutcomes,
        status: Json,
        record: WorkRecord,
        *,
        settled: bool,
    ) -> None:
        """Enqueue the next pass over the Work, after the delay of the back-off."""
        done = {each["type"] for each in status["conditions"] if each["status"] == "True"}
        settled = settled and not done.isdisjoint(
            (WorkCondition.AVAILABLE, WorkCondition.DIFF_REPORTED)
        )
        digest = content_hash([[e.result.reason, e.availability] for e in outcomes.processed])
        key = Key(self.namespace, work["metadata"]["name"])
        self._schedule(key, record, _generation(work), digest, settled=settled)

    def _schedule(
        self, key: Key, record: WorkRecord, generation: int, result: str, *, settled: bool
    ) -> None:
        record.passes = self._backoff.after_pass(
            record.passes, generation=generation, result=result, settled=settled
        )
        self._controller.queue.add_after(key, record.passes.delay_s, priority=_SCHEDULED)

    # Deleting

    async def _delete(self, work: Json, record: WorkRecord) -> None:
        metadata = work["metadata"]
        key, finalizers = Key(self.namespace, metadata["name"]), metadata.get("finalizers") or []
        if FINALIZER_WORK not in finalizers:
            return  # released, as the member leaves: placed objects stay
        self._pool.need(key.name, ())
        record.results.clear()  # objects that other Works name go on changing
        applied_work = self._applied_works.get(key.name)
        if applied_work is None:
            await self._applied_works.check_gone(key.name)
            await self._works.drop_finalizer(work, record)
            _log.info("Deleted objects of Work", work=key.name)
            return
        await self._works.check_unchanged(work)
        content = applied_work.content()
        if not applied_work.deleting and not await self._hand_over(work, content):
            self._controller.queue.add_after(key, _HAND_OVER_S, priority=_SCHEDULED)
            return
        wait_s = await self._deletion.advance(work, content)
        self._controller.queue.add_after(key, wait_s, priority=_SCHEDULED)


def _release(annotations: Mapping[str, str] | None) -> str:
    """Return the name of the resource snapshot whose objects a Work has."""
    return (annotations or {}).get(ANNOTATION_PARENT_SNAPSHOT, "")


def _generation(work: Json) -> int:
    return int(work["metadata"].get("generation") or 0)


def _is_other_spec(old: Untyped, new: Untyped) -> bool:
    return old.metadata.generation != new.metadata.generation or old.deleting != new.deleting


def _is_final(outcomes: ManifestOutcomes, record: WorkRecord) -> bool:
    """Whether the result of every manifest can change only when its object does.

    False with drifts or diffs: each pass updates the time of their observation.
    """
    return len(record.results) == len(outcomes.processed) and not any(
        each.result.drifts or each.result.diffs for each in outcomes.processed
    )


def _is_newer(now: Untyped, before: Untyped | None, written: int) -> bool:
    """Whether an object has changed since a pass began, by another write than the applier's."""
    return version_of(now) > max(version_of(before), written)


class _ApplySettings(NamedTuple):
    """Apply strategy of a Work, and whether statuses of its objects are reported back."""

    strategy: ApplyStrategy = ApplyStrategy()
    reports_back: bool = False

    @property
    def reports_diff(self) -> bool:
        return self.strategy.type == ApplyStrategyType.REPORT_DIFF


def _settings_of(spec: Json) -> tuple[_ApplySettings, str]:
    """Return the settings in a Work's spec, and their problem; empty if they are valid."""
    try:
        strategy = _converted(spec.get("applyStrategy"), ApplyStrategy, "applyStrategy")
        check_strategy(strategy)
        field = "reportBackStrategy"
        report_back = _converted(spec.get(field), ReportBackStrategy, field)
    except ConfigError as error:
        return _ApplySettings(), str(error)
    return _ApplySettings(strategy, report_back.type == ReportBackType.MIRROR), ""


def _converted(value: Any, type_: type[PartT], field: str) -> PartT:
    try:
        return msgspec.convert(value or {}, type_)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error), field=field) from error


def _all_failed(read: ReadManifests, error: str) -> list[Processed]:
    return [
        Processed(
            each.identifier,
            rejected(each)
            if isinstance(each, Rejected)
            else Result(ManifestReason.APPLY_FAILED, error),
        )
        for each in read.manifests
    ]
