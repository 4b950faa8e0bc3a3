"""Simulated histories: no slot ever has two owners, and every planted bug is found.

`make sharding-proof` simulates a hundred thousand histories, these tests a few seconds of them.
"""

from __future__ import annotations

import itertools
import time
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kubeocean.sharding.slot_lease import SlotLeases
from unit.sharding.simbugs import BUGS
from unit.sharding.simrun import FIRST_SEED, histories, history, main, operate, recover
from unit.sharding.simworld import DRIFT, TIMING, Replica, Violation, World

HISTORIES, CPU_S = 1_000, 4.0  # as many as that, or as fit in so much time
ENOUGH = 2_000  # histories, within which a bug must show
RARE = {"forget the first try": 1_500}  # first seed, to save time


def test_nothing_goes_wrong_in_many_histories() -> None:
    end = time.process_time() + CPU_S
    seeds = range(FIRST_SEED, FIRST_SEED + HISTORIES)
    count, wrong = histories(itertools.takewhile(lambda _: time.process_time() < end, seeds))
    print(f"seeds {FIRST_SEED} to {FIRST_SEED + count - 1}")
    assert wrong == []
    assert count > 100


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    make, sign = BUGS[bug]
    first = FIRST_SEED + RARE.get(bug, 0)
    for seed in range(first, first + ENOUGH):
        try:
            history(seed, make)
        except Violation as violation:
            if sign in str(violation):
                print(f"found in history {seed - FIRST_SEED + 1}: {violation}")
                return
    pytest.fail(f"not found in {ENOUGH} histories")


def test_a_seed_is_a_history() -> None:
    one, other = history(FIRST_SEED), history(FIRST_SEED)
    assert (one.now, one.order, one.table, one.leases) == (
        other.now,
        other.order,
        other.table,
        other.leases,
    )
    assert history(FIRST_SEED + 1).table != one.table


def test_the_clocks_are_as_bad_as_the_periods_bear() -> None:
    TIMING.validate()
    assert TIMING.drift > 2 * DRIFT


def test_a_world_in_which_nothing_happens_is_quiet() -> None:
    world = World(1, replicas=3, slots=9)
    world.calm = True
    world.run(20)
    writes = world.version
    world.run(60)
    assert world.at_rest()
    assert world.version == writes
    assert world.moves <= 9 + 6, "all to the first that came, then two thirds to the others"


def test_a_crash_is_made_good_within_the_patience_and_a_look() -> None:
    world = World(3, replicas=3, slots=9)
    world.calm = True
    world.run(10)
    victim = next(each for each in world.living if each.planner is None)
    world.crash(victim)
    world.run((TIMING.patience_s + 1.0) / (1 - DRIFT) + 1.0)
    assert not world.table.owned_by(victim.id)


def test_a_holder_without_a_deadline_would_be_seen() -> None:
    class Immortal(SlotLeases):
        def valid(self, now: float) -> bool:
            return True

    with pytest.raises(Violation, match="both act"):
        for seed in range(ENOUGH):
            history(seed, lambda seed: World(seed, holder=Immortal))


def test_the_runner_counts_and_tells_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--histories", "20", "--seed", "7", "--jobs", "1"]) == 0
    output = capsys.readouterr().out
    assert "seeds 7 to 26" in output
    assert "0 violations" in output


class Ring(RuleBasedStateMachine):
    """Hypothesis searches for an order of events that violates an invariant, and shortens it."""

    world: World

    @initialize(seed=st.integers(0, 2**32), replicas=st.integers(1, 4), slots=st.integers(2, 8))
    def begin(self, seed: int, replicas: int, slots: int) -> None:
        self.world = World(seed, replicas=replicas, slots=slots)

    def victim(self, which: int) -> Replica:
        return self.world.living[which % len(self.world.living)]

    @rule(seconds=st.sampled_from([0.1, 0.7, 1.5, 4.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.run(seconds)

    @rule(template=st.sampled_from(["", "v1", "v2"]))
    @precondition(lambda self: len(self.world.replicas) < 7)
    def join(self, template: str) -> None:
        self.world.join(template)

    @rule(which=st.integers(0, 6), seconds=st.sampled_from([0.5, 2.0, 4.5, 7.0, 13.0]))
    @precondition(lambda self: self.world.living)
    def freeze(self, which: int, seconds: float) -> None:
        self.world.freeze(self.victim(which), seconds)

    @rule(
        which=st.integers(0, 6),
        seconds=st.sampled_from([1.0, 4.5, 9.0]),
        answers_only=st.booleans(),
    )
    @precondition(lambda self: self.world.living)
    def cut_off(self, which: int, seconds: float, answers_only: bool) -> None:
        self.world.cut_off(self.victim(which), seconds, answers_only)

    @rule(which=st.integers(0, 6), back_in=st.none() | st.sampled_from([0.1, 3.0, 9.0]))
    @precondition(lambda self: self.world.living)
    def crash(self, which: int, back_in: float | None) -> None:
        victim = self.victim(which)
        self.world.crash(victim)
        if back_in is not None:
            self.world.at(back_in, self.world.restart, victim)

    @rule(which=st.integers(0, 6))
    @precondition(lambda self: self.world.living)
    def leave(self, which: int) -> None:
        self.world.leave(self.victim(which))

    @rule(which=st.integers(0, 6))
    @precondition(lambda self: self.world.living)
    def lose_the_lease(self, which: int) -> None:
        self.world.lose_lease(self.victim(which))

    @rule()
    def lose_the_table(self) -> None:
        self.world.lose_table()

    @rule()
    def elect(self) -> None:
        self.world.elect()

    @rule(seed=st.integers(0, 2**16))
    @precondition(lambda self: self.world.living)
    def operate(self, seed: int) -> None:
        operate(self.world, Random(seed))

    @invariant()
    def nobody_shares(self) -> None:
        if hasattr(self, "world"):
            for replica in self.world.living:
                self.world.look_at_owners(replica)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            recover(self.world)
            self.world.settle()


TestRing = Ring.TestCase
TestRing.settings = settings(stateful_step_count=40)
