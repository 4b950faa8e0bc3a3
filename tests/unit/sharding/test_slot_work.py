"""Tests that the reconciles of a slot can be awaited and cancelled."""

from __future__ import annotations

import asyncio

import pytest

from kubeocean.runtime.clock import VirtualClock
from kubeocean.sharding.metrics import Loads
from kubeocean.sharding.slot_lifecycle import Ended, Running


async def test_a_slot_is_idle_when_nothing_runs_in_it() -> None:
    running, may_end = Running(), asyncio.Event()

    async def work() -> None:
        async with running.of(3):
            await may_end.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(work())
        group.create_task(work())
        await asyncio.sleep(0)
        assert set(running.slots()) == {3}
        await running.idle(4)
        idle = group.create_task(running.idle(3))
        await asyncio.sleep(0)
        assert not idle.done()
        may_end.set()
    assert not running.slots()


async def test_what_is_cancelled_ends_once_and_others_go_on() -> None:
    running, may_end = Running(), asyncio.Event()
    ended: list[int] = []

    async def work(slot: int) -> None:
        try:
            async with running.of(slot):
                await may_end.wait()
        except Ended:
            ended.append(slot)

    async with asyncio.TaskGroup() as group:
        for slot in (1, 2):
            group.create_task(work(slot))
        await asyncio.sleep(0)
        running.cancel([1, 7])
        running.cancel([1])
        await running.idle(1)
        assert set(running.slots()) == {2}
        may_end.set()
    assert ended == [1]


async def test_an_error_of_the_work_is_its_own() -> None:
    running = Running()
    for error in (TimeoutError("mine"), ValueError("mine")):
        with pytest.raises(type(error), match="mine"):
            async with running.of(1):
                raise error
    assert not running.slots()


async def test_loads_are_measured_now_and_then() -> None:
    clock = VirtualClock()
    loads = Loads(clock, every_s=10.0)
    loads.spent(1, 7.0)
    assert loads.measure([1, 2], lambda slot: 0) == {}
    await clock.advance(10.0)
    assert loads.measure([1, 2], lambda slot: 0) == {}, "time spent on gaining a shard is no load"
    loads.spent(1, 5.0)
    await clock.advance(10.0)
    first = dict(loads.measure([1, 2], lambda slot: 100 if slot == 2 else 0))
    assert first[1] == pytest.approx(0.5)
    assert first[2] == pytest.approx(0.01)
    await clock.advance(10.0)
    assert loads.measure([1, 2], lambda slot: 0)[1] == pytest.approx(0.35)
    loads.drop([1])
    assert set(loads.measure([2], lambda slot: 0)) == {2}
