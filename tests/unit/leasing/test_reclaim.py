"""Reclaim plans, carried out in a simulation from the first taint to the end."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from kubeocean.api.group import TAPESTRY
from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.reclaim import (
    EvictionAttempt,
    EvictionResult,
    PodAction,
    ReclaimInput,
    ReclaimPhase,
    StepReason,
    plan_reclaim,
)
from kubeocean.leasing.taints import NO_EXECUTE, NO_SCHEDULE, Toleration
from kubeocean.runtime.kinds import Taint
from unit.leasing.reclaim_simulation import START, WINDOW, SimulatedNode, after, node_pod, pods_to

FORCED = ReclaimRules(force=True, grace_s=60, deadline_s=120)
GENTLE = ReclaimRules(force=False, grace_s=60, deadline_s=120)
DELETING = "kubeocean.io/vnode-deleting"
REMOVALS = [cause for cause in ReclaimCause if cause.removes_node]


def whys(node: SimulatedNode) -> dict[str, StepReason]:
    return {step.pod.key.name: step.reason for step in node.plans[-1].steps}


# A window closes


def test_a_closed_window_gives_notice_first_and_evicts_after_the_grace() -> None:
    node = SimulatedNode(FORCED).add(node_pod("a"))
    made = node.follow()
    assert made.phase is ReclaimPhase.NOTICE
    assert made.taints == (Taint(WINDOW, "true", NO_SCHEDULE, "2026-03-06T20:00:00Z"),)
    assert made.again_at == after(60)
    assert not made.unschedulable
    assert whys(node) == {"a": StepReason.GRACE}

    node.run(until=after(59.9))
    assert node.history == []
    node.run(until=after(300))
    assert node.actions(PodAction.EVICT) == [(60, "a")]
    assert node.phase is ReclaimPhase.RECLAIMED
    assert not node.removed


def test_the_time_of_the_taint_is_rounded_up_so_that_no_pod_gets_less_than_the_grace_period() -> (
    None
):
    node = SimulatedNode(FORCED, now=after(0.3)).add(node_pod("a"))
    node.run(until=after(300))
    assert node.actions(PodAction.EVICT) == [(61, "a")]


def test_the_taint_keeps_its_time_whatever_happens() -> None:
    node = SimulatedNode(FORCED).add(node_pod("a"), node_pod("b"))
    node.run(until=after(600))
    times = {taint.time_added for made in node.plans for taint in made.taints}
    assert times == {"2026-03-06T20:00:00Z"}


def test_a_taint_becomes_no_execute_when_no_pod_is_left_that_it_would_evict() -> None:
    node = SimulatedNode(FORCED).add(node_pod("a"), node_pod("b"))
    node.protected = {"b"}
    node.run(until=after(100))
    assert node.window_taint is not None and node.window_taint.effect == NO_SCHEDULE
    node.protected = set()
    node.run(until=after(170))
    assert node.window_taint.effect == NO_EXECUTE
    assert node.phase is ReclaimPhase.RECLAIMED


def test_an_empty_node_is_reclaimed_at_once_and_closed_after_the_grace() -> None:
    node = SimulatedNode(FORCED)
    made = node.follow()
    assert made.phase is ReclaimPhase.RECLAIMED
    assert made.taints[0].effect == NO_SCHEDULE, (
        "a pod that arrives just now has the grace period, too"
    )
    assert made.again_at == after(60)
    node.pass_until(after(60))
    made = node.follow()
    assert made.taints[0].effect == NO_EXECUTE
    assert made.again_at is None


def test_a_taint_that_is_no_execute_stays_so() -> None:
    node = SimulatedNode(FORCED)
    node.run(until=after(100))
    node.add(node_pod("late", created=after(90)))
    assert node.follow().taints[0].effect == NO_EXECUTE


def test_a_no_execute_taint_of_an_earlier_version_is_no_schedule_during_the_grace_period() -> None:
    early = Taint(WINDOW, "true", NO_EXECUTE, "2026-03-06T19:59:50Z")
    node = SimulatedNode(FORCED, taints=(early,)).add(node_pod("a"))
    made = node.follow()
    assert made.taints == (Taint(WINDOW, "true", NO_SCHEDULE, "2026-03-06T19:59:50Z"),)
    assert made.again_at == after(50)


@pytest.mark.parametrize("time_added", [None, "2027-01-01T00:00:00Z"])
def test_a_taint_without_a_time_or_from_the_future_begins_its_grace_now(
    time_added: str | None,
) -> None:
    foreign = Taint(WINDOW, "true", NO_EXECUTE, time_added)
    node = SimulatedNode(FORCED, taints=(foreign,)).add(node_pod("a"))
    node.run(until=after(300))
    assert node.actions(PodAction.EVICT) == [(60, "a")]


def test_without_grace_eviction_begins_at_once() -> None:
    node = SimulatedNode(ReclaimRules(force=True, deadline_s=120)).add(node_pod("a"))
    node.run(until=after(30))
    assert node.actions(PodAction.EVICT) == [(0, "a")]


def test_without_force_pods_stay_and_no_new_ones_come() -> None:
    node = SimulatedNode(GENTLE).add(node_pod("a"), node_pod("b", finished=True))
    made = node.follow()
    assert (made.phase, made.again_at) == (ReclaimPhase.HELD, None)
    node.pass_until(after(10**6))
    made = node.follow()
    assert made.taints[0].effect == NO_SCHEDULE
    assert whys(node) == {"a": StepReason.NOT_FORCED, "b": StepReason.FINISHED}
    assert node.history == []
    node.pods.pop("a")
    assert node.follow().phase is ReclaimPhase.RECLAIMED


# In which order, how fast


def test_the_pod_of_lowest_priority_is_evicted_first_and_of_equals_the_youngest() -> None:
    node = SimulatedNode(replace(FORCED, evictions_per_minute=1, deadline_s=3600)).add(
        node_pod("precious", priority=1000),
        node_pod("old", created=after(-7200)),
        node_pod("young", created=after(-60)),
        node_pod("cheap", priority=-10, created=after(-9000)),
    )
    node.run(until=after(600))
    assert node.actions(PodAction.EVICT) == [
        (60, "cheap"),
        (120, "young"),
        (180, "old"),
        (240, "precious"),
    ]


def test_no_more_are_evicted_in_any_minute_than_the_pace_allows() -> None:
    node = SimulatedNode(replace(FORCED, evictions_per_minute=3, deadline_s=3600))
    node.add(*(node_pod(f"p{n}") for n in range(8)))
    node.run(until=after(600))
    times = [at for at, _ in node.actions(PodAction.EVICT)]
    assert times == [60, 60, 60, 120, 120, 120, 180, 180]


def test_a_pod_that_waits_for_the_pace_has_that_reason() -> None:
    node = SimulatedNode(replace(FORCED, evictions_per_minute=1)).add(node_pod("a"), node_pod("b"))
    node.run(until=after(61))
    assert whys(node)["b"] is StepReason.PACE


def test_evictions_of_other_nodes_count_against_the_pace() -> None:
    elsewhere = tuple(after(second) for second in (-100, 50, 55, 59, 61))
    situation = ReclaimInput(
        now=after(60),
        cause=ReclaimCause.WINDOW_CLOSED,
        rules=ReclaimRules(force=True, evictions_per_minute=4),
        pods=(node_pod("a"), node_pod("b")),
        evictions=elsewhere,
    )
    made = plan_reclaim(situation)
    assert pods_to(made, PodAction.EVICT) == ()
    assert made.again_at == after(110)
    late = plan_reclaim(replace(situation, rules=ReclaimRules(force=True, evictions_per_minute=2)))
    assert {step.at for step in late.steps} == {after(119)}


def test_the_deadline_is_kept_whatever_the_pace() -> None:
    node = SimulatedNode(replace(FORCED, evictions_per_minute=1))
    node.add(*(node_pod(f"p{n}") for n in range(6)))
    node.run(until=after(600))
    assert [at for at, _ in node.actions(PodAction.EVICT)] == [60, 120]
    assert [at for at, _ in node.actions(PodAction.DELETE)] == [180, 180, 180, 180]


# Disruption budgets and failures


def test_a_pod_that_a_budget_protects_is_retried_and_holds_up_no_other() -> None:
    node = SimulatedNode(FORCED).add(node_pod("guarded", priority=-5), node_pod("free"))
    node.protected = {"guarded"}
    node.run(until=after(100))
    assert ("free" in node.pods, "guarded" in node.pods) == (False, True)
    tries = [at for at, name in node.actions(PodAction.EVICT) if name == "guarded"]
    assert tries == [60, 61, 63, 67, 75, 85, 95]
    assert whys(node) == {"guarded": StepReason.BUDGET}
    assert node.phase is ReclaimPhase.EVICTING


def test_a_pod_that_a_budget_protects_is_deleted_after_the_deadline_and_not_before() -> None:
    node = SimulatedNode(FORCED).add(node_pod("guarded"))
    node.protected = {"guarded"}
    node.run(until=after(600))
    assert node.actions(PodAction.DELETE) == [(180, "guarded")]
    assert node.phase is ReclaimPhase.RECLAIMED
    forced = next(made for made in node.plans if pods_to(made, PodAction.DELETE))
    assert forced.phase is ReclaimPhase.FORCING
    assert forced.taints[0].effect == NO_EXECUTE


def test_a_pod_is_evicted_when_its_budget_allows_that_again() -> None:
    node = SimulatedNode(FORCED).add(node_pod("a"))
    node.protected = {"a"}
    node.run(until=after(70))
    node.protected = set()
    node.run(until=after(100))
    assert node.actions(PodAction.DELETE) == []
    assert node.actions(PodAction.EVICT)[-1] == (75, "a")


def test_an_eviction_that_fails_is_retried_less_and_less_often() -> None:
    node = SimulatedNode(FORCED).add(node_pod("a"))
    node.failing = {"a": 4}
    node.run(until=after(100))
    assert [at for at, _ in node.actions(PodAction.EVICT)] == [60, 61, 63, 67, 75]
    assert whys(node) == {}


def test_a_forced_deletion_that_fails_is_retried() -> None:
    node = SimulatedNode(replace(FORCED, deadline_s=0)).add(node_pod("a"))
    node.failing = {"a": 2}
    node.run(until=after(100))
    assert node.actions(PodAction.DELETE) == [(60, "a"), (61, "a"), (63, "a")]


@pytest.mark.parametrize(
    ("answer", "count", "retry_after_s", "seconds"),
    [
        (EvictionResult.ACCEPTED, 1, 0, 30),
        (EvictionResult.REFUSED, 1, 0, 1),
        (EvictionResult.REFUSED, 3, 0, 4),
        (EvictionResult.REFUSED, 10**9, 0, 10),
        (EvictionResult.REFUSED, 1, 25, 25),
        (EvictionResult.FAILED, 2, 0.5, 2),
    ],
)
def test_an_attempt_is_not_repeated_before_its_retry_time(
    answer: EvictionResult, count: int, retry_after_s: float, seconds: float
) -> None:
    assert EvictionAttempt(PodAction.EVICT, START, answer, count, retry_after_s).retry_at == after(
        seconds
    )


def test_a_first_refusal_without_retry_after_is_retried_after_a_second() -> None:
    assert EvictionAttempt(PodAction.EVICT, START, EvictionResult.REFUSED).retry_at == after(1)


def test_an_eviction_that_shows_no_effect_is_repeated() -> None:
    unseen = node_pod("a", attempt=EvictionAttempt(PodAction.EVICT, START, EvictionResult.ACCEPTED))
    rules = ReclaimRules(force=True, deadline_s=600)
    taint = Taint(WINDOW, "true", NO_SCHEDULE, "2026-03-06T20:00:00Z")
    waiting = ReclaimInput(after(29), ReclaimCause.WINDOW_CLOSED, rules, (taint,), (unseen,))
    assert plan_reclaim(waiting).steps[0].reason is StepReason.RETRY
    assert plan_reclaim(waiting).again_at == after(30)
    assert pods_to(plan_reclaim(replace(waiting, now=after(30))), PodAction.EVICT) == (unseen,)


# Tolerations


def test_a_pod_that_tolerates_the_taint_stays() -> None:
    node = SimulatedNode(FORCED).add(
        node_pod("all", tolerations=(Toleration(operator="Exists"),)),
        node_pod("key", tolerations=(Toleration(WINDOW, "Exists"),)),
        node_pod("equal", tolerations=(Toleration(WINDOW, "Equal", "true", NO_EXECUTE),)),
        node_pod("schedule", tolerations=(Toleration(WINDOW, "Exists", effect=NO_SCHEDULE),)),
        node_pod("other", tolerations=(Toleration("other", "Exists"),)),
    )
    node.run(until=after(10**4))
    assert sorted(node.pods) == ["all", "equal", "key"]
    assert set(whys(node).values()) == {StepReason.TOLERATES}
    assert node.phase is ReclaimPhase.HELD  # pods run there
    node.pods.clear()
    node.run(until=after(2 * 10**4))
    assert node.phase is ReclaimPhase.RECLAIMED


def test_tolerations_keep_no_pod_if_the_policy_does_not_respect_them() -> None:
    everything = (Toleration(operator="Exists"),)
    node = SimulatedNode(replace(FORCED, respect_tolerations=False)).add(
        node_pod("all", tolerations=everything),
        node_pod("daemon", tolerations=everything, daemon=True),
    )
    node.run(until=after(10**4))
    assert node.pods == {}
    assert {at for at, _ in node.actions(PodAction.EVICT)} == {60.0}
    assert node.phase is ReclaimPhase.RECLAIMED
    assert node.window_taint is not None
    assert node.window_taint.effect == NO_EXECUTE


def test_a_pod_that_tolerates_the_taint_for_a_time_stays_as_long() -> None:
    patient = Toleration(WINDOW, "Exists", effect=NO_EXECUTE, toleration_seconds=45)
    node = SimulatedNode(FORCED).add(node_pod("a", tolerations=(patient,)), node_pod("b"))
    node.run(until=after(104))
    assert whys(node) == {"a": StepReason.TOLERATES_FOR_NOW}
    assert node.window_taint is not None and node.window_taint.effect == NO_SCHEDULE
    node.run(until=after(300))
    assert node.actions(PodAction.EVICT) == [(60, "b"), (105, "a")]


def test_evictions_begin_at_the_very_instant_that_the_grace_period_ends() -> None:
    patient = Toleration(WINDOW, "Exists", toleration_seconds=45)
    node = SimulatedNode(FORCED).add(node_pod("a", tolerations=(patient,)), node_pod("b"))
    node.follow()
    node.pass_until(after(60))
    assert node.follow().phase is ReclaimPhase.EVICTING
    assert whys(node) == {"a": StepReason.TOLERATES_FOR_NOW, "b": StepReason.DUE}


def test_a_pod_that_tolerates_the_taint_beyond_the_deadline_stays_as_long() -> None:
    patient = Toleration(WINDOW, "Exists", toleration_seconds=1000)
    node = SimulatedNode(FORCED).add(node_pod("a", tolerations=(patient,)))
    node.run(until=after(2000))
    assert node.actions(PodAction.EVICT, PodAction.DELETE) == [(1060, "a")]
    changed = next(made for made in node.plans if made.taints[0].effect == NO_EXECUTE)
    assert node.plans.index(changed) == 2, "at the deadline, not later"


def test_a_toleration_of_more_seconds_than_there_are_is_for_ever() -> None:
    endless = Toleration(WINDOW, "Exists", toleration_seconds=2**63 - 1)
    node = SimulatedNode(FORCED).add(node_pod("a", tolerations=(endless,)))
    node.run(until=after(10**6))
    assert whys(node) == {"a": StepReason.TOLERATES}


# The window opens again


def test_when_the_node_is_lent_again_evictions_stop_and_the_taint_is_removed() -> None:
    node = SimulatedNode(replace(FORCED, evictions_per_minute=1)).add(node_pod("a"), node_pod("b"))
    node.run(until=after(70))
    assert len(node.history) == 1
    node.cause = None
    made = node.follow()
    assert (made.phase, made.taints, made.steps) == (ReclaimPhase.LENT, (), ())
    assert not made.unschedulable
    node.run(until=after(10**4))
    assert len(node.history) == 1


def test_a_node_from_which_pods_were_evicted_cools_down_before_it_takes_new_ones() -> None:
    node = SimulatedNode(replace(FORCED, cool_down_s=100)).add(node_pod("a"))
    node.run(until=after(70))
    node.cause = None
    made = node.follow()
    assert made.phase is ReclaimPhase.COOLING
    assert made.taints == (Taint(WINDOW, "true", NO_SCHEDULE, None),)
    assert made.again_at == after(160)
    node.run(until=after(200))
    assert (node.phase, node.taints) == (ReclaimPhase.LENT, ())


def test_a_node_from_which_no_pod_was_evicted_does_not_cool_down() -> None:
    node = SimulatedNode(replace(FORCED, cool_down_s=100)).add(node_pod("a"))
    node.run(until=after(30))
    node.cause = None
    assert node.follow().phase is ReclaimPhase.LENT


def test_a_window_that_closes_while_the_node_cools_down_gives_the_whole_grace_again() -> None:
    rules = replace(FORCED, evictions_per_minute=1, cool_down_s=1000)
    node = SimulatedNode(rules).add(node_pod("a"), node_pod("b"))
    node.run(until=after(70))
    node.cause = None
    node.run(until=after(80))
    node.cause = ReclaimCause.WINDOW_CLOSED
    node.run(until=after(1000))
    assert node.actions(PodAction.EVICT) == [(60, "a"), (140, "b")]


def test_a_node_that_is_lent_and_was_never_reclaimed_is_left_alone() -> None:
    other = Taint("kubeocean.io/vnode", "", NO_SCHEDULE)
    node = SimulatedNode(replace(FORCED, cool_down_s=1000), cause=None, taints=(other,))
    assert node.follow() == plan_reclaim(node.situation)
    assert (node.phase, node.taints) == (ReclaimPhase.LENT, ())


# The node itself is deleted


@pytest.mark.parametrize("cause", [ReclaimCause.POLICY_REMOVED, ReclaimCause.POLICY_NARROWED])
def test_a_policy_that_is_removed_or_narrowed_reclaims_by_its_own_rules(
    cause: ReclaimCause,
) -> None:
    node = SimulatedNode(FORCED, cause).add(node_pod("a"))
    made = node.follow()
    assert made.taints == (Taint(DELETING, "true", NO_SCHEDULE, "2026-03-06T20:00:00Z"),)
    assert made.unschedulable
    assert not made.remove_node
    node.run(until=after(600))
    assert node.actions(PodAction.EVICT) == [(60, "a")]
    assert node.removed
    assert node.now == after(600)


@pytest.mark.parametrize("cause", [ReclaimCause.POLICY_REMOVED, ReclaimCause.POLICY_NARROWED])
def test_a_policy_that_does_not_force_waits_for_its_pods(cause: ReclaimCause) -> None:
    node = SimulatedNode(GENTLE, cause).add(
        node_pod("a"), node_pod("d", daemon=True), node_pod("f", finished=True)
    )
    node.run(until=after(10**6))
    assert node.history == []
    assert node.phase is ReclaimPhase.HELD
    assert whys(node) == {
        "a": StepReason.NOT_FORCED,
        "d": StepReason.DAEMON,
        "f": StepReason.FINISHED,
    }
    node.pods.pop("a")
    assert node.follow().remove_node


@pytest.mark.parametrize("cause", REMOVALS)
def test_an_empty_node_is_removed_once_it_has_the_taint(cause: ReclaimCause) -> None:
    node = SimulatedNode(GENTLE, cause)
    made = node.follow()
    assert (made.remove_node, made.again_at) == (False, after(1))
    made = node.follow()
    assert (made.remove_node, made.phase) == (True, ReclaimPhase.RECLAIMED)


def test_tolerations_do_not_count_when_the_node_is_removed() -> None:
    tolerant = (Toleration(operator="Exists"),)
    node = SimulatedNode(FORCED, ReclaimCause.POLICY_REMOVED).add(
        node_pod("a", tolerations=tolerant),
        node_pod("daemon", tolerations=tolerant, daemon=True),
        node_pod("shy-daemon", daemon=True),
    )
    node.run(until=after(600))
    assert sorted(name for _, name in node.actions(PodAction.EVICT)) == ["a", "shy-daemon"]
    assert node.removed, "a daemon that would come back goes with its node"


def test_a_node_that_is_removed_keeps_the_taint_of_its_closed_window() -> None:
    node = SimulatedNode(FORCED).add(node_pod("a"))
    node.run(until=after(100))
    closed = node.taints
    node.cause = ReclaimCause.POLICY_REMOVED
    assert node.follow().taints[:1] == closed
    assert [taint.key for taint in node.taints] == [WINDOW, DELETING]


def test_a_node_that_is_kept_after_all_loses_the_taint_of_its_removal() -> None:
    node = SimulatedNode(FORCED, ReclaimCause.POLICY_REMOVED).add(node_pod("a"))
    node.run(until=after(30))
    node.cause = ReclaimCause.WINDOW_CLOSED
    made = node.follow()
    assert [taint.key for taint in made.taints] == [WINDOW]
    assert not made.unschedulable
    assert made.again_at == after(90), "and its grace begins anew"


def test_a_node_that_was_being_removed_cools_down_unschedulable() -> None:
    node = SimulatedNode(replace(FORCED, cool_down_s=100), ReclaimCause.POLICY_REMOVED)
    node.add(node_pod("a"), node_pod("b"))
    node.protected = {"b"}
    node.run(until=after(70))
    node.cause = None
    made = node.follow()
    assert (made.phase, made.unschedulable) == (ReclaimPhase.COOLING, True)


def test_pods_of_a_node_that_is_gone_are_deleted_at_once() -> None:
    rules = ReclaimRules(force=True, deadline_s=0, abandon_s=120)
    node = SimulatedNode(rules, ReclaimCause.NODE_GONE).add(node_pod("a"))
    node.protected = {"a"}
    node.run(until=after(60))
    assert node.actions(PodAction.EVICT, PodAction.DELETE) == [(0, "a")]
    assert node.removed


def test_a_pod_that_does_not_end_is_abandoned_where_the_node_has_to_go() -> None:
    rules = replace(FORCED, abandon_s=100)
    node = SimulatedNode(rules, ReclaimCause.BINDING_DELETED, stuck={"a"}).add(node_pod("a"))
    node.run(until=after(279))
    assert whys(node) == {"a": StepReason.TERMINATING}
    assert node.actions(PodAction.ABANDON) == []
    node.failing = {"a": 1}
    node.run(until=after(600))
    assert node.actions(PodAction.ABANDON) == [(280, "a"), (281, "a")]
    assert node.removed


def test_a_pod_that_terminates_has_its_time_until_the_deadline() -> None:
    slow = node_pod("a", leaving_by=after(1000))
    node = SimulatedNode(FORCED).add(slow)
    node.run(until=after(179))
    assert node.history == []
    node.run(until=after(10**4))
    assert node.actions(PodAction.DELETE) == [(180, "a")]
    assert node.phase is ReclaimPhase.RECLAIMED
    held = SimulatedNode(replace(FORCED, force=False)).add(slow)
    held.run(until=after(999))
    assert held.history == []


def test_a_pod_that_never_ends_is_abandoned_where_its_node_has_to_go() -> None:
    rules = replace(FORCED, abandon_s=100)
    slow = node_pod("a", leaving_by=after(1000))
    node = SimulatedNode(rules, ReclaimCause.BINDING_DELETED, stuck={"a"}).add(slow)
    node.run(until=after(284))
    assert node.actions(PodAction.ABANDON) == []
    node.run(until=after(286))
    assert node.actions(PodAction.ABANDON) == [(285, "a")]


@pytest.mark.parametrize(
    ("own_s", "evicted_s", "deleted_s"),
    [(30, None, 1), (365 * 86400, 120, 1), (0, None, None), (1, None, None), (None, None, 1)],
)
def test_the_grace_period_of_a_pod_ends_at_the_deadline(
    own_s: int | None, evicted_s: int | None, deleted_s: int | None
) -> None:
    taint = Taint(WINDOW, "true", NO_SCHEDULE, "2026-03-06T20:00:00Z")
    pod = node_pod("a", grace_s=own_s)

    def step(seconds: float) -> tuple[PodAction, int | None]:
        rules, cause = FORCED, ReclaimCause.WINDOW_CLOSED
        (only,) = plan_reclaim(ReclaimInput(after(seconds), cause, rules, (taint,), (pod,))).steps
        return only.action, only.grace_s

    assert step(60) == (PodAction.EVICT, evicted_s)
    assert step(180) == (PodAction.DELETE, deleted_s)


def test_a_binding_ends_in_its_time_even_if_the_worker_does_not_answer() -> None:
    rules = replace(FORCED, abandon_s=100)
    slow = node_pod("a", leaving_by=after(10**5))
    node = SimulatedNode(
        rules, ReclaimCause.BINDING_DELETED, stuck={"a", "b"}, worker_answers=False
    )
    node.add(slow, node_pod("b")).run(until=after(10**6))
    assert node.actions(PodAction.ABANDON) == [(280, "a"), (280, "b")]
    assert node.removed


def test_a_closed_window_abandons_no_pod() -> None:
    node = SimulatedNode(FORCED, stuck={"a"}).add(node_pod("a"))
    node.run(until=after(10**6))
    assert node.actions(PodAction.ABANDON) == []
    assert whys(node) == {"a": StepReason.TERMINATING}
    assert node.phase is ReclaimPhase.FORCING


@pytest.mark.parametrize(
    "cause", [cause for cause in ReclaimCause if cause is not ReclaimCause.BINDING_DELETED]
)
def test_nothing_is_evicted_or_deleted_while_the_worker_does_not_answer(
    cause: ReclaimCause,
) -> None:
    rules = replace(FORCED, abandon_s=100)
    going = node_pod("going", leaving_by=after(-1000))
    node = SimulatedNode(rules, cause, worker_answers=False, stuck={"going"}).add(
        node_pod("a"), going
    )
    node.run(until=after(10**5))
    assert node.history == []
    assert node.phase is ReclaimPhase.HELD
    assert whys(node) == {"a": StepReason.UNREACHABLE, "going": StepReason.TERMINATING}
    assert {taint.effect for taint in node.taints} == {NO_SCHEDULE}
    node.worker_answers, node.stuck = True, set()
    node.run(until=after(2 * 10**5))
    assert node.actions(PodAction.DELETE) == [(10**5, "a")]


def test_grace_and_deadline_count_from_when_the_rules_began_to_hold() -> None:
    taint = Taint(DELETING, "true", NO_SCHEDULE, "2026-03-06T12:00:00Z")
    situation = ReclaimInput(
        now=START,
        cause=ReclaimCause.BINDING_DELETED,
        rules=FORCED,
        taints=(taint,),
        pods=(node_pod("a"),),
        rules_since=START - timedelta(seconds=10),
    )
    made = plan_reclaim(situation)
    assert made.phase is ReclaimPhase.NOTICE
    assert made.taints == (taint,)
    assert made.again_at == after(50)
    assert made.notice is not None and made.notice.deadline == after(170)
    future = plan_reclaim(replace(situation, rules_since=after(10**6)))
    assert future.again_at == after(60), "a clock that is ahead delays nothing for ever"


def test_the_taints_are_those_of_the_installation() -> None:
    situation = ReclaimInput(START, ReclaimCause.WINDOW_CLOSED, FORCED, domain=TAPESTRY)
    assert plan_reclaim(situation).taints[0].key == "tapestry.io/out-of-time-windows"


def test_instants_may_be_in_any_zone() -> None:
    elsewhere = datetime.fromisoformat("2026-03-07T05:00:00+09:00")
    made = plan_reclaim(ReclaimInput(elsewhere, ReclaimCause.WINDOW_CLOSED, FORCED))
    assert made.taints[0].time_added == "2026-03-06T20:00:00Z"
