"""Plans for virtual pods, and the pure decisions of the pod controller."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from kubeocean.api import naming
from kubeocean.api.bindings import BindingSpec, ClusterBinding
from kubeocean.api.group import DEFAULT as D
from kubeocean.api.ownership import Ids, ownership_labels
from kubeocean.runtime.kinds import Node, NodeSpec, Taint
from kubeocean.runtime.objects import Condition, Key, Meta, OwnerReference
from kubeocean.syncer.pods.plan import (
    Action,
    Plan,
    bound_for_s,
    excluded_because,
    grace_of,
    is_due,
    is_live,
    is_own_node,
    is_stray,
    may_run_in_worker,
    missing_marks,
    physical_names,
    physical_node,
    plan,
    possible_keys,
    reclaim_reason,
)
from kubeocean.syncer.pods.views import PhysicalPod, VirtualPod

IDS = Ids("east", "c1", "1b2c")
OURS = ownership_labels(IDS, D)
NOW = "2026-01-01T00:00:00Z"
Status = type(VirtualPod().status)


def vpod(*, phase: str = "Running", deleting: bool = False, **meta: Any) -> VirtualPod:
    stamp = NOW if deleting else None
    named = {"name": "web", "namespace": "team", "uid": "u1", "deletion_timestamp": stamp}
    return VirtualPod(metadata=Meta(**(named | meta)), status=Status(phase=phase))


def ppod(
    uid: str = "p1",
    *,
    virtual: str = "u1",
    labels: dict[str, str] = OURS,
    phase: str = "Running",
    **meta: Any,
) -> PhysicalPod:
    marks = {
        D.virtual_pod_namespace: "team",
        D.virtual_pod_name: "web",
        D.virtual_pod_uid: virtual,
    }
    named = Meta(
        name=f"web-{uid}", namespace="m", uid=uid, labels=labels, annotations=marks, **meta
    )
    return PhysicalPod(metadata=named, status=Status(phase=phase))


def planned(
    virtual: VirtualPod | None,
    *ppods: PhysicalPod,
    own_node: bool = True,
    may_run: bool = True,
    had_physical: bool = False,
) -> Plan:
    return plan(
        virtual,
        ppods,
        own_node=own_node,
        may_run=may_run,
        had_physical=lambda: had_physical,
        ids=IDS,
        domain=D,
    )


def test_a_bound_pod_is_created_once() -> None:
    assert planned(vpod()).action is Action.CREATE
    assert planned(vpod(), had_physical=True).action is Action.REPORT_LOST
    assert planned(vpod(), may_run=False).action is Action.REPORT_EXCLUDED
    assert planned(vpod(), own_node=False).action is Action.NONE
    assert planned(vpod(phase="Succeeded"), had_physical=True).action is Action.NONE


def test_a_pod_that_runs_is_synced_while_its_node_is_of_the_binding() -> None:
    mine = ppod()
    for may_run in (True, False):
        assert planned(vpod(), mine, may_run=may_run) == Plan(Action.SYNC, mine)
        assert planned(vpod(), mine, own_node=False, may_run=may_run) == Plan(Action.NONE)
    assert planned(vpod(phase="Succeeded"), ppod(phase="Succeeded")).action is Action.SYNC


def test_the_physical_pod_of_a_deleted_or_ended_virtual_pod_is_deleted() -> None:
    assert planned(vpod(deleting=True), ppod()).action is Action.DELETE
    assert planned(vpod(phase="Failed"), ppod()).action is Action.DELETE
    assert planned(vpod(deleting=True)).action is Action.FINALIZE
    assert planned(vpod(deleting=True), may_run=False).action is Action.FINALIZE
    assert planned(vpod(deleting=True), own_node=False).action is Action.NONE


def test_a_physical_pod_is_deleted_also_if_its_node_is_not_lent() -> None:
    mine = ppod()
    assert planned(vpod(deleting=True), mine, own_node=False) == Plan(Action.DELETE, mine)
    assert planned(vpod(phase="Failed"), mine, own_node=False) == Plan(Action.DELETE, mine)
    assert planned(None, mine, own_node=False) == Plan(Action.DELETE_STRAYS, strays=(mine,))


def test_a_physical_pod_of_the_earlier_implementation_is_synced() -> None:
    theirs = ppod(labels={D.managed_by: D.product})
    assert planned(vpod(), theirs) == Plan(Action.SYNC, theirs)
    assert planned(None, theirs) == Plan(
        Action.DELETE_STRAYS
    )  # nothing proves that it is of this binding


def test_a_physical_pod_that_lost_its_labels_is_synced() -> None:
    stripped = ppod(labels={})
    assert planned(vpod(), stripped) == Plan(Action.SYNC, stripped)
    assert planned(None, stripped) == Plan(Action.DELETE_STRAYS)


@pytest.mark.parametrize("labels", [OURS | {D.cluster_binding: "west"}, {D.managed_by: "helm"}])
def test_foreign_pods_are_ignored(labels: dict[str, str]) -> None:
    foreign = ppod(labels=labels)
    assert planned(vpod(), foreign) == Plan(Action.CREATE)
    assert planned(None, foreign) == Plan(Action.DELETE_STRAYS)


def test_a_physical_pod_without_a_virtual_pod_is_a_stray() -> None:
    stale = ppod(virtual="u0")
    assert planned(None, stale) == Plan(Action.DELETE_STRAYS, strays=(stale,))
    assert planned(vpod(), stale) == Plan(Action.CREATE, strays=(stale,))


def test_of_two_physical_pods_the_recorded_one_stays_else_the_oldest() -> None:
    old = ppod("p1", creation_timestamp="2026-01-01T00:00:00Z")
    new = ppod("p0", creation_timestamp="2026-01-01T00:00:01Z")
    assert planned(vpod(), new, old) == Plan(Action.SYNC, old, strays=(new,))
    recorded = vpod(annotations={D.physical_pod_uid: "p0"})
    assert planned(recorded, old, new) == Plan(Action.SYNC, new, strays=(old,))


def test_system_pods_and_daemons_do_not_run_in_the_worker() -> None:
    daemon = (OwnerReference(kind="DaemonSet", name="d", controller=True),)
    binding, running = ClusterBinding(), BindingSpec(running_daemonset_by_default=True)
    assert may_run_in_worker(vpod(), binding, D)
    assert not may_run_in_worker(vpod(), None, D)
    assert not may_run_in_worker(vpod(namespace="kube-system"), binding, D)
    # A label that a tenant sets does not make a pod a reservation.
    assert may_run_in_worker(vpod(labels={D.host_port_pod: "true"}), binding, D)
    assert not may_run_in_worker(vpod(owner_references=daemon), binding, D)
    assert may_run_in_worker(vpod(owner_references=daemon), ClusterBinding(spec=running), D)
    requested = vpod(owner_references=daemon, annotations={D.running_daemonset: "true"})
    assert may_run_in_worker(requested, binding, D)
    assert excluded_because(requested, binding, D) == ""
    why = excluded_because(vpod(owner_references=daemon), binding, D)
    assert 'the annotation kubeocean.io/running-daemonset: "true"' in why
    system = vpod(namespace="kube-system", owner_references=daemon)
    assert excluded_because(system, binding, D) == (
        "pods of namespace kube-system do not run in workers"
    )


def test_a_node_belongs_to_the_binding_that_its_labels_name() -> None:
    assert not is_own_node(None, IDS, D)
    assert not is_own_node(Node(metadata=Meta(labels={D.physical_cluster_id: "c2"})), IDS, D)
    assert is_own_node(Node(metadata=Meta(labels={D.physical_cluster_id: "c1"})), IDS, D)
    labels = {D.physical_cluster_id: "c1", D.cluster_binding: "east"}
    assert is_own_node(Node(metadata=Meta(labels=labels)), IDS, D)
    assert not is_own_node(Node(metadata=Meta(labels=labels | {D.cluster_binding: "west"})), IDS, D)


def test_the_grace_is_that_of_the_virtual_pod_and_may_be_shortened() -> None:
    deleted = vpod(deleting=True, deletion_grace_period_seconds=30)
    assert grace_of(deleted) == 30
    assert grace_of(vpod(deleting=True, deletion_grace_period_seconds=0)) == 1
    assert grace_of(vpod(phase="Failed")) is None
    assert grace_of(None) == 1
    assert is_due(ppod(), None)
    going = ppod(deletion_timestamp=NOW, deletion_grace_period_seconds=30)
    assert not is_due(going, 30)
    assert not is_due(going, None)
    assert is_due(going, 5)


# --- whether a cache is right


def test_a_pod_is_bound_since_it_was_scheduled_else_since_it_was_created() -> None:
    now = datetime.fromisoformat("2026-01-01T00:01:00+00:00")
    created = vpod(creation_timestamp="2026-01-01T00:00:00Z")
    assert bound_for_s(created, now) == 60
    scheduled = Condition(
        type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:50Z"
    )
    status = Status(phase="Pending", conditions=(scheduled,))
    assert bound_for_s(VirtualPod(metadata=created.metadata, status=status), now) == 10
    assert bound_for_s(vpod(), now) == 0


def test_a_pod_is_live_while_the_same_pod_should_run() -> None:
    assert is_live(vpod(), vpod())
    assert not is_live(vpod(), vpod(uid="u2"))
    assert not is_live(vpod(), vpod(deleting=True))
    assert not is_live(vpod(), vpod(phase="Failed"))


def test_a_physical_pod_is_no_stray_while_its_virtual_pod_exists() -> None:
    assert not is_stray(ppod(), vpod(), runs=None, domain=D)
    assert is_stray(ppod(), None, runs=None, domain=D)
    assert is_stray(ppod(virtual="u0"), vpod(), runs=None, domain=D)


def test_a_physical_pod_beside_another_is_a_stray() -> None:
    assert is_stray(ppod("p2"), vpod(), runs=ppod("p1"), domain=D)
    assert not is_stray(ppod("p1"), vpod(), runs=ppod("p1"), domain=D)


# --- the node


def vnode(name: str = "vnode-c1-n1", *taints: str, **meta: Any) -> Node:
    return Node(
        metadata=Meta(name=name, **meta),
        spec=NodeSpec(taints=tuple(Taint(key, "", "NoSchedule") for key in taints)),
    )


def test_the_name_of_a_virtual_node_decides_which_node_it_stands_for() -> None:
    key = D.physical_node_name
    assert physical_node(vnode(annotations={key: "n1"}), IDS, D) == "n1"
    assert physical_node(vnode(labels={key: "n1"}), IDS, D) == "n1"
    assert physical_node(vnode(annotations={key: "control-plane"}), IDS, D) is None
    assert physical_node(vnode(), IDS, D) is None
    other = Ids("east", "c2", "1b2c")
    assert physical_node(vnode(annotations={key: "n1"}), other, D) is None
    long = "n" * 70
    hashed = vnode(naming.virtual_node("c1", long), annotations={key: long})
    assert physical_node(hashed, IDS, D) == long


def test_a_node_takes_no_new_pods_outside_of_its_windows_and_while_it_is_reclaimed() -> None:
    assert reclaim_reason(vnode("v", D.taint_vnode, "dedicated"), D) == ""
    closed = vnode("v", D.taint_vnode, D.taint_out_of_time_windows)
    assert reclaim_reason(closed, D) == "its time window is closed"
    assert reclaim_reason(vnode("v", D.taint_vnode_deleting), D) == "it is being reclaimed"


# --- names and marks


def test_a_physical_pod_may_have_either_name_and_be_in_its_recorded_namespace() -> None:
    first, second = physical_names(vpod())
    assert first != second
    assert possible_keys(vpod(), "m", D) == [Key("m", first), Key("m", second)]
    moved = vpod(annotations={D.physical_pod_namespace: "before"})
    assert possible_keys(moved, "m", D) == [
        Key("before", first),
        Key("before", second),
        Key("m", first),
        Key("m", second),
    ]
    invalid = vpod(annotations={D.physical_pod_namespace: ".."})
    assert {key.namespace for key in possible_keys(invalid, "m", D)} == {"m"}


def test_only_marks_that_a_pod_has_lost_are_missing() -> None:
    assert missing_marks(vpod(), ppod(), ids=IDS, domain=D) == {"labels": {}, "annotations": {}}
    marks = missing_marks(vpod(), ppod(labels={}), ids=IDS, domain=D)
    assert marks == {"labels": OURS, "annotations": {}}
    changed = ppod(labels=OURS | {D.cluster_binding: "west"})
    assert missing_marks(vpod(), changed, ids=IDS, domain=D)["labels"] == {}
