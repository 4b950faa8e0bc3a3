"""Taints, namespaces, and the order of filters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.policies import ClusterToleration
from kubeocean.fleet.scheduler import (
    MemberView,
    explain,
    schedule,
)
from kubeocean.fleet.scheduler.profile import FILTERS, POST_BATCH, SCORERS
from unit.fleet.scheduler.builders import (
    NOW,
    binding,
    cluster,
    created,
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

TAINT = ClusterTaint("key", "value")


def test_the_profile_has_the_plugins_of_kubefleet_in_their_order() -> None:
    assert [plugin.name for plugin in POST_BATCH] == ["TopologySpreadConstraints"]
    assert [plugin.name for plugin in FILTERS] == [
        "ClusterAffinity",
        "ClusterEligibility",
        "NamespaceAffinity",
        "TaintToleration",
        "SamePlacementAffinity",
        "TopologySpreadConstraints",
    ]
    assert [plugin.name for plugin in SCORERS] == [
        "ClusterAffinity",
        "SamePlacementAffinity",
        "TopologySpreadConstraints",
    ]


def test_a_cycle_reports_the_first_refusal_and_an_explanation_all_of_them() -> None:
    policy = pick_n(
        2, namespace="shop", required=(labelled(tier="gold"),), spread=(spread_over("zone"),)
    )
    bad = replace(
        cluster("bad", {"zone": "a"}, taints=[TAINT], agent=None),
        collects_namespaces=True,
        namespaces={},
    )
    fleet = [bad, cluster("a", {"zone": "a"}), cluster("b", {"zone": "b"})]
    bindings = [binding("a")]
    assert reasons(schedule(policy, fleet, bindings, NOW))["bad"] == (
        "ClusterUnschedulable, cluster matches none of the required affinity terms"
    )
    explanations = {item.cluster: item for item in explain(policy, fleet, bindings, NOW)}
    assert [item.plugin for item in explanations["bad"].rejections] == [
        "ClusterAffinity",
        "ClusterEligibility",
        "NamespaceAffinity",
        "TaintToleration",
        "TopologySpreadConstraints",
    ]


class TestTaints:
    @pytest.mark.parametrize(
        ("toleration", "tolerated"),
        [
            (ClusterToleration("key", "Equal", "value", "NoSchedule"), True),
            (ClusterToleration("key", "Equal", "value"), True),
            (ClusterToleration("key", "", "value"), True),
            (ClusterToleration("key", "Equal", "other"), False),
            (ClusterToleration("other", "Equal", "value"), False),
            (ClusterToleration("key", "Equal"), False),
            (ClusterToleration("", "Equal", "value"), False),
            (ClusterToleration("key", "Exists"), True),
            (ClusterToleration("key", "Exists", effect="NoSchedule"), True),
            (ClusterToleration("key", "Exists", effect="NoExecute"), False),
            (ClusterToleration("other", "Exists"), False),
            (ClusterToleration("", "Exists"), True),
            (ClusterToleration("key", "Like", "value"), False),
        ],
    )
    def test_a_toleration_matches_by_operator(
        self, toleration: ClusterToleration, tolerated: bool
    ) -> None:
        policy = pick_all(tolerations=(toleration,))
        result = schedule(policy, [cluster("c", taints=[TAINT])], [], NOW)
        assert (selected(result) == ["c"]) is tolerated

    def test_every_taint_must_be_tolerated(self) -> None:
        policy = pick_all(tolerations=(ClusterToleration("key", "Exists"),))
        taints = [TAINT, ClusterTaint("gpu"), ClusterTaint("tenant", "x")]
        result = schedule(policy, [cluster("c", taints=taints)], [], NOW)
        assert reasons(result) == {"c": 'ClusterUnschedulable, taint "gpu" is not tolerated'}

    def test_the_reason_names_the_taint(self) -> None:
        result = schedule(pick_all(), [cluster("c", taints=[TAINT])], [], NOW)
        assert reasons(result) == {
            "c": 'ClusterUnschedulable, taint "key=value:NoSchedule" is not tolerated'
        }

    def test_a_taint_does_not_withdraw_a_binding_of_the_current_policy(self) -> None:
        result = schedule(pick_all(), [cluster("c", taints=[TAINT])], [binding("c")], NOW)
        assert selected(result) == ["c"]
        assert not result.changes

    def test_a_policy_change_withdraws_bindings_of_tainted_clusters(self) -> None:
        fleet = [cluster("c", taints=[TAINT]), cluster("d")]
        bindings = [binding("c", policy_snapshot="old"), binding("d", policy_snapshot="old")]
        result = schedule(pick_all(), fleet, bindings, NOW)
        assert unscheduled(result) == ["c"]
        assert patched(result) == ["d"]

    def test_pick_fixed_ignores_taints(self) -> None:
        result = schedule(pick_fixed("c"), [cluster("c", taints=[TAINT])], [], NOW)
        assert created(result) == ["c"]


class TestNamespaces:
    collecting = replace(cluster("c"), collects_namespaces=True)

    @pytest.mark.parametrize(
        ("view", "reason"),
        [
            (cluster("c"), None),
            (replace(cluster("c"), namespaces={}), None),
            (collecting, "cluster has no namespace information available"),
            (replace(collecting, namespaces={}), "target namespace does not exist on cluster"),
            (
                replace(collecting, namespaces={"other": ""}),
                "target namespace does not exist on cluster",
            ),
            (replace(collecting, namespaces={"shop": "work"}), None),
            (replace(collecting, namespaces={"shop": ""}), None),
        ],
    )
    @pytest.mark.parametrize("policy", [pick_all(namespace="shop"), pick_n(1, namespace="shop")])
    def test_a_placement_of_a_namespace_needs_it_on_the_cluster(
        self, policy: object, view: MemberView, reason: str | None
    ) -> None:
        result = schedule(policy, [view], [], NOW)
        assert reasons(result) == ({"c": f"ClusterUnschedulable, {reason}"} if reason else {})

    def test_cluster_scoped_placements_need_no_namespace(self) -> None:
        assert created(schedule(pick_all(), [self.collecting], [], NOW)) == ["c"]

    def test_pick_fixed_needs_no_namespace(self) -> None:
        policy = pick_fixed("c", namespace="shop")
        assert created(schedule(policy, [self.collecting], [], NOW)) == ["c"]

    def test_the_cluster_is_picked_once_it_has_the_namespace(self) -> None:
        policy = pick_n(1, namespace="shop")
        assert not schedule(policy, [self.collecting], [], NOW).fulfilled
        ready = replace(self.collecting, namespaces={"shop": ""})
        assert schedule(policy, [ready], [], NOW).fulfilled
