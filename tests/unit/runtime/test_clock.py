from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeocean.errors import InvariantError
from kubeocean.runtime.clock import Clock, RealClock, VirtualClock


async def test_the_real_clock_is_the_machines() -> None:
    clock: Clock = RealClock()
    assert abs(clock.monotonic() - time.monotonic()) < 1
    assert clock.now().tzinfo is UTC
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)
    began = time.monotonic()
    await clock.sleep(0.01)
    assert time.monotonic() - began >= 0.01
    await clock.sleep(-1)


async def test_virtual_time_stands_still_until_it_is_moved() -> None:
    start = datetime(2030, 5, 17, tzinfo=UTC)
    clock = VirtualClock(start)
    assert (clock.monotonic(), clock.now()) == (0, start)
    await clock.advance(90)
    assert (clock.monotonic(), clock.now()) == (90, start + timedelta(seconds=90))
    await clock.advance(0)
    assert clock.monotonic() == 90


async def test_sleepers_wake_in_the_order_of_their_deadlines() -> None:
    clock = VirtualClock()
    woken: list[tuple[str, float]] = []

    async def sleep(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for name, seconds in (("c", 3.0), ("a", 1.0), ("b", 2.0), ("a2", 1.0), ("now", 0.0)):
            group.create_task(sleep(name, seconds))
        await clock.advance(2.5)
        assert woken == [("now", 0), ("a", 1), ("a2", 1), ("b", 2)]
        assert clock.monotonic() == 2.5
        await clock.advance(1)
    assert woken[-1] == ("c", 3)


async def test_what_a_sleeper_starts_is_seen_in_the_same_advance() -> None:
    clock = VirtualClock()
    ticks: list[float] = []

    async def tick() -> None:
        for _ in range(5):
            await clock.sleep(1)
            ticks.append(clock.monotonic())

    async with asyncio.TaskGroup() as group:
        group.create_task(tick())
        await clock.advance(10)
        assert ticks == [1, 2, 3, 4, 5]


async def test_a_cancelled_sleeper_is_passed_over() -> None:
    clock = VirtualClock()
    sleeping = asyncio.create_task(clock.sleep(1))
    await asyncio.sleep(0)
    sleeping.cancel()
    await asyncio.wait([sleeping])
    await clock.advance(5)
    assert clock.monotonic() == 5


async def test_time_does_not_go_back() -> None:
    clock = VirtualClock()
    with pytest.raises(InvariantError, match="set back"):
        await clock.advance(-1)
    await asyncio.gather(clock.advance(10), clock.advance(1))
    assert clock.monotonic() == 11


@given(
    st.lists(st.integers(0, 100), max_size=20),
    st.lists(st.integers(0, 50), min_size=1, max_size=10),
)
async def test_everyone_sleeps_exactly_as_long_as_they_asked(
    sleeps: list[int], advances: list[int]
) -> None:
    clock = VirtualClock()
    slept: list[tuple[int, float]] = []

    async def sleep(seconds: int) -> None:
        await clock.sleep(seconds)
        slept.append((seconds, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        for seconds in sleeps:
            group.create_task(sleep(seconds))
        for seconds in advances:
            before = clock.monotonic()
            await clock.advance(seconds)
            assert clock.monotonic() == before + seconds
        awake = sorted(seconds for seconds in sleeps if seconds <= clock.monotonic())
        assert [seconds for seconds, _ in slept] == awake
        await clock.advance(101)
    assert all(seconds == at for seconds, at in slept)
