"""Policies in `status`: open or closed, the next edge in the policy's zone, and reclaims."""

from __future__ import annotations

import pytest

from kubeocean.inspect.format import edge
from kubeocean.inspect.status.leases import lease_view
from kubeocean.inspect.status.model import LeaseState
from support.objects import NOW, a_policy, condition

NIGHT = [{"start": "20:00", "end": "05:59"}]


def test_a_policy_without_windows_lends_always() -> None:
    view = lease_view(a_policy(), (), NOW)
    assert (view.state, view.next_edge) == (LeaseState.OPEN, None)


@pytest.mark.parametrize(
    ("zone", "state", "text"),
    [
        ("Europe/Berlin", LeaseState.OPEN, "closes Tue 06:00 Europe/Berlin, in 8h"),
        ("UTC", LeaseState.OPEN, "closes Tue 06:00 UTC, in 9h"),
        ("Asia/Shanghai", LeaseState.OPEN, "closes Tue 06:00 Asia/Shanghai, in 1h"),
        ("America/New_York", LeaseState.CLOSED, "opens Mon 20:00 America/New_York, in 4h"),
    ],
)
def test_the_next_edge_is_shown_in_the_zone_of_the_policy(
    zone: str, state: LeaseState, text: str
) -> None:
    view = lease_view(a_policy(timeWindows=NIGHT, timeZone=zone), (), NOW)
    assert view.state is state
    assert edge(view.next_edge, NOW) == text
    assert view.next_edge is not None
    assert view.next_edge.opens is (state is LeaseState.CLOSED)


def test_an_edge_far_away_has_a_date() -> None:
    windows = [{"start": "00:00", "end": "23:59", "days": ["Sunday", "monday"]}]
    view = lease_view(a_policy(timeWindows=windows, timeZone="UTC"), (), NOW.replace(day=17))
    assert edge(view.next_edge, NOW.replace(day=15)) == "opens Sun 22 Nov 00:00 UTC, in 6d3h"


def test_a_policy_without_a_zone_is_shown_by_its_status() -> None:
    status = {"phase": "Inactive", "nextTransitionTime": "2026-11-17T03:00:00Z"}
    view = lease_view(a_policy(timeWindows=NIGHT, status=status), (), NOW)
    assert view.state is LeaseState.CLOSED
    assert edge(view.next_edge, NOW) == "opens Tue 03:00 UTC, in 6h"
    view = lease_view(a_policy(timeWindows=NIGHT), (), NOW)
    assert (view.state, view.message) == (LeaseState.UNKNOWN, "no syncer has reported on it yet")


def test_an_edge_that_no_syncer_acted_on_is_overdue() -> None:
    status = {"phase": "Active", "activeTimeWindow": True}
    late = {"nextTransitionTime": "2026-11-16T20:58:00Z"} | status
    soon = {"nextTransitionTime": "2026-11-16T20:59:40Z"} | status
    assert lease_view(a_policy(timeWindows=NIGHT, status=late), (), NOW).overdue
    assert not lease_view(a_policy(timeWindows=NIGHT, status=soon), (), NOW).overdue


def test_an_invalid_policy_says_what_is_wrong() -> None:
    view = lease_view(a_policy(timeWindows=[{"start": "25:00", "end": "06:00"}]), (), NOW)
    assert view.state is LeaseState.INVALID
    assert "spec.timeWindows[0].start" in view.message
    assert "25:00" in view.message


def test_a_deleted_policy_has_no_edge() -> None:
    metadata = {"deletionTimestamp": "2026-11-16T20:59:00Z"}
    policy = a_policy(timeWindows=NIGHT, timeZone="UTC", metadata=metadata)
    view = lease_view(policy, (), NOW)
    assert (view.state, view.next_edge) == (LeaseState.DELETING, None)


def test_windows_and_limits_are_shown_as_join_reads_them() -> None:
    weekdays = ["Monday", "tuesday", "Wednesday", "Friday"]
    windows = [*NIGHT, {"start": "12:00", "end": "13:00", "days": weekdays}]
    limits = [
        {"resource": "cpu", "percent": 50},
        {"resource": "memory", "quantity": "8Gi"},
        {"resource": "pods", "quantity": 10, "percent": 20},
    ]
    view = lease_view(a_policy(timeWindows=windows, resourceLimits=limits), (), NOW)
    assert view.windows == ("20:00-05:59", "12:00-13:00 Mon-Wed,Fri")
    assert view.limits == ("cpu=50%", "memory=8Gi", "pods=10/20%")


def test_a_reclaim_is_shown_while_it_is_under_way() -> None:
    reclaim = {"startTime": "2026-11-16T20:58:00Z", "pending": 3, "pendingNodes": 2, "blocked": 1}
    conditions = [
        condition("Reclaiming", "True", "Evicting", "3 pods on 2 nodes left to be evicted")
    ]
    view = lease_view(a_policy(status={"reclaim": reclaim, "conditions": conditions}), (), NOW)
    assert view.reclaim is not None
    assert (view.reclaim.reason, view.reclaim.pods, view.reclaim.nodes) == ("Evicting", 3, 2)
    over = reclaim | {"completionTime": "2026-11-16T20:59:00Z"}
    assert lease_view(a_policy(status={"reclaim": over}), (), NOW).reclaim is None
