"""Watches that report when an object comes into existence.

An object that does not exist has no label for a cache to select. Each object that is
waited for has a watch of its own, on its name: its creation is seen at once, nothing is polled, and
nothing else of its namespace is read. At most `LIMIT` objects are watched; others are polled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from kubeocean.runtime.objects import Key, Resource
from kubeocean.runtime.watch import Changed, Scope, Watch
from kubeocean.syncer.clusters import Clusters
from kubeocean.syncer.replication.copy_forge import Source

__all__ = ["LIMIT", "ExistenceWatches"]

LIMIT: Final = 100


class ExistenceWatches:
    """Watches for objects of one kind that do not exist; calls `on_exists` when one is created."""

    def __init__(
        self, clusters: Clusters, resource: Resource[Source], on_exists: Callable[[Key], None]
    ) -> None:
        self._clusters = clusters
        self._resource = resource
        self._on_exists = on_exists
        self._keys: set[Key] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Key) -> bool:
        """Watch for an object to exist; False if too many objects are watched already."""
        if key not in self._keys:
            if len(self._keys) >= LIMIT:
                return False
            self._keys.add(key)
            self._changed.set()
        return True

    def remove(self, key: Key) -> None:
        """Stop watching for an object to exist."""
        if key in self._keys:
            self._keys.discard(key)
            self._changed.set()

    async def run(self) -> None:
        """Run the watches until cancelled."""
        tasks: dict[Key, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                tasks = {key: task for key, task in tasks.items() if not task.done()}
                for key in tasks.keys() - self._keys:
                    tasks.pop(key).cancel()
                for key in self._keys - tasks.keys():
                    tasks[key] = group.create_task(self._watch(key))
                await self._changed.wait()

    async def _watch(self, key: Key) -> None:
        scope = Scope(self._resource, key.namespace, "", f"metadata.name={key.name}")
        clusters = self._clusters
        watch = Watch(clusters.computing, scope, clock=clusters.clock, metrics=clusters.metrics)
        async with aclosing(watch.follow()) as stream:
            async for message in stream:
                if isinstance(message, Changed) and any(
                    event != "DELETED" for event, _ in message.events
                ):
                    break
        # No await from here on: a key that is added again must see this task done.
        self.remove(key)
        self._on_exists(key)
