"""Manifest pass: applies the manifests of one Work, wave by wave.

A manifest whose object has not changed since the last pass keeps its result without a request.
An unexpected error of a manifest is logged and becomes its result; other manifests are not
affected. If the member does not answer, `ManifestOutcomes.unanswered` has the first such error. If
the member cannot be reached at all, the remaining manifests are not tried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec

from kubeocean.api.fleet.conditions import ManifestReason
from kubeocean.api.fleet.hashes import content_hash
from kubeocean.api.fleet.strategies import ApplyStrategyType
from kubeocean.errors import ApiError, Conflict, KubeoceanError, Unreachable
from kubeocean.fleet.applier.availability import TrackerOf, availability_of, follows_status
from kubeocean.fleet.applier.finished_jobs import (
    availability_of_finished,
    has_finished,
    is_job,
    with_job_view,
)
from kubeocean.fleet.applier.health_checks import HealthChecks, Observation
from kubeocean.fleet.applier.manifests import (
    Identifier,
    KindMapping,
    Manifest,
    Owner,
    ReadManifest,
    Rejected,
    read_manifests,
)
from kubeocean.fleet.applier.objects import NO_ANSWER, MemberObjects, PassFacts
from kubeocean.fleet.applier.ordering import apply_order, delete_order
from kubeocean.fleet.applier.plan import Result, not_read, rejected
from kubeocean.fleet.applier.records import (
    ObjectIdentity,
    Remembered,
    WorkRecord,
    without_content,
)
from kubeocean.fleet.applier.report import Processed, observed_status
from kubeocean.fleet.pool import ObjectRef, WatchPool
from kubeocean.runtime.logs import get_logger
from kubeocean.runtime.objects import Json, Key, Meta

__all__ = ["ManifestOutcomes", "ManifestPass", "ReadManifests"]

PARALLEL_MANIFESTS: Final = 4
_CACHED: Final = {"list", "watch"}  # verbs of kinds that can be watched
# Results that follow from the manifest and the object alone. Others are tried again in each pass.
_LASTING: Final = frozenset(
    reason
    for reason in ManifestReason
    if reason.is_applied
    or reason.is_diff_reported
    or reason in (ManifestReason.FOUND_DRIFTS, ManifestReason.FOUND_DRIFTS_DEGRADED)
)

_log = get_logger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadManifests:
    """The manifests of a Work, and the references to their objects in the member.

    `watchable` are the references to objects of kinds that can be watched.
    """

    manifests: tuple[ReadManifest, ...]
    refs: dict[Identifier, ObjectRef]
    watchable: frozenset[ObjectRef]
    lacks_kinds: bool

    def refuse(self, identifiers: Collection[Identifier], error: str) -> ReadManifests:
        """Return the manifests, with those of `identifiers` replaced by rejected ones."""
        if not identifiers:
            return self
        manifests = tuple(
            Rejected(each.identifier, ManifestReason.APPLY_FAILED, error)
            if each.identifier in identifiers
            else each
            for each in self.manifests
        )
        return replace(self, manifests=manifests)

    @property
    def placeable(self) -> list[Manifest]:
        return [each for each in self.manifests if isinstance(each, Manifest)]

    @property
    def identifiers_to_place(self) -> list[Identifier]:
        return [each.identifier for each in self.placeable]

    @property
    def identifiers(self) -> list[Identifier]:
        return [each.identifier for each in self.manifests]


@dataclass(slots=True)
class ManifestOutcomes:
    """Results of a Work's manifests in one pass."""

    processed: list[Processed]
    jobs: list[tuple[Manifest, Json | None]] = field(default_factory=list)
    unanswered: ApiError | None = None


@dataclass(slots=True)
class _Work:
    """State of one Work during a pass over its manifests."""

    facts: PassFacts
    record: WorkRecord
    finished_jobs: Mapping[str, str]
    reports_back: bool
    is_same: bool  # whether the manifests are those of the last pass
    read: ReadManifests
    results: dict[Identifier, Processed] = field(default_factory=dict)
    jobs: list[tuple[Manifest, Json | None]] = field(default_factory=list)
    unanswered: ApiError | None = None


class ManifestPass:
    """Applies the manifests of Works to one member, and removes left-overs."""

    def __init__(
        self,
        objects: MemberObjects,
        pool: WatchPool,
        *,
        tracker_of: TrackerOf,
        health_checks: HealthChecks | None = None,
    ) -> None:
        self._objects = objects
        self._pool = pool
        self._tracker_of = tracker_of
        self._health_checks = health_checks

    async def read(self, bodies: Sequence[Any]) -> ReadManifests:
        """Decode the manifests of a Work and look up their kinds in the member."""
        kinds = dict.fromkeys(filter(None, map(_kind_of, bodies)))
        resources = {kind: await self._objects.resource_of(*kind) for kind in kinds}
        mappings = {
            kind: KindMapping(resource.plural, resource.namespaced)
            for kind, resource in resources.items()
            if resource is not None
        }
        manifests = read_manifests(bodies, lambda *kind: mappings.get(kind))
        refs: dict[Identifier, ObjectRef] = {}
        watchable: set[ObjectRef] = set()
        for each in manifests:
            if isinstance(each, Manifest):
                resource = resources[each.api_version, each.identifier.kind]
                assert resource is not None
                namespace = each.identifier.namespace if resource.namespaced else ""
                place = Key(namespace, each.identifier.name)
                ref = ObjectRef(with_job_view(resource.untyped()), place)
                refs[each.identifier] = ref
                if resource.verbs >= _CACHED:
                    watchable.add(ref)
        lacks_kinds = None in resources.values()
        return ReadManifests(manifests, refs, frozenset(watchable), lacks_kinds)

    async def apply(
        self,
        read: ReadManifests,
        facts: PassFacts,
        record: WorkRecord,
        *,
        finished_jobs: Mapping[str, str],
        reports_back: bool,
        generation: int,
    ) -> ManifestOutcomes:
        """Apply or compare all manifests of this generation of the Work."""
        is_same = record.generation == generation
        record.generation = -1  # until all results are of this generation
        work = _Work(facts, record, finished_jobs, reports_back, is_same, read)
        one_wave = facts.strategy.type == ApplyStrategyType.REPORT_DIFF
        for wave in apply_order(read.placeable, _group_kind, one_wave=one_wave):
            await _each(wave, lambda manifest: self._process(manifest, work))
        processed = [
            Processed(each.identifier, rejected(each))
            if isinstance(each, Rejected)
            else work.results[each.identifier]
            for each in read.manifests
        ]
        _forget_others(record, read.placeable)
        record.generation = generation
        return ManifestOutcomes(processed, work.jobs, work.unanswered)

    async def remove(
        self,
        identifiers: Iterable[Identifier],
        owner: Owner,
        heirs: Mapping[ObjectIdentity, Owner],
    ) -> list[Identifier]:
        """Remove left-overs, dependents first; return those that could not be removed.

        Objects that have an heir stay: they are handed over.
        """
        unremoved: list[Identifier] = []

        async def remove(identifier: Identifier) -> None:
            try:
                ref = await self._objects.ref_of(identifier)
                await self._objects.remove(ref, owner, heirs.get(identifier.object))
            except KubeoceanError as error:
                unremoved.append(identifier)
                if not isinstance(error, Conflict):
                    _log.warning(
                        "Failed to delete object that its Work no longer contains",
                        object=_text(identifier),
                        error=str(error),
                    )

        for wave in delete_order(identifiers, lambda each: (each.group, each.kind)):
            await _each(wave, remove)
        return unremoved

    # One manifest

    async def _process(self, manifest: Manifest, work: _Work) -> None:
        identifier = manifest.identifier
        try:
            if isinstance(work.unanswered, Unreachable):
                raise work.unanswered
            processed = await self._processed(manifest, work)
        except NO_ANSWER as error:
            work.unanswered = work.unanswered or error
            processed = Processed(identifier, not_read(str(error)))
        except KubeoceanError as error:
            processed = _failed(identifier, str(error))
        except Exception as error:
            # Users of the hub write manifests: one that the applier cannot process fails alone.
            _log.error(
                "Failed to process manifest",
                object=_text(identifier), error=str(error), exc_info=error,
            )  # fmt: skip
            message = f"the manifest cannot be processed: {type(error).__name__}: {error}"
            processed = _failed(identifier, message)
        work.results[identifier] = processed
        if processed.result.reason not in _LASTING:
            work.record.results.pop(identifier.object, None)

    async def _processed(self, manifest: Manifest, work: _Work) -> Processed:
        identifier, ref = manifest.identifier, work.read.refs[manifest.identifier]
        if ref.resource.namespaced and not ref.key.namespace:
            return _failed(identifier, f"a {identifier.kind} needs a namespace, and has none")
        if (valid := self._still_valid(manifest, ref, work)) is not None:
            if is_job(identifier):
                work.jobs.append((manifest, None))
            return replace(valid.processed, identifier=identifier)
        facts = work.facts
        if is_job(identifier) and has_finished(work.finished_jobs, manifest):
            facts = replace(facts, has_finished=True)
        result = await self._objects.apply(manifest, ref, facts)
        live = result.live
        metadata = None if live is None else msgspec.convert(live["metadata"], Meta)
        self._pool.saw(ref, metadata)
        if is_job(identifier):
            work.jobs.append((manifest, live))
        observation = await self._observe(manifest, result, work)
        processed = Processed(identifier, result)
        if observation is not None:
            availability, message = observation.availability, observation.message
            processed = replace(processed, availability=availability, health=message)
        if work.reports_back and live is not None:
            processed = replace(processed, observed_status=observed_status(live))
        processed = without_content(processed)
        lasts = observation is None or observation.lasts
        if metadata is None or not lasts:  # without an object: a Job that has removed itself
            work.record.results.pop(identifier.object, None)
        else:
            follows = self._follows_status(manifest)
            with_status = follows or work.reports_back or is_job(identifier)
            work.record.results[identifier.object] = Remembered(
                ref,
                content_hash(manifest.body),
                metadata.resource_version,
                with_status,
                processed,
            )
        return processed

    async def _observe(self, manifest: Manifest, result: Result, work: _Work) -> Observation | None:
        """Return the availability of a manifest's object; None if it is not applied."""
        if not result.reason.is_applied:
            return None
        if result.live is None:
            notes = work.finished_jobs
            return Observation(availability_of_finished(notes, manifest, self._tracker_of))
        checks = self._health_checks
        if checks is not None and (check := checks.check_of(manifest.body)) is not None:
            return await checks.observe(check, result.live)
        return Observation(availability_of(result.live, self._tracker_of))

    def _follows_status(self, manifest: Manifest) -> bool:
        """Whether the availability of a manifest's object may change with its status alone."""
        checks, identifier = self._health_checks, manifest.identifier
        if checks is not None and checks.check_of(manifest.body) is not None:
            return True
        return follows_status(identifier.group, identifier.kind, self._tracker_of)

    # Results of earlier passes

    def _still_valid(self, manifest: Manifest, ref: ObjectRef, work: _Work) -> Remembered | None:
        remembered = work.record.results.get(manifest.identifier.object)
        if remembered is None or remembered.ref != ref:
            return None
        if not work.is_same and remembered.manifest != content_hash(manifest.body):
            return None
        version, with_status = remembered.version, remembered.with_status
        is_current = self._pool.is_current(ref, version, with_status=with_status)
        return remembered if is_current else None


def _forget_others(record: WorkRecord, manifests: Iterable[Manifest]) -> None:
    named = {each.identifier.object for each in manifests}
    for identity in record.results.keys() - named:
        del record.results[identity]


def _kind_of(body: Any) -> tuple[str, str] | None:
    """Return API version and kind of a manifest; None if one is missing or not a string."""
    if not isinstance(body, dict):
        return None
    api_version, kind = body.get("apiVersion"), body.get("kind")
    if not isinstance(api_version, str) or not isinstance(kind, str):
        return None
    return (api_version, kind) if api_version and kind else None


def _failed(identifier: Identifier, error: str) -> Processed:
    return Processed(identifier, Result(ManifestReason.APPLY_FAILED, error))


def _group_kind(manifest: Manifest) -> tuple[str, str]:
    return manifest.identifier.group, manifest.identifier.kind


def _text(identifier: Identifier) -> str:
    return f"{identifier.kind} {identifier.namespace}/{identifier.name}"


async def _each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Await `work` for all items, a few at a time."""
    remaining = iter(items)

    async def worker() -> None:
        for item in remaining:
            await work(item)
            await asyncio.sleep(0)  # work that needs no request must not hold up everything else

    async with asyncio.TaskGroup() as group:
        for _ in range(PARALLEL_MANIFESTS):
            group.create_task(worker())
