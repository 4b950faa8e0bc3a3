"""Batches: bounded in size and delay, of one slot, and cancelled with their slot."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kubeocean.errors import ConfigError
from kubeocean.runtime.clock import VirtualClock
from kubeocean.sharding.batches import BatchEnded, BatchSizes, SlotBatches


class World:
    """Batches on a virtual clock; `gate` holds a batch back while it is handled."""

    def __init__(self, most: int = 3) -> None:
        self.clock = VirtualClock()
        self.sent: list[list[str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: Exception | None = None
        self.batches = SlotBatches[str](self.send, BatchSizes(most, 1.0, self.clock))

    async def send(self, changes: Sequence[str]) -> None:
        self.sent.append(list(changes))
        await self.gate.wait()
        if self.error is not None:
            raise self.error


async def test_a_full_batch_is_sent_at_once_and_the_rest_after_the_delay() -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(world.batches.submit(1, str(number)))
        await world.clock.advance(0)
        assert world.sent == [["0", "1", "2"]]
        await world.clock.advance(1.0)
        assert world.sent == [["0", "1", "2"], ["3"]]


async def test_slots_do_not_share_a_batch() -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        for slot in (1, 2):
            group.create_task(world.batches.submit(slot, str(slot)))
        await world.clock.advance(0)
        await world.clock.advance(1.0)
    assert sorted(world.sent) == [["1"], ["2"]]


async def test_a_failure_is_that_of_every_change_of_the_batch() -> None:
    world = World()
    world.error = RuntimeError("no")
    tasks = [asyncio.create_task(world.batches.submit(1, str(number))) for number in range(3)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(each) for each in results] == ["no"] * 3


async def test_the_others_of_a_cancelled_batch_are_retried() -> None:
    world = World()
    world.gate.clear()
    tasks = [asyncio.create_task(world.batches.submit(1, str(number))) for number in range(3)]
    await world.clock.advance(0)
    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(isinstance(each, BatchEnded) for each in results[1:])


async def test_a_cancelled_waiter_does_not_end_its_batch() -> None:
    world = World()
    world.gate.clear()
    tasks = [asyncio.create_task(world.batches.submit(1, str(number))) for number in range(3)]
    await world.clock.advance(0)
    tasks[1].cancel()
    await world.clock.advance(0)
    world.gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[0] is None
    assert results[2] is None


@pytest.mark.parametrize(("most", "delay_s"), [(0, 1.0), (1, -1.0), (1_000_000, 1.0)])
def test_bounds_that_make_no_sense_are_refused(most: int, delay_s: float) -> None:
    with pytest.raises(ConfigError, match="batch_"):
        BatchSizes(most, delay_s)
