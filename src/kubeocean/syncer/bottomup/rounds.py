"""Rounds: everybody's turn comes once in a period, some at a time.

The period is cut into slots, and who joins gets the emptiest one: so the turns are spread evenly,
and those of one slot are taken together, which costs far less than one by one. At most `at_once`
turns run at a time; one that hangs holds up nobody else. Nobody has two turns at a time: one that
comes while the last one waits or runs is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from kubeocean.runtime.clock import Clock

__all__ = ["Rounds"]

SLOTS: Final = 10


class Rounds:
    """Names that are visited again and again; `visit` must not raise."""

    def __init__(
        self,
        visit: Callable[[str], Awaitable[None]],
        *,
        period_s: float,
        at_once: int,
        clock: Clock,
    ) -> None:
        self._visit = visit
        self._step_s = period_s / SLOTS
        self._at_once = at_once
        self._clock = clock
        self._slots: list[dict[str, None]] = [{} for _ in range(SLOTS)]
        self._slot_of: dict[str, int] = {}
        self._waiting: dict[str, None] = {}  # whose turn it is, in order
        self._visited: set[str] = set()  # whose turn runs
        self._servers = 0
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, name: str) -> bool:
        return name in self._slot_of

    def join(self, name: str) -> None:
        """Take part from now on; the first turn comes within a period."""
        if name not in self._slot_of:
            slot = min(range(SLOTS), key=lambda each: len(self._slots[each]))
            self._slots[slot][name] = None
            self._slot_of[name] = slot

    def leave(self, name: str) -> None:
        """Take part no longer."""
        slot = self._slot_of.pop(name, None)
        if slot is not None:
            del self._slots[slot][name]
            self._waiting.pop(name, None)

    def hurry(self) -> None:
        """Let everybody have a turn now; the rounds go on as they were."""
        self._call(self._slot_of)

    async def run(self) -> None:
        """Go round until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._turn())
            while True:
                await self._news.wait()
                self._news.clear()
                for _ in range(min(len(self._waiting), self._at_once - self._servers)):
                    self._servers += 1
                    group.create_task(self._serve())

    async def _turn(self) -> None:
        """Call slot after slot. Who was stopped for long does not run after what he missed."""
        due, slot = self._clock.monotonic(), 0
        while True:
            due = max(due + self._step_s, self._clock.monotonic() - self._step_s)
            await self._clock.sleep(max(0.0, due - self._clock.monotonic()))
            slot = (slot + 1) % SLOTS
            self._call(self._slots[slot])

    def _call(self, names: Iterable[str]) -> None:
        self._waiting.update((name, None) for name in names if name not in self._visited)
        if self._waiting:
            self._news.set()

    async def _serve(self) -> None:
        try:
            while self._waiting:
                name = next(iter(self._waiting))
                del self._waiting[name]
                self._visited.add(name)
                try:
                    await self._visit(name)
                finally:
                    self._visited.discard(name)
        finally:
            self._servers -= 1
