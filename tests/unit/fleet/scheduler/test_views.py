"""Views of stored objects: each field that the scheduler reads, from documents of the API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.clusters import ClusterTaint, MemberCluster
from kubeocean.api.fleet.policies import (
    ClusterToleration,
    PropertyRequirement,
    PropertySorter,
    TopologySpreadConstraint,
)
from kubeocean.api.fleet.snapshots import ClusterDecision, ClusterScore, PolicySnapshot
from kubeocean.fleet.scheduler import (
    AgentView,
    BindingView,
    ClusterTerm,
    MemberView,
    PolicyView,
    PreferredTerm,
    read_term_selector,
    view_binding,
    view_member,
    view_policy,
)
from kubeocean.fleet.scheduler.model import InvalidSelector
from kubeocean.runtime.objects import Json

HEARTBEAT = "2026-11-17T12:00:00Z"
SINCE = "2026-11-17T11:00:00Z"
OBSERVED = {"observationTime": HEARTBEAT}


def member(document: Json) -> MemberView:
    return view_member(msgspec.convert(document, MemberCluster))


def policy(document: Json) -> PolicyView:
    return view_policy(msgspec.convert(document, PolicySnapshot))


def binding(document: Json) -> BindingView:
    return view_binding(msgspec.convert(document, Binding))


# Member clusters


def agent(*conditions: Json, **fields: Any) -> Json:
    return {"type": "MemberAgent", "conditions": list(conditions), **fields}


def test_a_member_with_everything() -> None:
    assert member(
        {
            "metadata": {
                "name": "m-1",
                "labels": {"zone": "a"},
                "deletionTimestamp": "2026-11-17T12:00:00Z",
            },
            "spec": {"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
            "status": {
                "conditions": [{"type": "NamespaceCollectionSucceeded", "status": "False"}],
                "properties": {"cost": {"value": "0.5", **OBSERVED}},
                "resourceUsage": {
                    "capacity": {"cpu": 8},
                    "allocatable": {"cpu": "7500m"},
                    "available": {"cpu": "1", "memory": "2Gi"},
                    **OBSERVED,
                },
                "namespaces": {"web": "work-1", "own": ""},
                "agentStatus": [
                    {"type": "ServiceExportImportAgent", "lastReceivedHeartbeat": SINCE},
                    agent(
                        {"type": "Joined", "status": "True", "lastTransitionTime": HEARTBEAT},
                        {"type": "Healthy", "status": "False", "lastTransitionTime": SINCE},
                        lastReceivedHeartbeat=HEARTBEAT,
                    ),
                ],
            },
        }
    ) == MemberView(
        "m-1",
        labels={"zone": "a"},
        taints=(ClusterTaint("k", "v", "NoSchedule"),),
        deleting=True,
        agent=AgentView(
            heartbeat=datetime(2026, 11, 17, 12, tzinfo=UTC),
            joined="True",
            healthy="False",
            healthy_since=datetime(2026, 11, 17, 11, tzinfo=UTC),
        ),
        properties={"cost": "0.5"},
        capacity={"cpu": "8"},
        allocatable={"cpu": "7500m"},
        available={"cpu": "1", "memory": "2Gi"},
        namespaces={"web": "work-1", "own": ""},
        collects_namespaces=True,
    )


def test_a_member_that_has_just_been_created() -> None:
    assert member({"metadata": {"name": "m-1"}}) == MemberView("m-1")


def test_no_namespaces_differ_from_namespaces_that_are_not_reported() -> None:
    assert member({"status": {"namespaces": {}}}).namespaces == {}
    assert member({"status": {}}).namespaces is None


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (agent(), AgentView()),
        (agent(lastReceivedHeartbeat="yesterday"), AgentView()),
        (agent({"type": "Healthy", "status": "Unknown"}), AgentView(healthy="Unknown")),
        ({"type": "MultiClusterServiceAgent", "lastReceivedHeartbeat": HEARTBEAT}, None),
    ],
)
def test_reports_of_agents(report: Json, expected: AgentView | None) -> None:
    assert member({"status": {"agentStatus": [report]}}).agent == expected


# Policy snapshots


def test_a_policy_with_everything() -> None:
    gold = {"matchLabels": {"tier": "gold"}}
    requirement = {"name": "cost", "operator": "Lt", "values": ["1"]}
    assert policy(
        {
            "metadata": {
                "name": "p-3",
                "namespace": "web",
                "generation": 2,
                "annotations": {
                    "kubernetes-fleet.io/CRP-generation": "5",
                    "kubernetes-fleet.io/number-of-clusters": "3",
                },
            },
            "spec": {
                "policyHash": "",
                "policy": {
                    "placementType": "PickN",
                    "clusterNames": ["m-1"],
                    "affinity": {
                        "clusterAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": {
                                "clusterSelectorTerms": [
                                    {
                                        "labelSelector": gold,
                                        "propertySelector": {"matchExpressions": [requirement]},
                                    },
                                    {},
                                ]
                            },
                            "preferredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "weight": 20,
                                    "preference": {
                                        "labelSelector": gold,
                                        "propertySorter": {
                                            "name": "cost",
                                            "sortOrder": "Ascending",
                                        },
                                    },
                                }
                            ],
                        }
                    },
                    "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone"}],
                    "tolerations": [{"key": "k", "operator": "Exists"}],
                },
            },
            "status": {
                "observedCRPGeneration": 4,
                "targetClusters": [{"clusterName": "m-1", "selected": True, "reason": "picked"}],
            },
        }
    ) == PolicyView(
        "p-3",
        namespace="web",
        generation=2,
        placement_generation=5,
        placement_type="PickN",
        number_of_clusters=3,
        cluster_names=("m-1",),
        required=(
            ClusterTerm(read_term_selector(gold), (PropertyRequirement("cost", "Lt", ("1",)),)),
            ClusterTerm(),
        ),
        preferred=(
            PreferredTerm(20, read_term_selector(gold), PropertySorter("cost", "Ascending")),
        ),
        tolerations=(ClusterToleration("k", "Exists"),),
        spread=(TopologySpreadConstraint(2, "zone", "DoNotSchedule"),),
        decisions=(ClusterDecision("m-1", selected=True, reason="picked"),),
    )


@pytest.mark.parametrize("spec", [{}, {"policy": {}}, {"policy": {"affinity": {}}}])
def test_a_snapshot_without_a_policy_picks_all_clusters(spec: Json) -> None:
    assert policy({"metadata": {"name": "p-0"}, "spec": spec}) == PolicyView("p-0")


@pytest.mark.parametrize("number", ["", "many", "-1", "9" * 5000])
def test_a_number_that_cannot_be_read_is_missing(number: str) -> None:
    annotations = {"kubernetes-fleet.io/number-of-clusters": number}
    assert policy({"metadata": {"annotations": annotations}}).number_of_clusters is None


def test_a_label_selector_that_cannot_be_read_is_kept_as_a_problem() -> None:
    selector = {"matchExpressions": [{"key": "a", "operator": "Near"}]}
    terms = {"clusterSelectorTerms": [{"labelSelector": selector}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
    view = policy({"spec": {"policy": {"affinity": {"clusterAffinity": required}}}})
    assert isinstance(view.required[0].labels, InvalidSelector)


# Bindings


def test_a_binding_with_everything() -> None:
    finalizers = ["kubernetes-fleet.io/scheduler-crb-cleanup", "example.com/keep"]
    assert binding(
        {
            "metadata": {
                "name": "p-m-1-0123abcd",
                "uid": "uid-1",
                "resourceVersion": "7",
                "deletionTimestamp": "2026-11-17T12:00:00Z",
                "finalizers": finalizers,
                "annotations": {"kubernetes-fleet.io/previous-binding-state": "Bound"},
            },
            "spec": {
                "state": "Unscheduled",
                "targetCluster": "m-1",
                "schedulingPolicySnapshotName": "p-0",
                "resourceSnapshotName": "p-0-snapshot",
                "clusterDecision": {
                    "clusterName": "m-1",
                    "selected": True,
                    "reason": "picked",
                    "clusterScore": {"affinityScore": 5, "priorityScore": -1},
                },
            },
        }
    ) == BindingView(
        "p-m-1-0123abcd",
        "m-1",
        "Unscheduled",
        "p-0",
        deleting=True,
        previous_state="Bound",
        decision=ClusterDecision(
            "m-1", selected=True, cluster_score=ClusterScore(5, -1), reason="picked"
        ),
        uid="uid-1",
        resource_version="7",
        finalizers=tuple(finalizers),
    )


def test_a_binding_without_a_decision_carries_none() -> None:
    view = binding({"metadata": {"name": "b"}, "spec": {"targetCluster": "m-1"}})
    assert view.decision is None
    assert view.previous_state is None
    assert view.finalizers == ()
