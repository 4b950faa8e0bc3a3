"""Clock: the only place that reads time.

Everything that waits or measures takes a `Clock`. `RealClock` is the machine's; `VirtualClock`
moves only when a test advances it, and then wakes sleepers in the order of their deadlines.

Durations are measured with `monotonic`, which no administrator can set; `now` is for what people
read and for calendars.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from kubeocean.errors import InvariantError

__all__ = ["Clock", "RealClock", "VirtualClock"]


class Clock(Protocol):
    """What the rest of the program may know about time."""

    def monotonic(self) -> float:
        """Seconds since some fixed instant; never goes back."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""


class RealClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """A clock that stands still until `advance`.

    After each deadline that it passes it lets the event loop run until nothing is ready any more,
    so that what a sleeper starts (another sleep, too) is seen within the same `advance`.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic(self) -> float:
        return self._elapsed

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        wake = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + seconds, next(self._order), wake))
        await wake

    async def advance(self, seconds: float) -> None:
        """Move time forward, waking every sleeper whose deadline is passed on the way."""
        if seconds < 0:
            raise InvariantError("time was asked to go back", seconds=seconds)
        await _settle()
        target = self._elapsed + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            deadline, _, wake = heapq.heappop(self._sleepers)
            if wake.cancelled():
                continue
            self._elapsed = max(self._elapsed, deadline)
            wake.set_result(None)
            await _settle()
        self._elapsed = max(self._elapsed, target)  # another may have advanced it meanwhile
        await _settle()


_SETTLE_TURNS = 50  # longer than any chain of callbacks between two sleeps in our code


async def _settle() -> None:
    for _ in range(_SETTLE_TURNS):
        await asyncio.sleep(0)
