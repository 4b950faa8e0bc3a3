"""Texts of the conditions of a binding that is being deleted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from kubeocean.api.policies import ReclaimPod
from kubeocean.leasing.decision import ABANDON_S, ReclaimCause
from kubeocean.leasing.progress import NodeReport
from kubeocean.leasing.reclaim import ReclaimPhase
from kubeocean.syncer.cleanup.deletion_progress import (
    CLEANUP_S,
    GIVE_UP_S,
    Unconfirmed,
    ends_by,
    first_few,
    give_up_at,
    remaining,
)

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def report(
    node: str = "v", phase: ReclaimPhase = ReclaimPhase.EVICTING, pods: int = 0
) -> NodeReport:
    named = tuple(ReclaimPod("team", f"p{n}", node, "Budget") for n in range(pods))
    return NodeReport(
        node, ReclaimCause.BINDING_DELETED, phase, NOON, NOON, NOON, pending=pods, pods=named
    )


def test_remaining_nodes_and_pods_are_named_up_to_a_limit() -> None:
    assert remaining([], ["v"]) == "1 virtual node: v"
    text = remaining([report("v", pods=2), report("w")], ["w", "v", "x"])
    assert text == "3 virtual nodes: v (2 pods: team/p0 Budget, team/p1 Budget), w, x"
    many = remaining([report("v00", pods=9)], [f"v{n:02}" for n in range(1000)])
    assert many.endswith("v04 and 995 more")
    assert "team/p4 Budget and 4 more" in many
    assert first_few([]) == ""


def test_the_latest_end_is_named_while_pods_are_waited_for() -> None:
    assert ends_by([]) == ""
    assert ends_by([report(phase=ReclaimPhase.RECLAIMED)]) == ""
    assert ends_by([report()]) == "; ends by 2026-11-16T12:02:00Z"


def test_nodes_and_pods_that_the_worker_did_not_confirm_are_named() -> None:
    unconfirmed = Unconfirmed()
    assert "(" not in unconfirmed.describe()
    unconfirmed.node("n1")
    unconfirmed.pod("team/p")
    assert (
        "in the worker (team/p), the binding's label on the worker's nodes (n1)"
        in unconfirmed.describe()
    )
    unconfirmed.clear()
    assert "(" not in unconfirmed.describe()


def test_a_deletion_has_one_deadline_which_only_policies_can_extend() -> None:
    assert give_up_at(NOON, seen=NOON) == NOON + timedelta(seconds=GIVE_UP_S)
    # A syncer that starts long after the deletion has some time all the same.
    late = NOON + timedelta(days=9)
    assert give_up_at(NOON, seen=late) == late + timedelta(seconds=CLEANUP_S)
    hour = NOON + timedelta(hours=1)
    patient = replace(report(pods=1), deadline=hour)
    after = hour + timedelta(seconds=ABANDON_S + CLEANUP_S)
    assert give_up_at(NOON, seen=NOON, reports=[report(), patient]) == after
    over = replace(patient, phase=ReclaimPhase.RECLAIMED)
    assert give_up_at(NOON, seen=NOON, reports=[over]) == NOON + timedelta(seconds=GIVE_UP_S)
