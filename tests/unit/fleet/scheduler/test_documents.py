"""Documents of a cycle's results: KubeFleet's names, labels and finalizers, complete patches."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kubeocean.api.fleet import names
from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.clusters import ClusterTaint
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.snapshots import ClusterScore, PolicySnapshotStatus
from kubeocean.fleet.scheduler import (
    BindingPatch,
    BindingView,
    NewBinding,
    PolicyView,
    UnscheduleCause,
    Unscheduling,
    binding_document,
    binding_patch,
    release_patch,
    schedule,
    snapshot_status,
    unschedule_patch,
    view_binding,
)
from kubeocean.runtime.objects import Condition, Json, Meta
from unit.fleet.scheduler.builders import (
    NOW,
    binding,
    cluster,
    clusters,
    decided,
    pick_all,
    pick_n,
)
from unit.fleet.scheduler.builders import Placement as BindingsOverCycles

CRP = Placement(metadata=Meta(name="app", uid="uid-of-app"))
RP = Placement(metadata=Meta(name="app", namespace="web", uid="uid-of-app"))
NEW = NewBinding("m-1", "app-0", decided("m-1", True, "picked", ClusterScore(0, 0)))
EARLY, LATE = "2026-11-17T12:00:00Z", "2026-11-17T13:00:00Z"


def merged(target: Json, patch: Json) -> Json:
    """Return the result of a JSON merge patch (RFC 7386)."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            old = result.get(name)
            result[name] = merged(old if isinstance(old, dict) else {}, value)
        else:
            result[name] = value
    return result


# New bindings


@pytest.mark.parametrize(
    ("placement", "kind", "namespace"),
    [(CRP, "ClusterResourceBinding", None), (RP, "ResourceBinding", "web")],
)
def test_a_new_binding(placement: Placement, kind: str, namespace: str | None) -> None:
    created = binding_document(placement, NEW)
    suffix = names.binding_suffix("uid-of-app", "m-1")
    assert created["apiVersion"] == "placement.kubernetes-fleet.io/v1beta1"
    assert created["kind"] == kind
    assert created["metadata"].get("namespace") == namespace
    assert created["metadata"]["name"] == f"app-m-1-{suffix}"
    assert created["metadata"]["labels"] == {"kubernetes-fleet.io/parent-CRP": "app"}
    assert created["metadata"]["finalizers"] == [
        "kubernetes-fleet.io/scheduler-crb-cleanup",
        "kubernetes-fleet.io/work-cleanup",
    ]
    assert created["spec"] == {
        "state": "Scheduled",
        "targetCluster": "m-1",
        "resourceSnapshotName": "",
        "schedulingPolicySnapshotName": "app-0",
        "clusterDecision": {
            "clusterName": "m-1",
            "selected": True,
            "clusterScore": {"affinityScore": 0, "priorityScore": 0},
            "reason": "picked",
        },
    }


def test_a_second_attempt_to_create_a_binding_has_the_same_name() -> None:
    assert binding_document(CRP, NEW) == binding_document(CRP, NEW)


def test_only_deleting_bindings_to_the_same_cluster_change_the_name() -> None:
    def name(*deleting: BindingView) -> str:
        return str(binding_document(CRP, NEW, deleting)["metadata"]["name"])

    same = replace(binding("m-1", deleting=True), uid="uid-1")
    other = replace(binding("m-2", deleting=True), uid="uid-2")
    assert name() == name(other)
    assert name(same) == name(same, other) != name()


def test_a_new_binding_is_current_in_the_next_cycle() -> None:
    policy, fleet = pick_n(1), clusters("m-1")
    first = schedule(policy, fleet, [], NOW)
    stored = msgspec.convert(binding_document(CRP, first.changes.to_create[0]), Binding)
    second = schedule(policy, fleet, [view_binding(stored)], NOW)
    assert not second.changes
    assert second.status == first.status


# Patches


def stored_binding() -> Json:
    created = binding_document(CRP, NEW)
    created["metadata"] |= {"uid": "uid-1", "resourceVersion": "7"}
    return created


def viewed(stored: Json) -> BindingView:
    return view_binding(msgspec.convert(stored, Binding))


@pytest.mark.parametrize("score", [None, ClusterScore(3, 1), ClusterScore(3)])
def test_a_patched_binding_has_nothing_of_the_old_decision(score: ClusterScore | None) -> None:
    stored = stored_binding()
    stored["spec"]["state"] = "Unscheduled"
    stored["metadata"]["annotations"] = {
        "kubernetes-fleet.io/previous-binding-state": "Bound",
        "example.com/kept": "x",
    }
    decision = decided("m-1", True, "picked again", score)
    patch = binding_patch(BindingPatch(viewed(stored), "app-1", decision, "Bound"))
    assert patch["metadata"]["resourceVersion"] == "7"
    after = merged(stored, patch)
    assert after["metadata"]["annotations"] == {"example.com/kept": "x"}
    assert after["spec"] == stored["spec"] | {
        "state": "Bound",
        "schedulingPolicySnapshotName": "app-1",
        "clusterDecision": document(decision),
    }


@pytest.mark.parametrize(
    ("state", "kept"), [("Bound", "Bound"), ("Scheduled", "Scheduled"), ("x", "Scheduled")]
)
def test_an_unscheduled_binding_keeps_its_state_in_an_annotation(state: str, kept: str) -> None:
    stored = stored_binding()
    stored["spec"]["state"] = state
    patch = unschedule_patch(Unscheduling(viewed(stored), UnscheduleCause.OBSOLETE))
    assert patch == {
        "metadata": {
            "resourceVersion": "7",
            "annotations": {"kubernetes-fleet.io/previous-binding-state": kept},
        },
        "spec": {"state": "Unscheduled"},
    }


def test_the_finalizer_of_the_scheduler_is_dropped_once() -> None:
    stored = stored_binding()
    patch = release_patch(viewed(stored))
    assert patch is not None
    after = merged(stored, patch)
    assert patch["metadata"]["resourceVersion"] == "7"
    assert after["metadata"]["finalizers"] == ["kubernetes-fleet.io/work-cleanup"]
    assert release_patch(viewed(after)) is None


# Status of policy snapshots


def test_the_status_of_a_snapshot() -> None:
    result = schedule(replace(pick_n(2), placement_generation=4), clusters("m-1"), [], NOW)
    assert result.status is not None
    status = document(snapshot_status(result.status, PolicySnapshotStatus(), now=EARLY))
    assert status["observedCRPGeneration"] == 4
    assert [each["clusterName"] for each in status["targetClusters"]] == ["m-1"]
    (condition,) = status["conditions"]
    assert condition.pop("message")
    assert condition == {
        "type": "Scheduled",
        "status": "False",
        "reason": "SchedulingPolicyUnfulfilled",
        "observedGeneration": 1,
        "lastTransitionTime": EARLY,
    }


def test_an_equal_cycle_writes_no_status() -> None:
    result = schedule(pick_n(1), clusters("m-1", "m-2"), [], NOW)
    assert result.status is not None
    first = snapshot_status(result.status, PolicySnapshotStatus(), now=EARLY)
    stored = msgspec.convert(document(first), PolicySnapshotStatus)
    assert snapshot_status(result.status, stored, now=LATE) == stored


@pytest.mark.parametrize("policy", [pick_n(3), pick_n(2), pick_n(9), pick_all()])
def test_cycles_with_nothing_to_do_give_an_equal_status(policy: PolicyView) -> None:
    fleet = [cluster(name, labels={"zone": name}) for name in ("m-1", "m-2", "m-3", "m-4")]
    fleet.append(cluster("m-5", taints=[ClusterTaint("k")]))
    placement = BindingsOverCycles({"p-m-3": binding("m-3", "Scheduled")})
    stored = PolicySnapshotStatus()
    first = None
    for _ in range(3):
        result = placement.cycle(replace(policy, decisions=stored.target_clusters), fleet)
        assert result.status is not None
        stored = snapshot_status(result.status, stored, now=EARLY)
        first = first or stored
        assert stored == first
        placement.roll_out()


def test_a_kept_decision_names_a_cluster_of_the_fleet() -> None:
    decisions = (decided("gone", False, "x"), decided("m-2", False, "y"))
    result = schedule(pick_n(1, decisions=decisions), clusters("m-1", "m-2"), [binding("m-1")], NOW)
    assert result.status is not None
    assert [each.cluster_name for each in result.status.target_clusters] == ["m-1", "m-2"]


def test_the_transition_time_follows_the_status() -> None:
    unfulfilled = schedule(pick_n(2), clusters("m-1"), [], NOW).status
    fulfilled = schedule(pick_n(2), clusters("m-1", "m-2"), [], NOW).status
    assert unfulfilled is not None
    assert fulfilled is not None
    first = snapshot_status(unfulfilled, PolicySnapshotStatus(), now=EARLY)
    assert snapshot_status(fulfilled, first, now=LATE).conditions[0].last_transition_time == LATE


def test_a_foreign_condition_is_dropped() -> None:
    result = schedule(pick_n(1), clusters("m-1"), [], NOW).status
    assert result is not None
    old = PolicySnapshotStatus(conditions=(Condition("Strange", "True"),))
    conditions = snapshot_status(result, old, now=EARLY).conditions
    assert [each.type for each in conditions] == ["Scheduled"]
