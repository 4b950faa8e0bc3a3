"""Lifecycle of the slots of one incarnation, from gain to loss, and the work that runs in them.

For each slot the steps happen in order, whatever the table contains meanwhile:

    gain    caches are filled → hand-over is read → on_shard_gained returned → keys are taken
    loss    no more keys → no work runs → on_shard_lost returned → hand-over is written
            → caches are dropped

A slot is *busy* until its loss is finished; only then is the loss acknowledged. Work that does not
end in time is cancelled, reconciles and notifiers alike; the caches stay until that work has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from kubeocean.errors import ApiError, Forbidden, Invalid
from kubeocean.runtime.clock import Clock, within
from kubeocean.runtime.logs import get_logger
from kubeocean.sharding.handover import HandoverPages, SlotHandover
from kubeocean.sharding.metrics import RingMetrics
from kubeocean.sharding.slot_lease import Duties
from kubeocean.sharding.slots import encode_slots
from kubeocean.sharding.workloads import ShardNotifier, Workload

__all__ = ["Ended", "Running", "SlotLifecycle"]

_AGAIN_S: Final = 0.5  # between two attempts of a request
_LONGEST_S: Final = 4.0  # between two calls of a notifier that raises
_NOW: Final = float("-inf")  # a time that the event loop's clock has always passed

_log = get_logger(__name__)


def _no_grant(slot: int) -> int:
    return 0


class SlotLifecycle:
    """Carries out gains and losses of slots for one incarnation of a replica.

    - `changed`: called when the gain or loss of a slot has ended.
    - `pages`: hand-over pages for the lists of handled objects; None if no workload hands over.
    - `grant_of`: returns the epoch of this replica's grant of a slot, 0 if there is none.
    - `last_call_s`: how long `on_shard_lost` may take if the time for the loss has passed already.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        notifiers: Sequence[ShardNotifier],
        *,
        clock: Clock,
        metrics: RingMetrics,
        changed: Callable[[], None],
        pages: HandoverPages | None = None,
        grant_of: Callable[[int], int] = _no_grant,
        last_call_s: float = 1.0,
    ) -> None:
        self._workloads = workloads
        self._notifiers = notifiers
        self._clock = clock
        self._metrics = metrics
        self._changed = changed
        self._pages = pages
        self._grant_of = grant_of
        self._last_call_s = last_call_s
        self.active: frozenset[int] = frozenset()  # owned, by the table
        self.serving: set[int] = set()  # owned, and keys may be taken
        self._losing: dict[int, asyncio.Task[None]] = {}
        self._latest: dict[int, asyncio.Task[None]] = {}  # last gain or loss of a slot
        self._warm: dict[int, asyncio.Task[None]] = {}
        self._notified: set[int] = set()  # on_shard_gained was called, on_shard_lost has not ended
        self._gaining: dict[int, asyncio.Task[None]] = {}  # gains that a loss waits for
        self._last_calls: dict[int, asyncio.Timeout] = {}  # running calls of on_shard_lost
        self._cancelled: frozenset[int] = frozenset()
        self._overdue: frozenset[int] = frozenset()

    def busy(self) -> set[int]:
        """Return the slots in which work runs, or whose loss is not finished.

        A slot is busy from before `on_shard_gained` until after `on_shard_lost`, also before its
        loss has begun: otherwise the loss of an idle slot would be acknowledged at once.
        """
        held = self._notified | self._latest.keys() | self._losing.keys()
        return held.union(*(each.busy() for each in self._workloads))

    def apply(self, duties: Duties, group: asyncio.TaskGroup) -> None:
        """Start the gains, losses and cancellations that are due; they run in `group`."""
        gone = (self.active - duties.active) | (self.active & duties.lost)
        gained = (duties.active - self.active) | (duties.active & gone)
        self.active = duties.active
        self.serving -= gone
        # Losses first, so that the caches of a slot that is being lost are not dropped as unneeded.
        for slot in gone:
            self._losing[slot] = self._next(slot, self._lose(slot, self._latest.get(slot)), group)
        self._warm_up(duties.warm | gained, group)
        for slot in gained:
            warm = self._warm.get(slot)
            self._next(slot, self._gain(slot, self._latest.get(slot), warm), group)
        self._cancel(duties)
        if gone or gained:
            self._metrics.shard_changes.inc(len(gone) + len(gained))
            self._metrics.shard_count.set(len(self.active))

    async def end(self) -> None:
        """Lose all slots at once; the group of `apply` must have ended before."""
        self.active = frozenset()
        self.serving.clear()
        running = self.busy()
        for workload in self._workloads:
            workload.cancel(running)
        async with asyncio.TaskGroup() as group:
            for slot in running | self._notified:
                group.create_task(self._finish(slot))
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
        await self._inherit(slot)
        self._notified.add(slot)
        for notifier in self._notifiers:
            await self._notify_gained(notifier, slot)
        if slot in self.active and slot not in self._losing:
            self.serving.add(slot)
            for workload in self._workloads:
                workload.start([slot])

    async def _lose(self, slot: int, before: asyncio.Task[None] | None) -> None:
        began = self._clock.monotonic()
        if before is not None:
            self._gaining[slot] = before
            await _ended(before)
            self._gaining.pop(slot, None)
        await self._finish(slot)
        self._metrics.handover.observe(self._clock.monotonic() - began)

    async def _finish(self, slot: int) -> None:
        """Wait for the work on a slot, notify, hand over and drop the caches. If cancelled, the
        caches stay: `end` calls this again."""
        for workload in self._workloads:
            await workload.idle(slot)
        if slot in self._notified:
            await self._notify_lost(slot)
        await self._hand_over(slot)
        self._drop(slot)

    async def _notify_gained(self, notifier: ShardNotifier, slot: int) -> None:
        """Call `on_shard_gained`; a call that raises is repeated until the slot is lost."""
        pause_s = _AGAIN_S
        while True:
            try:
                return await notifier.on_shard_gained(slot, self._resources(slot))
            except Exception as error:  # whatever the code of the user raises
                _log.error(
                    "Notifier failed in on_shard_gained, reconciled no key of the shard",
                    shard=slot,
                    error=f"{type(error).__name__}: {error}",
                    retry_in_s=pause_s,
                    exc_info=error if pause_s == _AGAIN_S else None,
                )
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)
            if slot not in self.active or slot in self._losing:
                return

    async def _notify_lost(self, slot: int) -> None:
        async def call() -> None:
            for notifier in self._notifiers:
                try:
                    await notifier.on_shard_lost(slot, self._resources(slot))
                except Exception as error:  # whatever the code of the user raises
                    _log.error(
                        "Notifier failed in on_shard_lost, handed the shard over nevertheless",
                        shard=slot,
                        error=f"{type(error).__name__}: {error}",
                        exc_info=error,
                    )

        try:
            async with asyncio.timeout(None) as limit:
                self._last_calls[slot] = limit
                if slot in self._overdue:
                    await within(self._clock, self._last_call_s, call)
                else:
                    await call()
        except TimeoutError:
            _log.warning("Cancelled on_shard_lost, which did not return in time", shard=slot)
        finally:
            del self._last_calls[slot]
        self._notified.discard(slot)

    # Hand-over of handled objects

    async def _inherit(self, slot: int) -> None:
        """Give the workloads the list of objects that the previous owner of a slot handled."""
        if self._pages is None:
            return
        while True:
            try:
                handover = await self._pages.take(slot)
                break
            except ApiError as error:
                _log.warning("Failed to read hand-over of shard", shard=slot, error=str(error))
                await self._clock.sleep(_AGAIN_S)
        if handover is not None:
            for workload in self._workloads:
                if workload.hands_over and workload.name in handover.controllers:
                    workload.inherit(slot, handover.controllers[workload.name])

    async def _hand_over(self, slot: int) -> None:
        """Write the list of handled objects of a slot for its next owner, while this replica has
        the grant."""
        while self._pages is not None and (epoch := self._grant_of(slot)):
            handled = {each.name: each.handled(slot) for each in self._workloads if each.hands_over}
            handover = SlotHandover(epoch, handled)
            if handover.empty:
                return
            try:
                await self._pages.put(slot, handover)
                return
            except ApiError as error:
                gives_up = slot in self._overdue or isinstance(error, Forbidden | Invalid)
                _log.warning(
                    "Could not store the list of handled objects for the next owner of the shard",
                    shard=slot,
                    retries=not gives_up,
                    error=str(error),
                )
                if gives_up:
                    return  # deletions around this hand-over may be missed
            await self._clock.sleep(_AGAIN_S)

    def _drop(self, slot: int) -> None:
        if slot not in self.active:  # else this replica owns the slot again
            self._warm.pop(slot, None)
            if self._pages is not None:
                self._pages.forget([slot])
            for workload in self._workloads:
                workload.drop([slot])

    def _resources(self, slot: int) -> list[str]:
        return [key for workload in self._workloads for key in workload.resources(slot)]

    # Warming and cancelling

    def _warm_up(self, slots: Collection[int], group: asyncio.TaskGroup) -> None:
        """Fill caches of slots that are neither cached nor being cached, with one request."""
        for slot in self._warm.keys() - slots - self.active - self._losing.keys():
            del self._warm[slot]  # this replica does not get the slot after all
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
            if (gaining := self._gaining.pop(slot, None)) is not None:
                gaining.cancel()  # on_shard_gained has not returned
            if (limit := self._last_calls.get(slot)) is not None:
                limit.reschedule(_NOW)


async def _ended(task: asyncio.Task[None] | None) -> None:
    """Wait until a task has ended, without raising its error, which its task group raises."""
    if task is not None:
        await asyncio.wait([task])


class Ended(Exception):
    """Raised when work was cancelled because this replica lost its slot."""


class Running:
    """The work that runs in each slot, which can be cancelled and awaited."""

    def __init__(self) -> None:
        self._limits: dict[int, set[asyncio.Timeout]] = {}
        self._ended: set[asyncio.Timeout] = set()
        self._idle: dict[int, asyncio.Event] = {}

    def slots(self) -> Collection[int]:
        """Return the slots in which work runs."""
        return self._limits.keys()

    @asynccontextmanager
    async def of(self, slot: int) -> AsyncIterator[None]:
        """Register the block as running work of this slot.

        :raises Ended: `cancel` cancelled the block.
        """
        try:
            async with asyncio.timeout(None) as limit:
                # No await before this line: after the check of ownership, the work counts as
                # running at once.
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
        """Cancel the work in these slots; the work may take time to end."""
        for slot in slots:
            for limit in self._limits.get(slot, set()) - self._ended:
                self._ended.add(limit)  # a timeout can expire only once
                limit.reschedule(_NOW)

    async def idle(self, slot: int) -> None:
        """Return when no work runs in this slot."""
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
