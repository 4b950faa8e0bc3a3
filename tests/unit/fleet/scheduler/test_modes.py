"""PickAll, PickN and PickFixed: which bindings they make, keep and remove."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.snapshots import ClusterScore
from kubeocean.fleet.scheduler import (
    PolicyView,
    PreferredTerm,
    UnscheduleCause,
    read_term_selector,
    schedule,
)
from unit.fleet.scheduler.builders import (
    HEALTHY,
    NOW,
    Placement,
    binding,
    cluster,
    clusters,
    created,
    decided,
    labelled,
    patched,
    pick_all,
    pick_fixed,
    pick_n,
    reasons,
    selected,
    spread_over,
    unscheduled,
)

UNHEALTHY = replace(HEALTHY, heartbeat=NOW - timedelta(hours=1))


class TestPickAll:
    def test_every_passing_cluster_gets_a_binding(self) -> None:
        policy = pick_all(required=(labelled(tier="gold"),))
        fleet = [cluster("b", {"tier": "gold"}), cluster("a", {"tier": "gold"}), cluster("c")]
        result = schedule(policy, fleet, [], NOW)
        assert created(result) == ["a", "b"]
        assert result.fulfilled

    def test_a_policy_of_no_type_is_pick_all(self) -> None:
        assert created(schedule(pick_all(placement_type=""), clusters("a"), [], NOW)) == ["a"]

    def test_no_cluster_at_all_is_fulfilled(self) -> None:
        result = schedule(pick_all(), [], [], NOW)
        assert result.fulfilled
        assert not result.changes

    def test_a_new_binding_is_scheduled_under_the_policy_with_scores_of_zero(self) -> None:
        (new,) = schedule(pick_all(), clusters("a"), [], NOW).changes.to_create
        assert (new.target_cluster, new.state, new.policy_snapshot) == ("a", "Scheduled", "p-0")
        assert new.decision == decided(
            "a",
            True,
            'Successfully scheduled resources for placement in "a" '
            "(affinity score: 0, topology spread score: 0): picked by scheduling policy",
            ClusterScore(0, 0),
        )

    def test_current_bindings_stay_when_their_clusters_stop_matching(self) -> None:
        policy = pick_all(required=(labelled(tier="gold"),))
        result = schedule(policy, clusters("a"), [binding("a")], NOW)
        assert not result.changes
        assert selected(result) == ["a"]
        assert reasons(result) == {}

    def test_obsolete_bindings_are_patched_or_unscheduled(self) -> None:
        policy = pick_all(required=(labelled(tier="gold"),))
        fleet = [cluster("a", {"tier": "gold"}), cluster("b", {"tier": "gold"}), cluster("c")]
        bindings = [
            binding("a", "Bound", "old"),
            binding("b", "Scheduled", "old"),
            binding("c", "Bound", "old"),
        ]
        result = schedule(policy, fleet, bindings, NOW)
        assert [
            (patch.binding.target_cluster, patch.state, patch.policy_snapshot)
            for patch in result.changes.to_patch
        ] == [("a", "Bound", "p-0"), ("b", "Scheduled", "p-0")]
        assert unscheduled(result) == ["c"]
        assert created(result) == []

    def test_spread_constraints_do_not_concern_it(self) -> None:
        fleet = [cluster(name, {"zone": "x"}) for name in "ab"] + [cluster("c", {"zone": "y"})]
        policy = pick_all(spread=(spread_over("zone", 1),))
        result = schedule(policy, fleet, [binding("a")], NOW)
        assert created(result) == ["b", "c"]


class TestClasses:
    @pytest.mark.parametrize("policy", [pick_all(), pick_n(1), pick_n(0), pick_fixed("a")])
    def test_bindings_of_clusters_that_left_or_leave_are_unscheduled(
        self, policy: PolicyView
    ) -> None:
        fleet = [cluster("a"), cluster("leaving", deleting=True)]
        bindings = [binding("gone", "Scheduled"), binding("leaving", "Bound", "old")]
        changes = schedule(policy, fleet, bindings, NOW).changes
        assert [
            (item.binding.target_cluster, item.previous_state, item.cause)
            for item in changes.to_unschedule
        ] == [
            ("gone", "Scheduled", UnscheduleCause.DANGLING),
            ("leaving", "Bound", UnscheduleCause.DANGLING),
        ]

    @pytest.mark.parametrize(
        ("policy", "made"),
        [(pick_all(), ["a"]), (pick_n(1), ["a"]), (pick_fixed("a"), ["a"]), (pick_fixed(), [])],
    )
    def test_bindings_under_deletion_are_released_and_their_clusters_are_free(
        self, policy: PolicyView, made: list[str]
    ) -> None:
        deleting = binding("a", deleting=True)
        result = schedule(policy, clusters("a"), [deleting], NOW)
        assert result.changes.to_release == (deleting,)
        assert created(result) == made

    @pytest.mark.parametrize("policy", [pick_all(), pick_n(1), pick_fixed("a")])
    @pytest.mark.parametrize(
        ("previous", "state"),
        [("Bound", "Bound"), ("Scheduled", "Scheduled"), (None, "Scheduled"), ("?", "Scheduled")],
    )
    @pytest.mark.parametrize("snapshot", ["p-0", "old"])
    def test_an_unscheduled_binding_is_revived_in_its_previous_state(
        self, policy: PolicyView, previous: str | None, state: str, snapshot: str
    ) -> None:
        old = binding("a", "Unscheduled", snapshot, previous_state=previous)
        changes = schedule(policy, clusters("a"), [old], NOW).changes
        (patch,) = changes.to_patch
        assert (patch.binding, patch.state, patch.policy_snapshot) == (old, state, "p-0")
        assert patch.decision.selected
        assert not changes.to_create

    def test_an_unscheduled_binding_is_left_alone_otherwise(self) -> None:
        old = [binding(name, "Unscheduled", previous_state="Bound") for name in ("a", "gone")]
        fleet = [cluster("a", agent=None)]
        assert not schedule(pick_all(), fleet, old, NOW).changes
        assert not schedule(pick_n(0), clusters("a"), old, NOW).changes

    def test_a_cluster_gets_one_binding_back_if_it_has_several(self) -> None:
        bindings = [
            binding("a", "Unscheduled", previous_state="Bound", name="b1"),
            binding("a", "Scheduled", "old", name="b2"),
            binding("a", "Bound", "old", name="b3"),
            binding("a", "Bound", "old", name="b4"),
        ]
        changes = schedule(pick_all(), clusters("a"), bindings, NOW).changes
        assert [patch.binding.name for patch in changes.to_patch] == ["b3"]
        assert [item.binding.name for item in changes.to_unschedule] == ["b2", "b4"]

    def test_an_unknown_state_holds_its_cluster(self) -> None:
        result = schedule(pick_all(), clusters("a"), [binding("a", "Odd")], NOW)
        assert not result.changes
        assert selected(result) == ["a"]


class TestPickN:
    def test_the_larger_name_is_picked_first(self) -> None:
        fleet = clusters("c-1", "c-2", "c-3")
        assert created(schedule(pick_n(1), fleet, [], NOW)) == ["c-3"]
        assert created(schedule(pick_n(2), fleet, [], NOW)) == ["c-3", "c-2"]

    def test_a_higher_score_comes_before_a_larger_name(self) -> None:
        gold = read_term_selector({"matchLabels": {"tier": "gold"}})
        policy = pick_n(2, preferred=(PreferredTerm(1, gold),))
        fleet = [cluster("a", {"tier": "gold"}), cluster("b"), cluster("c")]
        result = schedule(policy, fleet, [], NOW)
        assert created(result) == ["a", "c"]
        assert reasons(result) == {
            "b": 'Cluster "b" does not score high enough '
            "(affinity score: 0, topology spread score: 0)"
        }

    def test_an_obsolete_binding_wins_a_tie_but_not_against_affinity(self) -> None:
        bindings = [binding("a", policy_snapshot="old")]
        assert patched(schedule(pick_n(1), clusters("a", "b"), bindings, NOW)) == ["a"]
        term = PreferredTerm(1, read_term_selector({"matchLabels": {"tier": "gold"}}))
        fleet = [cluster("a"), cluster("b", {"tier": "gold"})]
        result = schedule(pick_n(1, preferred=(term,)), fleet, bindings, NOW)
        assert created(result) == ["b"]
        assert unscheduled(result) == ["a"]

    def test_too_few_clusters_leave_it_unfulfilled(self) -> None:
        result = schedule(pick_n(3), [*clusters("a", "b"), cluster("c", agent=None)], [], NOW)
        assert created(result) == ["b", "a"]
        assert not result.fulfilled
        assert list(reasons(result)) == ["c"]

    def test_enough_bindings_are_kept_even_if_a_better_cluster_appears(self) -> None:
        term = PreferredTerm(100, read_term_selector({"matchLabels": {"tier": "gold"}}))
        fleet = [cluster("a"), cluster("b", {"tier": "gold"})]
        result = schedule(pick_n(1, preferred=(term,)), fleet, [binding("a")], NOW)
        assert not result.changes
        assert selected(result) == ["a"]
        assert reasons(result) == {}
        assert result.fulfilled

    def test_scaling_up_keeps_what_is_there(self) -> None:
        result = schedule(pick_n(2), clusters("a", "b", "c"), [binding("a")], NOW)
        assert created(result) == ["c"]
        assert unscheduled(result) == []
        assert selected(result) == ["c", "a"]

    @pytest.mark.parametrize(
        ("wanted", "removed"),
        [
            (4, []),
            (3, ["s2"]),
            (2, ["s2", "s1"]),
            (1, ["s2", "s1", "b2"]),
            (0, ["s2", "s1", "b2", "b1"]),
        ],
    )
    def test_scaling_down_removes_scheduled_ones_then_low_scores(
        self, wanted: int, removed: list[str]
    ) -> None:
        bindings = [
            binding("b1", "Bound", affinity=5),
            binding("b2", "Bound", affinity=1),
            binding("s1", "Scheduled", affinity=50),
            binding("s2", "Scheduled", affinity=9),
        ]
        result = schedule(pick_n(wanted), clusters("b1", "b2", "s1", "s2"), bindings, NOW)
        assert unscheduled(result) == removed
        assert {item.cause for item in result.changes.to_unschedule} <= {UnscheduleCause.SURPLUS}
        assert set(selected(result)) == {"b1", "b2", "s1", "s2"} - set(removed)
        assert result.fulfilled

    def test_scaling_down_removes_smaller_names_first(self) -> None:
        bindings = [binding(name) for name in ("c-2", "c-3", "c-1")]
        result = schedule(pick_n(1), clusters("c-1", "c-2", "c-3"), bindings, NOW)
        assert unscheduled(result) == ["c-1", "c-2"]

    def test_scaling_down_compares_spread_before_affinity_and_no_score_first(self) -> None:
        bindings = [
            binding("a", affinity=100, spread=-1),
            binding("b", affinity=-100, spread=1),
            binding("c", scored=False),
        ]
        result = schedule(pick_n(0), clusters("a", "b", "c"), bindings, NOW)
        assert unscheduled(result) == ["c", "a", "b"]

    def test_scaling_down_runs_no_filters(self) -> None:
        fleet = [cluster("a", agent=None), cluster("b")]
        bindings = [binding("a", affinity=5), binding("b", affinity=1)]
        result = schedule(pick_n(1), fleet, bindings, NOW)
        assert unscheduled(result) == ["b"]
        assert reasons(result) == {}

    def test_obsolete_bindings_go_when_there_are_enough_current_ones(self) -> None:
        bindings = [binding("a"), binding("b", policy_snapshot="old")]
        result = schedule(pick_n(1), clusters("a", "b"), bindings, NOW)
        assert unscheduled(result) == ["b"]
        assert selected(result) == ["a"]

    def test_zero_removes_everything_and_is_fulfilled(self) -> None:
        bindings = [binding("a"), binding("b", policy_snapshot="old")]
        result = schedule(pick_n(0), clusters("a", "b"), bindings, NOW)
        assert sorted(unscheduled(result)) == ["a", "b"]
        assert result.fulfilled
        assert result.status is not None
        assert result.status.target_clusters == ()

    @pytest.mark.parametrize("wanted", [None, -1])
    def test_without_a_valid_number_nothing_is_decided(self, wanted: int | None) -> None:
        result = schedule(pick_n(wanted), clusters("a"), [binding("a", policy_snapshot="x")], NOW)
        assert not result.changes
        assert result.status is None
        assert result.problem == "the policy snapshot has no valid number of clusters"
        assert not result.fulfilled


class TestPickFixed:
    def test_named_clusters_are_picked_in_the_order_of_the_names(self) -> None:
        result = schedule(pick_fixed("b", "c", "a"), clusters("a", "b", "c", "d"), [], NOW)
        assert created(result) == ["b", "c", "a"]
        assert selected(result) == ["b", "c", "a"]
        assert result.fulfilled

    def test_a_decision_has_no_score(self) -> None:
        (new,) = schedule(pick_fixed("a"), clusters("a"), [], NOW).changes.to_create
        assert new.decision == decided(
            "a",
            True,
            'Successfully scheduled resources for placement in "a": picked by scheduling policy',
        )

    def test_affinity_does_not_count(self) -> None:
        policy = pick_fixed("a", required=(labelled(tier="gold"),))
        assert created(schedule(policy, clusters("a"), [], NOW)) == ["a"]

    def test_unknown_and_ineligible_clusters_are_reported(self) -> None:
        fleet = [cluster("bad", agent=UNHEALTHY), cluster("left", deleting=True), cluster("a")]
        result = schedule(pick_fixed("none", "left", "bad", "a"), fleet, [], NOW)
        assert not result.fulfilled
        assert selected(result) == ["a"]
        assert list(reasons(result).items()) == [
            (
                "left",
                'Cluster "left" is not eligible for resource placement yet: '
                "cluster is leaving the fleet",
            ),
            (
                "bad",
                'Cluster "bad" is not eligible for resource placement yet: '
                "last heartbeat of the member agent is older than 5 minutes",
            ),
            ("none", 'Specified cluster "none" is not found'),
        ]

    def test_an_ineligible_cluster_keeps_its_current_binding_and_loses_an_obsolete_one(
        self,
    ) -> None:
        fleet = [cluster("a", agent=UNHEALTHY), cluster("b", agent=UNHEALTHY)]
        bindings = [binding("a"), binding("b", policy_snapshot="old")]
        result = schedule(pick_fixed("a", "b"), fleet, bindings, NOW)
        assert unscheduled(result) == ["b"]
        assert selected(result) == []

    def test_bindings_of_unlisted_clusters_are_unscheduled(self) -> None:
        bindings = [binding("a", policy_snapshot="old"), binding("b", policy_snapshot="old")]
        result = schedule(pick_fixed("b", "c"), clusters("a", "b", "c"), bindings, NOW)
        assert unscheduled(result) == ["a"]
        assert patched(result) == ["b"]
        assert created(result) == ["c"]

    def test_an_unlisted_cluster_loses_a_binding_of_the_current_policy_too(self) -> None:
        result = schedule(pick_fixed("a"), clusters("a", "b"), [binding("b")], NOW)
        assert unscheduled(result) == ["b"]

    def test_a_name_that_is_listed_twice_counts_once(self) -> None:
        result = schedule(pick_fixed("a", "a"), clusters("a"), [], NOW)
        assert created(result) == ["a"]
        assert result.fulfilled

    def test_an_empty_list_decides_nothing(self) -> None:
        result = schedule(pick_fixed(), clusters("a"), [binding("a", policy_snapshot="x")], NOW)
        assert not result.changes
        assert result.status is None
        assert result.problem == "the policy names no clusters"

    def test_more_than_twenty_missing_clusters_are_all_reported(self) -> None:
        names = [f"c{number:02}" for number in range(100)]
        result = schedule(pick_fixed(*names), [], [], NOW)
        assert list(reasons(result)) == names


def test_an_unknown_placement_type_decides_nothing() -> None:
    result = schedule(pick_all(placement_type="PickSome"), clusters("a"), [binding("b")], NOW)
    assert result.status is None
    assert result.problem == 'unknown placement type "PickSome"'
    assert unscheduled(result) == ["b"]  # its cluster is gone


def test_an_evicted_placement_comes_back_unless_the_cluster_is_tainted() -> None:
    placement = Placement({})
    placement.cycle(pick_all(), clusters("a"))
    placement.bindings.clear()
    tainted = [cluster("a", taints=[ClusterTaint("cordon-key", "cordon-value")])]
    assert created(placement.cycle(pick_all(), tainted)) == []
    assert created(placement.cycle(pick_all(), clusters("a"))) == ["a"]
