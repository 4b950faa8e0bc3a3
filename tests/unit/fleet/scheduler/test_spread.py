"""Topology spread constraints."""

from __future__ import annotations

import pytest

from kubeocean.fleet.scheduler import (
    MemberView,
    PolicyView,
    PreferredTerm,
    read_term_selector,
    schedule,
)
from unit.fleet.scheduler.builders import (
    NOW,
    binding,
    cluster,
    created,
    patched,
    pick_n,
    reasons,
    selected,
    spread_over,
)

ZONE, RACK = "zone", "rack"
REJECTED = 'ClusterUnschedulable, violates topology spread constraint "zone" (max skew 1)'


def in_zones(**zones: str) -> list[MemberView]:
    return [cluster(name, {ZONE: zone}) for name, zone in zones.items()]


def spread_scores(policy: PolicyView, fleet: list[MemberView], *bound: str) -> dict[str, int]:
    """Return the spread scores of the clusters in the batch that picks the next one."""
    result = schedule(policy, fleet, [binding(name) for name in bound], NOW)
    assert result.status is not None
    return {
        item.cluster_name: item.cluster_score.priority_score
        for item in result.status.target_clusters
        if item.cluster_score and item.cluster_name not in bound
    }


# One more pick than bindings, so that the scores are those of a single batch.


def test_equal_domains_all_raise_the_skew() -> None:
    policy = pick_n(1, spread=(spread_over(ZONE),))
    fleet = in_zones(a="x", b="y")
    assert spread_scores(policy, fleet) == {"a": -1, "b": -1}


def test_the_single_smallest_domain_lowers_the_skew() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE, 2),))
    fleet = in_zones(a="x", b="x", c="y", d="y")
    assert spread_scores(policy, fleet, "a") == {"b": -1, "c": 1, "d": 1}


def test_one_of_several_smallest_domains_does_not_change_the_skew() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE, 2),))
    fleet = in_zones(a="x", b="y", c="z", d="x")
    assert spread_scores(policy, fleet, "a") == {"b": 0, "c": 0, "d": -1}


def test_a_domain_between_smallest_and_largest_does_not_change_the_skew() -> None:
    policy = pick_n(4, spread=(spread_over(ZONE, 9),))
    fleet = in_zones(a="x", b="x", c="y", d="z", e="y", f="x")
    assert spread_scores(policy, fleet, "a", "b", "c") == {"d": 1, "e": 0, "f": -1}


def test_do_not_schedule_rejects_what_would_exceed_max_skew() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE, 1),))
    result = schedule(policy, in_zones(a="x", b="x", c="y"), [binding("a")], NOW)
    assert created(result) == ["c"]
    assert reasons(result) == {"b": REJECTED}


def test_a_placement_that_lowers_the_skew_is_rejected_if_it_stays_too_large() -> None:
    policy = pick_n(5, spread=(spread_over(ZONE, 1),))
    fleet = in_zones(a="x", b="x", c="x", d="x", e="y")
    bindings = [binding(name) for name in "abcd"]
    result = schedule(policy, fleet, bindings, NOW)
    assert created(result) == []
    assert reasons(result) == {"e": REJECTED}
    assert not result.fulfilled


def test_schedule_anyway_scores_a_violation_with_minus_a_thousand() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE, 1, "ScheduleAnyway"),))
    fleet = in_zones(a="x", b="x", c="y")
    assert spread_scores(policy, fleet, "a") == {"b": -1000, "c": 1}


def test_schedule_anyway_places_in_spite_of_a_violation() -> None:
    policy = pick_n(3, spread=(spread_over(ZONE, 1, "ScheduleAnyway"),))
    fleet = [*in_zones(a="x", b="x", c="x"), cluster("off", {ZONE: "y"}, agent=None)]
    result = schedule(policy, fleet, [], NOW)
    assert created(result) == ["c", "b", "a"]
    assert result.fulfilled


def test_anything_but_schedule_anyway_means_do_not_schedule() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE, 1, "Whatever"),))
    result = schedule(policy, in_zones(a="x", b="x", c="y"), [binding("a")], NOW)
    assert reasons(result) == {"b": REJECTED}


def test_scores_of_several_constraints_add_up() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE, 5), spread_over(RACK, 1, "ScheduleAnyway")))
    fleet = [
        cluster("a", {ZONE: "x", RACK: "1"}),
        cluster("b", {ZONE: "x", RACK: "1"}),
        cluster("c", {ZONE: "x", RACK: "2"}),
        cluster("d", {ZONE: "y", RACK: "1"}),
        cluster("e", {ZONE: "y", RACK: "2"}),
    ]
    assert spread_scores(policy, fleet, "a") == {"b": -1001, "c": 0, "d": -999, "e": 2}


def test_the_first_violated_constraint_is_the_reason() -> None:
    policy = pick_n(2, spread=(spread_over(RACK, 1), spread_over(ZONE, 1)))
    fleet = [
        cluster("a", {ZONE: "x", RACK: "1"}),
        cluster("b", {ZONE: "x", RACK: "1"}),
        cluster("c", {ZONE: "y", RACK: "2"}),
    ]
    assert reasons(schedule(policy, fleet, [binding("a")], NOW)) == {
        "b": 'ClusterUnschedulable, violates topology spread constraint "rack" (max skew 1)'
    }


def test_a_cluster_without_the_label_violates_nothing_and_scores_zero() -> None:
    policy = pick_n(1, spread=(spread_over(ZONE),))
    fleet = [*in_zones(z="x"), cluster("a")]
    assert spread_scores(policy, fleet) == {"a": 0, "z": -1}
    assert selected(schedule(policy, fleet, [], NOW)) == ["a"]


def test_an_ineligible_cluster_makes_a_domain() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE),))
    fleet = [*in_zones(a="x", b="x"), cluster("off", {ZONE: "y"}, agent=None)]
    result = schedule(policy, fleet, [], NOW)
    assert created(result) == ["b"]
    assert not result.fulfilled
    assert reasons(result) == {
        "a": REJECTED,
        "off": "ClusterUnschedulable, member agent has not reported yet",
    }


def test_a_single_domain_never_fills_up() -> None:
    policy = pick_n(3, spread=(spread_over(ZONE, 1),))
    assert created(schedule(policy, in_zones(a="x", b="x", c="x"), [], NOW)) == ["c", "b", "a"]


def test_counts_are_refreshed_between_picks() -> None:
    policy = pick_n(4, spread=(spread_over(ZONE),))
    fleet = in_zones(a="x", b="x", c="y", d="y", e="z", f="z")
    assert created(schedule(policy, fleet, [], NOW)) == ["f", "d", "b", "e"]


def test_spread_comes_before_affinity() -> None:
    policy = pick_n(
        2,
        spread=(spread_over(ZONE, 5),),
        preferred=(PreferredTerm(100, read_term_selector({"matchLabels": {ZONE: "x"}})),),
    )
    assert created(schedule(policy, in_zones(a="x", b="x", c="y"), [], NOW)) == ["b", "c"]


def test_obsolete_bindings_do_not_count_in_domains_but_win_ties() -> None:
    policy = pick_n(2, spread=(spread_over(ZONE),))
    fleet = in_zones(a="x", b="x", c="y", d="y")
    bindings = [binding(name, policy_snapshot="old") for name in "ac"]
    result = schedule(policy, fleet, bindings, NOW)
    assert patched(result) == ["a", "c"]
    assert created(result) == []


@pytest.mark.parametrize("max_skew", [0, -1])
def test_a_max_skew_that_no_placement_can_meet_rejects_all(max_skew: int) -> None:
    policy = pick_n(1, spread=(spread_over(ZONE, max_skew),))
    assert created(schedule(policy, in_zones(a="x", b="y"), [], NOW)) == []
