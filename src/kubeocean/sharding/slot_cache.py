"""Slot cache: an informer whose set of slots changes while it runs.

Gaining slots costs one list of these slots; the watch then continues from its resourceVersion with
a wider selector, and no other slot is listed again. Losing slots costs no request: their objects
are dropped, their later events are ignored, and the next watch excludes them.

Handlers see the objects of a gained slot as added and those of a lost slot as deleted. Code that
acts on a change must check that this replica owns the slot.

An object whose slot cannot be computed (see `placement`) is kept apart, in its last version, until
`place_again` succeeds. An object that is cached already keeps its slot: a slot never changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from typing import Final

from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import Clock, RealClock
from kubeocean.runtime.informer import Indexer, Informer
from kubeocean.runtime.metrics import Metrics
from kubeocean.runtime.objects import Key, ObjectT, Resource
from kubeocean.runtime.watch import Changed, Listed, ObjectEventType, Restarted, Scope, Watch
from kubeocean.sharding.placement import Unplaced
from kubeocean.sharding.selection import Selection

__all__ = ["SlotCache"]

SLOT: Final = "slot"
_NOW: Final = float("-inf")  # a time that the event loop's clock has always passed


class SlotCache(Informer[ObjectT]):
    """Cache of the objects of one resource in the slots that were added.

    Invariant: the cache is complete, up to `version`, for every slot in `slots`.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource[ObjectT],
        selection: Selection[ObjectT],
        *,
        namespace: str = "",
        indexes: Mapping[str, Indexer[ObjectT]] | None = None,
        prune: Callable[[ObjectT], ObjectT] | None = None,
        keep_raw: bool = False,
        clock: Clock | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._time = clock or RealClock()
        self._figures_of = metrics or Metrics()
        super().__init__(
            client,
            resource,
            namespace=namespace,
            indexes={SLOT: self._filed, **(indexes or {})},
            prune=prune,
            keep_raw=keep_raw,
            clock=self._time,
            metrics=self._figures_of,
        )
        self.selection = selection
        self.slots: frozenset[int] = frozenset()
        self._asked: set[int] = set()  # slots that were added, listed or not
        # resourceVersion that each slot has reached: earlier events of its objects are not new
        self._floors: dict[int, int] = {}
        self._computed: dict[Key, int] = {}  # slots of cached objects that name no slot themselves
        self._unplaced: dict[Key, ObjectT] = {}
        self._some = asyncio.Event()
        self._turn: asyncio.Timeout | None = None

    # Slots

    async def add(self, slots: Collection[int]) -> None:
        """List the objects of these slots into the cache; they are cached when this returns."""
        new = frozenset(slots) - self._asked
        if not new:
            return
        self._asked |= new
        try:
            listing = await self.selection.client(new).list(
                self.scope.resource,
                self.scope.namespace,
                labels=self.selection.labels(new),
                keep_raw=self.scope.keep_raw,
            )
        except BaseException:  # also on cancellation: slots that were not listed are not cached
            self._asked -= new
            raise
        # Some slots may have been dropped meanwhile, or dropped and listed again.
        new = (new & self._asked) - self.slots
        self._take(new, listing.items, listing.version)

    def drop(self, slots: Collection[int]) -> None:
        """Remove these slots and their objects from the cache."""
        gone = frozenset(slots)
        self._asked -= gone
        for slot in gone & self.slots:
            self._floors.pop(slot, None)
            for obj in self.of(slot):
                self._put(obj.key, None)
        self.slots -= gone
        if not self.slots:
            self._unplaced.clear()  # the next list contains these objects

    def keys(self, slot: int) -> list[Key]:
        """Return the keys of the objects of a slot."""
        return [obj.key for obj in self.of(slot)]

    def of(self, slot: int) -> list[ObjectT]:
        """Return the objects of a slot."""
        return self.by(SLOT, str(slot))

    def count(self, slot: int) -> int:
        """Return the number of objects in a slot."""
        return len(self.of(slot))

    def slot_of(self, obj: ObjectT) -> int | None:
        """Return the slot of an object; None if the object has none, or if it cannot be
        computed."""
        try:
            return self._place(obj)
        except Unplaced:
            return None

    @property
    def unplaced(self) -> Collection[Key]:
        """Keys of the objects whose slot cannot be computed; they may be in this cache's slots."""
        return self._unplaced.keys()

    def place_again(self, key: Key) -> None:
        """Compute the slot of an unplaced object again; cache the object if it is in a slot of this
        cache.

        :raises Unplaced: the slot can still not be computed.
        """
        obj = self._unplaced.get(key)
        if obj is not None:
            slot = self.selection.slot(obj)
            del self._unplaced[key]
            if slot in self.slots:
                self._put(key, self._prune(obj) if self._prune else obj)

    def _place(self, obj: ObjectT) -> int | None:
        """Return the slot of an object; that of a cached object is not computed again if this
        fails.

        :raises Unplaced: the slot cannot be computed.
        """
        try:
            return self.selection.slot(obj)
        except Unplaced:
            known = self._computed.get(obj.key)
            if known is None:
                raise
            return known

    def _keep_apart(self, obj: ObjectT) -> None:
        """Keep an object whose slot cannot be computed, in its newest version."""
        kept = self._unplaced.get(obj.key)
        if kept is None or kept.uid != obj.uid or _is_older(kept, obj):
            self._unplaced[obj.key] = obj

    def _put(self, key: Key, new: ObjectT | None) -> None:
        if new is None:
            super()._put(key, None)  # handlers still find the slot
            self._computed.pop(key, None)
            return
        self._unplaced.pop(key, None)
        if not self.selection.stored:
            try:
                slot = self._place(new)
            except Unplaced:
                self._keep_apart(new)
                return
            old = self._items.get(key)
            if old is not None and (old.uid != new.uid or self._computed.get(key) != slot):
                self._put(key, None)  # another object, or another owner: two changes, not one
            if slot is not None:
                self._computed[key] = slot
        super()._put(key, new)

    def _take(self, new: frozenset[int], items: list[ObjectT], version: str) -> None:
        """Insert the listed objects of slots. No await here: watch events must not overtake the
        insertion."""
        if not new:
            return
        floor, reached = _number(version), _number(self._version)
        if not self.slots:
            self._version = version  # the cache has no other slot with an older version
        elif 0 < floor < reached:
            # The watch has passed changes of the new slots that the list does not contain. The next
            # watch begins at the list, and sends the passed events of the other slots in vain.
            self._version = version
            self._floors |= {
                known: max(reached, self._floors.get(known, 0)) for known in self.slots
            }
        self.slots |= new
        self._floors |= dict.fromkeys(new, floor)
        for obj in items:
            try:
                slot = self._place(obj)
            except Unplaced:
                self._keep_apart(obj)
                continue
            if slot in new:
                if self._unseen is not None:
                    self._unseen.discard(obj.key)
                self._put(obj.key, self._prune(obj) if self._prune else obj)
        self._synced.set()
        self._some.set()
        if self._turn is not None:
            self._turn.reschedule(_NOW)
            self._turn = None  # a timeout can expire only once

    # Following

    async def run(self) -> None:
        """Watch the objects of the added slots until cancelled."""
        if not self._asked:
            self._synced.set()  # without slots the cache is complete
        while True:
            self._some.clear()
            if not self.slots:
                await self._some.wait()
                continue
            try:
                async with asyncio.timeout(None) as turn:
                    self._turn = turn
                    await self._follow(self._stream())
            except TimeoutError:
                if not turn.expired():
                    raise
            finally:
                self._turn = None

    def _stream(self) -> Watch[ObjectT]:
        """Return a watch of all slots in the cache, from the cache's resourceVersion."""
        scope = self.scope
        wide = Scope(
            scope.resource,
            scope.namespace,
            self.selection.labels(self.slots),
            scope.fields,
            scope.keep_raw,
        )
        return _Resumed(
            self.selection.client(self.slots),
            wide,
            # After an interrupted list there is no version for which the cache is complete.
            since="" if self._unseen is not None else self._version,
            clock=self._time,
            metrics=self._figures_of,
        )

    async def _follow(self, watch: Watch[ObjectT]) -> None:
        async with aclosing(watch.follow()) as account:
            async for news in account:
                if self._turn is None:
                    return  # slots were added: this watch does not know them
                match news:
                    case Changed():
                        self._change(Changed(self._ours(news), news.version))
                    case Restarted():
                        self._unseen = set(self._items)
                        self._unplaced.clear()
                    case Listed():
                        self._complete(news.version)
                        # All slots are as new as the list, whose version is smaller than the floors
                        # if the API server was restored from a backup.
                        self._floors.clear()

    def _ours(self, news: Changed[ObjectT]) -> list[tuple[ObjectEventType, ObjectT]]:
        """Return the events without those of other slots and those that the list of the slot
        contained."""
        kept: list[tuple[ObjectEventType, ObjectT]] = []
        for fate, obj in news.events:
            if fate == "DELETED":
                self._unplaced.pop(obj.key, None)
            try:
                slot = self._place(obj)
            except Unplaced:
                if fate != "DELETED":
                    self._keep_apart(obj)
                continue
            if slot not in self.slots:
                self._unplaced.pop(obj.key, None)
                if self._is_newer(obj):  # its label was changed: moved to another slot
                    kept.append(("DELETED", obj))
                continue
            floor = self._floors.get(slot, 0)
            if self._unseen is None and 0 < _number(obj.resource_version) <= floor:
                continue
            kept.append((fate, obj))
        return kept

    def _is_newer(self, obj: ObjectT) -> bool:
        """Return whether the cache has the object in an older version."""
        cached = self._items.get(obj.key)
        return cached is not None and _is_older(cached, obj)

    def _filed(self, obj: ObjectT) -> tuple[str, ...]:
        stored = self.selection.stored
        slot = self.selection.slot(obj) if stored else self._computed.get(obj.key)
        return () if slot is None else (str(slot),)


def _number(version: str) -> int:
    """Return a resourceVersion as a number; 0 if the server has another numbering."""
    return int(version) if version.isdecimal() else 0


def _is_older(one: ObjectT, other: ObjectT) -> bool:
    """Return whether the first version of an object is older than the second."""
    old, new = _number(one.resource_version), _number(other.resource_version)
    return not (old and new) or old < new


class _Resumed(Watch[ObjectT]):
    """Watch that begins after a known resourceVersion, without a list."""

    def __init__(
        self,
        client: Client,
        scope: Scope[ObjectT],
        *,
        since: str,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        super().__init__(client, scope, clock=clock, metrics=metrics)
        if since:
            self._begin_at(since)
            self._listed = True
            self._generation = client.transport.generation
