"""Required and preferred affinity terms over labels and properties."""

from __future__ import annotations

import pytest

from kubeocean.api.fleet.policies import PropertyRequirement, PropertySorter
from kubeocean.fleet.scheduler import (
    ClusterOutcome,
    ClusterTerm,
    MemberView,
    PreferredTerm,
    explain,
    read_term_selector,
    schedule,
)
from unit.fleet.scheduler.builders import (
    NOW,
    cluster,
    created,
    having,
    labelled,
    pick_all,
    pick_n,
    reasons,
    selected,
)

NODES = "kubernetes-fleet.io/node-count"
NO_MATCH = "ClusterUnschedulable, cluster matches none of the required affinity terms"


def passes(term: ClusterTerm, view: MemberView) -> bool:
    return selected(schedule(pick_all(required=(term,)), [view], [], NOW)) == [view.name]


def affinity_scores(*preferred: PreferredTerm, fleet: list[MemberView]) -> dict[str, int]:
    result = schedule(pick_n(len(fleet), preferred=preferred), fleet, [], NOW)
    assert result.status is not None
    return {
        item.cluster_name: item.cluster_score.affinity_score
        for item in result.status.target_clusters
        if item.cluster_score
    }


class TestRequired:
    def test_without_terms_every_cluster_passes(self) -> None:
        assert selected(schedule(pick_all(required=()), [cluster("c")], [], NOW)) == ["c"]

    def test_an_empty_term_matches_every_cluster(self) -> None:
        assert passes(ClusterTerm(), cluster("c"))
        assert passes(ClusterTerm(labels=read_term_selector({})), cluster("c"))

    def test_one_matching_term_is_enough(self) -> None:
        policy = pick_all(required=(labelled(region="east"), labelled(tier="gold")))
        fleet = [
            cluster("a", {"region": "east"}),
            cluster("b", {"tier": "gold"}),
            cluster("c", {"region": "west"}),
        ]
        result = schedule(policy, fleet, [], NOW)
        assert created(result) == ["a", "b"]
        assert reasons(result) == {"c": NO_MATCH}

    @pytest.mark.parametrize(
        ("expression", "matching"),
        [
            ({"key": "env", "operator": "In", "values": ["prod"]}, {"a"}),
            ({"key": "env", "operator": "NotIn", "values": ["prod"]}, {"b", "c"}),
            ({"key": "env", "operator": "Exists"}, {"a", "b"}),
            ({"key": "env", "operator": "DoesNotExist"}, {"c"}),
        ],
    )
    def test_operators_of_label_selectors(
        self, expression: dict[str, object], matching: set[str]
    ) -> None:
        fleet = [cluster("a", {"env": "prod"}), cluster("b", {"env": "test"}), cluster("c")]
        term = ClusterTerm(labels=read_term_selector({"matchExpressions": [expression]}))
        assert {view.name for view in fleet if passes(term, view)} == matching

    @pytest.mark.parametrize(
        ("operator", "less", "equal", "greater"),
        [
            ("Gt", False, False, True),
            ("Ge", False, True, True),
            ("Eq", False, True, False),
            ("Ne", True, False, True),
            ("Lt", True, False, False),
            ("Le", True, True, False),
        ],
    )
    def test_operators_of_property_selectors(
        self, operator: str, less: bool, equal: bool, greater: bool
    ) -> None:
        term = having(NODES, operator, "5")
        assert [
            passes(term, cluster("c", properties={NODES: value})) for value in ("4", "5000m", "6")
        ] == [less, equal, greater]

    def test_labels_and_all_properties_of_a_term_must_match(self) -> None:
        term = ClusterTerm(
            read_term_selector({"matchLabels": {"tier": "gold"}}),
            (PropertyRequirement(NODES, "Ge", ("3",)), PropertyRequirement("cost", "Lt", ("1",))),
        )
        properties = {NODES: "3", "cost": "0.5"}
        assert passes(term, cluster("c", {"tier": "gold"}, properties=properties))
        assert not passes(term, cluster("c", properties=properties))
        assert not passes(term, cluster("c", {"tier": "gold"}, properties={NODES: "3"}))
        assert not passes(
            term, cluster("c", {"tier": "gold"}, properties={**properties, "cost": "1"})
        )

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("total-cpu", "16"),
            ("allocatable-cpu", "15"),
            ("available-cpu", "7"),
            ("available-memory", "8Gi"),
            ("allocatable-ephemeral-storage", "100G"),
            ("available-nvidia.com/gpu", "2"),
        ],
    )
    def test_resource_properties(self, name: str, value: str) -> None:
        view = MemberView(
            "c",
            agent=cluster("c").agent,
            capacity={"cpu": "16"},
            allocatable={"cpu": "15", "ephemeral-storage": "100G"},
            available={"cpu": "7", "memory": "8Gi", "nvidia.com/gpu": "2"},
        )
        name = f"resources.kubernetes-fleet.io/{name}"
        assert passes(having(name, "Eq", value), view)
        assert not passes(having(name, "Ne", value), view)

    @pytest.mark.parametrize("operator", ["Gt", "Ge", "Eq", "Ne", "Lt", "Le"])
    def test_a_missing_property_matches_no_operator(self, operator: str) -> None:
        assert not passes(having(NODES, operator, "5"), cluster("c"))
        name = "resources.kubernetes-fleet.io/total-cpu"
        assert not passes(having(name, operator, "5"), cluster("c"))

    @pytest.mark.parametrize("operator", ["Gt", "Ge", "Eq", "Ne", "Lt", "Le"])
    def test_a_property_that_is_no_quantity_rejects_its_cluster_only(self, operator: str) -> None:
        version = "k8s.io/k8s-version"
        fleet = [
            cluster("bad", properties={version: "v1.34.1"}),
            cluster("good", properties={version: "1"}),
        ]
        expected = "1" if operator in ("Ge", "Eq", "Le") else "0" if operator != "Lt" else "2"
        result = schedule(pick_all(required=(having(version, operator, expected),)), fleet, [], NOW)
        assert selected(result) == ["good"]
        assert reasons(result) == {
            "bad": f'{NO_MATCH}, term 1: property "{version}" is not a quantity'
        }

    def test_another_term_can_still_match_a_cluster_with_an_unreadable_property(self) -> None:
        policy = pick_all(required=(having("x", "Gt", "0"), labelled(tier="gold")))
        view = cluster("c", {"tier": "gold"}, properties={"x": "nonsense"})
        assert selected(schedule(policy, [view], [], NOW)) == ["c"]

    @pytest.mark.parametrize(
        ("term", "problem"),
        [
            (having(NODES, "In", "5"), 'unknown operator "In"'),
            (having(NODES, "Gt"), "operator Gt takes one value"),
            (having(NODES, "Gt", "1", "2"), "operator Gt takes one value"),
            (having(NODES, "Gt", "many"), 'value "many" is not a quantity'),
            (
                having("resources.kubernetes-fleet.io/free-cpu", "Gt", "1"),
                'resource property "resources.kubernetes-fleet.io/free-cpu" is not total-, '
                "allocatable- or available-RESOURCE",
            ),
            (
                having("resources.kubernetes-fleet.io/total-", "Gt", "1"),
                'resource property "resources.kubernetes-fleet.io/total-" is not total-, '
                "allocatable- or available-RESOURCE",
            ),
        ],
    )
    def test_an_invalid_term_matches_no_cluster_and_is_reported(
        self, term: ClusterTerm, problem: str
    ) -> None:
        view = cluster("c", properties={NODES: "5"})
        result = schedule(pick_all(required=(term,)), [view], [], NOW)
        assert reasons(result) == {"c": f"{NO_MATCH}, term 1: is invalid: {problem}"}

    def test_an_invalid_label_selector_matches_no_cluster(self) -> None:
        selector = read_term_selector({"matchExpressions": [{"key": "a", "operator": "In"}]})
        result = schedule(pick_all(required=(ClusterTerm(selector),)), [cluster("c")], [], NOW)
        (reason,) = reasons(result).values()
        assert reason.startswith(f"{NO_MATCH}, term 1: is invalid: label selector: ")

    def test_values_are_in_explanations_and_not_in_the_status(self) -> None:
        policy = pick_all(required=(having(NODES, "Gt", "5"), labelled(tier="gold")))
        view = cluster("c", properties={NODES: "3"})
        assert reasons(schedule(policy, [view], [], NOW)) == {"c": NO_MATCH}
        (explanation,) = explain(policy, [view], [], NOW)
        assert explanation.outcome is ClusterOutcome.REJECTED
        assert explanation.rejections[0].details == (
            f'term 1: property "{NODES}" is 3, not Gt 5',
            "term 2: label selector does not match",
        )


class TestPreferred:
    fleet = (
        cluster("a", {"tier": "gold"}, properties={"cost": "1"}),
        cluster("b", {"tier": "gold"}, properties={"cost": "2"}),
        cluster("c", properties={"cost": "5"}),
        cluster("d"),
    )

    def scores(self, *preferred: PreferredTerm) -> list[int]:
        return [
            score
            for _, score in sorted(affinity_scores(*preferred, fleet=list(self.fleet)).items())
        ]

    def test_a_matching_label_selector_earns_the_weight(self) -> None:
        gold = read_term_selector({"matchLabels": {"tier": "gold"}})
        assert self.scores(PreferredTerm(30, gold)) == [30, 30, 0, 0]

    def test_a_term_without_selector_matches_every_cluster(self) -> None:
        assert self.scores(PreferredTerm(7)) == [7, 7, 7, 7]

    def test_weights_add_up_and_may_be_negative(self) -> None:
        gold = read_term_selector({"matchLabels": {"tier": "gold"}})
        assert self.scores(PreferredTerm(10), PreferredTerm(-30, gold)) == [-20, -20, 10, 10]

    def test_descending_prefers_the_largest_value(self) -> None:
        term = PreferredTerm(20, sorter=PropertySorter("cost", "Descending"))
        assert self.scores(term) == [0, 5, 20, 0]

    def test_ascending_prefers_the_smallest_value(self) -> None:
        term = PreferredTerm(20, sorter=PropertySorter("cost", "Ascending"))
        assert self.scores(term) == [20, 15, 0, 0]

    def test_a_sorter_counts_only_where_the_label_selector_matches(self) -> None:
        gold = read_term_selector({"matchLabels": {"tier": "gold"}})
        term = PreferredTerm(20, gold, PropertySorter("cost", "Descending"))
        # The range still includes the cluster without the label.
        assert self.scores(term) == [0, 5, 0, 0]

    def test_equal_values_earn_nothing(self) -> None:
        fleet = [cluster(name, properties={"cost": "3"}) for name in "ab"]
        term = PreferredTerm(20, sorter=PropertySorter("cost", "Ascending"))
        assert affinity_scores(term, fleet=fleet) == {"a": 0, "b": 0}

    @pytest.mark.parametrize(
        ("weight", "order", "middle"),
        [(5, "Descending", 3), (-5, "Descending", -3), (5, "Ascending", 3), (-5, "Ascending", -3)],
    )
    def test_halves_are_rounded_away_from_zero(self, weight: int, order: str, middle: int) -> None:
        fleet = [
            cluster("a", properties={"x": "1"}),
            cluster("b", properties={"x": "2"}),
            cluster("c", properties={"x": "3"}),
        ]
        term = PreferredTerm(weight, sorter=PropertySorter("x", order))
        assert affinity_scores(term, fleet=fleet)["b"] == middle

    def test_the_range_includes_clusters_that_cannot_be_picked(self) -> None:
        fleet = [
            cluster("a", properties={"x": "0"}, agent=None),
            cluster("b", properties={"x": "5"}),
            cluster("c", properties={"x": "10"}, deleting=True),
        ]
        term = PreferredTerm(100, sorter=PropertySorter("x", "Descending"))
        assert affinity_scores(term, fleet=fleet) == {"b": 50}

    def test_an_unreadable_value_counts_as_not_reported(self) -> None:
        fleet = [
            cluster("a", properties={"x": "v1.30"}),
            cluster("b", properties={"x": "1"}),
            cluster("c", properties={"x": "3"}),
        ]
        term = PreferredTerm(10, sorter=PropertySorter("x", "Descending"))
        assert affinity_scores(term, fleet=fleet) == {"a": 0, "b": 0, "c": 10}

    @pytest.mark.parametrize(
        "term",
        [
            PreferredTerm(10, sorter=PropertySorter("cost", "Sideways")),
            PreferredTerm(
                10, sorter=PropertySorter("resources.kubernetes-fleet.io/cpu", "Ascending")
            ),
            PreferredTerm(10, read_term_selector({"matchLabels": {"not a key": "x"}})),
            PreferredTerm(0),
        ],
    )
    def test_an_invalid_term_and_a_weight_of_zero_earn_nothing(self, term: PreferredTerm) -> None:
        assert self.scores(term) == [0, 0, 0, 0]

    def test_the_score_is_explained_term_by_term(self) -> None:
        terms = (
            PreferredTerm(20, sorter=PropertySorter("cost", "Descending")),
            PreferredTerm(3, read_term_selector({"matchLabels": {"tier": "gold"}})),
        )
        notes = {
            item.cluster: item.notes
            for item in explain(pick_n(1, preferred=terms), self.fleet, [], NOW)
        }
        assert notes["b"] == (
            'preferred term 1: 5 of 20 (property "cost" is 2)',
            "preferred term 2: 3 of 3 (matches)",
        )
        assert notes["d"] == (
            'preferred term 1: 0 of 20 (property "cost" is not reported)',
            "preferred term 2: 0 of 3 (label selector does not match)",
        )
