"""Tests of the computation of a binding's status and of its events."""

from __future__ import annotations

import pytest

from kubeocean.api.bindings import (
    BindingSpec,
    BindingStatus,
    ClusterBinding,
    RefusedNamespace,
    SecretNamespaces,
    SecretReference,
)
from kubeocean.manager.rollout_state import ComponentPhase, ComponentState, RolloutResult
from kubeocean.manager.status import (
    BindingObservation,
    cluster_id_prefixes,
    contradicts,
    oldest_claimant,
    problems_of_binding,
    rolled_out,
    status_events,
    status_of,
)
from kubeocean.manager.worker_probe import Cause, ProbeResult
from kubeocean.runtime.objects import Condition, Meta, find_condition

NOW = "2026-01-01T00:00:00Z"
READY = ComponentState(phase=ComponentPhase.READY, desired=2, updated=2, ready=2)
ROLLING = ComponentState(phase=ComponentPhase.ROLLING, desired=2, reason="0 of 2")
BROKEN = ComponentState(phase=ComponentPhase.TEMPLATE, reason="deployment.yaml:3: no")
ALL_READY = RolloutResult(syncer=READY, proxier=READY)
FIT = ProbeResult(checked=True, version="v1.34.0")
DOWN = ProbeResult(cause=Cause.UNREACHABLE, error="no answer")


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


def condition_text(status: BindingStatus, type_: str) -> str:
    condition = find_condition(status.conditions, type_)
    return f"{condition.status} {condition.reason}" if condition else ""


def connected(status: str, reason: str) -> BindingStatus:
    return BindingStatus(
        conditions=(Condition(type="Connected", status=status, reason=reason, message="before"),)
    )


def test_the_oldest_binding_holds_the_cluster_id_and_names_break_ties() -> None:
    old, young = binding("z", created="2025-01-01T00:00:00Z"), binding("a")
    twin = binding("b")
    assert oldest_claimant(young, [old, young, twin]).name == "z"
    assert oldest_claimant(twin, [young, twin]).name == "a"
    assert oldest_claimant(old, [young]).name == "z"
    assert (
        oldest_claimant(young, [binding("z", created="2025-01-01T00:00:00Z", cluster_id="c2")])
        is young
    )


def test_of_equally_old_bindings_the_one_that_is_rolled_out_holds_the_cluster_id() -> None:
    made = Condition(type="SyncerReady", status="True", reason="x", observed_generation=1)
    works = binding("z", status=BindingStatus(conditions=(made,)))
    twin, old = binding("a"), binding("b", created="2025-01-01T00:00:00Z")
    assert oldest_claimant(works, [twin, works]) is works
    assert oldest_claimant(twin, [twin, works]) is works
    assert oldest_claimant(works, [old, works]) is old


def test_a_problem_names_field_value_and_the_binding_that_holds_the_cluster_id() -> None:
    old = binding("z", created="2025-01-01T00:00:00Z")
    problems = problems_of_binding(binding("a", mount_namespace=""), [old])
    assert "spec.mountNamespace: must name" in problems
    assert "spec.clusterID: must be unique; binding z has it already (got 'c1')" in problems
    assert problems_of_binding(old, [old, binding("a")]) == ""


def test_a_cluster_id_that_is_a_prefix_of_another_is_refused_for_the_younger_binding() -> None:
    old = binding("z", created="2025-01-01T00:00:00Z", cluster_id="prod")
    message = (
        "spec.clusterID: must not allow the same names of virtual nodes as 'prod' of binding z"
    )
    young = binding("a", cluster_id="prod-eu")
    assert problems_of_binding(young, [old, young]).startswith(message)
    assert problems_of_binding(old, [old, young]) == ""
    short = binding("a", cluster_id="pr")
    assert problems_of_binding(short, [old, short]) == ""
    shorter = binding("b", cluster_id="prod")
    longer = binding("c", created="2025-01-01T00:00:00Z", cluster_id="prod-eu")
    assert "'prod-eu' of binding c" in problems_of_binding(shorter, [longer, shorter])


def test_bindings_that_are_rolled_out_keep_overlapping_cluster_ids() -> None:
    made = Condition(type="SyncerReady", status="True", reason="x", observed_generation=1)
    old = binding("z", created="2025-01-01T00:00:00Z", cluster_id="prod")
    works = binding("a", cluster_id="prod-eu", status=BindingStatus(conditions=(made,)))
    assert problems_of_binding(works, [old, works]) == ""


def test_prefixes_of_a_cluster_id_end_before_a_dash() -> None:
    assert cluster_id_prefixes("prod") == ("prod",)
    assert cluster_id_prefixes("prod-eu-1") == ("prod", "prod-eu", "prod-eu-1")


@pytest.mark.parametrize(
    ("observed", "phase", "ready"),
    [
        ({"wrong": "spec: no"}, "Failed", "False ValidationFailed"),
        ({}, "Pending", "False Initializing"),
        ({"probe": DOWN}, "Failed", "False ConnectivityFailed"),
        ({"probe": DOWN, "rollout": ALL_READY}, "Failed", "False ConnectivityFailed"),
        (
            {"probe": ProbeResult(cause=Cause.KUBECONFIG, error="no Secret")},
            "Failed",
            "False ConnectivityFailed",
        ),
        (
            {"probe": ProbeResult(cause=Cause.NAMESPACE, error="none", checked=True)},
            "Failed",
            "False MountNamespaceMissing",
        ),
        (
            {"probe": ProbeResult(cause=Cause.RIGHTS, missing=("get pods",), checked=True)},
            "Failed",
            "False PermissionsMissing",
        ),
        ({"probe": FIT}, "Pending", "False Initializing"),
        (
            {"probe": FIT, "rollout": RolloutResult(syncer=BROKEN, proxier=BROKEN)},
            "Failed",
            "False ProxierFailed",
        ),
        (
            {"probe": FIT, "rollout": RolloutResult(syncer=BROKEN, proxier=ROLLING)},
            "Failed",
            "False SyncerFailed",
        ),
        (
            {"probe": FIT, "rollout": RolloutResult(syncer=READY, proxier=ROLLING)},
            "Pending",
            "False Initializing",
        ),
        ({"probe": FIT, "rollout": ALL_READY}, "Ready", "True ValidationPassed"),
    ],
)
def test_ready_names_the_first_obstacle(
    observed: dict[str, object], phase: str, ready: str
) -> None:
    status = status_of(BindingObservation(binding=binding(), **observed), now=NOW)
    assert status.phase == phase
    assert condition_text(status, "Ready") == ready
    assert status.last_sync_time == (NOW if phase == "Ready" else None)


def test_one_ready_replica_makes_the_binding_ready() -> None:
    some = ComponentState(
        phase=ComponentPhase.ROLLING, desired=2, updated=1, ready=1, reason="1 of 2"
    )
    rollout = RolloutResult(syncer=some, proxier=some)
    status = status_of(BindingObservation(binding=binding(), probe=FIT, rollout=rollout), now=NOW)
    assert status.phase == "Ready"
    assert condition_text(status, "SyncerReady") == "True SyncerUpdating"
    assert condition_text(status, "ProxierReady") == "True ProxierUpdating"


@pytest.mark.parametrize(
    ("component", "syncer", "proxier"),
    [
        (READY, "True SyncerCreated", "True ProxierCreated"),
        (ROLLING, "False SyncerNotReady", "False ProxierNotReady"),
        (BROKEN, "False SyncerFailed", "False ProxierFailed"),
    ],
)
def test_each_component_has_its_condition(
    component: ComponentState, syncer: str, proxier: str
) -> None:
    rollout = RolloutResult(syncer=component, proxier=component)
    status = status_of(BindingObservation(binding=binding(), probe=FIT, rollout=rollout), now=NOW)
    assert (condition_text(status, "SyncerReady"), condition_text(status, "ProxierReady")) == (
        syncer,
        proxier,
    )


def test_a_binding_that_was_ready_and_is_not_any_more_is_failed() -> None:
    before = BindingStatus(phase="Ready", last_sync_time="2025-12-31T00:00:00Z")
    rollout = RolloutResult(syncer=ROLLING, proxier=READY)
    observed = BindingObservation(binding=binding(status=before), probe=FIT, rollout=rollout)
    status = status_of(observed, now=NOW)
    assert (status.phase, condition_text(status, "Ready")) == ("Failed", "False SyncerFailed")
    assert status.last_sync_time == "2025-12-31T00:00:00Z"


def test_the_status_does_not_change_until_the_first_probe_has_finished() -> None:
    ready = status_of(
        BindingObservation(binding=binding(), probe=FIT, rollout=ALL_READY), now="then"
    )
    again = status_of(BindingObservation(binding=binding(status=ready)), now=NOW)
    assert again == ready


@pytest.mark.parametrize("phase", ["Pending", "Ready", "Failed"])
def test_a_phase_without_a_ready_condition_starts_anew(phase: str) -> None:
    status = status_of(
        BindingObservation(binding=binding(status=BindingStatus(phase=phase))), now=NOW
    )
    assert (status.phase, condition_text(status, "Ready")) == ("Pending", "False Initializing")


@pytest.mark.parametrize("phase", ["", "Running"])
def test_a_ready_condition_without_a_known_phase_starts_anew(phase: str) -> None:
    ready = Condition(type="Ready", status="True", reason="ValidationPassed")
    before = BindingStatus(phase=phase, conditions=(ready,))
    status = status_of(BindingObservation(binding=binding(status=before)), now=NOW)
    assert (status.phase, condition_text(status, "Ready")) == ("Pending", "False Initializing")


@pytest.mark.parametrize("probe", [FIT, DOWN])
def test_an_invalid_binding_gets_no_condition_but_ready(probe: ProbeResult) -> None:
    observed = BindingObservation(
        binding=binding(), wrong="spec: no", probe=probe, rollout=ALL_READY
    )
    status = status_of(observed, now=NOW)
    assert [each.type for each in status.conditions or ()] == ["Ready"]
    assert (status.phase, condition_text(status, "Ready")) == ("Failed", "False ValidationFailed")


def test_an_invalid_binding_keeps_the_conditions_it_had() -> None:
    ready = status_of(
        BindingObservation(binding=binding(), probe=FIT, rollout=ALL_READY), now="then"
    )
    observed = BindingObservation(binding=binding(status=ready), wrong="spec: no", probe=DOWN)
    status = status_of(observed, now=NOW)
    for type_ in ("Connected", "Permitted", "SyncerReady", "ProxierReady"):
        assert find_condition(status.conditions, type_) == find_condition(ready.conditions, type_)
    assert condition_text(status, "Ready") == "False ValidationFailed"


def test_the_same_observation_twice_changes_nothing() -> None:
    once = status_of(
        BindingObservation(binding=binding(), probe=FIT, rollout=ALL_READY), now="then"
    )
    observed = BindingObservation(binding=binding(status=once), probe=FIT, rollout=ALL_READY)
    assert status_of(observed, now=NOW) == once


def test_the_manager_writes_connected_if_the_condition_is_missing() -> None:
    assert condition_text(
        status_of(BindingObservation(binding=binding(), probe=FIT), now=NOW), "Connected"
    ) == ("True ConnectivityPassed")
    assert condition_text(
        status_of(BindingObservation(binding=binding(), probe=DOWN), now=NOW), "Connected"
    ) == ("False ConnectivityFailed")


@pytest.mark.parametrize(
    ("before", "probe", "leads", "after"),
    [
        (("False", "WorkerUnreachable"), DOWN, False, "False WorkerUnreachable"),
        (("False", "WorkerUnreachable"), FIT, True, "False WorkerUnreachable"),
        (("False", "WorkerUnreachable"), FIT, False, "True ConnectivityPassed"),
        (("True", "ConnectivityPassed"), DOWN, True, "True ConnectivityPassed"),
        (("True", "ConnectivityPassed"), DOWN, False, "False ConnectivityFailed"),
        (("False", "ConnectivityFailed"), DOWN, False, "False ConnectivityFailed"),
    ],
)
def test_the_leading_syncer_owns_the_condition_connected(
    before: tuple[str, str], probe: ProbeResult, leads: bool, after: str
) -> None:
    stored = binding(status=connected(*before))
    status = status_of(BindingObservation(binding=stored, probe=probe, leads=leads), now=NOW)
    assert condition_text(status, "Connected") == after
    assert contradicts(stored, probe) == ((before[0] == "True") != probe.answers)


def test_a_connection_failure_of_the_manager_gets_a_new_message() -> None:
    stored = binding(status=connected("False", "ConnectivityFailed"))
    status = status_of(BindingObservation(binding=stored, probe=DOWN), now=NOW)
    condition = find_condition(status.conditions, "Connected")
    assert condition is not None
    assert condition.message.endswith("no answer")


def test_a_syncer_that_cannot_reach_its_worker_makes_the_binding_not_ready() -> None:
    stored = binding(status=connected("False", "WorkerUnreachable"))
    observed = BindingObservation(binding=stored, probe=FIT, rollout=ALL_READY, leads=True)
    status = status_of(observed, now=NOW)
    assert condition_text(status, "Ready") == "False ConnectivityFailed"


def test_missing_permissions_are_named() -> None:
    probe = ProbeResult(
        cause=Cause.RIGHTS, error="create pods in m", missing=("create pods in m",), checked=True
    )
    status = status_of(BindingObservation(binding=binding(), probe=probe), now=NOW)
    for type_ in ("Ready", "Permitted"):
        condition = find_condition(status.conditions, type_)
        assert condition is not None
        assert condition.reason == "PermissionsMissing"
        assert "create pods in m" in condition.message


def test_add_ons_that_are_not_granted_do_not_block_readiness() -> None:
    probe = ProbeResult(checked=True, without=("volumes",))
    status = status_of(
        BindingObservation(binding=binding(), probe=probe, rollout=ALL_READY), now=NOW
    )
    condition = find_condition(status.conditions, "Permitted")
    assert condition is not None
    assert condition.message.endswith("add-ons without permissions: volumes")
    assert status.phase == "Ready"


def test_conditions_of_the_earlier_implementation_do_not_count_as_rolled_out() -> None:
    theirs = BindingStatus(
        conditions=(Condition(type="SyncerReady", status="True", reason="SyncerCreated"),)
    )
    assert not rolled_out(binding(status=theirs))
    ours = status_of(BindingObservation(binding=binding(), probe=FIT, rollout=ALL_READY), now=NOW)
    assert rolled_out(binding(status=ours))


def test_a_change_emits_one_event() -> None:
    nothing, pending = BindingStatus(), status_of(BindingObservation(binding=binding()), now=NOW)
    assert [each.reason for each in status_events(nothing, pending)] == ["StatusUpdated"]
    ready = status_of(
        BindingObservation(binding=binding(status=pending), probe=FIT, rollout=ALL_READY), now=NOW
    )
    assert [each.reason for each in status_events(pending, ready)] == ["Reconciling", "Ready"]
    lost = status_of(
        BindingObservation(binding=binding(status=ready), probe=DOWN, rollout=ALL_READY), now=NOW
    )
    assert [(each.type, each.reason) for each in status_events(ready, lost)] == [
        ("Warning", "ConnectivityFailed")
    ]
    assert list(status_events(lost, lost)) == []


def test_full_trust_in_a_worker_is_a_condition_until_it_ends() -> None:
    cautious = status_of(BindingObservation(binding=binding()), now=NOW)
    assert condition_text(cautious, "WorkerTrustedFully") == ""
    trusting = status_of(BindingObservation(binding=binding(worker_trust="Full")), now=NOW)
    assert condition_text(trusting, "WorkerTrustedFully") == "True WorkerTrustFull"
    again = status_of(BindingObservation(binding=binding(status=trusting)), now=NOW)
    assert condition_text(again, "WorkerTrustedFully") == "False WorkerTrustKubelet"


def test_namespaces_of_secrets_are_those_of_the_rollout_and_a_refusal_is_told_once() -> None:
    decided = SecretNamespaces(("a", "b"), ("a",), (RefusedNamespace("b", "why"),))
    rollout = RolloutResult(syncer=READY, proxier=READY, secret_namespaces=decided)
    before = status_of(BindingObservation(binding=binding(), probe=FIT, rollout=ALL_READY), now=NOW)
    after = status_of(
        BindingObservation(binding=binding(status=before), probe=FIT, rollout=rollout), now=NOW
    )
    assert after.secret_namespaces == decided
    (event,) = status_events(before, after)
    assert (event.type, event.reason) == ("Warning", "SecretsRefused")
    assert event.message == "The syncer may not read Secrets in namespace b: why"
    assert list(status_events(after, after)) == []
    # Without a rollout nothing is known of the namespaces, and the status stays.
    unknown = BindingObservation(binding=binding(status=after), probe=FIT)
    assert status_of(unknown, now=NOW).secret_namespaces == decided
