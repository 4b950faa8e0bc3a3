"""Reads and marks the sources of one kind: the virtual objects that are replicated into a worker.

A source that is replicated has a label for this worker cluster, and the cache of sources selects
that label alone. The label that names the manager and the annotations that name the copy are shared
by all workers: the first one writes them, the last one removes them, and nothing depends on them.
Every user who may write an object can set that label: the cache bounds how much content it holds of
objects that no pod uses. Secrets are cached by namespace if the account of the syncer may read them
in single namespaces only (`secret_namespaces`). The syncer never adds a finalizer. A finalizer of
the earlier implementation proves that it created a copy, and is removed once that copy belongs to
this binding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from kubeocean.api import group
from kubeocean.api.group import Domain
from kubeocean.errors import NotFound
from kubeocean.runtime.client import MergePatch
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Json, Key
from kubeocean.runtime.watch import Scope
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.copy_forge import ReplicatedKind, Source
from kubeocean.syncer.replication.referring_pods import SECRET
from kubeocean.syncer.replication.secret_namespaces import NamespacedSources, SourceCache

__all__ = [
    "REFERENCES",
    "UNUSED_BYTES",
    "MarkedSources",
    "has_legacy_copy",
    "mark",
    "remove_legacy_marks",
    "report_phase",
    "unmark",
]

UNUSED_BYTES: Final = 32 * 1024 * 1024  # of content of one kind that no pod uses
_FIRST_PHASES: Final = frozenset({"Pending", "Available"})
_PHASES: Final = _FIRST_PHASES | {"Bound", "Released", "Failed", "Lost"}
REFERENCES = "references"  # the index of a cache of sources by `ReplicatedKind.source_references`


def has_legacy_copy(source: Source, *, cluster_id: str, domain: Domain) -> bool:
    """Whether the earlier implementation created a copy of the source in that worker cluster."""
    return domain.finalizer_for(cluster_id) in (source.metadata.finalizers or ())


def mark(
    source: Source, copy: Key, *, cluster_id: str, domain: Domain, used_by_pv: bool = False
) -> Json:
    """Return the metadata that marks a source as replicated; empty if it is marked already."""
    labels = {domain.synced_by(cluster_id): group.TRUE, domain.managed_by: domain.product}
    if used_by_pv:
        labels[domain.used_by_pv] = group.TRUE
    labels = {key: value for key, value in labels.items() if source.labels.get(key) != value}
    if not labels:
        return {}
    names = {domain.physical_name: copy.name, domain.physical_namespace: copy.namespace}
    present = source.annotations
    annotations = {key: value for key, value in names.items() if value and key not in present}
    return {"labels": labels} | ({"annotations": annotations} if annotations else {})


def remove_legacy_marks(source: Source, *, cluster_id: str, domain: Domain) -> Json:
    """Return the metadata change that removes the earlier implementation's marks from a source.

    Empty if there are none.
    """
    change: Json = {}
    if domain.deleting(cluster_id) in source.annotations:
        change["annotations"] = {domain.deleting(cluster_id): None}
    return change | _without_finalizer(source, cluster_id, domain)


def report_phase(source: Source, phase: str, *, cluster_id: str, domain: Domain) -> Json:
    """Return the metadata change that shows a copy's phase on its source; empty if it is shown.

    The phase in the status of the source belongs to the computing cluster's own controller, with
    which a second writer would conflict. The phases of a copy that is being bound for the first
    time are not shown.
    """
    shown = source.annotations.get(domain.phase_in(cluster_id), "")
    if phase not in _PHASES or phase == shown or (not shown and phase in _FIRST_PHASES):
        return {}
    return {"annotations": {domain.phase_in(cluster_id): phase}}


def unmark(source: Source, *, cluster_id: str, domain: Domain) -> Json:
    """Return the metadata change that removes this worker's marks from a source; empty if none."""
    change = remove_legacy_marks(source, cluster_id=cluster_id, domain=domain)
    own_label = domain.synced_by(cluster_id)
    labels = {own_label} & source.labels.keys()
    annotations = set(change.get("annotations", ()))
    annotations |= {domain.phase_in(cluster_id)} & source.annotations.keys()
    if not _has_other_workers(source, own_label, domain.finalizer_for(cluster_id), domain):
        labels |= {domain.managed_by, domain.used_by_pv} & source.labels.keys()
        names = {domain.physical_name, domain.physical_namespace}
        annotations |= names & source.annotations.keys()
    if labels:
        change["labels"] = _nulls(labels)
    if annotations:
        change["annotations"] = _nulls(annotations)
    return change


def _nulls(keys: Iterable[str]) -> dict[str, None]:
    return dict.fromkeys(sorted(keys))


def _has_other_workers(source: Source, label: str, finalizer: str, domain: Domain) -> bool:
    """Whether the source is replicated into other worker clusters, too."""
    labelled = any(k.startswith(domain.synced_by("")) and k != label for k in source.labels)
    finalizers = source.metadata.finalizers or ()
    return labelled or any(
        f.startswith(domain.finalizer_for("")) and f != finalizer for f in finalizers
    )


def _without_finalizer(source: Source, cluster_id: str, domain: Domain) -> Json:
    legacy = {domain.finalizer_for(cluster_id), domain.finalizer_synced_resource}
    finalizers = source.metadata.finalizers or ()
    kept = [each for each in finalizers if each not in legacy]
    return {"finalizers": kept} if len(kept) < len(finalizers) else {}


def _references(kind: ReplicatedKind, source: Source) -> Iterable[str]:
    return kind.source_references(source.content()) if source.raw else ()


class MarkedSources:
    """The sources of one kind that are replicated into one worker: cached, read and marked."""

    def __init__(self, clusters: Clusters, kind: ReplicatedKind) -> None:
        self._clusters = clusters
        self._kind = kind
        self._resource = kind.sources
        self._labels = f"{clusters.domain.synced_by(clusters.cluster_id)}={group.TRUE}"
        self._is_bounded = kind.translate is not None  # other kinds are small, and are indexed
        self._unused: dict[Key, int] = {}  # bytes of content that is held without a use
        self._unused_bytes = 0
        self.is_used: Callable[[Key], bool] = lambda key: True  # set by the replicator
        self.namespaces: NamespacedSources[Source] | None = None  # None: one cache for all
        self.cache: SourceCache[Source]
        if kind.name == SECRET and clusters.secrets_by_namespace:
            scope = Scope(kind.sources, labels=self._labels, keep_raw=True)
            self.namespaces = NamespacedSources(scope, self._informer, clusters.clock)
            self.cache = self.namespaces
        else:
            self.cache = self._informer()
        self.cache.on_change(self._source_changed)

    def _informer(self, namespace: str = "") -> Informer[Source]:
        clusters = self._clusters
        return Informer(
            clusters.computing,
            self._resource,
            namespace=namespace,
            labels=self._labels,
            indexes={REFERENCES: partial(_references, self._kind)},
            prune=self.bounded,
            keep_raw=True,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )

    def is_granted(self, key: Key) -> bool:
        """Whether the syncer may read a source, as far as it knows: there is a cache for it."""
        return self.namespaces is None or key.namespace in self.namespaces.namespaces

    def has_synced(self, key: Key) -> bool:
        """Whether the cache that shows a source is complete."""
        if self.namespaces is None:
            return self.cache.has_synced
        return self.namespaces.has_synced_in(key.namespace)

    def unlisted(self) -> int:
        """Return how many namespaces are not listed yet, without those that take too long."""
        return self.namespaces.unlisted() if self.namespaces is not None else 0

    def bounded(self, source: Source) -> Source:
        """Return a source for the cache, without its content if too much unused content is cached.

        Content of sources that pods use is always cached; `read` gets the content of others when
        needed.
        """
        self._forget(source.key)
        if not self._is_bounded or self.is_used(source.key):
            return source
        if self._unused_bytes + len(source.raw) > UNUSED_BYTES:
            msgspec.structs.force_setattr(source, "raw", b"")
        else:
            self._unused[source.key] = len(source.raw)
            self._unused_bytes += len(source.raw)
        return source

    def _source_changed(self, old: Source | None, new: Source | None) -> None:
        if old is not None and new is None:
            self._forget(old.key)

    def _forget(self, key: Key) -> None:
        self._unused_bytes -= self._unused.pop(key, 0)

    async def read(self, key: Key) -> Source | None:
        """Read a source, marked or not, from the API server; None if it does not exist."""
        try:
            return await self._clusters.computing.get(
                self._resource, key.name, key.namespace, keep_raw=True
            )
        except NotFound as error:
            if not error.is_status:
                raise  # the page of something in front of the API server proves nothing
            return None

    def has_legacy_copy(self, source: Source) -> bool:
        clusters = self._clusters
        return has_legacy_copy(source, cluster_id=clusters.cluster_id, domain=clusters.domain)

    async def mark(self, source: Source, copy: Key, *, used_by_pv: bool) -> Source | None:
        """Mark a source as replicated into this worker; None if the source is gone."""
        clusters = self._clusters
        change = mark(
            source,
            copy,
            cluster_id=clusters.cluster_id,
            domain=clusters.domain,
            used_by_pv=used_by_pv,
        )
        return await self._patch(source, change)

    async def report_phase(self, source: Source, phase: str) -> Source | None:
        """Show the phase of a copy on its source; None if the source is gone."""
        clusters = self._clusters
        change = report_phase(source, phase, cluster_id=clusters.cluster_id, domain=clusters.domain)
        return await self._patch(source, change)

    async def remove_legacy_marks(self, source: Source) -> None:
        """Remove the marks that the earlier implementation wrote on a source."""
        clusters = self._clusters
        await self._patch(
            source,
            remove_legacy_marks(source, cluster_id=clusters.cluster_id, domain=clusters.domain),
        )

    async def unmark(self, source: Source) -> None:
        """Remove all marks of this worker from a source."""
        clusters = self._clusters
        await self._patch(
            source, unmark(source, cluster_id=clusters.cluster_id, domain=clusters.domain)
        )

    async def _patch(self, source: Source, metadata: Json) -> Source | None:
        if not metadata:
            return source
        version = {"uid": source.uid, "resourceVersion": source.resource_version}
        try:
            written = await self._clusters.computing.patch(
                self._resource,
                source.name,
                MergePatch({"metadata": metadata | version}),
                source.namespace,
            )
        except NotFound:
            return None
        self.cache.wrote(written)
        return msgspec.structs.replace(written, raw=source.raw)
