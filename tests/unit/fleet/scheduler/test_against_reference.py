"""The scheduler against a slow model of it, and invariants of generated fleets."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeocean.fleet.scheduler import (
    BindingView,
    ClusterOutcome,
    MemberView,
    PolicyView,
    UnscheduleCause,
    explain,
    schedule,
)
from unit.fleet.scheduler.builders import (
    NOW,
    Placement,
    created,
    patched,
    selected,
    unscheduled,
)
from unit.fleet.scheduler.reference import Reference
from unit.fleet.scheduler.worlds import (
    fleets,
    pick_all_policies,
    pick_fixed_policies,
    pick_n_policies,
    placements,
    policies,
)

unhurried = settings(deadline=None)
some = st.integers(1, 9)


@unhurried
@given(policies, fleets(), placements())
def test_it_decides_as_the_reference_does(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    result = schedule(policy, fleet, bindings, NOW)
    expected = Reference(policy, fleet, bindings).expect()
    assert created(result) == expected.create
    assert sorted(patched(result)) == sorted(expected.patch)
    assert sorted(unscheduled(result)) == sorted(expected.unschedule)
    assert (result.fulfilled if result.status else None) == expected.fulfilled
    assert [item.name for item in result.changes.to_release] == sorted(
        item.name for item in bindings if item.deleting
    )
    if result.status is not None:
        assert set(selected(result)) == expected.selected
        assert {
            item.cluster_name: (
                item.cluster_score.affinity_score,
                item.cluster_score.priority_score,
            )
            for item in result.status.target_clusters
            if item.selected and item.cluster_score and item.cluster_name in expected.scores
        } == expected.scores


@unhurried
@given(
    fleets(),
    st.lists(st.tuples(policies, st.booleans(), st.one_of(st.none(), fleets())), max_size=5),
)
def test_a_history_of_policies_and_fleets_follows_the_reference(
    fleet: list[MemberView], history: list[tuple[PolicyView, bool, list[MemberView] | None]]
) -> None:
    placement = Placement({})
    for number, (policy, rolls_out, new_fleet) in enumerate(history):
        fleet = fleet if new_fleet is None else new_fleet
        bindings = list(placement.bindings.values())
        expected = Reference(policy, fleet, bindings).expect()
        result = placement.cycle(policy, fleet)
        assert created(result) == expected.create, number
        assert sorted(patched(result)) == sorted(expected.patch), number
        assert sorted(unscheduled(result)) == sorted(expected.unschedule), number
        live = [item.target_cluster for item in placement.bindings.values()]
        assert len(live) == len(set(live)), "a cluster has two bindings"
        if rolls_out:
            placement.roll_out()


@unhurried
@given(policies, fleets(), placements())
def test_a_second_cycle_changes_nothing(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    placement = Placement({item.name: item for item in bindings})
    first = placement.cycle(policy, fleet)
    second = placement.cycle(policy, fleet)
    assert not second.changes
    assert second.fulfilled == first.fulfilled
    assert second == placement.cycle(policy, fleet)
    if first.status is not None:
        assert sorted(selected(first)) == sorted(selected(second))
        assert second.status is not None
        assert first.status.condition == second.status.condition


@unhurried
@given(policies, fleets(), placements(), st.randoms(use_true_random=False))
def test_the_order_of_the_inputs_does_not_matter(
    policy: PolicyView,
    fleet: list[MemberView],
    bindings: list[BindingView],
    shuffler: random.Random,
) -> None:
    expected = schedule(policy, fleet, bindings, NOW)
    explained = explain(policy, fleet, bindings, NOW)
    shuffler.shuffle(fleet)
    shuffler.shuffle(bindings)
    assert schedule(policy, fleet, bindings, NOW) == expected
    assert explain(policy, fleet, bindings, NOW) == explained


@unhurried
@given(pick_all_policies, fleets(), placements())
def test_pick_all_ends_with_every_passing_cluster_and_all_that_it_had(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    reference = Reference(policy, fleet, bindings)
    placement = Placement({item.name: item for item in bindings})
    placement.cycle(policy, fleet)
    holding = {
        item.target_cluster for item in placement.bindings.values() if item.state != "Unscheduled"
    }
    passing = {view.name for view in fleet if reference.passes(view.name)}
    assert holding == passing | set(reference.current)


@unhurried
@given(policies, fleets(), placements())
def test_current_bindings_stay_unless_fewer_are_wanted_or_the_cluster_left(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    reference = Reference(policy, fleet, bindings)
    changes = schedule(policy, fleet, bindings, NOW).changes
    for item in changes.to_unschedule:
        if item.cause is UnscheduleCause.SURPLUS:
            assert policy.placement_type == "PickN"
            assert len(reference.current) > (policy.number_of_clusters or 0)
        elif item.cause is UnscheduleCause.DANGLING:
            assert reference.has_left(item.binding)
        elif policy.placement_type != "PickFixed":
            assert item.binding.policy_snapshot != policy.name


@unhurried
@given(pick_n_policies(some), fleets(), placements())
def test_every_pick_is_feasible_and_no_better_cluster_was_left(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    reference = Reference(policy, fleet, bindings)
    result = schedule(policy, fleet, bindings, NOW)
    picked = [item for item in result.explanations if item.outcome is ClusterOutcome.PICKED]
    names = {item.cluster for item in picked}
    order: list[str] = []
    while names:  # reconstruct the order: each pick is the best of those that were picked
        holders = {*reference.current, *order}
        fitting = [name for name in names if reference.fits(name, holders)]
        assert fitting, "a pick violates a DoNotSchedule constraint"
        key = {
            name: (
                reference.spread_score(name, holders),
                reference.affinity(name),
                name in reference.obsolete,
                name,
            )
            for name in reference.fleet
            if name not in holders and reference.passes(name) and reference.fits(name, holders)
        }
        best = max(fitting, key=key.__getitem__)
        assert key[best] == max(key.values()), "a better cluster was left"
        order.append(best)
        names.remove(best)
    for name in order:
        assert reference.passes(name)


@unhurried
@given(pick_n_policies(st.just(100)), fleets(), placements())
def test_an_unfulfilled_pick_n_left_no_cluster_that_fits(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    result = schedule(policy, fleet, bindings, NOW)
    assert not result.fulfilled
    assert not [item for item in result.explanations if item.outcome is ClusterOutcome.NOT_PICKED]
    reference = Reference(policy, fleet, bindings)
    holders = set(selected(result))
    for item in result.explanations:
        if item.outcome is ClusterOutcome.REJECTED:
            assert not (reference.passes(item.cluster) and reference.fits(item.cluster, holders))


@unhurried
@given(pick_fixed_policies(least=1), fleets(), placements())
def test_pick_fixed_follows_the_order_of_its_names(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    result = schedule(policy, fleet, bindings, NOW)
    chosen = selected(result)
    assert chosen == [name for name in policy.cluster_names if name in chosen]
    new = created(result)
    assert new == [name for name in policy.cluster_names if name in new]


@unhurried
@given(pick_n_policies(some), fleets(), placements(), st.integers(0, 3))
def test_a_larger_n_only_adds_clusters(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView], more: int
) -> None:
    placement = Placement({item.name: item for item in bindings})
    before = set(selected(placement.cycle(policy, fleet)))
    larger = replace(policy, number_of_clusters=(policy.number_of_clusters or 0) + more)
    after = set(selected(placement.cycle(larger, fleet)))
    assert before <= after


@unhurried
@given(policies, fleets(), placements())
def test_every_cluster_has_one_explanation_that_agrees_with_the_decision(
    policy: PolicyView, fleet: list[MemberView], bindings: list[BindingView]
) -> None:
    result = schedule(policy, fleet, bindings, NOW)
    explanations = {item.cluster: item for item in result.explanations}
    assert len(explanations) == len(result.explanations)
    assert {view.name for view in fleet} <= set(explanations)
    picked = {name for name, item in explanations.items() if item.outcome is ClusterOutcome.PICKED}
    assert picked == {*created(result), *patched(result)}
    for decision in result.status.target_clusters if result.status else ():
        item = explanations[decision.cluster_name]
        assert decision.reason == item.text
        assert decision.selected == (item.outcome in (ClusterOutcome.PICKED, ClusterOutcome.KEPT))
