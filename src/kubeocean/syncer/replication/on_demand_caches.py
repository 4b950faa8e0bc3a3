"""Caches that run only while they are needed.

`Switched` runs parts while it is on. `NamespacedCaches` has a cache for each namespace that is
needed. As these caches start at any time, `synced` waits a moment for them instead of requeueing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol

from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import ObjectT

__all__ = ["NamespacedCaches", "Switched", "SyncedCache", "synced"]

_SYNC_WAIT_S: Final = 1.0


class SyncedCache(Protocol):
    """A cache that can be waited for until it has synced."""

    @property
    def has_synced(self) -> bool: ...

    async def synced(self) -> None: ...


async def synced(clock: Clock, caches: Iterable[SyncedCache]) -> bool:
    """Whether all caches have synced, after waiting a moment for each."""
    for cache in caches:
        if not cache.has_synced:
            try:
                await within(clock, _SYNC_WAIT_S, cache.synced)
            except TimeoutError:
                return False
    return True


class Switched:
    """Runs its parts, such as caches, while it is switched on."""

    def __init__(self, *parts: Runnable) -> None:
        self._parts: Sequence[Runnable] = parts
        self._turned = asyncio.Event()
        self._on = False

    @property
    def on(self) -> bool:
        return self._on

    def turn(self, on: bool) -> None:
        """Request that `run` start or stop the parts; may be called by a part."""
        if on != self._on:
            self._on = on
            self._turned.set()

    async def run(self) -> None:
        while True:
            await self._until(True)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part.run()) for part in self._parts]
                await self._until(False)
                for task in tasks:
                    task.cancel()

    async def _until(self, on: bool) -> None:
        while self._on != on:
            # No await between the comparison and this: a later `turn` must not be missed.
            self._turned.clear()
            await self._turned.wait()


class NamespacedCaches(Generic[ObjectT]):
    """A cache for each namespace that is needed; `make` builds the cache of a namespace."""

    def __init__(self, make: Callable[[str], Informer[ObjectT]]) -> None:
        self._make = make
        self._caches: dict[str, Informer[ObjectT]] = {}
        self._changed = asyncio.Event()

    def set_namespaces(self, namespaces: Iterable[str]) -> None:
        """Start the caches of new namespaces, and drop those of namespaces not listed."""
        needed = set(namespaces)
        if needed == self._caches.keys():
            return
        for namespace in self._caches.keys() - needed:
            del self._caches[namespace]
        for namespace in needed - self._caches.keys():
            self._caches[namespace] = self._make(namespace)
        self._changed.set()

    def get(self, namespace: str) -> Informer[ObjectT] | None:
        """Return the cache of a namespace, if it is needed."""
        return self._caches.get(namespace)

    async def run(self) -> None:
        running: dict[Informer[ObjectT], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                needed = set(self._caches.values())
                for cache in running.keys() - needed:
                    running.pop(cache).cancel()
                for cache in needed - running.keys():
                    running[cache] = group.create_task(cache.run())
                await self._changed.wait()
