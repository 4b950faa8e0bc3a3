"""The status of the policy snapshot: decisions, their order and limits, and the condition."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeocean.api.fleet.snapshots import ClusterDecision, ClusterScore
from kubeocean.fleet.scheduler import (
    PolicyView,
    schedule,
)
from kubeocean.runtime.objects import Condition
from unit.fleet.scheduler.builders import (
    NOW,
    binding,
    cluster,
    clusters,
    decided,
    pick_all,
    pick_fixed,
    pick_n,
    reasons,
    selected,
)


def names(count: int, prefix: str = "c") -> list[str]:
    return [f"{prefix}{number:04}" for number in range(count)]


@pytest.mark.parametrize(
    ("policy", "status", "reason", "message"),
    [
        (pick_all(), "True", "SchedulingPolicyFulfilled", "the policy selected 2 clusters"),
        (pick_n(0), "True", "SchedulingPolicyFulfilled", "the policy selected 0 clusters"),
        (pick_n(1), "True", "SchedulingPolicyFulfilled", "the policy selected 1 cluster"),
        (
            pick_n(3),
            "False",
            "SchedulingPolicyUnfulfilled",
            "the policy wants more clusters than match; it selected 2 clusters",
        ),
        (pick_fixed("a"), "True", "SchedulingPolicyFulfilled", "the policy selected 1 cluster"),
        (
            pick_fixed("a", "x"),
            "False",
            "SchedulingPolicyUnfulfilled",
            "the policy wants more clusters than match; it selected 1 cluster",
        ),
    ],
)
def test_the_condition_tells_whether_the_policy_is_fulfilled(
    policy: PolicyView, status: str, reason: str, message: str
) -> None:
    policy = replace(policy, generation=3, placement_generation=8)
    result = schedule(policy, clusters("a", "b"), [], NOW)
    assert result.status is not None
    assert result.status.condition == Condition(
        type="Scheduled", status=status, reason=reason, message=message, observed_generation=3
    )
    assert result.status.observed_generation == 8


def test_new_bindings_come_before_patched_scheduled_and_bound_ones() -> None:
    bindings = [
        binding("a", "Bound"),
        binding("b", "Scheduled"),
        binding("c", "Unscheduled", previous_state="Bound"),
        binding("d", "Bound", "old"),
    ]
    result = schedule(pick_all(), clusters("a", "b", "c", "d", "e", "f"), bindings, NOW)
    assert selected(result) == ["e", "f", "d", "c", "b", "a"]


def test_a_kept_binding_keeps_its_decision() -> None:
    kept = binding("a", affinity=7, spread=-1)
    result = schedule(pick_all(), clusters("a"), [kept], NOW)
    assert result.status is not None
    assert result.status.target_clusters == (
        decided("a", True, "picked earlier", ClusterScore(7, -1)),
    )


@pytest.mark.parametrize("decision", [None, decided("b", True, "x"), decided("a", False, "x")])
def test_a_binding_without_a_usable_decision_gets_one(decision: ClusterDecision | None) -> None:
    odd = replace(binding("a"), decision=decision)
    result = schedule(pick_all(), clusters("a"), [odd], NOW)
    assert result.status is not None
    assert result.status.target_clusters == (
        decided(
            "a",
            True,
            'Successfully scheduled resources for placement in "a": picked by scheduling policy',
        ),
    )


def test_clusters_that_scored_lower_come_before_rejected_ones_best_first() -> None:
    fleet = [*clusters("m", "n", "o"), *(cluster(name, agent=None) for name in ("z", "y", "a"))]
    result = schedule(pick_n(1), fleet, [], NOW)
    assert list(reasons(result)) == ["n", "m", "a", "y", "z"]


def test_twenty_clusters_at_most_are_reported_as_not_selected() -> None:
    scored = names(15)
    fleet = [*clusters(*scored, "z"), *(cluster(name, agent=None) for name in names(15, "off"))]
    result = schedule(pick_n(1), fleet, [], NOW)
    assert selected(result) == ["z"]
    assert list(reasons(result)) == [*reversed(scored), *names(5, "off")]


def test_rejected_clusters_with_a_current_binding_are_selected_and_take_no_room() -> None:
    fleet = [cluster(name, agent=None) for name in names(40)]
    bindings = [binding(name) for name in names(20)]
    result = schedule(pick_all(), fleet, bindings, NOW)
    assert sorted(selected(result)) == names(20)
    assert list(reasons(result)) == names(40)[20:]


def test_a_thousand_decisions_at_most_are_reported() -> None:
    fleet = [*clusters(*names(990)), *(cluster(name, agent=None) for name in names(20, "off"))]
    result = schedule(pick_all(), fleet, [], NOW)
    assert result.status is not None
    assert len(result.status.target_clusters) == 1000
    assert len(selected(result)) == 990
    more = schedule(pick_all(), clusters(*names(1100)), [], NOW)
    assert selected(more) == names(1000)
    assert len(more.changes.to_create) == 1100
    assert more.status is not None
    assert more.status.condition.message == "the policy selected 1100 clusters"


def test_a_cluster_with_two_bindings_has_one_decision() -> None:
    bindings = [binding("a", name="b1"), binding("a", name="b2")]
    assert selected(schedule(pick_all(), clusters("a"), bindings, NOW)) == ["a"]
