"""Stores: the Works of a member on its hub, and its AppliedWorks, each with cache and writes.

Every write carries the resourceVersion that it was computed from, and is noted in the record of the
Work, so that the watch event of the write is recognized. Only differences are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kubeocean.api.fleet.names import (
    ANNOTATION_FINISHED_JOBS,
    FINALIZER_WORK,
    LABEL_PARENT_BINDING,
    LABEL_PARENT_NAMESPACE,
)
from kubeocean.api.fleet.works import APPLIED_WORKS, WORKS
from kubeocean.errors import AlreadyExists, Conflict, NotFound
from kubeocean.fleet.applier.applied_work import document, listed
from kubeocean.fleet.applier.records import WorkRecord
from kubeocean.runtime.client import Client, MergePatch
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Json, Key, Resource, Untyped, encode

__all__ = ["AppliedWorks", "HubWorks", "version_of"]

_OF_A_BINDING: Final = (LABEL_PARENT_BINDING, LABEL_PARENT_NAMESPACE)
KEPT_BYTES: Final = 64 * 1024  # of a Work in the cache; larger ones are read when they are needed

_WORKS: Final = Resource(
    WORKS.group, WORKS.version, WORKS.plural, WORKS.kind, WORKS.namespaced, Untyped
)
_APPLIED_WORKS: Final = Resource(
    APPLIED_WORKS.group,
    APPLIED_WORKS.version,
    APPLIED_WORKS.plural,
    APPLIED_WORKS.kind,
    APPLIED_WORKS.namespaced,
    Untyped,
)


def version_of(obj: Untyped | None) -> int:
    """Return the resourceVersion of an object as a number.

    -1 for no object; 0 for a version that is not a number, so that it never counts as newer.
    """
    if obj is None:
        return -1
    version = obj.resource_version
    return int(version) if version.isdecimal() and version.isascii() else 0


class HubWorks:
    """Cache and writes of the Works in one namespace of the hub; `name in works` looks one up."""

    def __init__(self, hub: Client, namespace: str, *, clock: Clock, metrics: Metrics) -> None:
        self.namespace = namespace
        self._hub = hub
        self.cache = Informer(
            hub,
            _WORKS,
            namespace=namespace,
            keep_raw=True,
            prune=_without_large_content,
            clock=clock,
            metrics=metrics,
        )

    def __contains__(self, name: object) -> bool:
        return self.cache.get(Key(self.namespace, str(name))) is not None

    def others_of_binding(self, work: Json) -> list[Untyped]:
        """Return the other Works of the Work's binding that are not being deleted."""
        metadata = work["metadata"]
        labels = metadata.get("labels") or {}
        if LABEL_PARENT_BINDING not in labels:
            return []
        return [
            each
            for each in self.cache.items()
            if each.name != metadata["name"]
            and not each.deleting
            and all(each.labels.get(label) == labels.get(label) for label in _OF_A_BINDING)
        ]

    async def content(self, work: Untyped) -> Json:
        """Return the whole Work, read from the hub if it is too large for the cache.

        :raises Conflict: the Work was replaced or deleted since it was cached.
        """
        if work.raw:
            return work.content()
        fresh = await self._hub.get(_WORKS, work.name, work.namespace, keep_raw=True)
        if fresh.uid != work.uid or fresh.deleting != work.deleting:
            raise Conflict(f"Work {work.key} has changed since it was cached")
        return fresh.content()

    async def check_unchanged(self, work: Json) -> None:
        """Confirm with the hub that the Work has not changed, before objects are removed for it.

        :raises Conflict: the stored Work has another UID or generation.
        """
        metadata = work["metadata"]
        fresh = await self._hub.get(_WORKS, metadata["name"], self.namespace)
        generation = fresh.metadata.generation
        if (fresh.uid, generation) != (metadata["uid"], metadata.get("generation", 0)):
            raise Conflict(f"Work {fresh.key} has changed since it was cached")

    async def add_finalizer(self, work: Json, record: WorkRecord) -> Json:
        """Add the applier's finalizer to a Work that lacks it; return the Work."""
        finalizers = work["metadata"].get("finalizers") or []
        if FINALIZER_WORK in finalizers:
            return work
        return await self._patch(work, {"finalizers": [*finalizers, FINALIZER_WORK]}, {}, record)

    async def drop_finalizer(self, work: Json, record: WorkRecord) -> None:
        finalizers = work["metadata"].get("finalizers") or []
        remaining = [each for each in finalizers if each != FINALIZER_WORK]
        try:
            await self._patch(work, {"finalizers": remaining}, {}, record)
        except NotFound:
            return

    async def write_status(self, work: Json, status: Json, record: WorkRecord) -> None:
        """Replace the status of a Work, if it differs."""
        if status != work.get("status"):
            change = {"status": {"manifestConditions": None, **status}}
            await self._patch(work, {}, change, record, subresource="status")

    async def _patch(
        self, work: Json, metadata: Json, change: Json, record: WorkRecord, subresource: str = ""
    ) -> Json:
        version = work["metadata"]["resourceVersion"]
        patched = await self._hub.patch(
            _WORKS,
            work["metadata"]["name"],
            MergePatch({"metadata": {**metadata, "resourceVersion": version}, **change}),
            self.namespace,
            subresource=subresource,
            keep_raw=True,
        )
        record.written = version_of(patched)
        self.cache.wrote(patched)
        return patched.content()

    async def release_all(self) -> int:
        """Remove all finalizers of all Works; return the number of Works.

        :raises Conflict: a Work was replaced meanwhile.
        """
        works = (await self._hub.list(_WORKS, self.namespace)).items
        for work in works:
            if not work.metadata.finalizers:
                continue
            patch = MergePatch({"metadata": {"finalizers": None, "uid": work.uid}})
            try:
                await self._hub.patch(_WORKS, work.name, patch, self.namespace)
            except NotFound:
                continue
        return len(works)


class AppliedWorks:
    """Cache and writes of the AppliedWorks of a member cluster."""

    def __init__(
        self, member: Client, work_namespace: str, *, clock: Clock, metrics: Metrics
    ) -> None:
        self._member = member
        self._work_namespace = work_namespace
        self.cache = Informer(member, _APPLIED_WORKS, keep_raw=True, clock=clock, metrics=metrics)

    def get(self, name: str) -> Untyped | None:
        return self.cache.get(Key("", name))

    async def ensure(self, name: str, record: WorkRecord) -> Json:
        """Return the AppliedWork of a Work; create it if it does not exist."""
        cached = self.get(name)
        if cached is not None:
            return cached.content()
        body = document(self._work_namespace, name)
        try:
            created = await self._member.create(_APPLIED_WORKS, body, keep_raw=True)
        except AlreadyExists:
            created = await self._member.get(_APPLIED_WORKS, name, keep_raw=True)
        else:
            record.applied_work_written = version_of(created)
        self.cache.wrote(created)
        return created.content()

    async def check_gone(self, name: str) -> None:
        """Confirm with the member's API server that the AppliedWork does not exist.

        :raises Conflict: the AppliedWork exists; the cache is behind.
        """
        try:
            await self._member.get(_APPLIED_WORKS, name)
        except NotFound:
            return
        raise Conflict(f"AppliedWork {name} exists, and is not in the cache yet")

    async def write_list(self, applied_work: Json, entries: list[Json], record: WorkRecord) -> Json:
        """Write the entries of an AppliedWork if they differ; return the AppliedWork."""
        if entries == listed(applied_work):
            return applied_work
        change = {"status": {"appliedResources": entries}}
        return await self._patch(applied_work, {}, change, record, subresource="status")

    async def note_finished_jobs(
        self, applied_work: Json, jobs: Mapping[str, str], record: WorkRecord
    ) -> None:
        """Write the annotation that lists finished Jobs, if it differs."""
        text = encode(jobs).decode() if jobs else None
        annotations = applied_work["metadata"].get("annotations") or {}
        if annotations.get(ANNOTATION_FINISHED_JOBS) != text:
            metadata = {"annotations": {ANNOTATION_FINISHED_JOBS: text}}
            await self._patch(applied_work, metadata, {}, record)

    async def _patch(
        self,
        applied_work: Json,
        metadata: Json,
        change: Json,
        record: WorkRecord,
        subresource: str = "",
    ) -> Json:
        version = applied_work["metadata"]["resourceVersion"]
        patched = await self._member.patch(
            _APPLIED_WORKS,
            applied_work["metadata"]["name"],
            MergePatch({"metadata": {**metadata, "resourceVersion": version}, **change}),
            subresource=subresource,
            keep_raw=True,
        )
        record.applied_work_written = version_of(patched)
        self.cache.wrote(patched)
        return patched.content()


def _without_large_content(work: Untyped) -> Untyped:
    return work if len(work.raw) <= KEPT_BYTES else msgspec.structs.replace(work, raw=b"")
