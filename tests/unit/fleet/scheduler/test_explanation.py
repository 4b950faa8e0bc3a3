"""Explanations of the decision on each cluster."""

from __future__ import annotations

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.snapshots import ClusterScore
from kubeocean.fleet.scheduler import (
    ClusterExplanation,
    ClusterOutcome,
    PolicyView,
    PreferredTerm,
    explain,
    schedule,
)
from unit.fleet.scheduler.builders import (
    NOW,
    binding,
    cluster,
    clusters,
    labelled,
    pick_all,
    pick_fixed,
    pick_n,
    spread_over,
)


def outcomes(policy: PolicyView, fleet: list, bindings: list) -> dict[str, str]:
    result = schedule(policy, fleet, bindings, NOW)
    explained = explain(policy, fleet, bindings, NOW)
    assert [(item.cluster, item.outcome, item.text) for item in result.explanations] == [
        (item.cluster, item.outcome, item.text) for item in explained
    ]
    return {item.cluster: item.outcome.value for item in result.explanations}


def one(policy: PolicyView, fleet: list, bindings: list, name: str) -> ClusterExplanation:
    (item,) = (item for item in explain(policy, fleet, bindings, NOW) if item.cluster == name)
    return item


def test_pick_all_picks_keeps_and_rejects() -> None:
    fleet = [*clusters("new", "old"), cluster("off", agent=None), cluster("left", deleting=True)]
    assert outcomes(pick_all(), fleet, [binding("old"), binding("left")]) == {
        "left": "Rejected",
        "new": "Picked",
        "off": "Rejected",
        "old": "Kept",
    }


def test_pick_n_does_not_pick_all() -> None:
    fleet = [*clusters("a", "b", "c"), cluster("off", agent=None)]
    assert outcomes(pick_n(2), fleet, [binding("a")]) == {
        "a": "Kept",
        "b": "NotPicked",
        "c": "Picked",
        "off": "Rejected",
    }


def test_a_scaled_down_pick_n_removes_and_looks_no_further() -> None:
    fleet = clusters("a", "b", "c", "d")
    bindings = [binding("a"), binding("b"), binding("c", policy_snapshot="old")]
    assert outcomes(pick_n(1), fleet, bindings) == {
        "a": "Removed",
        "b": "Kept",
        "c": "Removed",
        "d": "NotConsidered",
    }
    assert one(pick_n(1), fleet, bindings, "a").text == "fewer clusters are wanted"
    assert one(pick_n(1), fleet, bindings, "d").text == (
        "the policy has as many clusters as it wants"
    )


def test_pick_fixed_explains_names_first() -> None:
    fleet = [*clusters("a", "b", "c", "d"), cluster("off", agent=None)]
    bindings = [binding("b"), binding("c", policy_snapshot="old")]
    assert list(outcomes(pick_fixed("none", "off", "b", "a"), fleet, bindings).items()) == [
        ("none", "NotFound"),
        ("off", "Rejected"),
        ("b", "Kept"),
        ("a", "Picked"),
        ("c", "Removed"),
        ("d", "NotConsidered"),
    ]


def test_an_undecided_policy_keeps_everything() -> None:
    fleet = clusters("a", "b")
    assert outcomes(pick_fixed(), fleet, [binding("a")]) == {"a": "Kept", "b": "NotConsidered"}
    assert one(pick_fixed(), fleet, [], "b").text == "the policy names no clusters"


def test_a_kept_cluster_shows_what_would_refuse_it_now() -> None:
    fleet = [cluster("a", taints=[ClusterTaint("drained")])]
    item = one(pick_all(), fleet, [binding("a", affinity=4)], "a")
    assert item.outcome is ClusterOutcome.KEPT
    assert [rejection.plugin for rejection in item.rejections] == ["TaintToleration"]
    assert item.score == ClusterScore(4, 0)


def test_a_cluster_that_was_not_considered_shows_the_score_that_it_would_get() -> None:
    policy = pick_n(1, preferred=(PreferredTerm(9),), spread=(spread_over("zone"),))
    fleet = [cluster("a", {"zone": "x"}), cluster("b", {"zone": "y"})]
    item = one(policy, fleet, [binding("a")], "b")
    assert item.outcome is ClusterOutcome.NOT_CONSIDERED
    assert item.score == ClusterScore(9, 1)
    assert item.notes == ("preferred term 1: 9 of 9 (matches)",)


def test_a_refusal_by_spread_within_the_cycle_is_explained() -> None:
    policy = pick_n(2, spread=(spread_over("zone"),))
    fleet = [
        cluster("a", {"zone": "x"}),
        cluster("b", {"zone": "x"}),
        cluster("off", {"zone": "y"}, agent=None),
    ]
    item = one(policy, fleet, [], "a")
    assert item.outcome is ClusterOutcome.REJECTED
    assert [rejection.plugin for rejection in item.rejections] == ["TopologySpreadConstraints"]
    assert item.rejections[0].details == ('domain "x" has too many bindings already',)


def test_an_obsolete_binding_is_part_of_the_score() -> None:
    fleet = clusters("a", "b")
    item = one(pick_n(1), fleet, [binding("a", policy_snapshot="old")], "a")
    assert item.outcome is ClusterOutcome.PICKED
    assert item.notes == ("the placement was on this cluster under an earlier policy",)


def test_every_cluster_is_explained_once() -> None:
    fleet = [cluster(f"c{number}", {"tier": str(number % 3)}) for number in range(30)]
    for policy in (
        pick_all(required=(labelled(tier="1"),)),
        pick_n(5, required=(labelled(tier="1"),)),
        pick_fixed("c1", "c2"),
    ):
        explained = [item.cluster for item in schedule(policy, fleet, [], NOW).explanations]
        assert sorted(explained) == sorted(view.name for view in fleet)
