"""Handlers: calls for additions, updates and deletions, derived from a level-triggered reconcile.

`HandlerReconciler` keeps one record for each object that was given to the handler, and calls the
handler with the difference between the record and the cache:

    no record, object in the cache              handle_add
    record of a previous owner, same UID        handle_add: the object is new to this replica
    record, newer resourceVersion               handle_update
    record, object deleted or with another UID  handle_delete
    record, object exists but is not cached     no call: its labels were changed

A call that raises is retried. Before each call the reconciler checks that this replica still owns
the slot, so a process that resumes after others took over calls nothing.

With a finalizer (`deletions="guaranteed"`) an object gets the finalizer before `handle_add`, and
loses it after `handle_delete` has returned: the object exists until its deletion was handled, also
if the owner crashed meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol

from kubeocean.runtime.controller import Done, Outcome
from kubeocean.runtime.objects import Key, ObjectT
from kubeocean.sharding.batches import BatchSizes, SlotBatches
from kubeocean.sharding.handover import Handled

__all__ = [
    "Change",
    "HandlerReconciler",
    "ObjectSource",
    "Presence",
    "ResourceHandler",
    "has_batches",
]


@dataclass(frozen=True, slots=True)
class Change(Generic[ObjectT]):
    """Change of one object in a batch: an addition has no `old` object, a deletion no `new` one."""

    old: ObjectT | None
    new: ObjectT | None


class ResourceHandler(Generic[ObjectT]):
    """Handler of additions, updates and deletions of one resource, for a `ShardedController`.
    Override the methods you need; a call that raises is retried."""

    async def handle_add(self, obj: ObjectT) -> None:
        """Handle an object that is new, or new to this replica."""

    async def handle_update(self, old: ObjectT, new: ObjectT) -> None:
        """Handle an object that changed since it was last handled, or is due for a resync."""

    async def handle_delete(self, obj: ObjectT) -> None:
        """Handle the deletion of an object, given as it was last seen."""

    async def handle_batch(self, changes: Sequence[Change[ObjectT]]) -> None:
        """Handle several changes of one shard at once, each of another object.

        A handler that overrides this method gets all changes through `handle_batch`, and none
        through `handle_add`, `handle_update` and `handle_delete`. If `handle_batch` raises, all
        changes of the batch are retried.
        """
        for change in changes:
            if change.new is None:
                assert change.old is not None
                await self.handle_delete(change.old)
            elif change.old is None:
                await self.handle_add(change.new)
            else:
                await self.handle_update(change.old, change.new)

    def should_process(self, obj: ObjectT) -> bool:
        """Return whether additions and updates of an object are handled.

        The deletion of an object that was handled once is handled in any case.
        """
        return True

    def get_resource_key(self, obj: ObjectT) -> str:
        """Return the sharding key of an object. The key must depend on nothing but the object's
        name."""
        return str(obj.key)


class Presence(Enum):
    """Reason why an object has left the cache of a controller."""

    GONE = "gone"  # deleted, or another object has its name
    HIDDEN = "hidden"  # exists, and will come back into the cache
    DESELECTED = "deselected"  # exists, and does not match the controller's selector any more


class ObjectSource(Protocol[ObjectT]):
    """The objects of a controller, in its cache and in the API server."""

    async def read(self, key: Key) -> ObjectT | None:
        """Return the whole object; None if the object is not in the cache."""

    async def locate(self, key: Key, uid: str) -> tuple[Presence, ObjectT | None]:
        """Return why an object is not in the cache, and the object if it exists."""

    async def recall(self, key: Key, uid: str, version: str) -> ObjectT:
        """Return a deleted object as it was at a resourceVersion; only its metadata if the API
        server no longer has that version."""

    async def set_finalizer(self, obj: ObjectT, finalizer: str, *, present: bool) -> ObjectT:
        """Add or remove a finalizer of an object, and return the object after the write."""


@dataclass(slots=True)
class _Record(Generic[ObjectT]):
    """Record of an object that this replica or a previous owner of its slot gave to the handler.

    - `obj`: the object as it was last handled or seen; None if only a previous owner saw it.
    - `added`: `handle_add` of this replica has returned.
    - `deleted`: `handle_delete` has returned, and the finalizer is still to be removed.
    - `version`: a resourceVersion at which the object existed, if `obj` is None.
    """

    uid: str
    obj: ObjectT | None = None
    added: bool = False
    deleted: bool = False
    version: str = ""


def has_batches(handler: ResourceHandler[ObjectT]) -> bool:
    """Return whether a handler overrides `handle_batch`."""
    return type(handler).handle_batch is not ResourceHandler.handle_batch


class HandlerReconciler(Generic[ObjectT]):
    """Calls a `ResourceHandler` from a level-triggered reconcile; `check` raises if the slot was
    lost."""

    def __init__(
        self,
        handler: ResourceHandler[ObjectT],
        source: ObjectSource[ObjectT],
        *,
        check: Callable[[], None],
        finalizer: str = "",
        sizes: BatchSizes | None = None,
    ) -> None:
        self._handler = handler
        self._source = source
        self._check = check
        self._finalizer = finalizer
        self._records: dict[int, dict[Key, _Record[ObjectT]]] = {}
        self._removed: dict[int, dict[Key, ObjectT]] = {}  # from caches of slots not yet gained
        self._resync: set[Key] = set()
        self._batches: SlotBatches[Change[ObjectT]] | None = None
        if has_batches(handler):
            self._batches = SlotBatches(self._handle_batch, sizes or BatchSizes())

    # Reconciling

    async def reconcile(self, slot: int, key: Key) -> Outcome:
        record, new = self._record(slot, key), await self._source.read(key)
        if record is not None and (new is None or new.uid != record.uid):
            if not await self._end(slot, key, record, gone=new is not None):
                return Done()
            record = None
        if new is None:
            return Done()
        if self._finalizer and new.deleting:
            return await self._finalize(slot, key, record, new)
        if not self._handler.should_process(new):
            return Done()
        if self._finalizer and self._finalizer not in (new.metadata.finalizers or ()):
            new = await self._source.set_finalizer(new, self._finalizer, present=True)
        if record is None:
            # Recorded before the call: an addition that was interrupted is followed by a deletion,
            # too.
            record = self._records.setdefault(slot, {})[key] = _Record(new.uid)
        due = key in self._resync
        if not record.added:
            await self._call(slot, Change(None, new), lambda: self._handler.handle_add(new))
        elif record.obj is not None and (
            due or record.obj.resource_version != new.resource_version
        ):
            old = record.obj
            await self._call(slot, Change(old, new), lambda: self._handler.handle_update(old, new))
        record.obj, record.added = new, True
        self._resync.discard(key)
        return Done()

    async def _end(self, slot: int, key: Key, record: _Record[ObjectT], *, gone: bool) -> bool:
        """Handle the deletion of a recorded object that is not in the cache; return False if the
        object still exists."""
        if not gone and not record.deleted:
            presence, obj = await self._source.locate(key, record.uid)
            if presence is Presence.HIDDEN:
                return False
            if presence is Presence.DESELECTED:
                if obj is not None and self._finalizer in (obj.metadata.finalizers or ()):
                    await self._source.set_finalizer(obj, self._finalizer, present=False)
                self._forget(slot, key)
                return False
        if not record.deleted:
            obj = record.obj or await self._source.recall(key, record.uid, record.version)
            await self._delete(slot, obj)
        self._forget(slot, key)
        return True

    async def _finalize(
        self, slot: int, key: Key, record: _Record[ObjectT] | None, obj: ObjectT
    ) -> Outcome:
        """Call the handler for an object with a deletion timestamp, then remove the finalizer."""
        if self._finalizer not in (obj.metadata.finalizers or ()):
            return Done()  # never handled, or the finalizer was removed already
        if record is None:
            record = self._records.setdefault(slot, {})[key] = _Record(obj.uid, obj)
        if not record.deleted:
            await self._delete(slot, obj)
            record.deleted = True
        await self._source.set_finalizer(obj, self._finalizer, present=False)
        return Done()

    async def _delete(self, slot: int, obj: ObjectT) -> None:
        await self._call(slot, Change(obj, None), lambda: self._handler.handle_delete(obj))

    async def _call(
        self, slot: int, change: Change[ObjectT], method: Callable[[], Awaitable[None]]
    ) -> None:
        if self._batches is not None:
            await self._batches.submit(slot, change)
            return
        # No await between the check and the call.
        self._check()
        await method()

    async def _handle_batch(self, changes: Sequence[Change[ObjectT]]) -> None:
        self._check()
        await self._handler.handle_batch(changes)

    # Slots

    def resync(self, keys: Iterable[Key]) -> None:
        """Make the next reconcile of these keys call the handler even if the objects are
        unchanged."""
        self._resync.update(keys)

    def keys(self, slot: int) -> Collection[Key]:
        """Return the keys of a slot that have a record."""
        return self._records.get(slot, {}).keys()

    def pending_deletions(self, slot: int, cached: Callable[[Key], ObjectT | None]) -> list[Key]:
        """Return the keys of a slot whose handled object is not in the cache any more."""
        return [
            key
            for key, record in self._records.get(slot, {}).items()
            if (obj := cached(key)) is None or obj.uid != record.uid
        ]

    def handled(self, slot: int, version: str) -> Handled:
        """Return the handled objects of a slot, for the hand-over to its next owner; `version` is
        the resourceVersion of the cache."""
        records = self._records.get(slot, {})
        uids = {str(key): record.uid for key, record in records.items() if not record.deleted}
        return Handled(uids, version)

    def inherit(self, slot: int, handled: Handled) -> None:
        """Add records of the objects that the previous owner of a slot handled."""
        removed = self._removed.pop(slot, {})
        records = self._records.setdefault(slot, {})
        for text, uid in handled.uids.items():
            key = Key.parse(text)
            obj = removed.get(key)
            known = obj if obj is not None and obj.uid == uid else None
            records.setdefault(key, _Record(uid, known, version=handled.version))

    def saw_removed(self, slot: int, obj: ObjectT, *, served: bool) -> None:
        """Keep an object that left the cache before this replica has handled its deletion."""
        record = self._record(slot, obj.key)
        if record is not None:
            if record.obj is None and record.uid == obj.uid:
                record.obj = obj
        elif not served:
            self._removed.setdefault(slot, {})[obj.key] = obj

    def start(self, slot: int) -> None:
        """Start with a gained slot: forget the removed objects that were kept for the slot until
        now."""
        self._removed.pop(slot, None)

    def drop(self, slot: int) -> None:
        """Forget the records of a slot that another replica owns now."""
        self._removed.pop(slot, None)
        for key in self._records.pop(slot, {}):
            self._resync.discard(key)

    def _record(self, slot: int, key: Key) -> _Record[ObjectT] | None:
        return self._records.get(slot, {}).get(key)

    def _forget(self, slot: int, key: Key) -> None:
        self._records.get(slot, {}).pop(key, None)
        self._resync.discard(key)
