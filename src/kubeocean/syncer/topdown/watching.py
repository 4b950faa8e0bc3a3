"""Watching: caches that run only while somebody needs them.

`Switched` runs parts while it is on. `Namespaced` holds a cache for each namespace that is wanted,
and lets go of it when it is not any more. As they start at any time, `synced` waits a little for
them, so that nobody has to come back for what takes a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.components import Runnable
from kubeocean.runtime.deadlines import within
from kubeocean.runtime.informer import Informer
from kubeocean.runtime.objects import ObjectT

__all__ = ["Fills", "Namespaced", "Switched", "synced"]

_PATIENCE_S: Final = 1.0


class Fills(Protocol):
    """A cache that is whole at some time."""

    @property
    def has_synced(self) -> bool: ...

    async def synced(self) -> None: ...


async def synced(clock: Clock, caches: Iterable[Fills]) -> bool:
    """Whether all caches are whole, soon."""
    for cache in caches:
        if not cache.has_synced:
            try:
                await within(clock, _PATIENCE_S, cache.synced)
            except TimeoutError:
                return False
    return True


class Switched:
    """Parts that run while the switch is on."""

    def __init__(self, *parts: Runnable) -> None:
        self._parts: Sequence[Runnable] = parts
        self._turned = asyncio.Event()
        self._on = False

    @property
    def on(self) -> bool:
        return self._on

    def turn(self, on: bool) -> None:
        """Start or stop the parts; soon, and never from within them."""
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
            # No await between the look and this: a turn that comes later must not be forgotten.
            self._turned.clear()
            await self._turned.wait()


class Namespaced(Generic[ObjectT]):
    """A cache for each namespace that is wanted."""

    def __init__(self, make: Callable[[str], Informer[ObjectT]]) -> None:
        self._make = make
        self._caches: dict[str, Informer[ObjectT]] = {}
        self._changed = asyncio.Event()

    def want(self, namespaces: Iterable[str]) -> None:
        """These, and no others."""
        wanted = set(namespaces)
        if wanted == self._caches.keys():
            return
        for namespace in self._caches.keys() - wanted:
            del self._caches[namespace]
        for namespace in wanted - self._caches.keys():
            self._caches[namespace] = self._make(namespace)
        self._changed.set()

    def get(self, namespace: str) -> Informer[ObjectT] | None:
        """The cache of a namespace, if it is wanted."""
        return self._caches.get(namespace)

    async def run(self) -> None:
        running: dict[Informer[ObjectT], asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                wanted = set(self._caches.values())
                for cache in running.keys() - wanted:
                    running.pop(cache).cancel()
                for cache in wanted - running.keys():
                    running[cache] = group.create_task(cache.run())
                await self._changed.wait()
