"""Tests of doctor's findings about the hub of a fleet."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from kubeocean import __version__
from kubeocean.api.fleet.clusters import AgentStatus, InternalMemberCluster, MemberStatus
from kubeocean.api.fleet.definitions import hub_definitions
from kubeocean.api.fleet.names import ANNOTATION_AGENT_VERSION
from kubeocean.api.fleet.placements import Placement, PlacementStatus
from kubeocean.fleet.settings import HUB_LEASE
from kubeocean.inspect.doctor.diagnosis import Diagnosis, diagnose
from kubeocean.inspect.doctor.fleet_checks import CHECKS
from kubeocean.inspect.doctor.fleet_reading import read_fleet
from kubeocean.inspect.findings import Finding
from kubeocean.inspect.snapshot import FleetSnapshot, NotRead, Snapshot
from kubeocean.runtime.client import Client
from kubeocean.runtime.clock import RealClock, text_of
from kubeocean.runtime.kinds import Lease, LeaseSpec
from kubeocean.runtime.objects import Condition, Meta
from support.fleet_objects import NOW, internal, member
from support.scripted_transport import Scripted, answer
from unit.fleet.placements.builders import a_placement

SCHEDULED = "ClusterResourcePlacementScheduled"


def at(age: timedelta) -> str:
    return text_of(NOW - age) or ""


def established(definition: Any) -> Any:
    return definition | {"status": {"conditions": [{"type": "Established", "status": "True"}]}}


def a_lease(age_s: float = 1) -> Lease:
    spec = LeaseSpec("hub-1", 15, renew_time=at(timedelta(seconds=age_s)))
    return Lease(metadata=Meta(name=HUB_LEASE), spec=spec)


def report(*, age_s: float = 5, joined: str = "True", healthy: str = "True") -> AgentStatus:
    conditions = (Condition("Joined", joined, "Tested"), Condition("Healthy", healthy, "Tested"))
    return AgentStatus("MemberAgent", conditions, at(timedelta(seconds=age_s)))


def a_member(*agents: AgentStatus, ready: str = "True", age_s: float = 3600, **more: Any) -> Any:
    conditions = (Condition("ReadyToJoin", ready, "Tested", "a foreign namespace"),)
    made = member("a", status=MemberStatus(conditions=conditions, agent_status=agents), **more)
    created = at(timedelta(seconds=age_s))
    metadata = msgspec.structs.replace(made.metadata, creation_timestamp=created)
    return msgspec.structs.replace(made, metadata=metadata)


def an_internal(version: str = __version__) -> InternalMemberCluster:
    made = internal(report())
    annotations = {ANNOTATION_AGENT_VERSION: version}
    metadata = msgspec.structs.replace(made.metadata, annotations=annotations)
    return msgspec.structs.replace(made, metadata=metadata)


def placed(*conditions: Condition, deleted: timedelta | None = None) -> Placement:
    made = a_placement(status=PlacementStatus(conditions=conditions))
    if deleted is None:
        return made
    metadata = msgspec.structs.replace(made.metadata, deletion_timestamp=at(deleted))
    return msgspec.structs.replace(made, metadata=metadata)


def scheduled(status: str, age: timedelta) -> Condition:
    return Condition(SCHEDULED, status, "r", "too few clusters", at(age), 1)


def a_fleet(**more: Any) -> FleetSnapshot:
    healthy = FleetSnapshot(
        definitions={each["metadata"]["name"]: established(each) for each in hub_definitions()},
        elections={HUB_LEASE: a_lease()},
        members=(a_member(report()),),
        internals={"a": an_internal()},
        placements=(placed(scheduled("True", timedelta(days=1))),),
        unseen=frozenset(),
    )
    return replace(healthy, **more)


def diagnosed(**more: Any) -> Diagnosis:
    return diagnose(Snapshot(at=NOW, fleet=a_fleet(**more)))


def found(**more: Any) -> list[Finding]:
    return list(diagnosed(**more).findings)


def test_a_healthy_fleet_has_no_findings() -> None:
    diagnosis = diagnosed()
    assert diagnosis.findings == ()
    assert set(CHECKS) <= set(diagnosis.checks)


def test_a_cluster_without_a_fleet_has_no_checks_of_one() -> None:
    diagnosis = diagnose(Snapshot(at=NOW))
    assert not set(CHECKS) & {*diagnosis.checks, *diagnosis.not_made}


def without(name: str) -> dict[str, Any]:
    shipped = {each["metadata"]["name"]: established(each) for each in hub_definitions()}
    return shipped | {name: None}


LONG = timedelta(minutes=30)


@pytest.mark.parametrize(
    ("check", "severity", "text", "parts"),
    [
        (
            "fleet definitions",
            "error",
            "the definition works.placement.kubernetes-fleet.io is not installed",
            {"definitions": without("works.placement.kubernetes-fleet.io")},
        ),
        ("fleet hub", "error", "none has ever led", {"elections": {}, "members": ()}),
        (
            "fleet hub",
            "error",
            "none has led since 2026-01-01T11:00:00",
            {"elections": {HUB_LEASE: a_lease(3600)}, "members": ()},
        ),
        ("fleet members", "error", "never reported", {"members": (a_member(),), "internals": {}}),
        ("fleet members", "error", "a foreign namespace", {"members": (a_member(ready="False"),)}),
        (
            "fleet members",
            "error",
            "its agent sends no heartbeats, the last one was 15 min ago",
            {"members": (a_member(report(age_s=900)),), "internals": {}},
        ),
        (
            "fleet members",
            "error",
            "its API server is not healthy",
            {"members": (a_member(report(healthy="False")),)},
        ),
        (
            "fleet members",
            "warning",
            "it leaves the fleet since 2026-01-01T11:30:00Z",
            {"members": (a_member(report(), deleted=NOW - LONG),)},
        ),
        (
            "fleet agents",
            "warning",
            "its agent has version 0.0.1, which is older than",
            {"internals": {"a": an_internal("0.0.1")}},
        ),
        (
            "fleet placements",
            "error",
            "the hub has not reported on its present spec yet",
            {"placements": (placed(),), "unseen": frozenset({"placement-uid"})},
        ),
        (
            "fleet placements",
            "warning",
            "too few clusters",
            {"placements": (placed(scheduled("False", LONG)),)},
        ),
        (
            "fleet placements",
            "warning",
            "it is being deleted since 2026-01-01T11:30:00Z",
            {"placements": (placed(deleted=LONG),)},
        ),
    ],
)
def test_faults_of_a_fleet(check: str, severity: str, text: str, parts: dict[str, Any]) -> None:
    findings = [each for each in found(**parts) if each.check == check]
    assert [str(each.severity) for each in findings] == [severity], findings
    assert text in findings[0].message
    assert findings[0].remedy


@pytest.mark.parametrize(
    "parts",
    [
        # One that joins, one whose agent is KubeFleet's, and one that left a moment ago
        {"members": (a_member(age_s=5),), "internals": {}},
        {"internals": {"a": an_internal("")}},
        {"internals": {"a": an_internal("99.0")}},
        {"members": (a_member(report(), deleted=NOW),)},
        # A hub without an election, which copies heartbeats
        {"elections": {}},
        # Placements that change at this moment
        {"placements": (placed(),)},
        {"placements": (placed(scheduled("False", timedelta(seconds=5))),)},
        {"placements": (placed(deleted=timedelta(seconds=5)),)},
    ],
)
def test_what_is_under_way_is_no_finding(parts: dict[str, Any]) -> None:
    assert found(**parts) == []


@pytest.mark.parametrize(
    ("part", "not_made"),
    [
        ("definitions", {"fleet definitions"}),
        ("elections", {"fleet hub"}),
        ("members", {"fleet hub", "fleet members"}),
        ("internals", {"fleet agents"}),
        ("placements", {"fleet placements"}),
        ("unseen", {"fleet placements"}),
    ],
)
def test_no_check_is_made_of_a_part_that_was_not_read(part: str, not_made: set[str]) -> None:
    diagnosis = diagnosed(**{part: NotRead(part, "forbidden", forbidden=True)})
    assert {each for each in diagnosis.not_made if each.startswith("fleet")} == not_made
    assert diagnosis.findings == ()


async def test_a_cluster_that_is_only_a_member_of_a_fleet_has_no_hub() -> None:
    not_served = answer(404, b"404 page not found")
    of_member = answer(200, b'{"kind":"APIResourceList","resources":[{"name":"appliedworks"}]}')
    client = Client(Scripted(not_served, of_member), cluster="computing")
    assert await read_fleet(client, RealClock(), 0.0) is None
