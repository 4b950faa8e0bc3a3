"""Filed writes: own writes, filed under the key for which they were made.

A copy is written for its original, a placeholder for its node: nothing is decided about these
before the caches show what was written for them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Key, ObjectT

__all__ = ["FiledWrites"]


class _Shows(Protocol):
    async def caught_up(self, key: Key) -> bool: ...


class FiledWrites:
    """What was written of late, by the key that it was written for, until the caches show it."""

    def __init__(self) -> None:
        self._unseen: dict[Hashable, set[Key]] = {}

    def wrote(self, key: Hashable, cache: Informer[ObjectT], made: ObjectT) -> None:
        """Something was created or changed, and is in this cache."""
        cache.wrote(made)
        self._unseen.setdefault(key, set()).add(made.key)

    def deleted(self, key: Hashable, cache: Informer[ObjectT], gone: ObjectT) -> None:
        """Something was deleted, and was in this cache."""
        cache.deleted(gone)
        self._unseen.setdefault(key, set()).add(gone.key)

    async def shown(self, key: Hashable, *caches: _Shows) -> bool:
        """Whether all of these caches show all that was written for a key."""
        unseen = self._unseen.get(key, set())
        for each in tuple(unseen):
            for cache in caches:
                if not await cache.caught_up(each):
                    return False
            unseen.discard(each)
        if not unseen:
            self._unseen.pop(key, None)
        return True
