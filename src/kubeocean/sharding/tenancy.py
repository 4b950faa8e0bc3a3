"""Tenancy: the slots of one incarnation, from gain to loss.

For each slot things happen one after the other, whatever the table says meanwhile:

    gain    caches are warm → on_shard_gained returned → keys are taken
    loss    no more keys → nothing runs → on_shard_lost returned → caches are dropped

A slot is *busy* until its loss is through; only then may it be acknowledged. What does not end in
time is cancelled, reconciles and notifiers alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Final

from kubeocean.errors import ApiError
from kubeocean.runtime.clock import Clock
from kubeocean.runtime.logs import get_logger
from kubeocean.sharding.holder import Duties
from kubeocean.sharding.metrics import RingMetrics
from kubeocean.sharding.slotsets import encode_slots
from kubeocean.sharding.workloads import ShardNotifier, Workload

__all__ = ["Tenancy"]

_AGAIN_S: Final = 0.5  # between two attempts to warm

_log = get_logger(__name__)


class Tenancy:
    """What one incarnation does about its slots. `changed` is called when a slot has settled."""

    def __init__(
        self,
        workloads: Sequence[Workload],
        notifiers: Sequence[ShardNotifier],
        *,
        clock: Clock,
        metrics: RingMetrics,
        changed: Callable[[], None],
    ) -> None:
        self._workloads = workloads
        self._notifiers = notifiers
        self._clock = clock
        self._metrics = metrics
        self._changed = changed
        self.active: frozenset[int] = frozenset()  # ours, by the table
        self.serving: set[int] = set()  # ours, and keys may be taken
        self._losing: dict[int, asyncio.Task[None]] = {}
        self._latest: dict[int, asyncio.Task[None]] = {}  # what happens to a slot last
        self._warm: dict[int, asyncio.Task[None]] = {}
        self._told: set[int] = set()  # what the layer above has, or may have, taken up
        self._cancelled: frozenset[int] = frozenset()
        self._overdue: frozenset[int] = frozenset()

    def busy(self) -> set[int]:
        """The slots in which something runs, or that the layer above has not let go of.

        It has every slot from before `on_shard_gained` until after `on_shard_lost`, also before
        anybody has told it that the slot goes: else an idle one would be acknowledged at once.
        """
        held = self._told | self._latest.keys() | self._losing.keys()
        return held.union(*(each.busy() for each in self._workloads))

    def apply(self, duties: Duties, group: asyncio.TaskGroup) -> None:
        """Do what has to be done now; the rest happens in `group`."""
        gone = (self.active - duties.active) | (self.active & duties.lost)
        gained = (duties.active - self.active) | (duties.active & gone)
        self.active = duties.active
        self.serving -= gone
        self._warm_up(duties.warm | gained, group)
        for slot in gone:
            self._losing[slot] = self._next(slot, self._lose(slot, self._latest.get(slot)), group)
        for slot in gained:
            warm = self._warm.get(slot)
            self._next(slot, self._gain(slot, self._latest.get(slot), warm), group)
        self._cancel(duties)
        if gone or gained:
            self._metrics.shard_changes.inc(len(gone) + len(gained))
            self._metrics.shard_count.set(len(self.active))

    async def end(self) -> None:
        """Let go of everything, at once; the group of `apply` must have ended before."""
        self.active = frozenset()
        self.serving.clear()
        running = self.busy()
        for workload in self._workloads:
            workload.cancel(running)
        async with asyncio.TaskGroup() as group:
            for slot in running | self._told:
                group.create_task(self._let_go(slot))
        for workload in self._workloads:
            workload.drop(list(self._warm))
        self._warm.clear()
        self._metrics.shard_count.set(0)

    # In order, for each slot

    def _next(
        self, slot: int, what: Coroutine[None, None, None], group: asyncio.TaskGroup
    ) -> asyncio.Task[None]:
        task = group.create_task(what)
        self._latest[slot] = task
        task.add_done_callback(partial(self._settled, slot))
        return task

    def _settled(self, slot: int, task: asyncio.Task[None]) -> None:
        if self._latest.get(slot) is task:
            del self._latest[slot]
        if self._losing.get(slot) is task:
            del self._losing[slot]
        self._changed()

    async def _gain(
        self, slot: int, before: asyncio.Task[None] | None, warm: asyncio.Task[None] | None
    ) -> None:
        await _ended(before)
        await _ended(warm)
        self._told.add(slot)
        for notifier in self._notifiers:
            await notifier.on_shard_gained(slot, self._resources(slot))
        if slot in self.active and slot not in self._losing:
            self.serving.add(slot)
            for workload in self._workloads:
                workload.start([slot])

    async def _lose(self, slot: int, before: asyncio.Task[None] | None) -> None:
        began = self._clock.monotonic()
        try:
            await _ended(before)
        except asyncio.CancelledError:
            if before is not None:
                before.cancel()  # the layer above has not even taken it up in time
                await asyncio.wait([before])
            self._drop(slot)
            raise
        await self._let_go(slot)
        self._metrics.handover.observe(self._clock.monotonic() - began)

    async def _let_go(self, slot: int) -> None:
        try:
            for workload in self._workloads:
                await workload.idle(slot)
            if slot in self._told:
                for notifier in self._notifiers:
                    await notifier.on_shard_lost(slot, self._resources(slot))
                self._told.discard(slot)
        finally:
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        if slot not in self.active:  # else it has come back meanwhile
            self._warm.pop(slot, None)
            for workload in self._workloads:
                workload.drop([slot])

    def _resources(self, slot: int) -> list[str]:
        return [key for workload in self._workloads for key in workload.resources(slot)]

    # Warming and cancelling

    def _warm_up(self, slots: Collection[int], group: asyncio.TaskGroup) -> None:
        """Bring in, with one request, what is not there and is not on its way."""
        for slot in self._warm.keys() - slots - self.active - self._losing.keys():
            del self._warm[slot]  # it was to come, and does not
            for workload in self._workloads:
                workload.drop([slot])
        cold = frozenset(slots) - self._warm.keys()
        if cold:
            task = group.create_task(self._warm_all(cold))
            self._warm |= dict.fromkeys(cold, task)

    async def _warm_all(self, slots: frozenset[int]) -> None:
        for workload in self._workloads:
            while True:
                try:
                    await workload.warm(slots)
                    break
                except ApiError as error:
                    _log.warning("Failed to read the objects of shards", error=str(error))
                    await self._clock.sleep(_AGAIN_S)

    def _cancel(self, duties: Duties) -> None:
        new, late = duties.cancel - self._cancelled, duties.overdue - self._overdue
        self._cancelled, self._overdue = duties.cancel, duties.overdue
        if new:
            _log.warning("Cancelled work on shards", shards=encode_slots(new))
            for workload in self._workloads:
                workload.cancel(new)
        for slot in late & self._losing.keys():
            self._told.discard(slot)  # it had its time; when the task has ended, it has let go
            self._losing[slot].cancel()


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Wait for a task, whatever it ends with: that is its group's business."""
    if task is not None:
        await asyncio.wait([task])
