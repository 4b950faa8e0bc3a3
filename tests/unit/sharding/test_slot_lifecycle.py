"""A hand-over is acknowledged when the controller has ended its work on the slot, not before."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from kubeocean.runtime.clock import VirtualClock
from kubeocean.runtime.metrics import Metrics
from kubeocean.sharding.handover import Handled
from kubeocean.sharding.metrics import RingMetrics
from kubeocean.sharding.slot_lease import Duties, SlotLeases
from kubeocean.sharding.slot_lifecycle import SlotLifecycle
from kubeocean.sharding.table import SlotEntry, Table, empty_table
from kubeocean.sharding.timing import Timing
from support.ring_env import Notes

TIMING = Timing(drain_s=5, cancel_s=2, handover_s=20)


class Idle:
    """A workload in which nothing ever runs."""

    name = "idle"
    hands_over = False

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

    def unplaced(self) -> int:
        return 0

    def handled(self, slot: int) -> Handled:
        return Handled()

    def inherit(self, slot: int, handled: Handled) -> None: ...


class Cached(Idle):
    """A workload with one key for each slot, in which work may run."""

    def __init__(self) -> None:
        self.cached: set[int] = set()
        self.ended = asyncio.Event()
        self.ended.set()
        self.cancelled: set[int] = set()

    async def warm(self, slots: Collection[int]) -> None:
        self.cached |= set(slots)

    async def idle(self, slot: int) -> None:
        await self.ended.wait()

    def cancel(self, slots: Collection[int]) -> None:
        self.cancelled |= set(slots)

    def drop(self, slots: Collection[int]) -> None:
        self.cached -= set(slots)

    def busy(self) -> Collection[int]:
        return () if self.ended.is_set() else self.cached

    def resources(self, slot: int) -> Sequence[str]:
        return [f"n/o{slot}"] if slot in self.cached else []


class World:
    def __init__(
        self,
        group: asyncio.TaskGroup,
        workload: Idle | None = None,
        notes: Notes | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.notes = notes or Notes()
        self.holder = SlotLeases("a_1", timing=TIMING, now=0.0)
        self.holder.renewed(started=0.0, answered=0.0)
        self.tenancy = SlotLifecycle(
            [workload or Idle()],
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


async def test_the_cache_of_a_leaving_slot_stays_until_its_work_has_ended() -> None:
    workload = Cached()
    async with asyncio.TaskGroup() as group:
        world = World(group, workload)
        await world.sees(SlotEntry("a_1"))
        workload.ended.clear()
        await world.sees(SlotEntry("a_1", to="b_1"))
        await world.round()
        assert workload.cached == {1}
        workload.ended.set()
        await world.clock.advance(0)
        assert (await world.round()).acks == {1: 2}
        assert workload.cached == set()


async def test_on_shard_lost_gets_the_keys_of_the_slot() -> None:
    async with asyncio.TaskGroup() as group:
        world = World(group, Cached())
        await world.sees(SlotEntry("a_1"))
        await world.sees(SlotEntry("a_1", to="b_1"))
        assert world.notes.lost_resources == {1: ["n/o1"]}


async def test_cancelled_work_keeps_the_cache_until_it_has_ended_and_the_notifier_is_called() -> (
    None
):
    workload = Cached()
    async with asyncio.TaskGroup() as group:
        world = World(group, workload)
        await world.sees(SlotEntry("a_1"))
        workload.ended.clear()
        await world.sees(SlotEntry("a_1", to="b_1"))
        await world.clock.advance(TIMING.drain_s)
        await world.round()
        assert workload.cancelled == {1}
        assert workload.cached == {1}
        workload.ended.set()
        await world.clock.advance(0)
        assert world.notes.lost_resources == {1: ["n/o1"]}
        assert (await world.round()).acks == {1: 2}


async def test_an_incarnation_that_ends_keeps_the_cache_until_its_work_has_ended() -> None:
    workload = Cached()
    try:
        async with asyncio.TaskGroup() as group:
            world = World(group, workload)
            await world.sees(SlotEntry("a_1"))
            workload.ended.clear()
            await world.sees(SlotEntry("a_1", to="b_1"))
            raise RuntimeError("the Lease was lost")
    except* RuntimeError:
        ending = asyncio.create_task(world.tenancy.end())
        await asyncio.sleep(0)
        assert workload.cached == {1}
        workload.ended.set()
        await ending
        assert world.notes.lost_resources == {1: ["n/o1"]}
        assert workload.cached == set()


class Raising(Notes):
    """Notifier whose first `failures` calls raise."""

    failures = 2

    async def on_shard_gained(self, shard: int, resources: Sequence[str]) -> None:
        self._fail()
        await super().on_shard_gained(shard, resources)

    async def on_shard_lost(self, shard: int, resources: Sequence[str]) -> None:
        await super().on_shard_lost(shard, resources)
        self._fail()

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the layer above failed")


async def test_a_gained_slot_waits_for_a_notifier_that_raises() -> None:
    async with asyncio.TaskGroup() as group:
        world = World(group, notes=Raising())
        await world.sees(SlotEntry("a_1"))
        assert world.tenancy.serving == set()
        await world.clock.advance(0.5)
        assert world.tenancy.serving == set()
        await world.clock.advance(1.0)
        assert world.tenancy.serving == {1}
        assert world.notes.gained == [1]


async def test_a_slot_whose_notifier_raises_is_handed_over() -> None:
    async with asyncio.TaskGroup() as group:
        notes = Raising()
        notes.failures = 0
        world = World(group, notes=notes)
        await world.sees(SlotEntry("a_1"))
        notes.failures = 1
        await world.sees(SlotEntry("a_1", to="b_1"))
        assert (await world.round()).acks == {1: 2}
        assert world.notes.lost == [1]


async def test_a_slot_is_handed_over_while_its_gain_fails() -> None:
    async with asyncio.TaskGroup() as group:
        notes = Raising()
        notes.failures = 1000
        world = World(group, notes=notes)
        await world.sees(SlotEntry("a_1"))
        await world.sees(SlotEntry("a_1", to="b_1"))
        await world.clock.advance(4.0)
        assert (await world.round()).acks == {1: 2}
        assert not world.tenancy.serving
