"""The status that an agent writes: heartbeat, conditions, properties."""

from __future__ import annotations

import pytest

from kubeocean.api.fleet.clusters import MemberStatus, PropertyValue, ResourceUsage
from kubeocean.fleet.agent import report
from kubeocean.fleet.agent.protocols import Collection
from kubeocean.runtime.objects import Condition
from support.fleet_objects import agent, internal

COLLECTION = Collection(
    {"p": PropertyValue("1", "t")},
    ResourceUsage({"cpu": "1"}),
    {"n": ""},
    (Condition("Costs", "True", "Calculated"),),
)
STARTED = Condition("ClusterPropertyProviderStarted", "True", "Started")


def heartbeat(before: MemberStatus, collection: Collection | None = COLLECTION) -> MemberStatus:
    conditions = (report.health_condition(""), report.joined())
    stored = internal(status=before, generation=4)
    return report.heartbeat_status(stored, conditions, collection, (STARTED,), now="t9")


def test_a_heartbeat_reports_everything_at_once() -> None:
    status = heartbeat(MemberStatus())
    (entry,) = status.agent_status
    assert (entry.type, entry.last_received_heartbeat) == ("MemberAgent", "t9")
    assert [(each.type, each.status, each.observed_generation) for each in entry.conditions] == [
        ("Healthy", "True", 4),
        ("Joined", "True", 4),
    ]
    assert [each.type for each in status.conditions] == ["ClusterPropertyProviderStarted", "Costs"]
    assert (status.properties, status.namespaces) == (dict(COLLECTION.properties), {"n": ""})
    assert status.resource_usage == COLLECTION.usage


def test_values_stay_when_nothing_was_collected() -> None:
    before = heartbeat(MemberStatus())
    after = heartbeat(before, None)
    assert (after.properties, after.resource_usage) == (before.properties, before.resource_usage)
    assert after.agent_status[0].last_received_heartbeat == "t9"


def test_namespaces_vanish_when_they_are_no_longer_collected() -> None:
    assert heartbeat(heartbeat(MemberStatus()), Collection()).namespaces is None


def test_conditions_about_properties_vanish_when_they_are_no_longer_reported() -> None:
    about = (
        Condition("ClusterPropertyCollectionSucceeded", "True"),
        Condition("AKSClusterCostPropertiesCollectionSucceeded", "True"),
        Condition("NamespaceCollectionSucceeded", "True"),
    )
    collected = heartbeat(MemberStatus(), Collection(conditions=about))
    types = [each.type for each in collected.conditions]
    assert types == ["ClusterPropertyProviderStarted", *(each.type for each in about)]
    assert heartbeat(collected, None).conditions == collected.conditions  # nothing was collected
    own = Condition("Another", "True", "r", "", "t", 4)
    stored = MemberStatus(conditions=(*collected.conditions, own))
    after = heartbeat(stored, Collection())
    assert [each.type for each in after.conditions] == ["ClusterPropertyProviderStarted", "Another"]


def test_a_message_of_any_length_is_one_that_an_api_server_accepts() -> None:
    failed = Condition("ClusterPropertyCollectionSucceeded", "False", "TimedOut", "x" * 1_000_000)
    stored = internal(status=MemberStatus(), generation=4)
    status = report.heartbeat_status(
        stored, (report.health_condition(""),), None, (failed,), now="t"
    )
    assert len(status.conditions[0].message) <= 32_768


def test_reports_of_other_agents_stay() -> None:
    other = agent("True", "MultiClusterServiceAgent")
    status = heartbeat(MemberStatus(agent_status=(other,)))
    assert other in status.agent_status
    assert len(status.agent_status) == 2


def test_an_unhealthy_member_is_reported_with_the_problem() -> None:
    condition = report.health_condition("no answer")
    assert (condition.status, condition.reason) == ("False", "InternalMemberClusterUnhealthy")
    assert condition.message == "no answer"


def test_leaving_keeps_the_last_heartbeat() -> None:
    before = heartbeat(MemberStatus())
    after = report.status_with_condition(internal(status=before), report.left(), now="t10")
    assert after.agent_status[0].last_received_heartbeat == "t9"
    assert after.properties == before.properties


@pytest.mark.parametrize(
    ("condition", "status", "reason"),
    [
        (report.joined(), "True", "InternalMemberClusterJoined"),
        (report.failed_to_join("x"), "Unknown", "InternalMemberClusterFailedToJoin"),
        (report.left(), "False", "InternalMemberClusterLeft"),
        (report.failed_to_leave("x"), "Unknown", "InternalMemberClusterFailedToLeave"),
    ],
)
def test_conditions_of_the_agent(condition: Condition, status: str, reason: str) -> None:
    assert (condition.type, condition.status, condition.reason) == ("Joined", status, reason)


def test_having_left_holds_for_one_generation() -> None:
    status = report.status_with_condition(internal(generation=2), report.left(), now="t")
    assert report.has_left(internal(status=status, generation=2))
    assert not report.has_left(internal(status=status, generation=3))
    assert not report.has_left(internal())
