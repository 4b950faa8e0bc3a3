"""The ClusterProfile of a member."""

from __future__ import annotations

from base64 import b64decode
from datetime import timedelta

import msgspec
import pytest

from kubeocean.api.fleet.clusters import AgentStatus, MemberCluster, MemberStatus, PropertyValue
from kubeocean.api.fleet.inventory import ClusterProfile, ClusterProfileStatus
from kubeocean.api.fleet.names import FINALIZER_PROFILE
from kubeocean.fleet.inventory.profile import (
    has_profile,
    is_ours,
    profile_document,
    profile_properties,
    profile_status,
)
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Condition, Meta
from support.fleet_objects import NOW, member

THRESHOLD = timedelta(minutes=3)


def reporting(observed: str = "t1", **properties: str) -> MemberCluster:
    agent = AgentStatus("MemberAgent", (Condition("Healthy", "True"),), text_of(NOW))
    values = {
        "k8s.io/k8s-version": PropertyValue("v1.35.0", observed),
        "k8s.io/cluster-certificate-authority-data": PropertyValue("PEM" * 1000, observed),
        **{name: PropertyValue(value, observed) for name, value in properties.items()},
    }
    return member(status=MemberStatus(properties=values, agent_status=(agent,)))


def profile(status: ClusterProfileStatus | None = None) -> ClusterProfile:
    made = msgspec.convert(profile_document("a"), ClusterProfile)
    return msgspec.structs.replace(
        made, metadata=Meta("a", generation=2), status=status or ClusterProfileStatus()
    )


def status_of(reports: MemberCluster, before: ClusterProfile) -> ClusterProfileStatus:
    return profile_status(before, reports, profile_properties(reports), THRESHOLD, NOW)


def test_a_profile_shows_version_access_and_health() -> None:
    status = status_of(reporting(gpus="2"), profile())
    assert status.version.kubernetes == "v1.35.0"
    (access,) = status.access_providers
    assert access.name == "KubeFleet"
    assert access.cluster is not None
    assert b64decode(access.cluster.certificate_authority_data) == b"PEM" * 1000
    (health,) = status.conditions
    assert (health.type, health.status, health.observed_generation) == (
        "ControlPlaneHealthy",
        "True",
        2,
    )


def test_properties_that_the_schema_refuses_are_left_out() -> None:
    listed = {
        each.name: each.value for each in status_of(reporting(empty=""), profile()).properties
    }
    assert listed == {"k8s.io/k8s-version": "v1.35.0"}


def test_a_heartbeat_without_news_changes_nothing() -> None:
    first = status_of(reporting("t1", gpus="2"), profile())
    assert status_of(reporting("t2", gpus="2"), profile(first)) == first
    changed = status_of(reporting("t3", gpus="1"), profile(first))
    times = {each.name: each.last_observed_time for each in changed.properties}
    assert times == {"gpus": "t3", "k8s.io/k8s-version": "t1"}


@pytest.mark.parametrize(
    ("conditions", "finalizers", "expected"),
    [
        ((), (), False),
        ((Condition("Joined", "Unknown"),), (), False),
        ((Condition("Joined", "True"),), (), True),
        ((Condition("Joined", "False"),), (FINALIZER_PROFILE,), True),
    ],
)
def test_members_are_listed_from_their_first_join(
    conditions: tuple[Condition, ...], finalizers: tuple[str, ...], expected: bool
) -> None:
    joined = member(finalizers=finalizers, status=MemberStatus(conditions=conditions))
    assert has_profile(joined) is expected


def test_profiles_of_other_managers_are_not_ours() -> None:
    assert is_ours(profile())
    document = profile_document("a") | {"spec": {"clusterManager": {"name": "other"}}}
    assert not is_ours(msgspec.convert(document, ClusterProfile))
