"""The ClusterProfile of a member. Pure."""

from __future__ import annotations

from base64 import b64encode
from datetime import datetime, timedelta
from typing import Final

import msgspec

from kubeocean.api.fleet.clusters import MemberCluster
from kubeocean.api.fleet.conditions import MemberCondition
from kubeocean.api.fleet.inventory import (
    CLUSTER_PROFILES,
    AccessProvider,
    ClusterAccess,
    ClusterProfile,
    ClusterProfileStatus,
    ClusterProperty,
    ClusterVersion,
)
from kubeocean.api.fleet.names import (
    CLUSTER_MANAGER,
    FINALIZER_PROFILE,
    LABEL_CLUSTER_MANAGER,
    PROPERTY_CERTIFICATE_AUTHORITY,
    PROPERTY_ENTRY_POINT,
    PROPERTY_KUBERNETES_VERSION,
    SYSTEM_NAMESPACE,
)
from kubeocean.fleet.health import control_plane_health
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Json, find_condition, set_condition

__all__ = ["has_profile", "is_ours", "profile_document", "profile_properties", "profile_status"]

_LONGEST_VALUE: Final = 1024  # characters of a property's value, by the schema
_LONGEST_NAME: Final = 253


def has_profile(member: MemberCluster) -> bool:
    """Whether a member has a ClusterProfile: from its first join until its deletion."""
    if FINALIZER_PROFILE in (member.metadata.finalizers or ()):
        return True
    joined = find_condition(member.status.conditions, MemberCondition.JOINED)
    return joined is not None and joined.status == "True"


def is_ours(profile: ClusterProfile) -> bool:
    """Whether the fleet manages this ClusterProfile; profiles of other managers stay untouched."""
    return profile.spec.cluster_manager.name == CLUSTER_MANAGER


def profile_document(member: str) -> Json:
    """Return the ClusterProfile of a member without its status."""
    return {
        "apiVersion": CLUSTER_PROFILES.api_version,
        "kind": CLUSTER_PROFILES.kind,
        "metadata": {
            "name": member,
            "namespace": SYSTEM_NAMESPACE,
            "labels": {LABEL_CLUSTER_MANAGER: CLUSTER_MANAGER},
        },
        "spec": {"displayName": member, "clusterManager": {"name": CLUSTER_MANAGER}},
    }


def profile_status(
    profile: ClusterProfile,
    member: MemberCluster,
    properties: tuple[ClusterProperty, ...],
    threshold: timedelta,
    now: datetime,
) -> ClusterProfileStatus:
    """Return the status of a member's ClusterProfile, which lists `properties`."""
    reported = member.status.properties
    health = msgspec.structs.replace(
        control_plane_health(member.status.agent_status, threshold, now),
        observed_generation=profile.metadata.generation,
    )
    access = ClusterAccess(
        server=_value(member, PROPERTY_ENTRY_POINT),
        certificate_authority_data=b64encode(
            _value(member, PROPERTY_CERTIFICATE_AUTHORITY).encode()
        ).decode(),
    )
    return ClusterProfileStatus(
        conditions=set_condition(profile.status.conditions, health, now=text_of(now)),
        version=ClusterVersion(_value(member, PROPERTY_KUBERNETES_VERSION)),
        properties=_with_known_times(properties, profile),
        access_providers=(AccessProvider(CLUSTER_MANAGER, access),) if reported else (),
    )


def profile_properties(member: MemberCluster) -> tuple[ClusterProperty, ...]:
    """Return the member's properties that the schema of ClusterProfiles admits, by name."""
    return tuple(
        ClusterProperty(name, reported.value, reported.observation_time)
        for name, reported in sorted(member.status.properties.items())
        if 0 < len(reported.value) <= _LONGEST_VALUE and 0 < len(name) <= _LONGEST_NAME
    )


def _with_known_times(
    properties: tuple[ClusterProperty, ...], profile: ClusterProfile
) -> tuple[ClusterProperty, ...]:
    """Return the properties, with the stored times for values that the profile already has.

    A heartbeat with the same values thus causes no write.
    """
    known = {each.name: each for each in profile.status.properties}
    return tuple(
        known[each.name] if each.name in known and known[each.name].value == each.value else each
        for each in properties
    )


def _value(member: MemberCluster, name: str) -> str:
    reported = member.status.properties.get(name)
    return reported.value if reported is not None else ""
