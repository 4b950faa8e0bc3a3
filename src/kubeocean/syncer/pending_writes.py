"""Pending writes by key: own writes that caches do not show yet, by the key they were made for.

A copy is written for its source, a physical pod for its virtual pod: the key of the source or
virtual pod is not reconciled before the caches show all writes for that key.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import Key, ObjectT

__all__ = ["PendingWritesByKey"]


class _Cache(Protocol):
    async def caught_up(self, key: Key) -> bool: ...


class PendingWritesByKey:
    """The objects written for each key, until the caches show these writes."""

    def __init__(self) -> None:
        self._pending: dict[Hashable, set[Key]] = {}

    def wrote(self, key: Hashable, cache: Informer[ObjectT], made: ObjectT) -> None:
        """Note that `made`, which belongs into `cache`, was created or changed for `key`."""
        cache.wrote(made)
        self._pending.setdefault(key, set()).add(made.key)

    def deleted(self, key: Hashable, cache: Informer[ObjectT], gone: ObjectT) -> None:
        """Note that `gone`, which `cache` shows, was deleted for `key`."""
        cache.deleted(gone)
        self._pending.setdefault(key, set()).add(gone.key)

    async def shown(self, key: Hashable, *caches: _Cache) -> bool:
        """Whether all of these caches show all writes for a key."""
        pending = self._pending.get(key, set())
        for written in tuple(pending):
            for cache in caches:
                if not await cache.caught_up(written):
                    return False
            pending.discard(written)
        if not pending:
            self._pending.pop(key, None)
        return True
