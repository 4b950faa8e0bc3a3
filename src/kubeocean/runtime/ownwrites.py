"""Own writes: which of our writes the cache has not shown yet.

A write is *pending* from the server's answer until the watch has passed the version that the answer
named, or, for a deletion, until that very object (by UID) is gone or shows that it is going.
Entries leave when the watch passes them, so there are never more than the writes of the last
minute, the time between two bookmarks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.objects import Key, ObjectT

__all__ = ["OwnWrites"]


@dataclass(slots=True, eq=False)
class _Pending:
    key: Key
    uid: str
    version: int | None  # None: a deletion, or a server whose versions are not numbers
    raw_version: str
    since: float
    shown: asyncio.Event = field(default_factory=asyncio.Event)


class OwnWrites(Generic[ObjectT]):
    """The pending writes of one informer."""

    def __init__(self, items: Mapping[Key, ObjectT], clock: Clock) -> None:
        self._items = items
        self._clock = clock
        self._pending: dict[Key, _Pending] = {}
        self._by_version: list[tuple[int, int, _Pending]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, key: Key) -> bool:
        return key in self._pending

    def expect_version(self, obj: ObjectT, *, now_at: str) -> None:
        """The server made `obj` of our write; the cache stands at version `now_at`."""
        version = _number(obj.resource_version)
        at = _number(now_at)
        if version is not None and at is not None and version <= at:
            return  # the watch was quicker than the answer
        entry = self._add(obj, version)
        if version is not None:
            self._added += 1
            heapq.heappush(self._by_version, (version, self._added, entry))
        else:
            self._check(obj.key)

    def expect_gone(self, obj: ObjectT) -> None:
        """The server accepted our deletion of this object."""
        self._add(obj, None)
        self._check(obj.key)

    def passed(self, version: str, changed: Iterable[Key]) -> list[float]:
        """The cache reached `version`, and these keys changed; the delays of what it showed now."""
        now = self._clock.monotonic()
        delays: list[float] = []
        at = _number(version)
        while self._by_version and at is not None and self._by_version[0][0] <= at:
            _, _, entry = heapq.heappop(self._by_version)
            if self._show(entry):
                delays.append(now - entry.since)
        for key in changed:
            entry_of_key = self._pending.get(key)
            if entry_of_key is not None and self._check(key):
                delays.append(now - entry_of_key.since)
        return delays

    def forget(self, key: Key) -> None:
        """What the server has now was compared with the cache; nothing is pending any more."""
        entry = self._pending.get(key)
        if entry is not None:
            self._show(entry)

    async def shown(self, key: Key, timeout_s: float) -> bool:
        """Whether the cache shows our last write to the key, within the time."""
        entry = self._pending.get(key)
        if entry is None:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await entry.shown.wait()
        except TimeoutError:
            return False
        return key not in self._pending

    def _add(self, obj: ObjectT, version: int | None) -> _Pending:
        since = self._clock.monotonic()
        entry = _Pending(obj.key, obj.uid, version, obj.resource_version, since)
        before = self._pending.get(obj.key)
        if before is not None:
            before.shown.set()  # whoever waits looks again and finds the newer write
        self._pending[obj.key] = entry
        return entry

    def _check(self, key: Key) -> bool:
        entry = self._pending[key]
        if entry.version is not None:
            return False  # the version decides, in `passed`
        cached = self._items.get(key)
        gone = cached is None or cached.uid != entry.uid or cached.deleting
        same = cached is not None and cached.resource_version == entry.raw_version
        return (gone or (same and not _number(entry.raw_version))) and self._show(entry)

    def _show(self, entry: _Pending) -> bool:
        entry.shown.set()
        if self._pending.get(entry.key) is not entry:
            return False  # a newer write took its place
        del self._pending[entry.key]
        return True


def _number(version: str) -> int | None:
    return int(version) if version.isdecimal() else None
