"""Tests of the ownership of rolled-out objects and of the state of a component."""

from __future__ import annotations

import msgspec
import pytest

from kubeocean.api import group
from kubeocean.api.group import API_VERSION, DEFAULT
from kubeocean.manager.rollout_state import (
    ComponentPhase,
    ComponentState,
    RolloutResult,
    component_state,
)
from kubeocean.manager.rollout_watch import binding_of as owner_of
from kubeocean.manager.rollout_watch import ownership_of
from kubeocean.runtime.kinds import Deployment
from kubeocean.runtime.objects import Json, Untyped
from support.rollout_env import binding_of


def owner(name: str, uid: str, **more: object) -> Json:
    return {"apiVersion": API_VERSION, "kind": "ClusterBinding", "name": name, "uid": uid} | more


def stored_object(owners: list[Json], **labels: str) -> Untyped:
    written = {
        {"instance": group.APP_INSTANCE, "binding": DEFAULT.cluster_binding}[key]: value
        for key, value in labels.items()
    }
    body = {"metadata": {"name": "x", "ownerReferences": owners, "labels": written}}
    return msgspec.convert(body, Untyped)


REPLICA_SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r1"}


@pytest.mark.parametrize(
    ("owners", "labels", "foreign_owner"),
    [
        ([owner("b1", "u1")], {}, None),
        ([owner("b1", "u1"), owner("b2", "u2")], {}, None),
        ([], {"instance": "b1"}, None),
        ([], {"binding": "b1"}, None),
        ([REPLICA_SET], {"instance": "b1"}, None),  # an owner that does not control it
        ([], {"instance": "b1", "binding": "b2"}, "neither its owner nor its labels"),
        ([], {"instance": "b2"}, "neither its owner nor its labels"),
        ([], {}, "neither its owner nor its labels"),
        ([owner("b2", "u2")], {"instance": "b1"}, "belongs to ClusterBinding b2"),
        ([owner("b1", "u0")], {"instance": "b1"}, "belongs to an earlier ClusterBinding"),
        ([REPLICA_SET | {"controller": True}], {"instance": "b1"}, "belongs to ReplicaSet r"),
    ],
)
def test_an_object_belongs_to_the_binding_that_owns_or_labels_it(
    owners: list[Json], labels: dict[str, str], foreign_owner: str | None
) -> None:
    ownership = ownership_of(stored_object(owners, **labels), binding_of(), DEFAULT)
    assert ownership.ours is (foreign_owner is None)
    assert (foreign_owner or "") in ownership.owner


def test_the_binding_of_an_object_is_its_owner() -> None:
    reference = owner_of(stored_object([REPLICA_SET, owner("b1", "u1")]), DEFAULT)
    assert reference is not None
    assert reference.name == "b1"
    other = owner("b1", "u1") | {"apiVersion": "example.org/v1"}
    assert owner_of(stored_object([other]), DEFAULT) is None


@pytest.mark.parametrize(
    ("rolled_out_for", "ours"),
    [("b1/u1", True), ("b1/u0", True), ("b2/u2", False), ("b1", False), ("/u1", False)],
)
def test_an_annotation_stands_for_the_owner_in_a_management_cluster(
    rolled_out_for: str, ours: bool
) -> None:
    body = {"metadata": {"annotations": {DEFAULT.rolled_out_for: rolled_out_for}}}
    stored = msgspec.convert(body, Untyped)
    assert ownership_of(stored, binding_of(), DEFAULT).ours is ours
    reference = owner_of(stored, DEFAULT)
    name, _, uid = rolled_out_for.partition("/")
    assert (reference is not None) is bool(name and uid)
    assert reference is None or (reference.name, reference.uid) == (name, uid)


def deployment(generation: int = 2, wanted: int | None = 2, **status: object) -> Deployment:
    body: Json = {
        "metadata": {"name": "d", "namespace": "n", "generation": generation},
        "spec": {} if wanted is None else {"replicas": wanted},
        "status": {
            "observedGeneration": 2,
            "replicas": 2,
            "updatedReplicas": 2,
            "availableReplicas": 2,
        }
        | status,
    }
    return msgspec.convert(body, Deployment)


def test_a_component_is_ready_when_all_replicas_are_updated_and_available() -> None:
    state = component_state(deployment())
    assert state == ComponentState(phase=ComponentPhase.READY, desired=2, updated=2, ready=2)
    assert state.is_ready
    assert not state.failed
    none = {"replicas": 0, "updatedReplicas": 0, "availableReplicas": 0}
    assert component_state(deployment(wanted=0, **none)).is_ready


def condition(type_: str, status: str) -> list[Json]:
    return [{"type": type_, "status": status, "reason": "Why", "message": "because"}]


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (deployment(3), "its controller has not observed that yet"),
        (deployment(updatedReplicas=1), "1 of 2 replicas are updated"),
        (deployment(wanted=None, updatedReplicas=0), "0 of 1 replicas are updated"),
        (deployment(availableReplicas=1), "1 of 2 replicas are available"),
        (deployment(replicas=2, updatedReplicas=0), "0 of 2 replicas are updated"),
        (deployment(conditions=condition("Progressing", "False")), "Why: because"),
        (deployment(conditions=condition("ReplicaFailure", "True")), "Why: because"),
    ],
)
def test_a_component_that_is_not_ready_has_a_reason(stored: Deployment, reason: str) -> None:
    state = component_state(stored)
    assert state.phase is ComponentPhase.ROLLING
    assert reason in state.reason


def test_a_deployment_that_is_being_deleted_is_not_ready() -> None:
    body = msgspec.to_builtins(deployment())
    body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert "is being deleted" in component_state(msgspec.convert(body, Deployment)).reason


def test_a_failure_overrides_the_phase_and_keeps_the_numbers_of_replicas() -> None:
    state = component_state(deployment(), phase=ComponentPhase.TEMPLATE, reason="no")
    assert state == ComponentState(
        phase=ComponentPhase.TEMPLATE, desired=2, updated=2, ready=2, reason="no"
    )
    assert state.failed
    assert component_state(None, phase=ComponentPhase.FOREIGN, reason="no").failed
    assert component_state(None).reason == "no Deployment yet"
    assert RolloutResult(syncer=state, proxier=component_state(deployment())).failed
    assert not RolloutResult(
        syncer=component_state(None), proxier=component_state(deployment())
    ).failed
