"""A slot is acknowledged when the layer above has let go of it, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.metrics import Metrics
from kubeocean.sharding.metrics import RingMetrics
from kubeocean.sharding.slot_lease import Duties, SlotLeases
from kubeocean.sharding.slot_lifecycle import SlotLifecycle
from kubeocean.sharding.table import SlotEntry, Table, empty_table
from kubeocean.sharding.timing import Timing
from support.ring_env import Notes

TIMING = Timing(drain_s=5, cancel_s=2, handover_s=20)


class Idle:
    """A workload in which nothing ever runs."""

    async def prepare(self) -> None: ...
    async def lead(self) -> None: ...
    async def warm(self, slots: Collection[int]) -> None: ...
    def start(self, slots: Collection[int]) -> None: ...
    async def idle(self, slot: int) -> None: ...
    def cancel(self, slots: Collection[int]) -> None: ...
    def drop(self, slots: Collection[int]) -> None: ...

    def busy(self) -> Collection[int]:
        return ()

    def resources(self, slot: int) -> Sequence[str]:
        return ()

    def loads(self) -> Mapping[int, float]:
        return {}


class World:
    def __init__(self, group: asyncio.TaskGroup) -> None:
        self.clock = VirtualClock()
        self.notes = Notes()
        self.holder = SlotLeases("a_1", timing=TIMING, now=0.0)
        self.holder.renewed(started=0.0, answered=0.0)
        self.tenancy = SlotLifecycle(
            [Idle()],
            [self.notes],
            clock=self.clock,
            metrics=RingMetrics(Metrics(), "r"),
            changed=lambda: None,
        )
        self._group = group
        self.table: Table = empty_table("r", 2)

    async def sees(self, entry: SlotEntry) -> Duties:
        self.table = self.table.changed({1: entry})
        self.holder.see(self.table)
        return await self.round()

    async def round(self) -> Duties:
        duties = self.holder.duties(self.clock.monotonic(), self.tenancy.busy())
        self.tenancy.apply(duties, self._group)
        await self.clock.advance(0)
        return duties


async def test_an_idle_slot_is_not_acknowledged_before_the_notifier_has_returned() -> None:
    async with asyncio.TaskGroup() as group:
        world = World(group)
        await world.sees(SlotEntry("a_1"))
        assert world.notes.gained == [1]
        assert world.tenancy.serving == {1}
        world.notes.hold = asyncio.Event()
        duties = await world.sees(SlotEntry("a_1", to="b_1"))
        assert duties.acks == {}
        assert world.tenancy.serving == set()
        assert (await world.round()).acks == {}
        world.notes.hold.set()
        await world.clock.advance(0)
        assert (await world.round()).acks == {1: 2}
        assert world.notes.lost == [1]


async def test_a_notifier_that_takes_too_long_is_cancelled() -> None:
    async with asyncio.TaskGroup() as group:
        world = World(group)
        await world.sees(SlotEntry("a_1"))
        world.notes.hold = asyncio.Event()
        await world.sees(SlotEntry("a_1", to="b_1"))
        await world.clock.advance(TIMING.drain_s)
        assert (await world.round()).cancel == {1}
        duties = await world.round()
        assert duties.acks == {1: 2}
        assert not duties.give_up
        assert world.notes.lost == []


async def test_a_slot_that_comes_back_is_lost_and_gained_in_order() -> None:
    async with asyncio.TaskGroup() as group:
        world = World(group)
        await world.sees(SlotEntry("a_1"))
        await world.sees(SlotEntry("a_1", to="b_1"))
        await world.sees(SlotEntry("a_1"))
        await world.round()
        assert (world.notes.gained, world.notes.lost) == ([1, 1], [1])
        assert world.tenancy.serving == {1}
        await world.tenancy.end()
        assert world.notes.lost == [1, 1]
