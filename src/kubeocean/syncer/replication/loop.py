"""The loop that all replicators share: a controller, a cache of sources and a store of copies.

A subclass implements `caught_up` and `reconcile`. `reconcile` computes the desired copies with pure
functions, and writes the difference with the store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from kubeocean.runtime.controller import Controller, Outcome, Stuck
from kubeocean.runtime.events import reference
from kubeocean.runtime.kinds import ObjectReference
from kubeocean.runtime.objects import Key, Object, ObjectT
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.secret_namespaces import SourceCache
from kubeocean.syncer.replication.store import CopyStore

__all__ = ["ReplicationLoop"]

SourceT = TypeVar("SourceT", bound=Object)
CopyT = TypeVar("CopyT", bound=Object)


class ReplicationLoop(ABC, Generic[SourceT, CopyT]):
    """Replicates the objects of one kind, for one binding; the key is the source."""

    def __init__(
        self,
        clusters: Clusters,
        name: str,
        sources: SourceCache[SourceT],
        store: CopyStore[CopyT],
        *,
        workers: int,
    ) -> None:
        self.clusters = clusters
        self.sources = sources
        self.copies = store.cache
        self._store = store
        self.controller: Controller[Key] = Controller(
            f"{name}-{clusters.binding_name}",
            self.reconcile,
            workers=workers,
            gate=self.caught_up,
            on_stuck=self._emit_stuck,
            clock=clusters.clock,
            metrics=clusters.metrics,
        )
        clusters.worker_health.on_change(self._worker_health_changed)

    @abstractmethod
    async def caught_up(self, key: Key) -> bool:
        """Whether the caches are complete and show all writes that were made for a source."""

    @abstractmethod
    async def reconcile(self, key: Key) -> Outcome:
        """Create, update and delete the copies of a source, as they should be."""

    def keys(self) -> Iterator[Key]:
        """Return the keys of all sources and copies that the caches show."""
        yield from (source.key for source in self.sources.items())
        yield from (self.source_of(copy) for copy in self.copies.items())

    def source_of(self, copy: CopyT) -> Key:
        """Return the key of the source that a copy names."""
        return self._store.source_of(copy)

    def event_target(self, key: Key) -> ObjectReference | None:
        """Return a reference to the source that events are about; None if it is not cached."""
        source = self.sources.get(key)
        return None if source is None else reference(self.sources.scope.resource, source)

    def follow(self, cache: SourceCache[ObjectT], key_of: Callable[[ObjectT], Key]) -> None:
        """Enqueue a key for every object of a cache that changes.

        The key is taken from the old and the new object: others may have changed the metadata that
        names the source.
        """

        def changed(old: ObjectT | None, new: ObjectT | None) -> None:
            self.enqueue({key_of(each) for each in (old, new) if each is not None})

        cache.on_change(changed)

    def enqueue(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if key.name:
                self.controller.enqueue(key)

    def resync(self) -> None:
        """Enqueue the keys of all sources and copies that the caches show."""
        self.enqueue(self.keys())

    def _worker_health_changed(self, answers: bool) -> None:
        if answers:
            self.resync()

    def _emit_stuck(self, key: Key, stuck: Stuck) -> None:
        target = self.event_target(key)
        if target is not None:
            self.clusters.events.emit(target, "Warning", stuck.reason, stuck.message)
