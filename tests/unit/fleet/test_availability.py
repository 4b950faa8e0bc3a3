"""Availability of each kind: objects that are available, and objects that are not."""

from __future__ import annotations

from typing import Any

import pytest

from kubeocean.api.fleet.conditions import Availability
from kubeocean.fleet.applier.availability import (
    availability_of,
    extended_tracker,
    follows_status,
    kubefleet_tracker,
)
from kubeocean.runtime.objects import Json

AVAILABLE = Availability.AVAILABLE
NOT_YET = Availability.NOT_YET
NOT_TRACKABLE = Availability.NOT_TRACKABLE
FAILED = Availability.FAILED


def obj(api_version: str, kind: str, *, spec: Json | None = None, **status: Any) -> Json:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "a", "generation": 2},
        "spec": spec or {},
        "status": status,
    }


def condition(type_: str, status: str, **more: Any) -> Json:
    return {"type": type_, "status": status, **more}


def upstream(subject: Json) -> Availability:
    availability = availability_of(subject, kubefleet_tracker)
    assert availability_of(subject, extended_tracker) is availability, (
        "an extension changes this kind"
    )
    return availability


DEPLOYED = {"observedGeneration": 2, "availableReplicas": 3, "updatedReplicas": 3}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, AVAILABLE),
        ({"unavailableReplicas": 0}, AVAILABLE),
        ({"observedGeneration": 1}, NOT_YET),
        ({"availableReplicas": 2}, NOT_YET),
        ({"updatedReplicas": 2}, NOT_YET),
        ({"unavailableReplicas": 1}, NOT_YET),
    ],
)
def test_a_deployment(change: Json, expected: Availability) -> None:
    status = {**DEPLOYED, **change}
    assert upstream(obj("apps/v1", "Deployment", spec={"replicas": 3}, **status)) is expected


def test_replicas_default_to_one_and_may_be_none() -> None:
    one = {"observedGeneration": 2, "availableReplicas": 1, "updatedReplicas": 1}
    assert upstream(obj("apps/v1", "Deployment", **one)) is AVAILABLE
    assert upstream(obj("apps/v1", "Deployment", observedGeneration=2)) is NOT_YET
    none = obj("apps/v1", "Deployment", spec={"replicas": 0}, observedGeneration=2)
    assert upstream(none) is AVAILABLE


STATEFUL = {
    "observedGeneration": 2,
    "availableReplicas": 2,
    "currentReplicas": 2,
    "updatedReplicas": 2,
    "currentRevision": "r1",
    "updateRevision": "r1",
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, AVAILABLE),
        ({"observedGeneration": 1}, NOT_YET),
        ({"availableReplicas": 1}, NOT_YET),
        ({"updatedReplicas": 1}, NOT_YET),
        ({"updateRevision": "r2"}, NOT_YET),
    ],
)
def test_a_stateful_set(change: Json, expected: Availability) -> None:
    status = {**STATEFUL, **change}
    assert upstream(obj("apps/v1", "StatefulSet", spec={"replicas": 2}, **status)) is expected


DAEMONS = {
    "observedGeneration": 2,
    "numberAvailable": 2,
    "desiredNumberScheduled": 2,
    "currentNumberScheduled": 2,
    "updatedNumberScheduled": 2,
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, AVAILABLE),
        ({"observedGeneration": 1}, NOT_YET),
        ({"numberAvailable": 1}, NOT_YET),
        ({"updatedNumberScheduled": 1}, NOT_YET),
    ],
)
def test_a_daemon_set(change: Json, expected: Availability) -> None:
    assert upstream(obj("apps/v1", "DaemonSet", **{**DAEMONS, **change})) is expected


@pytest.mark.parametrize(
    ("spec", "ingress", "expected"),
    [
        ({"clusterIP": "10.0.0.1"}, [], AVAILABLE),
        ({"type": "ClusterIP", "clusterIPs": ["10.0.0.1"]}, [], AVAILABLE),
        ({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}, [], AVAILABLE),
        ({"type": "ClusterIP"}, [], NOT_YET),
        ({"type": "NodePort", "clusterIP": "10.0.0.1"}, [], AVAILABLE),
        ({"type": "NodePort", "clusterIP": ""}, [], NOT_YET),
        ({"type": "LoadBalancer", "clusterIP": "10.0.0.1"}, [], NOT_YET),
        ({"type": "LoadBalancer"}, [{"ip": "1.2.3.4"}], AVAILABLE),
        ({"type": "LoadBalancer"}, [{"hostname": "a.example.com"}], AVAILABLE),
        ({"type": "LoadBalancer"}, [{"ports": []}, {"ip": "1.2.3.4"}], NOT_YET),
        ({"type": "ExternalName", "externalName": "a.example.com"}, [], NOT_TRACKABLE),
    ],
)
def test_a_service(spec: Json, ingress: list[Json], expected: Availability) -> None:
    assert upstream(obj("v1", "Service", spec=spec, loadBalancer={"ingress": ingress})) is expected


@pytest.mark.parametrize(
    ("established", "accepted", "expected"),
    [("True", "True", AVAILABLE), ("False", "True", NOT_YET), ("True", "Unknown", NOT_YET)],
)
def test_a_definition(established: str, accepted: str, expected: Availability) -> None:
    conditions = [condition("Established", established), condition("NamesAccepted", accepted)]
    subject = obj("apiextensions.k8s.io/v1", "CustomResourceDefinition", conditions=conditions)
    assert upstream(subject) is expected


@pytest.mark.parametrize(
    ("allowed", "observed", "current", "expected"),
    [
        (1, 2, ("True", "SufficientPods"), AVAILABLE),
        (0, 2, ("False", "InsufficientPods"), AVAILABLE),
        (0, 1, ("False", "InsufficientPods"), NOT_YET),
        (1, 2, ("False", "InsufficientPods"), NOT_YET),
        (0, 2, ("True", "SufficientPods"), NOT_YET),
        (0, 2, ("False", "SyncFailed"), NOT_YET),
        (0, 2, None, NOT_YET),
    ],
)
def test_a_disruption_budget(
    allowed: int, observed: int, current: tuple[str, str] | None, expected: Availability
) -> None:
    conditions = []
    if current is not None:
        conditions = [condition("DisruptionAllowed", current[0], reason=current[1])]
    status = {"disruptionsAllowed": allowed, "observedGeneration": observed}
    subject = obj("policy/v1", "PodDisruptionBudget", conditions=conditions, **status)
    assert upstream(subject) is expected


@pytest.mark.parametrize(
    ("api_version", "kind"),
    [
        ("v1", "Namespace"),
        ("v1", "Secret"),
        ("v1", "ConfigMap"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
        ("v1", "ServiceAccount"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("storage.k8s.io/v1", "CSIDriver"),
        ("storage.k8s.io/v1", "CSINode"),
        ("storage.k8s.io/v1", "StorageClass"),
        ("storage.k8s.io/v1", "CSIStorageCapacity"),
        ("apps/v1", "ControllerRevision"),
        ("networking.k8s.io/v1", "IngressClass"),
        ("v1", "LimitRange"),
        ("v1", "ResourceQuota"),
        ("scheduling.k8s.io/v1", "PriorityClass"),
    ],
)
def test_data_is_available_at_once(api_version: str, kind: str) -> None:
    assert upstream(obj(api_version, kind)) is AVAILABLE


READY = condition("Ready", "True")


@pytest.mark.parametrize(
    ("subject", "with_extensions"),
    [
        (obj("batch/v1", "Job"), NOT_YET),
        (obj("batch/v1", "Job", conditions=[condition("Complete", "True")]), AVAILABLE),
        (obj("batch/v1", "Job", conditions=[condition("Failed", "True")]), NOT_YET),
        (obj("batch/v1", "Job", spec={"suspend": True}), NOT_TRACKABLE),
        (obj("batch/v1", "CronJob"), AVAILABLE),
        (obj("batch/v1", "CronJob", spec={"suspend": True}), NOT_TRACKABLE),
        (obj("v1", "PersistentVolumeClaim", phase="Bound"), AVAILABLE),
        (obj("v1", "PersistentVolumeClaim", phase="Pending"), NOT_TRACKABLE),
        (obj("v1", "PersistentVolumeClaim", phase="Lost"), NOT_YET),
        (obj("example.com/v1", "Widget"), NOT_TRACKABLE),
        (obj("example.com/v1", "Widget", conditions=[READY]), AVAILABLE),
        (obj("example.com/v1", "Widget", conditions=[condition("Ready", "False")]), NOT_YET),
        (obj("example.com/v1", "Widget", conditions=[condition("Available", "True")]), AVAILABLE),
        (
            obj("example.com/v1", "Widget", conditions=[{**READY, "observedGeneration": 1}]),
            NOT_YET,
        ),
        (obj("example.com/v1", "Widget", observedGeneration=1, conditions=[READY]), NOT_YET),
        (obj("example.com/v1", "Widget", conditions="text"), NOT_TRACKABLE),
        (obj("example.com/v1", "Widget", conditions=7), FAILED),
        (obj("networking.k8s.io/v1", "Ingress"), NOT_TRACKABLE),
        (obj("autoscaling/v2", "HorizontalPodAutoscaler", conditions=[READY]), NOT_TRACKABLE),
        (obj("v1", "Pod", conditions=[READY]), NOT_TRACKABLE),
    ],
)
def test_kinds_that_only_extensions_track(subject: Json, with_extensions: Availability) -> None:
    assert availability_of(subject, kubefleet_tracker) is NOT_TRACKABLE
    assert availability_of(subject, extended_tracker) is with_extensions


def test_an_object_of_other_types_cannot_be_judged() -> None:
    assert upstream(obj("apps/v1", "Deployment", observedGeneration="many")) is FAILED
    assert upstream({**obj("v1", "Service"), "spec": []}) is NOT_YET
    assert upstream({**obj("apps/v1", "DaemonSet"), "status": "x"}) is FAILED


def test_what_counts_as_available() -> None:
    counting = {each for each in Availability if each.counts_as_available}
    assert counting == {AVAILABLE, NOT_TRACKABLE}


def test_kinds_whose_status_matters_are_known() -> None:
    assert follows_status("apps", "Deployment", kubefleet_tracker)
    assert not follows_status("", "ConfigMap", kubefleet_tracker)
    assert not follows_status("example.com", "Widget", kubefleet_tracker)
    assert follows_status("example.com", "Widget", extended_tracker)
