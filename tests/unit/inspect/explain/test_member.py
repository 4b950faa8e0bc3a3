"""Explanations of members, from snapshots of the hub."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from kubeocean.api.fleet.clusters import (
    AgentStatus,
    ClusterTaint,
    InternalMemberCluster,
    MemberCluster,
    MemberStatus,
    PropertyValue,
)
from kubeocean.inspect.explain.member import MemberDetails, explain_member
from kubeocean.inspect.explain.report import Explanation, ExplanationRule
from kubeocean.inspect.snapshot import NotRead
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Condition
from support.fleet_objects import NOW, internal, member
from unit.inspect.fleet.test_tree import a_work

READY = Condition("ReadyToJoin", "True", "MemberClusterReadyToJoin")


def report(*, age_s: float = 5, joined: str = "True", healthy: str = "True") -> AgentStatus:
    conditions = (
        Condition("Joined", joined, "Tested", "of joining"),
        Condition("Healthy", healthy, "Tested", "of health"),
    )
    return AgentStatus("MemberAgent", conditions, text_of(NOW - timedelta(seconds=age_s)))


def seen(*agents: AgentStatus, **options: Any) -> MemberCluster:
    properties = {"kubernetes-fleet.io/node-count": PropertyValue("3")}
    status = MemberStatus(conditions=(READY,), agent_status=agents, properties=properties)
    return member("a", status=status, **options)


def explained(read: MemberCluster | NotRead | None, **parts: Any) -> Explanation:
    return explain_member(MemberDetails("a", NOW, read, **parts))


@pytest.mark.parametrize(
    ("read", "rule"),
    [
        (None, ExplanationRule.NOT_FOUND),
        (NotRead("a", "no answer"), ExplanationRule.NOT_READ),
        (member("a"), ExplanationRule.NOT_ADMITTED),
        (
            member("a", status=MemberStatus(conditions=(Condition("ReadyToJoin", "False"),))),
            ExplanationRule.NOT_ADMITTED,
        ),
        (seen(), ExplanationRule.AGENT_NEVER_SEEN),
        (seen(report(age_s=500)), ExplanationRule.HEARTBEAT_LOST),
        (seen(report(joined="Unknown")), ExplanationRule.NOT_JOINED),
        (seen(report(healthy="False")), ExplanationRule.MEMBER_UNHEALTHY),
        (seen(report(), taints=(ClusterTaint("key", "value"),)), ExplanationRule.MEMBER_TAINTED),
        (seen(report()), ExplanationRule.JOINED),
        (seen(report(), deleted=NOW), ExplanationRule.MEMBER_LEAVING),
    ],
)
def test_the_first_thing_that_is_wrong_decides(read: Any, rule: ExplanationRule) -> None:
    assert explained(read).rule is rule


def test_the_threshold_follows_the_heartbeat_period() -> None:
    slow = seen(report(age_s=500), heartbeat_period_seconds=300)
    assert explained(slow).rule is ExplanationRule.JOINED


def test_an_agent_that_reports_to_a_stopped_hub_is_not_silent() -> None:
    fresh: InternalMemberCluster = internal(report())
    found = explained(seen(report(age_s=500)), internal=fresh)
    assert found.rule is ExplanationRule.HUB_SILENT
    assert "fleet hub" in found.remedies[0]
    lost = internal(report(age_s=500))
    assert explained(seen(report(age_s=500)), internal=lost).rule is ExplanationRule.HEARTBEAT_LOST


def test_sections_show_conditions_agents_properties_and_works() -> None:
    found = explained(seen(report(healthy="False")), works=(a_work("a"),))
    assert found.reasons == ("Healthy False (Tested): of health",)
    sections = {each.title: each.lines for each in found.sections}
    assert sections["properties"] == ("kubernetes-fleet.io/node-count: 3",)
    assert sections["works"] == ("app-work of placement app: complete",)
    assert sections["agents"][0].startswith("MemberAgent: last heartbeat 5 s ago")


def test_parts_that_were_not_read_are_named() -> None:
    refused = NotRead("Works in fleet-member-a", "forbidden", forbidden=True)
    found = explained(seen(report()), works=refused)
    assert found.rule is ExplanationRule.JOINED
    assert found.unread == ("Works in fleet-member-a: forbidden",)


def test_a_member_that_leaves_names_what_holds_it() -> None:
    leaving = seen(report(age_s=500), deleted=NOW)
    found = explained(leaving, works=(a_work("a"),))
    assert any("its agent sends no heartbeats" in each for each in found.reasons)
    assert "kubernetes-fleet.io/membercluster-finalizer" in found.reasons[0]
