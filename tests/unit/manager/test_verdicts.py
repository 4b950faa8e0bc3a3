"""Verdicts: what a status says, whatever was seen."""

from __future__ import annotations

import pytest

from kubeocean.api.binding import BindingSpec, BindingStatus, ClusterBinding, SecretReference
from kubeocean.manager.findings import Cause, Finding
from kubeocean.manager.rolloutviews import Rolled, Side, Standing
from kubeocean.manager.verdicts import (
    Seen,
    contradicts,
    happenings,
    rightful,
    rolled_out,
    status_of,
    wrong_with,
)
from kubeocean.runtime.objects import Condition, Meta, find_condition

NOW = "2026-01-01T00:00:00Z"
READY = Side(standing=Standing.READY, wanted=2, updated=2, ready=2)
ROLLING = Side(standing=Standing.ROLLING, wanted=2, reason="0 of 2")
BROKEN = Side(standing=Standing.TEMPLATE, reason="deployment.yaml:3: no")
ALL_READY = Rolled(syncer=READY, proxier=READY)
FIT = Finding(checked=True, version="v1.34.0")
DOWN = Finding(cause=Cause.UNREACHABLE, error="no answer")


def binding(
    name: str = "b",
    *,
    created: str = NOW,
    status: BindingStatus | None = None,
    finalizers: tuple[str, ...] = (),
    **spec: object,
) -> ClusterBinding:
    fields = {
        "cluster_id": "c1",
        "secret_ref": SecretReference("s", "n"),
        "mount_namespace": "m",
    } | spec
    return ClusterBinding(
        metadata=Meta(
            name=name, uid=name, generation=3, creation_timestamp=created, finalizers=finalizers
        ),
        spec=BindingSpec(**fields),
        status=status or BindingStatus(),
    )


def told(status: BindingStatus, type_: str) -> str:
    found = find_condition(status.conditions, type_)
    return f"{found.status} {found.reason}" if found else ""


def connected(status: str, reason: str) -> BindingStatus:
    return BindingStatus(
        conditions=(Condition(type="Connected", status=status, reason=reason, message="said"),)
    )


# The binding itself


def test_the_oldest_has_the_id_and_names_decide_between_twins() -> None:
    old, young = binding("z", created="2025-01-01T00:00:00Z"), binding("a")
    twin = binding("b")
    assert rightful(young, [old, young, twin]).name == "z"
    assert rightful(twin, [young, twin]).name == "a"
    assert rightful(old, [young]).name == "z"
    assert rightful(young, [binding("z", created="2025-01-01T00:00:00Z", cluster_id="c2")]) is young


def test_of_twins_the_one_that_works_keeps_the_id() -> None:
    made = Condition(type="SyncerReady", status="True", reason="x", observed_generation=1)
    works = binding("z", status=BindingStatus(conditions=(made,)))
    twin, old = binding("a"), binding("b", created="2025-01-01T00:00:00Z")
    assert rightful(works, [twin, works]) is works
    assert rightful(twin, [twin, works]) is works
    assert rightful(works, [old, works]) is old


def test_what_is_wrong_names_field_value_and_holder() -> None:
    old = binding("z", created="2025-01-01T00:00:00Z")
    said = wrong_with(binding("a", mount_namespace=""), [old])
    assert "spec.mountNamespace: must name" in said
    assert "spec.clusterID: must be unique, and binding z had it before (got 'c1')" in said
    assert wrong_with(old, [old, binding("a")]) == ""


# Ready and phase


@pytest.mark.parametrize(
    ("seen", "phase", "ready"),
    [
        ({"wrong": "spec: no"}, "Failed", "False ValidationFailed"),
        ({}, "Pending", "False Initializing"),
        ({"finding": DOWN}, "Failed", "False ConnectivityFailed"),
        ({"finding": DOWN, "rolled": ALL_READY}, "Failed", "False ConnectivityFailed"),
        (
            {"finding": Finding(cause=Cause.KUBECONFIG, error="no Secret")},
            "Failed",
            "False ConnectivityFailed",
        ),
        (
            {"finding": Finding(cause=Cause.NAMESPACE, error="none", checked=True)},
            "Failed",
            "False MountNamespaceMissing",
        ),
        (
            {"finding": Finding(cause=Cause.RIGHTS, missing=("get pods",), checked=True)},
            "Failed",
            "False PermissionsMissing",
        ),
        ({"finding": FIT}, "Pending", "False Initializing"),
        (
            {"finding": FIT, "rolled": Rolled(syncer=BROKEN, proxier=BROKEN)},
            "Failed",
            "False ProxierFailed",
        ),
        (
            {"finding": FIT, "rolled": Rolled(syncer=BROKEN, proxier=ROLLING)},
            "Failed",
            "False SyncerFailed",
        ),
        (
            {"finding": FIT, "rolled": Rolled(syncer=READY, proxier=ROLLING)},
            "Pending",
            "False Initializing",
        ),
        ({"finding": FIT, "rolled": ALL_READY}, "Ready", "True ValidationPassed"),
    ],
)
def test_ready_tells_what_stands_in_the_way_first(
    seen: dict[str, object], phase: str, ready: str
) -> None:
    status = status_of(Seen(binding=binding(), **seen), now=NOW)
    assert status.phase == phase
    assert told(status, "Ready") == ready
    assert status.last_sync_time == (NOW if phase == "Ready" else None)


def test_one_replica_is_enough_to_work() -> None:
    some = Side(standing=Standing.ROLLING, wanted=2, updated=1, ready=1, reason="1 of 2")
    rolled = Rolled(syncer=some, proxier=some)
    status = status_of(Seen(binding=binding(), finding=FIT, rolled=rolled), now=NOW)
    assert status.phase == "Ready"
    assert told(status, "SyncerReady") == "True SyncerUpdating"
    assert told(status, "ProxierReady") == "True ProxierUpdating"


@pytest.mark.parametrize(
    ("side", "syncer", "proxier"),
    [
        (READY, "True SyncerCreated", "True ProxierCreated"),
        (ROLLING, "False SyncerNotReady", "False ProxierNotReady"),
        (BROKEN, "False SyncerFailed", "False ProxierFailed"),
    ],
)
def test_each_side_has_its_condition(side: Side, syncer: str, proxier: str) -> None:
    rolled = Rolled(syncer=side, proxier=side)
    status = status_of(Seen(binding=binding(), finding=FIT, rolled=rolled), now=NOW)
    assert (told(status, "SyncerReady"), told(status, "ProxierReady")) == (syncer, proxier)


def test_what_worked_and_does_not_any_more_is_failed() -> None:
    before = BindingStatus(phase="Ready", last_sync_time="2025-12-31T00:00:00Z")
    rolled = Rolled(syncer=ROLLING, proxier=READY)
    seen = Seen(binding=binding(status=before), finding=FIT, rolled=rolled)
    status = status_of(seen, now=NOW)
    assert (status.phase, told(status, "Ready")) == ("Failed", "False SyncerFailed")
    assert status.last_sync_time == "2025-12-31T00:00:00Z"


def test_nothing_is_said_anew_until_somebody_has_looked() -> None:
    ready = status_of(Seen(binding=binding(), finding=FIT, rolled=ALL_READY), now="then")
    again = status_of(Seen(binding=binding(status=ready)), now=NOW)
    assert again == ready


def test_the_same_twice_changes_nothing() -> None:
    once = status_of(Seen(binding=binding(), finding=FIT, rolled=ALL_READY), now="then")
    seen = Seen(binding=binding(status=once), finding=FIT, rolled=ALL_READY)
    assert status_of(seen, now=NOW) == once


# Connected


def test_the_manager_tells_of_the_connection_where_nobody_does() -> None:
    assert told(status_of(Seen(binding=binding(), finding=FIT), now=NOW), "Connected") == (
        "True ConnectivityPassed"
    )
    assert told(status_of(Seen(binding=binding(), finding=DOWN), now=NOW), "Connected") == (
        "False ConnectivityFailed"
    )


@pytest.mark.parametrize(
    ("before", "finding", "leads", "after"),
    [
        (("False", "WorkerUnreachable"), DOWN, False, "False WorkerUnreachable"),
        (("False", "WorkerUnreachable"), FIT, True, "False WorkerUnreachable"),
        (("False", "WorkerUnreachable"), FIT, False, "True ConnectivityPassed"),
        (("True", "ConnectivityPassed"), DOWN, True, "True ConnectivityPassed"),
        (("True", "ConnectivityPassed"), DOWN, False, "False ConnectivityFailed"),
        (("False", "ConnectivityFailed"), DOWN, False, "False ConnectivityFailed"),
    ],
)
def test_the_syncer_that_leads_has_the_word(
    before: tuple[str, str], finding: Finding, leads: bool, after: str
) -> None:
    there = binding(status=connected(*before))
    status = status_of(Seen(binding=there, finding=finding, leads=leads), now=NOW)
    assert told(status, "Connected") == after
    assert contradicts(there, finding) == ((before[0] == "True") != finding.answers)


def test_our_own_reason_is_told_anew_when_it_changes() -> None:
    there = binding(status=connected("False", "ConnectivityFailed"))
    status = status_of(Seen(binding=there, finding=DOWN), now=NOW)
    found = find_condition(status.conditions, "Connected")
    assert found is not None
    assert found.message.endswith("no answer")


def test_a_syncer_that_cannot_reach_its_worker_makes_it_not_ready() -> None:
    there = binding(status=connected("False", "WorkerUnreachable"))
    seen = Seen(binding=there, finding=FIT, rolled=ALL_READY, leads=True)
    status = status_of(seen, now=NOW)
    assert told(status, "Ready") == "False ConnectivityFailed"


# Rights


def test_missing_rights_are_named() -> None:
    finding = Finding(
        cause=Cause.RIGHTS, error="create pods in m", missing=("create pods in m",), checked=True
    )
    status = status_of(Seen(binding=binding(), finding=finding), now=NOW)
    for type_ in ("Ready", "Permitted"):
        found = find_condition(status.conditions, type_)
        assert found is not None
        assert found.reason == "PermissionsMissing"
        assert "create pods in m" in found.message


def test_add_ons_that_are_not_granted_are_named_and_nothing_more() -> None:
    finding = Finding(checked=True, without=("volumes",))
    status = status_of(Seen(binding=binding(), finding=finding, rolled=ALL_READY), now=NOW)
    found = find_condition(status.conditions, "Permitted")
    assert found is not None
    assert found.message.endswith("add-ons without rights: volumes")
    assert status.phase == "Ready"


# Rolled out before


def test_what_the_earlier_implementation_made_was_not_rolled_out_by_us() -> None:
    theirs = BindingStatus(
        conditions=(Condition(type="SyncerReady", status="True", reason="SyncerCreated"),)
    )
    assert not rolled_out(binding(status=theirs))
    ours = status_of(Seen(binding=binding(), finding=FIT, rolled=ALL_READY), now=NOW)
    assert rolled_out(binding(status=ours))


# Events


def test_a_change_is_told_once() -> None:
    nothing, pending = BindingStatus(), status_of(Seen(binding=binding()), now=NOW)
    assert [each.reason for each in happenings(nothing, pending)] == ["StatusUpdated"]
    ready = status_of(Seen(binding=binding(status=pending), finding=FIT, rolled=ALL_READY), now=NOW)
    assert [each.reason for each in happenings(pending, ready)] == ["Reconciling", "Ready"]
    lost = status_of(Seen(binding=binding(status=ready), finding=DOWN, rolled=ALL_READY), now=NOW)
    assert [(each.type, each.reason) for each in happenings(ready, lost)] == [
        ("Warning", "ConnectivityFailed")
    ]
    assert list(happenings(lost, lost)) == []
