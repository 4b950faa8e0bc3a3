"""What no plan ever does, in worlds where anything may happen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from kubeocean.leasing.plans import Phase, Plan, Why
from kubeocean.leasing.reclaim import plan
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.situation import Answer, Guest, Move
from kubeocean.leasing.tolerations import (
    FOREVER,
    NO_EXECUTE,
    NO_SCHEDULE,
    Toleration,
    tolerated_s,
)
from kubeocean.runtime.kinds import Taint
from unit.leasing.reclaimworld import START, WINDOW, World, after, guest

ACTS = (Move.EVICT, Move.DELETE, Move.ABANDON)
LASTING = Taint(WINDOW, "true", NO_EXECUTE)

tolerations = st.sampled_from(
    [
        (),
        (),
        (Toleration(operator="Exists"),),
        (Toleration(WINDOW, "Exists", effect=NO_EXECUTE, toleration_seconds=40),),
        (Toleration(WINDOW, "Equal", "true"),),
        (Toleration(WINDOW, "Exists", effect=NO_SCHEDULE),),
    ]
)


@st.composite
def guests(draw: st.DrawFn) -> list[Guest]:
    return [
        guest(
            f"p{index}",
            created=after(-draw(st.integers(0, 10_000))),
            priority=draw(st.integers(-2, 2)),
            tolerations=draw(tolerations),
            finished=draw(st.sampled_from([False, False, False, True])),
            daemon=draw(st.sampled_from([False, False, True])),
            leaving_by=draw(st.none() | st.none() | st.integers(-50, 100).map(after)),
        )
        for index in range(draw(st.integers(0, 6)))
    ]


rules = st.builds(
    Rules,
    force=st.sampled_from([True, True, False]),
    grace_s=st.sampled_from([0, 1, 30, 60]),
    deadline_s=st.sampled_from([0, 5, 60, 300]),
    evictions_per_minute=st.none() | st.integers(1, 3),
    cool_down_s=st.sampled_from([0, 0, 90]),
    abandon_s=st.none() | st.sampled_from([0, 50]),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    names = st.sampled_from([f"p{index}" for index in range(6)])
    return World(
        draw(rules),
        cause=draw(st.sampled_from(Cause)),
        now=START + timedelta(milliseconds=draw(st.sampled_from([0, 0, 1, 999]))),
        guarded=draw(st.sets(names)),
        failing=draw(st.dictionaries(names, st.integers(0, 4))),
        undying=draw(st.sets(names, max_size=2)),
        ends_s=draw(st.sampled_from([0, 1, 30])),
    ).add(*draw(guests()))


@dataclass(frozen=True)
class Turn:
    """For so long there is this cause, or none, and the worker answers or does not."""

    seconds: float
    cause: Cause | None
    worker_answers: bool


turns = st.lists(
    st.builds(
        Turn,
        seconds=st.sampled_from([0.5, 3, 61, 400]),
        cause=st.none() | st.sampled_from(Cause) | st.just(Cause.WINDOW_CLOSED),
        worker_answers=st.sampled_from([True, True, True, False]),
    ),
    max_size=5,
)


@dataclass
class Log:
    """A plan, the world that it was made for, and the notice that the node had had until then."""

    made: Plan
    world: World
    noticed: datetime | None


def live(world: World, turns: list[Turn]) -> list[Log]:
    """Follow plans through all turns, one look every so often, and write everything down."""
    logs: list[Log] = []
    noticed: dict[str, datetime] = {}  # by key of a taint that has been there without a break
    for turn in [Turn(400, world.cause, True), *turns]:
        world.cause, world.worker_answers = turn.cause, turn.worker_answers
        until = world.now + timedelta(seconds=turn.seconds)
        while world.now < until:
            before = replace(world, guests=dict(world.guests), history=list(world.history))
            made = world.follow()
            kept = {taint.key for taint in made.taints if taint.time_added is not None}
            noticed = {key: noticed.get(key, world.now) for key in kept}
            since = noticed[made.notice.taint.key] if made.notice else None
            logs.append(Log(made, before, since))
            wake = made.again_at or until
            world.pass_until(min(wake, until, world.now + timedelta(seconds=20)))
    return logs


@given(worlds(), turns)
def test_nobody_has_to_go_before_the_grace_is_over(world: World, turns: list[Turn]) -> None:
    for log in live(world, turns):
        if any(log.made.guests(move) for move in ACTS):
            assert log.noticed is not None
            grace = timedelta(seconds=log.world.rules.grace_s)
            assert log.world.now - log.noticed >= grace


@given(worlds(), turns)
def test_nobody_has_to_go_while_the_node_is_lent(world: World, turns: list[Turn]) -> None:
    for log in live(world, turns):
        if log.world.cause is None:
            assert log.made.steps == ()
            assert log.made.phase in (Phase.LENT, Phase.COOLING)
            assert not log.made.remove_node
            assert all(taint.effect == NO_SCHEDULE for taint in log.made.taints)


@given(worlds(), turns)
def test_nobody_who_tolerates_a_closed_window_has_to_go(world: World, turns: list[Turn]) -> None:
    for log in live(world, turns):
        if log.world.cause is Cause.WINDOW_CLOSED:
            for step in log.made.steps:
                tolerated = tolerated_s(step.guest.tolerations, LASTING)
                if step.move in ACTS:
                    assert tolerated != FOREVER
                    assert log.noticed is not None
                    stayed = (log.world.now - log.noticed).total_seconds()
                    assert stayed >= log.world.rules.grace_s + tolerated


@given(worlds(), turns)
def test_force_is_used_only_after_the_deadline_and_only_if_it_is_allowed(
    world: World, turns: list[Turn]
) -> None:
    for log in live(world, turns):
        rules = log.world.rules
        acts = [step for step in log.made.steps if step.move in ACTS]
        assert rules.force or all(step.move is Move.ABANDON for step in acts)
        if any(step.move is not Move.EVICT for step in acts):
            assert log.noticed is not None
            held = (log.world.now - log.noticed).total_seconds()
            assert held >= rules.grace_s + rules.deadline_s


@given(worlds(), turns)
def test_a_taint_that_deletes_hurts_nobody_before_the_deadline(
    world: World, turns: list[Turn]
) -> None:
    lasting = False  # once it deletes it does so until the node is lent again
    for log in live(world, turns):
        deletes = any(taint.effect == NO_EXECUTE for taint in log.made.taints)
        if deletes and not lasting:
            assert log.world.cause is Cause.WINDOW_CLOSED
            assert log.made.notice is not None
            late = log.world.now >= log.made.notice.deadline
            assert late or all(step.move in (Move.STAY, Move.LEAVE) for step in log.made.steps)
        lasting = deletes


@given(worlds(), turns)
def test_the_pace_is_kept_in_every_minute(world: World, turns: list[Turn]) -> None:
    live(world, turns)
    limit = world.rules.evictions_per_minute
    times = [
        each.at
        for each in world.history
        if each.move is Move.EVICT and each.answer is Answer.ACCEPTED
    ]
    if limit is not None:
        for first, last in zip(times, times[limit:], strict=False):
            assert last - first >= timedelta(minutes=1)


@given(worlds(), turns)
def test_whoever_the_pace_puts_off_is_not_less_important_than_who_goes(
    world: World, turns: list[Turn]
) -> None:
    for log in live(world, turns):
        moves = [step.why for step in log.made.steps if step.why in (Why.DUE, Why.PACE)]
        assert moves == sorted(moves, key=lambda why: why is Why.PACE)
        priorities = [step.guest.priority for step in log.made.steps]
        assert priorities == sorted(priorities)


@given(worlds(), turns, st.randoms(use_true_random=False))
def test_a_plan_depends_on_nothing_but_the_situation(
    world: World, turns: list[Turn], random: object
) -> None:
    for log in live(world, turns):
        situation = replace(log.world.situation, taints=log.world.taints)
        shuffled = list(situation.guests)
        random.shuffle(shuffled)
        assert plan(replace(situation, guests=tuple(shuffled))) == log.made
        assert log.made.again_at is None or log.made.again_at > log.world.now
        again = plan(replace(situation, taints=log.made.taints))
        assert again.taints == log.made.taints, "written once, nothing is left to write"
        assert len(log.made.steps) in (0, len(situation.guests))


@given(worlds())
def test_taking_back_ends(world: World) -> None:
    """By force and where pods do end, a node is free, or gone if it has to, in bounded time."""
    world.rules = replace(world.rules, force=True)
    world.undying = set()
    tolerance_s, retries_s, slack_s = 40, 60, 2
    bound = world.rules.grace_s + world.rules.deadline_s + tolerance_s + retries_s + world.ends_s
    world.run(until=world.now + timedelta(seconds=bound + slack_s + 100), most=500)
    last = world.follow()
    assert last.phase is Phase.RECLAIMED
    assert all(step.settled for step in last.steps)
    assert last.remove_node == (world.cause is not Cause.WINDOW_CLOSED)


@given(worlds())
def test_a_binding_ends_even_if_pods_never_do(world: World) -> None:
    world.cause, world.worker_answers = Cause.BINDING_DELETED, False
    world.rules = replace(world.rules, force=True, abandon_s=50)
    bound = world.rules.grace_s + world.rules.deadline_s + 50 + 62
    world.run(until=world.now + timedelta(seconds=bound), most=500)
    assert world.removed


@given(
    cool_down_s=st.integers(10, 120),
    flip_s=st.sampled_from([1, 2, 5]),
    flips=st.integers(1, 150),
)
def test_a_window_that_flutters_evicts_no_more_often_than_the_node_cools_down(
    cool_down_s: int, flip_s: int, flips: int
) -> None:
    """Whenever it may, a scheduler puts a pod on the node; each one would be evicted at once."""
    world = World(Rules(force=True, deadline_s=0, cool_down_s=cool_down_s), ends_s=0)
    for flip in range(flips):
        world.cause = Cause.WINDOW_CLOSED if flip % 2 else None
        if not world.follow().taints:
            world.add(guest(f"p{flip}", created=world.now))
        world.pass_until(world.now + timedelta(seconds=flip_s))
    spent = flips * flip_s
    assert len(world.history) <= 1 + spent / cool_down_s
