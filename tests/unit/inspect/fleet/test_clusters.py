"""Members of a fleet as people and programs see them."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from kubeocean.api.fleet.clusters import (
    AgentStatus,
    ClusterTaint,
    MemberCluster,
    MemberStatus,
    PropertyValue,
    ResourceUsage,
)
from kubeocean.inspect.fleet import cluster_lines, cluster_view, cluster_views
from kubeocean.inspect.format import plain
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Condition
from support.fleet_objects import NOW, member


def reporting(name: str, *, age_s: float = 5, healthy: str = "True") -> MemberCluster:
    agent = AgentStatus(
        "MemberAgent",
        (Condition("Joined", "True"), Condition("Healthy", healthy)),
        text_of(NOW - timedelta(seconds=age_s)),
    )
    status = MemberStatus(
        conditions=(
            Condition("ReadyToJoin", "True"),
            Condition("Joined", "True", last_transition_time=text_of(NOW - timedelta(days=2))),
        ),
        properties={
            "k8s.io/k8s-version": PropertyValue("v1.35.0"),
            "kubernetes-fleet.io/node-count": PropertyValue("3"),
        },
        resource_usage=ResourceUsage(
            allocatable={"cpu": "12", "memory": "48Gi"}, available={"cpu": "4500m", "memory": "8Gi"}
        ),
        agent_status=(agent,),
    )
    return member(name, status=status, taints=(ClusterTaint("cordon-key", "cordon-value"),))


def test_a_table_of_members() -> None:
    lines = cluster_lines(cluster_views([reporting("b"), member("a")], NOW), NOW)
    assert plain(lines).splitlines() == [
        "NAME   STATE     HEALTHY   SEEN     VERSION   NODES   CPU FREE    MEMORY FREE   TAINTS",
        "a      Joining   Unknown   -        -         -       -           -             -",
        "b      Joined    True      5s ago   v1.35.0   3       4.5 of 12   8Gi of 48Gi"
        "   cordon-key=cordon-value:NoSchedule",
    ]


def test_an_empty_fleet() -> None:
    assert plain(cluster_lines([], NOW)) == "The fleet has no members.\n"


@pytest.mark.parametrize(
    ("shown", "state", "healthy", "reason"),
    [
        (reporting("a"), "Joined", "True", "MemberClusterAPIServerHealthy"),
        (reporting("a", age_s=500), "Joined", "False", "MemberAgentHeartbeatLost"),
        (reporting("a", healthy="False"), "Joined", "False", "MemberClusterAPIServerUnhealthy"),
        (member("a"), "Joining", "Unknown", "MemberAgentReportedNoStatus"),
        (member("a", deleted=NOW), "Leaving", "Unknown", "MemberAgentReportedNoStatus"),
    ],
)
def test_state_and_health(shown: MemberCluster, state: str, healthy: str, reason: str) -> None:
    view = cluster_view(shown, NOW)
    assert (view.state, view.healthy, view.health_reason) == (state, healthy, reason)


def test_problems_are_shown_below_the_table() -> None:
    refused = Condition("ReadyToJoin", "False", "MemberClusterNotReadyToJoin", "no namespace")
    broken = member("a", status=MemberStatus(conditions=(refused,)))
    text = plain(cluster_lines([cluster_view(broken, NOW)], NOW))
    assert "NotReady" in text
    assert text.splitlines()[-1] == "a: no namespace"


def test_a_document_has_exact_values() -> None:
    document = msgspec.json.decode(msgspec.json.encode(cluster_view(reporting("a"), NOW)))
    assert document["available"] == {"cpu": "4500m", "memory": "8Gi"}
    assert document["joinedSince"] == "2025-12-30T12:00:00Z"
    assert document["properties"]["k8s.io/k8s-version"] == "v1.35.0"


def test_what_a_member_reports_neither_widens_the_table_nor_reaches_the_terminal() -> None:
    long = "\x1b[2J" + "v" * 1_048_576
    status = MemberStatus(
        conditions=(Condition("ReadyToJoin", "False", "r", long),),
        properties={
            "k8s.io/k8s-version": PropertyValue(long),
            "kubernetes-fleet.io/node-count": PropertyValue("9" * 1_048_576),
        },
        resource_usage=ResourceUsage(
            allocatable={"cpu": "9" * 1_048_576, "memory": "1e1000000"},
            available={"cpu": long, "memory": "-1e-1000000"},
        ),
    )
    views = cluster_views([member("hostile", status=status), reporting("good")], NOW)
    text = plain(cluster_lines(views, NOW))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) < 600
    assert len(views[1].version) == len(long)  # programs get all of it
