"""Which clusters take new placements."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kubeocean.fleet.scheduler import (
    AgentView,
    MemberView,
    ineligibility,
    schedule,
)
from unit.fleet.scheduler.builders import (
    HEALTHY,
    NOW,
    binding,
    cluster,
    pick_all,
    reasons,
    selected,
)

LONG_AGO = NOW - timedelta(minutes=5, seconds=1)
JUST_NOW = NOW - timedelta(minutes=5)


def with_agent(**fields: object) -> MemberView:
    return cluster("c", agent=replace(HEALTHY, **fields))


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (cluster("c"), None),
        (cluster("c", deleting=True), "cluster is leaving the fleet"),
        (cluster("c", agent=None), "member agent has not reported yet"),
        (
            with_agent(heartbeat=LONG_AGO),
            "last heartbeat of the member agent is older than 5 minutes",
        ),
        (with_agent(heartbeat=None), "last heartbeat of the member agent is older than 5 minutes"),
        (with_agent(heartbeat=JUST_NOW), None),
        (with_agent(heartbeat=NOW + timedelta(hours=1)), None),
        (with_agent(joined=None), "member agent has not joined"),
        (with_agent(joined="False"), "member agent has not joined"),
        (with_agent(joined="Unknown"), "member agent has not joined"),
        (with_agent(healthy=None), "member agent does not report its health"),
        (
            with_agent(healthy="False", healthy_since=LONG_AGO),
            "member agent has been unhealthy for more than 5 minutes",
        ),
        (
            with_agent(healthy="Unknown", healthy_since=None),
            "member agent has been unhealthy for more than 5 minutes",
        ),
        (with_agent(healthy="False", healthy_since=JUST_NOW), None),
    ],
)
def test_a_cluster_is_eligible_or_the_reason_is_given(view: MemberView, reason: str | None) -> None:
    assert ineligibility(view, NOW) == reason


def test_the_first_reason_counts() -> None:
    assert ineligibility(cluster("c", agent=None, deleting=True), NOW) == (
        "cluster is leaving the fleet"
    )
    assert ineligibility(cluster("c", agent=AgentView()), NOW) == (
        "last heartbeat of the member agent is older than 5 minutes"
    )


def test_texts_do_not_change_while_a_cluster_stays_silent() -> None:
    silent = with_agent(heartbeat=LONG_AGO)
    assert ineligibility(silent, NOW) == ineligibility(silent, NOW + timedelta(days=1))


def test_an_unhealthy_cluster_gets_no_binding_but_keeps_the_one_it_has() -> None:
    unhealthy = with_agent(healthy="False", healthy_since=LONG_AGO)
    fresh = schedule(pick_all(), [unhealthy], [], NOW)
    assert selected(fresh) == []
    assert reasons(fresh) == {
        "c": "ClusterUnschedulable, member agent has been unhealthy for more than 5 minutes"
    }
    placed = schedule(pick_all(), [unhealthy], [binding("c")], NOW)
    assert selected(placed) == ["c"]
    assert not placed.changes
