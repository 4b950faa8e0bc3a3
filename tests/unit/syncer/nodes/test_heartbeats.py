"""The schedule of heartbeats: evenly spread, once each in a period, none waits for another."""

from __future__ import annotations

import asyncio
from collections import Counter

from kubeocean.runtime.clock import VirtualClock
from kubeocean.syncer.nodes.heartbeats import SLOTS, HeartbeatSchedule
from support.background import running

PERIOD_S = 10.0
STEP_S = PERIOD_S / SLOTS


class RecordedCalls:
    """A schedule whose calls are recorded; calls for some names hang."""

    def __init__(self, *, at_once: int = 16) -> None:
        self.clock = VirtualClock()
        self.seen: list[tuple[float, str]] = []
        self.hanging: dict[str, asyncio.Event] = {}
        self.running = self.most = 0
        self.schedule = HeartbeatSchedule(
            self.renew, period_s=PERIOD_S, at_once=at_once, clock=self.clock
        )

    async def renew(self, name: str) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.seen.append((self.clock.monotonic(), name))
        await asyncio.sleep(0)
        if name in self.hanging:
            await self.hanging[name].wait()
        self.running -= 1

    def count(self, name: str) -> int:
        return sum(each == name for _, each in self.seen)


async def test_every_name_is_called_once_in_each_period() -> None:
    calls = RecordedCalls()
    for n in range(100):
        calls.schedule.join(f"n{n}")
    async with running(calls.schedule):
        await calls.clock.advance(3 * PERIOD_S)
    assert Counter(name for _, name in calls.seen) == {f"n{n}": 3 for n in range(100)}


async def test_calls_are_a_period_apart_and_spread_evenly() -> None:
    calls = RecordedCalls()
    for n in range(100):
        calls.schedule.join(f"n{n}")
    async with running(calls.schedule):
        await calls.clock.advance(2 * PERIOD_S)
    first, second = (
        {name: at for at, name in part} for part in (calls.seen[:100], calls.seen[100:])
    )
    assert {round(second[name] - first[name], 6) for name in first} == {PERIOD_S}
    assert set(Counter(first.values()).values()) == {100 // SLOTS}


async def test_a_name_that_leaves_is_not_called_again_and_frees_its_slot() -> None:
    calls = RecordedCalls()
    for n in range(2 * SLOTS):
        calls.schedule.join(f"n{n}")
    calls.schedule.leave("n0")
    calls.schedule.leave("unknown")
    assert ("n0" in calls.schedule, len(calls.schedule)) == (False, 2 * SLOTS - 1)
    calls.schedule.join("late")
    calls.schedule.join("late")
    async with running(calls.schedule):
        await calls.clock.advance(PERIOD_S)
    assert calls.count("n0") == 0
    assert set(Counter(at for at, _ in calls.seen).values()) == {2}


async def test_a_call_that_hangs_holds_up_no_other_and_is_not_repeated() -> None:
    calls = RecordedCalls(at_once=2)
    calls.hanging["stuck"] = asyncio.Event()
    names = [f"n{n}" for n in range(2 * SLOTS)]
    for name in ("stuck", *names):
        calls.schedule.join(name)
    async with running(calls.schedule):
        await calls.clock.advance(3 * PERIOD_S)
        calls.schedule.call_all()
        await calls.clock.advance(0)
        assert {calls.count(name) for name in names} == {4}
        assert calls.count("stuck") == 1
        calls.hanging.pop("stuck").set()
        await calls.clock.advance(PERIOD_S)
        assert calls.count("stuck") == 2


async def test_no_more_calls_run_at_once_than_allowed() -> None:
    calls = RecordedCalls(at_once=3)
    for n in range(20 * SLOTS):
        calls.schedule.join(f"n{n}")
    async with running(calls.schedule):
        await calls.clock.advance(PERIOD_S)
    assert calls.most == 3
    assert len(calls.seen) == 20 * SLOTS


async def test_all_names_can_be_called_at_once() -> None:
    calls = RecordedCalls()
    for n in range(50):
        calls.schedule.join(f"n{n}")
    async with running(calls.schedule):
        await calls.clock.advance(STEP_S / 2)
        assert calls.seen == []
        calls.schedule.call_all()
        await calls.clock.advance(0)
        assert len(calls.seen) == 50
        await calls.clock.advance(PERIOD_S)
        assert len(calls.seen) == 100


async def test_after_a_stall_missed_slots_are_skipped() -> None:
    calls = RecordedCalls()
    calls.schedule.join("n")
    async with running(calls.schedule):
        await calls.clock.advance(PERIOD_S)
        calls.clock._elapsed += 100 * PERIOD_S  # as a paused process sees it: at once
        await calls.clock.advance(PERIOD_S)
    assert calls.count("n") <= 3


async def test_a_schedule_may_be_run_again() -> None:
    calls = RecordedCalls()
    calls.schedule.join("n")
    for _ in range(2):
        async with running(calls.schedule):
            await calls.clock.advance(PERIOD_S)
    assert calls.count("n") == 2
