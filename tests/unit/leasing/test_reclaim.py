"""Taking back a node, followed from the first notice to the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from kubeocean.api.group import TAPESTRY
from kubeocean.leasing.plans import Phase, Why
from kubeocean.leasing.reclaim import plan
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.situation import Answer, Attempt, Move, Situation
from kubeocean.leasing.tolerations import NO_EXECUTE, NO_SCHEDULE, Toleration
from kubeocean.runtime.kinds import Taint
from unit.leasing.reclaimworld import START, WINDOW, World, after, guest

FORCED = Rules(force=True, grace_s=60, deadline_s=120)
GENTLE = Rules(force=False, grace_s=60, deadline_s=120)
DELETING = "kubeocean.io/vnode-deleting"
REMOVALS = [cause for cause in Cause if cause.removes_node]


def whys(world: World) -> dict[str, Why]:
    return {step.guest.key.name: step.why for step in world.plans[-1].steps}


# A window closes


def test_a_closed_window_gives_notice_first_and_evicts_after_the_grace() -> None:
    world = World(FORCED).add(guest("a"))
    made = world.follow()
    assert made.phase is Phase.NOTICE
    assert made.taints == (Taint(WINDOW, "true", NO_SCHEDULE, "2026-03-06T20:00:00Z"),)
    assert made.again_at == after(60)
    assert not made.unschedulable
    assert whys(world) == {"a": Why.GRACE}

    world.run(until=after(59.9))
    assert world.history == []
    world.run(until=after(300))
    assert world.moves(Move.EVICT) == [(60, "a")]
    assert world.phase is Phase.RECLAIMED
    assert not world.removed


def test_notice_is_rounded_up_to_a_second_so_that_nobody_gets_less_than_the_grace() -> None:
    world = World(FORCED, now=after(0.3)).add(guest("a"))
    world.run(until=after(300))
    assert world.moves(Move.EVICT) == [(61, "a")]


def test_the_taint_keeps_its_time_whatever_happens() -> None:
    world = World(FORCED).add(guest("a"), guest("b"))
    world.run(until=after(600))
    times = {taint.time_added for made in world.plans for taint in made.taints}
    assert times == {"2026-03-06T20:00:00Z"}


def test_a_taint_becomes_no_execute_when_nobody_is_left_whom_it_would_hurt() -> None:
    world = World(FORCED).add(guest("a"), guest("b"))
    world.guarded = {"b"}
    world.run(until=after(100))
    assert world.window_taint is not None and world.window_taint.effect == NO_SCHEDULE
    world.guarded = set()
    world.run(until=after(170))
    assert world.window_taint.effect == NO_EXECUTE
    assert world.phase is Phase.RECLAIMED


def test_an_empty_node_is_reclaimed_at_once_and_closed_after_the_grace() -> None:
    world = World(FORCED)
    made = world.follow()
    assert made.phase is Phase.RECLAIMED
    assert made.taints[0].effect == NO_SCHEDULE, "who arrives just now has the grace, too"
    assert made.again_at == after(60)
    world.pass_until(after(60))
    made = world.follow()
    assert made.taints[0].effect == NO_EXECUTE
    assert made.again_at is None


def test_a_taint_that_is_no_execute_stays_so() -> None:
    world = World(FORCED)
    world.run(until=after(100))
    world.add(guest("late", created=after(90)))
    assert world.follow().taints[0].effect == NO_EXECUTE


def test_a_no_execute_taint_of_an_earlier_version_is_taken_back_until_the_grace_is_over() -> None:
    early = Taint(WINDOW, "true", NO_EXECUTE, "2026-03-06T19:59:50Z")
    world = World(FORCED, taints=(early,)).add(guest("a"))
    made = world.follow()
    assert made.taints == (Taint(WINDOW, "true", NO_SCHEDULE, "2026-03-06T19:59:50Z"),)
    assert made.again_at == after(50)


@pytest.mark.parametrize("time_added", [None, "2027-01-01T00:00:00Z"])
def test_a_taint_without_a_time_or_from_the_future_begins_its_grace_now(
    time_added: str | None,
) -> None:
    foreign = Taint(WINDOW, "true", NO_EXECUTE, time_added)
    world = World(FORCED, taints=(foreign,)).add(guest("a"))
    world.run(until=after(300))
    assert world.moves(Move.EVICT) == [(60, "a")]


def test_without_grace_eviction_begins_at_once() -> None:
    world = World(Rules(force=True, deadline_s=120)).add(guest("a"))
    world.run(until=after(30))
    assert world.moves(Move.EVICT) == [(0, "a")]


def test_without_force_pods_stay_and_no_new_ones_come() -> None:
    world = World(GENTLE).add(guest("a"), guest("b", finished=True))
    made = world.follow()
    assert (made.phase, made.again_at) == (Phase.HELD, None)
    world.pass_until(after(10**6))
    made = world.follow()
    assert made.taints[0].effect == NO_SCHEDULE
    assert whys(world) == {"a": Why.NOT_FORCED, "b": Why.FINISHED}
    assert world.history == []
    world.guests.pop("a")
    assert world.follow().phase is Phase.RECLAIMED


# In which order, how fast


def test_the_least_important_goes_first_and_of_equals_the_youngest() -> None:
    world = World(replace(FORCED, evictions_per_minute=1, deadline_s=3600)).add(
        guest("precious", priority=1000),
        guest("old", created=after(-7200)),
        guest("young", created=after(-60)),
        guest("cheap", priority=-10, created=after(-9000)),
    )
    world.run(until=after(600))
    assert world.moves(Move.EVICT) == [
        (60, "cheap"),
        (120, "young"),
        (180, "old"),
        (240, "precious"),
    ]


def test_no_more_are_evicted_in_any_minute_than_the_pace_allows() -> None:
    world = World(replace(FORCED, evictions_per_minute=3, deadline_s=3600))
    world.add(*(guest(f"p{n}") for n in range(8)))
    world.run(until=after(600))
    times = [at for at, _ in world.moves(Move.EVICT)]
    assert times == [60, 60, 60, 120, 120, 120, 180, 180]


def test_a_pod_that_waits_for_the_pace_says_so() -> None:
    world = World(replace(FORCED, evictions_per_minute=1)).add(guest("a"), guest("b"))
    world.run(until=after(61))
    assert whys(world)["b"] is Why.PACE


def test_evictions_elsewhere_count_where_the_pace_is_shared() -> None:
    elsewhere = tuple(after(second) for second in (-100, 50, 55, 59, 61))
    situation = Situation(
        now=after(60),
        cause=Cause.WINDOW_CLOSED,
        rules=Rules(force=True, evictions_per_minute=4),
        guests=(guest("a"), guest("b")),
        evictions=elsewhere,
    )
    made = plan(situation)
    assert made.guests(Move.EVICT) == ()
    assert made.again_at == after(110)
    late = plan(replace(situation, rules=Rules(force=True, evictions_per_minute=2)))
    assert {step.at for step in late.steps} == {after(119)}


def test_the_deadline_is_kept_whatever_the_pace() -> None:
    world = World(replace(FORCED, evictions_per_minute=1))
    world.add(*(guest(f"p{n}") for n in range(6)))
    world.run(until=after(600))
    assert [at for at, _ in world.moves(Move.EVICT)] == [60, 120]
    assert [at for at, _ in world.moves(Move.DELETE)] == [180, 180, 180, 180]


# Disruption budgets and failures


def test_a_pod_that_a_budget_guards_is_tried_again_and_holds_up_nobody() -> None:
    world = World(FORCED).add(guest("guarded", priority=-5), guest("free"))
    world.guarded = {"guarded"}
    world.run(until=after(100))
    assert ("free" in world.guests, "guarded" in world.guests) == (False, True)
    tries = [at for at, name in world.moves(Move.EVICT) if name == "guarded"]
    assert tries == [60, 61, 63, 67, 75, 85, 95]
    assert whys(world) == {"guarded": Why.BUDGET}
    assert world.phase is Phase.EVICTING


def test_what_a_budget_guards_is_deleted_after_the_deadline_and_not_before() -> None:
    world = World(FORCED).add(guest("guarded"))
    world.guarded = {"guarded"}
    world.run(until=after(600))
    assert world.moves(Move.DELETE) == [(180, "guarded")]
    assert world.phase is Phase.RECLAIMED
    forced = next(made for made in world.plans if made.guests(Move.DELETE))
    assert forced.phase is Phase.FORCING
    assert forced.taints[0].effect == NO_EXECUTE


def test_a_budget_that_gives_way_is_noticed() -> None:
    world = World(FORCED).add(guest("a"))
    world.guarded = {"a"}
    world.run(until=after(70))
    world.guarded = set()
    world.run(until=after(100))
    assert world.moves(Move.DELETE) == []
    assert world.moves(Move.EVICT)[-1] == (75, "a")


def test_what_fails_is_tried_again_less_and_less_often() -> None:
    world = World(FORCED).add(guest("a"))
    world.failing = {"a": 4}
    world.run(until=after(100))
    assert [at for at, _ in world.moves(Move.EVICT)] == [60, 61, 63, 67, 75]
    assert whys(world) == {}


def test_a_forced_deletion_that_fails_is_tried_again() -> None:
    world = World(replace(FORCED, deadline_s=0)).add(guest("a"))
    world.failing = {"a": 2}
    world.run(until=after(100))
    assert world.moves(Move.DELETE) == [(60, "a"), (61, "a"), (63, "a")]


@pytest.mark.parametrize(
    ("answer", "count", "asked", "seconds"),
    [
        (Answer.ACCEPTED, 1, 0, 30),
        (Answer.REFUSED, 1, 0, 1),
        (Answer.REFUSED, 3, 0, 4),
        (Answer.REFUSED, 10**9, 0, 10),
        (Answer.REFUSED, 1, 25, 25),
        (Answer.FAILED, 2, 0.5, 2),
    ],
)
def test_a_move_rests_before_it_is_tried_again(
    answer: Answer, count: int, asked: float, seconds: float
) -> None:
    assert Attempt(Move.EVICT, START, answer, count, asked).retry_at == after(seconds)


def test_a_first_refusal_without_advice_is_followed_soon() -> None:
    assert Attempt(Move.EVICT, START, Answer.REFUSED).retry_at == after(1)


def test_an_eviction_that_shows_no_effect_is_repeated() -> None:
    unseen = guest("a", attempt=Attempt(Move.EVICT, START, Answer.ACCEPTED))
    rules = Rules(force=True, deadline_s=600)
    taint = Taint(WINDOW, "true", NO_SCHEDULE, "2026-03-06T20:00:00Z")
    waiting = Situation(after(29), Cause.WINDOW_CLOSED, rules, (taint,), (unseen,))
    assert plan(waiting).steps[0].why is Why.RETRY
    assert plan(waiting).again_at == after(30)
    assert plan(replace(waiting, now=after(30))).guests(Move.EVICT) == (unseen,)


# Tolerations


def test_a_pod_that_tolerates_the_taint_stays() -> None:
    world = World(FORCED).add(
        guest("all", tolerations=(Toleration(operator="Exists"),)),
        guest("key", tolerations=(Toleration(WINDOW, "Exists"),)),
        guest("equal", tolerations=(Toleration(WINDOW, "Equal", "true", NO_EXECUTE),)),
        guest("schedule", tolerations=(Toleration(WINDOW, "Exists", effect=NO_SCHEDULE),)),
        guest("other", tolerations=(Toleration("other", "Exists"),)),
    )
    world.run(until=after(10**4))
    assert sorted(world.guests) == ["all", "equal", "key"]
    assert set(whys(world).values()) == {Why.TOLERATES}
    assert world.phase is Phase.RECLAIMED


def test_a_pod_that_tolerates_the_taint_for_a_time_stays_as_long() -> None:
    patient = Toleration(WINDOW, "Exists", effect=NO_EXECUTE, toleration_seconds=45)
    world = World(FORCED).add(guest("a", tolerations=(patient,)), guest("b"))
    world.run(until=after(104))
    assert whys(world) == {"a": Why.TOLERATES_FOR_NOW}
    assert world.window_taint is not None and world.window_taint.effect == NO_SCHEDULE
    world.run(until=after(300))
    assert world.moves(Move.EVICT) == [(60, "b"), (105, "a")]


def test_at_the_very_instant_that_the_grace_is_over_it_is_over() -> None:
    patient = Toleration(WINDOW, "Exists", toleration_seconds=45)
    world = World(FORCED).add(guest("a", tolerations=(patient,)), guest("b"))
    world.follow()
    world.pass_until(after(60))
    assert world.follow().phase is Phase.EVICTING
    assert whys(world) == {"a": Why.TOLERATES_FOR_NOW, "b": Why.DUE}


def test_a_pod_that_tolerates_the_taint_beyond_the_deadline_stays_as_long() -> None:
    patient = Toleration(WINDOW, "Exists", toleration_seconds=1000)
    world = World(FORCED).add(guest("a", tolerations=(patient,)))
    world.run(until=after(2000))
    assert world.moves(Move.EVICT, Move.DELETE) == [(1060, "a")]
    changed = next(made for made in world.plans if made.taints[0].effect == NO_EXECUTE)
    assert world.plans.index(changed) == 2, "at the deadline, not later"


def test_a_toleration_of_more_seconds_than_there_are_is_for_ever() -> None:
    endless = Toleration(WINDOW, "Exists", toleration_seconds=2**63 - 1)
    world = World(FORCED).add(guest("a", tolerations=(endless,)))
    world.run(until=after(10**6))
    assert whys(world) == {"a": Why.TOLERATES}


# The window opens again


def test_when_the_node_is_lent_again_the_plan_is_to_stop_and_lift() -> None:
    world = World(replace(FORCED, evictions_per_minute=1)).add(guest("a"), guest("b"))
    world.run(until=after(70))
    assert len(world.history) == 1
    world.cause = None
    made = world.follow()
    assert (made.phase, made.taints, made.steps) == (Phase.LENT, (), ())
    assert not made.unschedulable
    world.run(until=after(10**4))
    assert len(world.history) == 1


def test_a_node_that_pods_were_evicted_from_cools_down_before_it_takes_new_ones() -> None:
    world = World(replace(FORCED, cool_down_s=100)).add(guest("a"))
    world.run(until=after(70))
    world.cause = None
    made = world.follow()
    assert made.phase is Phase.COOLING
    assert made.taints == (Taint(WINDOW, "true", NO_SCHEDULE, None),)
    assert made.again_at == after(160)
    world.run(until=after(200))
    assert (world.phase, world.taints) == (Phase.LENT, ())


def test_a_node_that_nobody_was_evicted_from_need_not_cool_down() -> None:
    world = World(replace(FORCED, cool_down_s=100)).add(guest("a"))
    world.run(until=after(30))
    world.cause = None
    assert world.follow().phase is Phase.LENT


def test_a_window_that_closes_while_the_node_cools_down_gives_the_whole_grace_again() -> None:
    rules = replace(FORCED, evictions_per_minute=1, cool_down_s=1000)
    world = World(rules).add(guest("a"), guest("b"))
    world.run(until=after(70))
    world.cause = None
    world.run(until=after(80))
    world.cause = Cause.WINDOW_CLOSED
    world.run(until=after(1000))
    assert world.moves(Move.EVICT) == [(60, "a"), (140, "b")]


def test_a_node_that_is_lent_and_was_never_taken_back_is_left_alone() -> None:
    other = Taint("kubeocean.io/vnode", "", NO_SCHEDULE)
    world = World(replace(FORCED, cool_down_s=1000), cause=None, taints=(other,))
    assert world.follow() == plan(world.situation)
    assert (world.phase, world.taints) == (Phase.LENT, ())


# The node itself goes


@pytest.mark.parametrize("cause", [Cause.POLICY_REMOVED, Cause.POLICY_NARROWED])
def test_a_policy_that_goes_takes_back_by_its_own_rules(cause: Cause) -> None:
    world = World(FORCED, cause).add(guest("a"))
    made = world.follow()
    assert made.taints == (Taint(DELETING, "true", NO_SCHEDULE, "2026-03-06T20:00:00Z"),)
    assert made.unschedulable
    assert not made.remove_node
    world.run(until=after(600))
    assert world.moves(Move.EVICT) == [(60, "a")]
    assert world.removed
    assert world.now == after(600)


@pytest.mark.parametrize("cause", [Cause.POLICY_REMOVED, Cause.POLICY_NARROWED])
def test_a_gentle_policy_that_goes_waits_for_its_pods(cause: Cause) -> None:
    world = World(GENTLE, cause).add(guest("a"), guest("d", daemon=True), guest("f", finished=True))
    world.run(until=after(10**6))
    assert world.history == []
    assert world.phase is Phase.HELD
    assert whys(world) == {"a": Why.NOT_FORCED, "d": Why.DAEMON, "f": Why.FINISHED}
    world.guests.pop("a")
    assert world.follow().remove_node


@pytest.mark.parametrize("cause", REMOVALS)
def test_an_empty_node_is_removed_once_it_has_the_notice(cause: Cause) -> None:
    world = World(GENTLE, cause)
    made = world.follow()
    assert (made.remove_node, made.again_at) == (False, after(1))
    made = world.follow()
    assert (made.remove_node, made.phase) == (True, Phase.RECLAIMED)


def test_tolerations_do_not_help_when_the_node_goes() -> None:
    tolerant = (Toleration(operator="Exists"),)
    world = World(FORCED, Cause.POLICY_REMOVED).add(
        guest("a", tolerations=tolerant),
        guest("daemon", tolerations=tolerant, daemon=True),
        guest("shy-daemon", daemon=True),
    )
    world.run(until=after(600))
    assert sorted(name for _, name in world.moves(Move.EVICT)) == ["a", "shy-daemon"]
    assert world.removed, "a daemon that would come back goes with its node"


def test_a_node_that_goes_keeps_the_taint_of_its_window() -> None:
    world = World(FORCED).add(guest("a"))
    world.run(until=after(100))
    closed = world.taints
    world.cause = Cause.POLICY_REMOVED
    assert world.follow().taints[:1] == closed
    assert [taint.key for taint in world.taints] == [WINDOW, DELETING]


def test_a_node_that_is_to_stay_after_all_loses_the_taint_of_its_end() -> None:
    world = World(FORCED, Cause.POLICY_REMOVED).add(guest("a"))
    world.run(until=after(30))
    world.cause = Cause.WINDOW_CLOSED
    made = world.follow()
    assert [taint.key for taint in made.taints] == [WINDOW]
    assert not made.unschedulable
    assert made.again_at == after(90), "and its grace begins anew"


def test_a_node_that_was_about_to_go_cools_down_as_it_is() -> None:
    world = World(replace(FORCED, cool_down_s=100), Cause.POLICY_REMOVED)
    world.add(guest("a"), guest("b"))
    world.guarded = {"b"}
    world.run(until=after(70))
    world.cause = None
    made = world.follow()
    assert (made.phase, made.unschedulable) == (Phase.COOLING, True)


def test_pods_of_a_node_that_is_gone_are_deleted_at_once() -> None:
    rules = Rules(force=True, deadline_s=0, abandon_s=120)
    world = World(rules, Cause.NODE_GONE).add(guest("a"))
    world.guarded = {"a"}
    world.run(until=after(60))
    assert world.moves(Move.EVICT, Move.DELETE) == [(0, "a")]
    assert world.removed


def test_a_pod_that_does_not_end_is_given_up_where_the_node_has_to_go() -> None:
    rules = replace(FORCED, abandon_s=100)
    world = World(rules, Cause.BINDING_DELETED, undying={"a"}).add(guest("a"))
    world.run(until=after(279))
    assert whys(world) == {"a": Why.TERMINATING}
    assert world.moves(Move.ABANDON) == []
    world.failing = {"a": 1}
    world.run(until=after(600))
    assert world.moves(Move.ABANDON) == [(280, "a"), (281, "a")]
    assert world.removed


def test_a_pod_has_its_own_time_to_end_as_long_as_the_worker_answers() -> None:
    rules = replace(FORCED, abandon_s=100)
    slow = guest("a", leaving_by=after(1000))
    world = World(rules, Cause.BINDING_DELETED, undying={"a"}).add(slow)
    world.run(until=after(1099))
    assert world.moves(Move.ABANDON) == []
    world.run(until=after(1101))
    assert world.moves(Move.ABANDON) == [(1100, "a")]


def test_a_binding_ends_in_its_time_even_if_the_worker_does_not_answer() -> None:
    rules = replace(FORCED, abandon_s=100)
    slow = guest("a", leaving_by=after(10**5))
    world = World(rules, Cause.BINDING_DELETED, undying={"a", "b"}, worker_answers=False)
    world.add(slow, guest("b")).run(until=after(10**6))
    assert world.moves(Move.ABANDON) == [(280, "a"), (280, "b")]
    assert world.removed


def test_a_window_that_closed_gives_up_nobody() -> None:
    world = World(FORCED, undying={"a"}).add(guest("a"))
    world.run(until=after(10**6))
    assert world.moves(Move.ABANDON) == []
    assert whys(world) == {"a": Why.TERMINATING}
    assert world.phase is Phase.FORCING


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.BINDING_DELETED])
def test_nothing_is_evicted_or_deleted_while_the_worker_does_not_answer(cause: Cause) -> None:
    rules = replace(FORCED, abandon_s=100)
    going = guest("going", leaving_by=after(-1000))
    world = World(rules, cause, worker_answers=False, undying={"going"}).add(guest("a"), going)
    world.run(until=after(10**5))
    assert world.history == []
    assert world.phase is Phase.HELD
    assert whys(world) == {"a": Why.UNREACHABLE, "going": Why.TERMINATING}
    assert {taint.effect for taint in world.taints} == {NO_SCHEDULE}
    world.worker_answers, world.undying = True, set()
    world.run(until=after(2 * 10**5))
    assert world.moves(Move.DELETE) == [(10**5, "a")]


def test_grace_and_deadline_count_from_when_the_rules_began_to_hold() -> None:
    taint = Taint(DELETING, "true", NO_SCHEDULE, "2026-03-06T12:00:00Z")
    situation = Situation(
        now=START,
        cause=Cause.BINDING_DELETED,
        rules=FORCED,
        taints=(taint,),
        guests=(guest("a"),),
        rules_since=START - timedelta(seconds=10),
    )
    made = plan(situation)
    assert made.phase is Phase.NOTICE
    assert made.taints == (taint,)
    assert made.again_at == after(50)
    assert made.notice is not None and made.notice.deadline == after(170)
    future = plan(replace(situation, rules_since=after(10**6)))
    assert future.again_at == after(60), "a clock that is ahead delays nothing for ever"


def test_the_taints_are_those_of_the_installation() -> None:
    situation = Situation(START, Cause.WINDOW_CLOSED, FORCED, domain=TAPESTRY)
    assert plan(situation).taints[0].key == "tapestry.io/out-of-time-windows"


def test_instants_may_be_in_any_zone() -> None:
    elsewhere = datetime.fromisoformat("2026-03-07T05:00:00+09:00")
    made = plan(Situation(elsewhere, Cause.WINDOW_CLOSED, FORCED))
    assert made.taints[0].time_added == "2026-03-06T20:00:00Z"
