"""Own writes: writes of this program that the cache has not shown yet.

A write is *pending* from the server's answer until the watch has passed the version that the answer
named. A deletion is pending until the watch has passed the version that was deleted and that very
object (by UID) is deleted or has a deletionTimestamp. Writes to one key are pending together: a
wait for the key is a wait for the last of them, in whatever order the answers came.

Entries are removed when the watch passes them, so there are never more than the writes of the last
minute, the time between two bookmarks.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic

from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.objects import Key, ObjectT

__all__ = ["PendingWrites"]

_DIGITS: Final = 20  # digits of the largest version that an API server can give


@dataclass(slots=True, eq=False)
class _Pending:
    """Writes to one key that the cache does not show yet."""

    key: Key
    since: float
    version: int | None = None  # version that the watch has not passed yet
    exactly: str = (
        ""  # version that the cached object must reach, for a server whose versions are not numbers
    )
    doomed: str = ""  # UID of the object that must be deleted
    shown: asyncio.Event = field(default_factory=asyncio.Event)


class PendingWrites(Generic[ObjectT]):
    """Writes through one informer that its cache does not show yet."""

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
        """Record that a write returned `obj`; the cache is at resourceVersion `now_at`."""
        self._expect(obj, now_at)

    def expect_gone(self, obj: ObjectT, *, now_at: str) -> None:
        """Record that the server accepted a delete of this object; the cache is at resourceVersion
        `now_at`."""
        self._expect(obj, now_at, doomed=obj.uid)

    def passed(self, version: str, changed: Iterable[Key]) -> list[float]:
        """Process the arrival of `version` with these changed keys; return the delay of each write
        that the cache shows now."""
        now = self._clock.monotonic()
        at = _number(version)
        shown: list[_Pending] = []
        while self._by_version and at is not None and self._by_version[0][0] <= at:
            _, _, entry = heapq.heappop(self._by_version)
            if entry.version is not None and entry.version <= at:
                entry.version = None
                shown += self._check(entry)
        for key in changed:
            if (pending := self._pending.get(key)) is not None:
                shown += self._check(pending)
        return [now - entry.since for entry in shown]

    def forget(self, key: Key) -> None:
        """Drop pending writes of a key after the server's object was compared with the cache."""
        entry = self._pending.get(key)
        if entry is not None:
            self._show(entry)

    async def shown(self, key: Key, timeout_s: float) -> bool:
        """Return whether the cache shows the last write to the key, waiting up to the time
        limit."""

        async def all_shown() -> bool:
            while (entry := self._pending.get(key)) is not None:
                await entry.shown.wait()
            return True

        try:
            return await within(self._clock, timeout_s, all_shown)
        except TimeoutError:
            return False

    def _expect(self, obj: ObjectT, now_at: str, *, doomed: str = "") -> None:
        version, at = _number(obj.resource_version), _number(now_at)
        passed = version is not None and at is not None and version <= at
        if passed and not doomed:
            return  # the watch was faster than the answer
        entry = self._pending.get(obj.key) or _Pending(obj.key, 0.0)
        self._pending[obj.key] = entry
        entry.since = self._clock.monotonic()
        if doomed:
            entry.doomed, entry.exactly = doomed, ""
        elif version is None:
            entry.exactly = obj.resource_version
        if version is not None and not passed:
            self._await_version(entry, version)
        self._check(entry)

    def _await_version(self, entry: _Pending, version: int) -> None:
        if entry.version is None or version > entry.version:
            entry.version = version
            self._added += 1
            heapq.heappush(self._by_version, (version, self._added, entry))

    def _check(self, entry: _Pending) -> list[_Pending]:
        """Return the entry in a list if the cache shows all of its writes now, else an empty
        list."""
        cached = self._items.get(entry.key)
        if entry.version is not None:
            return []
        if entry.exactly and (cached is None or cached.resource_version != entry.exactly):
            return []
        if entry.doomed and cached and cached.uid == entry.doomed and not cached.deleting:
            return []
        return [entry] if self._show(entry) else []

    def _show(self, entry: _Pending) -> bool:
        if self._pending.get(entry.key) is not entry:
            return False  # shown before
        del self._pending[entry.key]
        entry.shown.set()
        return True


def _number(version: str) -> int | None:
    return int(version) if version.isdecimal() and len(version) <= _DIGITS else None
