"""Rounds: evenly, together, once each, and nobody waits for who hangs."""

from __future__ import annotations

import asyncio
from collections import Counter

from kubeocean.runtime.clock import VirtualClock
from kubeocean.syncer.bottomup.rounds import SLOTS, Rounds
from running import running

PERIOD_S = 10.0
STEP_S = PERIOD_S / SLOTS


class Visits:
    """Who was visited, and when; some of them hang."""

    def __init__(self, *, at_once: int = 16) -> None:
        self.clock = VirtualClock()
        self.seen: list[tuple[float, str]] = []
        self.hanging: dict[str, asyncio.Event] = {}
        self.running = self.most = 0
        self.rounds = Rounds(self.visit, period_s=PERIOD_S, at_once=at_once, clock=self.clock)

    async def visit(self, name: str) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.seen.append((self.clock.monotonic(), name))
        await asyncio.sleep(0)
        if name in self.hanging:
            await self.hanging[name].wait()
        self.running -= 1

    def count(self, name: str) -> int:
        return sum(each == name for _, each in self.seen)


async def test_everybody_has_one_turn_in_each_period() -> None:
    visits = Visits()
    for n in range(100):
        visits.rounds.join(f"n{n}")
    async with running(visits.rounds):
        await visits.clock.advance(3 * PERIOD_S)
    assert Counter(name for _, name in visits.seen) == {f"n{n}": 3 for n in range(100)}


async def test_turns_are_a_period_apart_and_spread_evenly() -> None:
    visits = Visits()
    for n in range(100):
        visits.rounds.join(f"n{n}")
    async with running(visits.rounds):
        await visits.clock.advance(2 * PERIOD_S)
    first, second = (
        {name: at for at, name in part} for part in (visits.seen[:100], visits.seen[100:])
    )
    assert {round(second[name] - first[name], 6) for name in first} == {PERIOD_S}
    assert set(Counter(first.values()).values()) == {100 // SLOTS}


async def test_who_leaves_is_visited_no_more_and_makes_room() -> None:
    visits = Visits()
    for n in range(2 * SLOTS):
        visits.rounds.join(f"n{n}")
    visits.rounds.leave("n0")
    visits.rounds.leave("nobody")
    assert ("n0" in visits.rounds, len(visits.rounds)) == (False, 2 * SLOTS - 1)
    visits.rounds.join("late")
    visits.rounds.join("late")
    async with running(visits.rounds):
        await visits.clock.advance(PERIOD_S)
    assert visits.count("n0") == 0
    assert set(Counter(at for at, _ in visits.seen).values()) == {2}


async def test_who_hangs_holds_up_nobody_else_and_is_not_visited_twice() -> None:
    visits = Visits(at_once=2)
    visits.hanging["stuck"] = asyncio.Event()
    names = [f"n{n}" for n in range(2 * SLOTS)]
    for name in ("stuck", *names):
        visits.rounds.join(name)
    async with running(visits.rounds):
        await visits.clock.advance(3 * PERIOD_S)
        visits.rounds.hurry()
        await visits.clock.advance(0)
        assert {visits.count(name) for name in names} == {4}
        assert visits.count("stuck") == 1
        visits.hanging.pop("stuck").set()
        await visits.clock.advance(PERIOD_S)
        assert visits.count("stuck") == 2


async def test_never_more_run_at_once_than_may() -> None:
    visits = Visits(at_once=3)
    for n in range(20 * SLOTS):
        visits.rounds.join(f"n{n}")
    async with running(visits.rounds):
        await visits.clock.advance(PERIOD_S)
    assert visits.most == 3
    assert len(visits.seen) == 20 * SLOTS


async def test_in_a_hurry_everybody_has_a_turn_at_once() -> None:
    visits = Visits()
    for n in range(50):
        visits.rounds.join(f"n{n}")
    async with running(visits.rounds):
        await visits.clock.advance(STEP_S / 2)
        assert visits.seen == []
        visits.rounds.hurry()
        await visits.clock.advance(0)
        assert len(visits.seen) == 50
        await visits.clock.advance(PERIOD_S)
        assert len(visits.seen) == 100


async def test_who_was_stopped_does_not_run_after_what_it_missed() -> None:
    visits = Visits()
    visits.rounds.join("n")
    async with running(visits.rounds):
        await visits.clock.advance(PERIOD_S)
        visits.clock._elapsed += 100 * PERIOD_S  # as a paused process sees it: at once
        await visits.clock.advance(PERIOD_S)
    assert visits.count("n") <= 3


async def test_rounds_may_be_run_again() -> None:
    visits = Visits()
    visits.rounds.join("n")
    for _ in range(2):
        async with running(visits.rounds):
            await visits.clock.advance(PERIOD_S)
    assert visits.count("n") == 2
