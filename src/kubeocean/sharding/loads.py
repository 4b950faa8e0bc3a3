"""Loads: what slots cost, measured where the work is done.

The load of a slot is the time that its reconciles take, as a share of time, averaged over some
minutes, and a little for each object that is kept for it. It is measured now and then, not at each
event. A slot that came is taken up whole once, which says nothing of what it will cost: of its
first period nothing is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from kubeocean.runtime.clock import Clock

__all__ = ["Loads"]

_NEW: Final = 0.3  # what a measurement counts against all before it
_OBJECT: Final = 0.0001  # an object that nothing happens to: one reconcile of 10 ms in 100 s


class Loads:
    """The loads of the slots of one workload, measured every `every_s`."""

    def __init__(self, clock: Clock, *, every_s: float = 10.0) -> None:
        self._clock = clock
        self._every_s = every_s
        self._since = clock.monotonic()
        self._known: set[int] = set()  # slots that were ours for a period
        self._spent: dict[int, float] = {}
        self._busy: dict[int, float] = {}
        self._loads: dict[int, float] = {}

    def spent(self, slot: int, seconds: float) -> None:
        """A reconcile took so long."""
        self._spent[slot] = self._spent.get(slot, 0.0) + seconds

    def measure(self, slots: Collection[int], objects: Callable[[int], int]) -> Mapping[int, float]:
        """The loads of these slots, as of the last measurement; nothing before the first."""
        now = self._clock.monotonic()
        passed = now - self._since
        if passed >= self._every_s:
            for slot in slots:
                if slot not in self._known:
                    self._known.add(slot)
                    continue
                share = self._spent.get(slot, 0.0) / passed
                before = self._busy.get(slot, share)
                self._busy[slot] = before + _NEW * (share - before)
                self._loads[slot] = self._busy[slot] + _OBJECT * objects(slot)
            self._since = now
            self._spent.clear()
        return self._loads

    def drop(self, slots: Collection[int]) -> None:
        """These are somebody else's."""
        self._known.difference_update(slots)
        for slot in slots:
            for memory in (self._spent, self._busy, self._loads):
                memory.pop(slot, None)
