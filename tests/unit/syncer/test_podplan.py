"""What is to be done about a virtual pod."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.api.binding import BindingSpec, ClusterBinding
from kubeocean.api.group import DEFAULT as D
from kubeocean.api.ownership import Ids, ownership
from kubeocean.runtime.kinds import Node
from kubeocean.runtime.objects import Meta, OwnerReference
from kubeocean.syncer.podplan import (
    Move,
    Plan,
    grace_of,
    is_due,
    is_lent,
    is_wanted,
    plan,
)
from kubeocean.syncer.podviews import PhysicalPod, VirtualPod

IDS = Ids("east", "c1", "1b2c")
OURS = ownership(IDS, D)
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
    said = {
        D.virtual_pod_namespace: "team",
        D.virtual_pod_name: "web",
        D.virtual_pod_uid: virtual,
    }
    named = Meta(name=f"web-{uid}", namespace="m", uid=uid, labels=labels, annotations=said, **meta)
    return PhysicalPod(metadata=named, status=Status(phase=phase))


def planned(
    virtual: VirtualPod | None,
    *ppods: PhysicalPod,
    lent: bool = True,
    wanted: bool = True,
    had_one: bool = False,
) -> Plan:
    return plan(
        virtual, ppods, lent=lent, wanted=wanted, had_one=lambda: had_one, ids=IDS, domain=D
    )


def test_a_bound_pod_is_created_once() -> None:
    assert planned(vpod()).move is Move.CREATE
    assert planned(vpod(), had_one=True).move is Move.MOURN
    assert planned(vpod(), wanted=False).move is Move.LEAVE
    assert planned(vpod(), lent=False).move is Move.LEAVE
    assert planned(vpod(phase="Succeeded"), had_one=True).move is Move.LEAVE


def test_a_pod_that_runs_is_followed_wherever_its_node_went() -> None:
    mine = ppod()
    for lent in (True, False):
        for wanted in (True, False):
            assert planned(vpod(), mine, lent=lent, wanted=wanted) == Plan(Move.FOLLOW, mine)
    assert planned(vpod(phase="Succeeded"), ppod(phase="Succeeded")).move is Move.FOLLOW


def test_a_pod_that_was_deleted_or_has_ended_above_is_stopped() -> None:
    assert planned(vpod(deleting=True), ppod()).move is Move.STOP
    assert planned(vpod(phase="Failed"), ppod()).move is Move.STOP
    assert planned(vpod(deleting=True)).move is Move.RELEASE
    assert planned(vpod(deleting=True), wanted=False).move is Move.RELEASE
    assert planned(vpod(deleting=True), lent=False).move is Move.LEAVE


def test_one_of_the_earlier_implementation_is_followed() -> None:
    theirs = ppod(labels={D.managed_by: D.product})
    assert planned(vpod(), theirs) == Plan(Move.FOLLOW, theirs)
    assert planned(None, theirs) == Plan(Move.CLEAR)  # nothing proves whose it is


def test_one_that_was_stripped_of_its_labels_is_followed() -> None:
    stripped = ppod(labels={})
    assert planned(vpod(), stripped) == Plan(Move.FOLLOW, stripped)
    assert planned(None, stripped) == Plan(Move.CLEAR)


@pytest.mark.parametrize("labels", [OURS | {D.cluster_binding: "west"}, {D.managed_by: "helm"}])
def test_foreign_pods_are_not_seen(labels: dict[str, str]) -> None:
    foreign = ppod(labels=labels)
    assert planned(vpod(), foreign) == Plan(Move.CREATE)
    assert planned(None, foreign) == Plan(Move.CLEAR)


def test_what_runs_for_nobody_is_a_stray() -> None:
    stale = ppod(virtual="u0")
    assert planned(None, stale) == Plan(Move.CLEAR, strays=(stale,))
    assert planned(vpod(), stale) == Plan(Move.CREATE, strays=(stale,))


def test_of_twins_the_recorded_one_stays_else_the_oldest() -> None:
    old = ppod("p1", creation_timestamp="2026-01-01T00:00:00Z")
    new = ppod("p0", creation_timestamp="2026-01-01T00:00:01Z")
    assert planned(vpod(), new, old) == Plan(Move.FOLLOW, old, strays=(new,))
    recorded = vpod(annotations={D.physical_pod_uid: "p0"})
    assert planned(recorded, old, new) == Plan(Move.FOLLOW, new, strays=(old,))


def test_pods_of_the_computing_clusters_own_nodes_stay_there() -> None:
    daemon = (OwnerReference(kind="DaemonSet", name="d", controller=True),)
    binding, running = ClusterBinding(), BindingSpec(running_daemonset_by_default=True)
    assert is_wanted(vpod(), binding, D)
    assert not is_wanted(vpod(), None, D)
    assert not is_wanted(vpod(namespace="kube-system"), binding, D)
    # What a tenant writes on a pod does not make it a reservation.
    assert is_wanted(vpod(labels={D.host_port_pod: "true"}), binding, D)
    assert not is_wanted(vpod(owner_references=daemon), binding, D)
    assert is_wanted(vpod(owner_references=daemon), ClusterBinding(spec=running), D)
    asked = vpod(owner_references=daemon, annotations={D.running_daemonset: "true"})
    assert is_wanted(asked, binding, D)


def test_a_node_is_lent_by_its_own_cluster() -> None:
    assert not is_lent(None, IDS, D)
    assert not is_lent(Node(metadata=Meta(labels={D.physical_cluster_id: "c2"})), IDS, D)
    assert is_lent(Node(metadata=Meta(labels={D.physical_cluster_id: "c1"})), IDS, D)


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
