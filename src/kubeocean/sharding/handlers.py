"""Handlers: events instead of levels, for those who think in them.

A reconciler is called with a key and looks at the world. A `ResourceHandler` is told that an object
was added, changed or deleted. `HandlerReconciler` makes the second of the first: it remembers which
version of each object was handled, and tells the handler what became of it since. So also here
nothing is missed when several changes come at once, and what fails is tried again.

A shard that goes takes its memory along: its objects are *added* where they arrive, and nobody is
told of a deletion that did not happen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Generic

from kubeocean.runtime.objects import Key, ObjectT
from kubeocean.runtime.outcomes import Done, Outcome

__all__ = ["HandlerReconciler", "ResourceHandler"]


class ResourceHandler(Generic[ObjectT]):
    """What to do about the objects of one kind. Override what matters; what raises is retried."""

    async def handle_add(self, obj: ObjectT) -> None:
        """It is new, or new to this replica."""

    async def handle_update(self, old: ObjectT, new: ObjectT) -> None:
        """It changed since it was handled last."""

    async def handle_delete(self, obj: ObjectT) -> None:
        """It is gone; this is how it was handled last."""

    def should_process(self, obj: ObjectT) -> bool:
        """Whether it matters at all."""
        return True

    def get_resource_key(self, obj: ObjectT) -> str:
        """By what it is sharded. It must never change, nor depend on anything but the name."""
        return str(obj.key)


class HandlerReconciler(Generic[ObjectT]):
    """A reconciler that calls a handler."""

    def __init__(
        self,
        handler: ResourceHandler[ObjectT],
        read: Callable[[Key], Awaitable[ObjectT | None]],
    ) -> None:
        self._handler = handler
        self._read = read
        self._handled: dict[Key, ObjectT] = {}

    async def reconcile(self, key: Key) -> Outcome:
        old, new = self._handled.get(key), await self._read(key)
        if new is not None and not self._handler.should_process(new):
            new = None
        if old is not None and (new is None or new.uid != old.uid):
            await self._handler.handle_delete(old)
            del self._handled[key]
            old = None
        if new is None:
            return Done()
        if old is None:
            await self._handler.handle_add(new)
        elif old.resource_version != new.resource_version:
            await self._handler.handle_update(old, new)
        self._handled[key] = new
        return Done()

    def forget(self, keys: Collection[Key]) -> None:
        """These are somebody else's now."""
        for key in keys:
            self._handled.pop(key, None)
