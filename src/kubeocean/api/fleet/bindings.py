"""Bindings of a placement to a cluster: the scheduler's decision, the release, and its progress."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from kubeocean.api.fleet.placements import (
    MOST_DETAILS,
    PLACEMENT_GROUP,
    DiffedPlacement,
    DriftedPlacement,
    FailedPlacement,
    NamespacedName,
)
from kubeocean.api.fleet.schema import V1BETA1, Conditions, Part, field
from kubeocean.api.fleet.snapshots import ClusterDecision
from kubeocean.api.fleet.strategies import ApplyStrategy
from kubeocean.runtime.objects import Object, Resource

__all__ = [
    "CLUSTER_RESOURCE_BINDINGS",
    "RESOURCE_BINDINGS",
    "Binding",
    "BindingState",
    "ResourceBindingSpec",
    "ResourceBindingStatus",
]


class BindingState(StrEnum):
    """Values of `spec.state` of a binding."""

    SCHEDULED = "Scheduled"  # the cluster is picked, nothing is delivered
    BOUND = "Bound"  # a resource snapshot is released to the cluster
    UNSCHEDULED = "Unscheduled"  # the cluster is no longer wanted


class ResourceBindingSpec(Part, frozen=True):
    """Cluster that a placement picked, and the release (resource snapshot) for this cluster."""

    state: Annotated[
        str,
        field(
            "Whether the cluster is picked, has a release, or is no longer wanted.",
            required=True,
            enum=BindingState,
        ),
    ] = ""
    target_cluster: Annotated[str, field("Name of the MemberCluster.", required=True)] = ""
    resource_snapshot_name: Annotated[
        str, field("Master of the released resource snapshots; empty if none.", required=True)
    ] = ""
    cluster_resource_override_snapshots: Annotated[
        tuple[str, ...], field("ClusterResourceOverrideSnapshots of the release.")
    ] = ()
    resource_override_snapshots: Annotated[
        tuple[NamespacedName, ...], field("ResourceOverrideSnapshots of the release.")
    ] = ()
    scheduling_policy_snapshot_name: Annotated[
        str, field("Policy snapshot that the cluster was picked for.", required=True)
    ] = ""
    cluster_decision: Annotated[
        ClusterDecision, field("Why the cluster was picked.", required=True)
    ] = ClusterDecision()
    apply_strategy: Annotated[ApplyStrategy, field("How objects are written in the cluster.")] = (
        ApplyStrategy()
    )

    @property
    def names_overrides(self) -> bool:
        """Whether the release has override snapshots, which only other hubs write."""
        return bool(self.cluster_resource_override_snapshots or self.resource_override_snapshots)


class ResourceBindingStatus(Part, frozen=True):
    """Progress of the binding's release in the cluster."""

    failed_placements: Annotated[
        tuple[FailedPlacement, ...],
        field("Objects that could not be placed or are not available.", maxItems=MOST_DETAILS),
    ] = ()
    drifted_placements: Annotated[
        tuple[DriftedPlacement, ...],
        field("Objects that were changed in the member.", maxItems=MOST_DETAILS),
    ] = ()
    diffed_placements: Annotated[
        tuple[DiffedPlacement, ...],
        field("Objects that differ from the hub's and are not written.", maxItems=MOST_DETAILS),
    ] = ()
    conditions: Annotated[Conditions, field("Steps of the release.")] = ()


class Binding(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Binds a placement to a cluster."""

    spec: Annotated[ResourceBindingSpec, field("Cluster and release.", required=True)] = (
        ResourceBindingSpec()
    )
    status: Annotated[ResourceBindingStatus, field("Progress of the release.")] = (
        ResourceBindingStatus()
    )


CLUSTER_RESOURCE_BINDINGS: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "clusterresourcebindings", "ClusterResourceBinding", False, Binding
)
RESOURCE_BINDINGS: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "resourcebindings", "ResourceBinding", True, Binding
)
