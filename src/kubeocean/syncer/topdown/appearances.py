"""Appearances: being told when something comes that is not there.

What does not exist bears no label by which it could be watched. Each thing that somebody waits for
has a watch of its own, on its name: it is seen at once, nothing is polled, and nothing else of its
namespace is read. There are never more than `LIMIT` of them; the rest has to be looked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

from kubeocean.runtime.objects import Key, Resource
from kubeocean.runtime.watch import Changed, Scope, Watch
from kubeocean.syncer.forge.copies import Original
from kubeocean.syncer.world import World

__all__ = ["LIMIT", "Appearances"]

LIMIT: Final = 100


class Appearances:
    """Objects of one kind that somebody waits for."""

    def __init__(
        self, world: World, resource: Resource[Original], found: Callable[[Key], None]
    ) -> None:
        self._world = world
        self._resource = resource
        self._found = found
        self._awaited: set[Key] = set()
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._awaited)

    def wait_for(self, key: Key) -> bool:
        """Call `found` when it is there; False if too many others are waited for."""
        if key not in self._awaited:
            if len(self._awaited) >= LIMIT:
                return False
            self._awaited.add(key)
            self._changed.set()
        return True

    def forget(self, key: Key) -> None:
        """Nobody waits for it any more."""
        if key in self._awaited:
            self._awaited.discard(key)
            self._changed.set()

    async def run(self) -> None:
        """Watch what is waited for, until cancelled."""
        watching: dict[Key, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                watching = {key: task for key, task in watching.items() if not task.done()}
                for key in watching.keys() - self._awaited:
                    watching.pop(key).cancel()
                for key in self._awaited - watching.keys():
                    watching[key] = group.create_task(self._watch(key))
                await self._changed.wait()

    async def _watch(self, key: Key) -> None:
        scope = Scope(self._resource, key.namespace, "", f"metadata.name={key.name}")
        world = self._world
        watch = Watch(world.computing, scope, clock=world.clock, metrics=world.metrics)
        async with aclosing(watch.follow()) as account:
            async for news in account:
                if isinstance(news, Changed) and any(f != "DELETED" for f, _ in news.events):
                    break
        # No await from here on: whoever waits for it again finds this task done.
        self.forget(key)
        self._found(key)
