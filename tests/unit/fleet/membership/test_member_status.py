"""The status of a MemberCluster: copied reports and the conditions of the hub."""

from __future__ import annotations

from kubeocean.api.fleet.clusters import (
    AgentStatus,
    MemberStatus,
    PropertyValue,
    ResourceUsage,
)
from kubeocean.fleet.membership.status import (
    copy_report,
    hub_conditions,
    status_changes,
    with_conditions,
)
from kubeocean.fleet.status.fitting import stored_size
from kubeocean.runtime.objects import Condition
from support.fleet_objects import agent, internal, member

AGENTS = ("MemberAgent",)
REPORT = MemberStatus(
    conditions=(Condition("ClusterPropertyProviderStarted", "True", "Started", "", "t1", 7),),
    properties={"p": PropertyValue("1", "t1")},
    resource_usage=ResourceUsage({"cpu": "1"}),
    namespaces={"n": ""},
    agent_status=(agent("True"),),
)


def test_a_report_is_copied_with_the_generation_of_the_member() -> None:
    copied = copy_report(member(generation=3), internal(status=REPORT))
    assert (copied.properties, copied.resource_usage) == (REPORT.properties, REPORT.resource_usage)
    assert copied.namespaces == {"n": ""}
    assert [each.observed_generation for each in copied.conditions] == [3]
    assert [each.last_transition_time for each in copied.conditions] == ["t1"]
    assert [each.observed_generation for each in copied.agent_status[0].conditions] == [3]


def test_an_empty_report_empties_all_but_the_agents() -> None:
    before = member(status=REPORT)
    copied = copy_report(before, internal())
    assert copied.agent_status == REPORT.agent_status
    assert (copied.properties, copied.namespaces) == ({}, None)
    assert copied.resource_usage == ResourceUsage()
    assert copied.conditions == REPORT.conditions  # merged one by one


def test_the_condition_about_namespaces_is_removed_with_the_namespaces() -> None:
    about = Condition("NamespaceCollectionSucceeded", "True", "Succeeded")
    before = MemberStatus(conditions=(*REPORT.conditions, about), namespaces={"n": ""})
    without = MemberStatus(conditions=REPORT.conditions)
    copied = copy_report(member(status=before), internal(status=without))
    assert [each.type for each in copied.conditions] == ["ClusterPropertyProviderStarted"]
    # One of the two alone is the report of an agent that collects them
    for report in (MemberStatus(namespaces={}), MemberStatus(conditions=(about,))):
        copied = copy_report(member(status=before), internal(status=report))
        assert about.type in [each.type for each in copied.conditions]


def test_conditions_keep_their_order() -> None:
    before = MemberStatus(conditions=(Condition("Joined", "True"), REPORT.conditions[0]))
    report = MemberStatus(conditions=(Condition("New", "True"), REPORT.conditions[0]))
    copied = copy_report(member(status=before), internal(status=report))
    types = [each.type for each in copied.conditions]
    assert types == ["Joined", "ClusterPropertyProviderStarted", "New"]


def test_a_report_of_any_size_fits_into_a_member_cluster() -> None:
    """A member may fill its report up to the limit of etcd, with characters stored as six."""
    long = "<" * 1_400_000
    many = tuple(Condition(f"Type{each}", "True", "r", "<" * 32_000) for each in range(400))
    reports = (
        MemberStatus(properties={"short": PropertyValue("1"), "long": PropertyValue(long)}),
        MemberStatus(properties={f"p{each}": PropertyValue("1") for each in range(30_000)}),
        MemberStatus(properties={"n" * 1_400_000: PropertyValue("1")}),
        MemberStatus(conditions=many),
        MemberStatus(agent_status=(AgentStatus("MemberAgent", many, "t"),)),
        MemberStatus(agent_status=tuple(AgentStatus(f"a{each}", many) for each in range(400))),
        MemberStatus(namespaces={f"{'n' * 50}{each}": "" for each in range(25_000)}),
        MemberStatus(resource_usage=ResourceUsage({"cpu": long})),
    )
    for report in reports:
        copied = copy_report(member(), internal(status=report))
        assert stored_size(copied) < 1_000_000
    first = copy_report(member(), internal(status=reports[0]))
    assert first.properties == {"short": PropertyValue("1")}
    reported = copy_report(member(), internal(status=reports[4])).agent_status[0]
    assert (reported.type, reported.last_received_heartbeat) == ("MemberAgent", "t")


def test_types_of_conditions_that_change_with_each_report_do_not_pile_up() -> None:
    present = member()
    for number in range(100):
        report = MemberStatus(conditions=(Condition(f"Type{number}", "True"),))
        present = member(status=copy_report(present, internal(status=report)))
    assert len(present.status.conditions) == 32


def test_hub_conditions_by_reports() -> None:
    def found(*agents: str) -> list[tuple[str, str]]:
        reports = tuple(agent(status) for status in agents)
        return [(each.status, each.reason) for each in hub_conditions(reports, AGENTS)]

    ready = ("True", "MemberClusterReadyToJoin")
    assert found() == [ready, ("Unknown", "MemberClusterJoinStateUnknown")]
    assert found("Unknown") == [ready, ("Unknown", "MemberClusterJoinStateUnknown")]
    assert found("True") == [ready, ("True", "MemberClusterJoined")]
    assert found("False") == [
        ("False", "MemberClusterNotReadyToJoin"),
        ("False", "MemberClusterLeft"),
    ]


def test_a_mixture_of_agents_is_unknown() -> None:
    both = ("MemberAgent", "ServiceExportImportAgent")
    reports = (agent("True"), agent("False", both[1]))
    assert hub_conditions(reports, both)[1].status == "Unknown"
    assert hub_conditions(reports[:1], both)[1].status == "Unknown"


def test_transition_times_move_with_the_status_only() -> None:
    once = with_conditions(MemberStatus(), hub_conditions((), AGENTS), generation=1, now="t1")
    twice = with_conditions(once, hub_conditions((agent(),), AGENTS), generation=2, now="t2")
    times = {each.type: each.last_transition_time for each in twice.conditions}
    assert times == {"ReadyToJoin": "t1", "Joined": "t2"}
    assert {each.observed_generation for each in twice.conditions} == {2}


def test_events_follow_reasons() -> None:
    once = with_conditions(MemberStatus(), hub_conditions((), AGENTS), generation=1, now="t1")
    changes = [(each.type, each.reason) for each in status_changes(MemberStatus(), once)]
    assert changes == [
        ("Normal", "MemberClusterReadyToJoin"),
        ("Normal", "MemberClusterJoinStateUnknown"),
    ]
    assert list(status_changes(once, once)) == []
