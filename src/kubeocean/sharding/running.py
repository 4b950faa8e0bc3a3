"""Running: what runs in which slot, how to wait for it and how to end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final

__all__ = ["Ended", "Running"]

_NOW: Final = float("-inf")  # a time that the event loop's clock has always passed


class Ended(Exception):
    """The work was cancelled, because its slot is not ours any more."""


class Running:
    """The work under way."""

    def __init__(self) -> None:
        self._limits: dict[int, set[asyncio.Timeout]] = {}
        self._ended: set[asyncio.Timeout] = set()
        self._idle: dict[int, asyncio.Event] = {}

    def slots(self) -> Collection[int]:
        """Where something runs."""
        return self._limits.keys()

    @asynccontextmanager
    async def of(self, slot: int) -> AsyncIterator[None]:
        """Something runs in this slot until the block ends.

        :raises Ended: it was cancelled by `cancel`.
        """
        try:
            async with asyncio.timeout(None) as limit:
                # Nothing is awaited before this: whoever asked may run is seen running.
                self._limits.setdefault(slot, set()).add(limit)
                try:
                    yield
                finally:
                    self._left(slot, limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Ended(f"work on slot {slot} was cancelled") from None

    def cancel(self, slots: Collection[int]) -> None:
        """Cancel what runs there; it may take its time to end."""
        for slot in slots:
            for limit in self._limits.get(slot, set()) - self._ended:
                self._ended.add(limit)  # it can be ended only once
                limit.reschedule(_NOW)

    async def idle(self, slot: int) -> None:
        """Return when nothing runs there."""
        while slot in self._limits:
            await self._idle.setdefault(slot, asyncio.Event()).wait()

    def _left(self, slot: int, limit: asyncio.Timeout) -> None:
        self._ended.discard(limit)
        running = self._limits[slot]
        running.discard(limit)
        if not running:
            del self._limits[slot]
            if (idle := self._idle.pop(slot, None)) is not None:
                idle.set()
