"""Snapshots of a placement: of its policy with the scheduler's decisions, and of selected objects.

The cluster-scoped kinds belong to ClusterResourcePlacements, the namespaced ones to
ResourcePlacements; each pair decodes to one struct.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.fleet.policies import PlacementPolicy
from kubeocean.api.fleet.schema import V1BETA1, Bytes, Conditions, EmbeddedObject, Part, field
from kubeocean.runtime.objects import Object, Resource

__all__ = [
    "CLUSTER_RESOURCE_SNAPSHOTS",
    "CLUSTER_SCHEDULING_POLICY_SNAPSHOTS",
    "MOST_DECISIONS",
    "RESOURCE_SNAPSHOTS",
    "SCHEDULING_POLICY_SNAPSHOTS",
    "ClusterDecision",
    "ClusterScore",
    "PolicySnapshot",
    "PolicySnapshotSpec",
    "PolicySnapshotStatus",
    "ResourceSnapshot",
    "ResourceSnapshotSpec",
    "ResourceSnapshotStatus",
]

MOST_DECISIONS: Final = 1000


class ClusterScore(Part, frozen=True):
    """Score of a cluster in a scheduling cycle."""

    affinity_score: Annotated[int | None, field("Score by preferred affinity terms.")] = None
    priority_score: Annotated[int | None, field("Score by topology spread constraints.")] = None


class ClusterDecision(Part, frozen=True):
    """Decision of the scheduler about one cluster."""

    cluster_name: Annotated[str, field("Name of the MemberCluster.", required=True)] = ""
    selected: Annotated[bool, field("Whether the cluster is picked.", required=True)] = False
    cluster_score: Annotated[ClusterScore | None, field("Score of the cluster.")] = None
    reason: Annotated[str, field("Why the cluster is picked or not.", required=True)] = ""


class PolicySnapshotSpec(Part, frozen=True):
    """Policy of a placement, without the number of clusters."""

    policy: Annotated[
        PlacementPolicy,
        field("Policy of the placement; PickAll, if absent.", unchecked=True),
    ] = PlacementPolicy()
    policy_hash: Annotated[Bytes, field("Hash of the policy.", required=True)] = ""


class PolicySnapshotStatus(Part, frozen=True):
    """Status of a policy snapshot: the decisions of the scheduler."""

    observed_crp_generation: Annotated[
        int, field("Generation of the placement that was scheduled.", required=True)
    ] = msgspec.field(default=0, name="observedCRPGeneration")
    conditions: Annotated[Conditions, field("Whether the policy is fulfilled.")] = ()
    target_clusters: Annotated[
        tuple[ClusterDecision, ...],
        field(
            "Decisions: all clusters that were picked, and some that were not.",
            maxItems=MOST_DECISIONS,
        ),
    ] = ()


class PolicySnapshot(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Policy of a placement at one time, and the clusters that the scheduler picked for it."""

    spec: Annotated[PolicySnapshotSpec, field("The policy.", required=True)] = PolicySnapshotSpec()
    status: Annotated[PolicySnapshotStatus, field("Decisions of the scheduler.")] = (
        PolicySnapshotStatus()
    )


class ResourceSnapshotSpec(Part, frozen=True):
    """Spec of a resource snapshot: objects that a placement selected."""

    selected_resources: Annotated[
        tuple[EmbeddedObject, ...], field("The objects, in the order of placing.", required=True)
    ] = ()


class ResourceSnapshotStatus(Part, frozen=True):
    """Status of a resource snapshot."""

    conditions: Annotated[Conditions, field("Conditions of the snapshot.")] = ()


class ResourceSnapshot(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Objects that a placement selected at one time, or a part of them if they are many."""

    spec: Annotated[ResourceSnapshotSpec, field("The objects.", required=True)] = (
        ResourceSnapshotSpec()
    )
    status: Annotated[ResourceSnapshotStatus, field("Observed state.")] = ResourceSnapshotStatus()


CLUSTER_SCHEDULING_POLICY_SNAPSHOTS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterschedulingpolicysnapshots",
    "ClusterSchedulingPolicySnapshot",
    False,
    PolicySnapshot,
)
SCHEDULING_POLICY_SNAPSHOTS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "schedulingpolicysnapshots",
    "SchedulingPolicySnapshot",
    True,
    PolicySnapshot,
)
CLUSTER_RESOURCE_SNAPSHOTS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourcesnapshots",
    "ClusterResourceSnapshot",
    False,
    ResourceSnapshot,
)
RESOURCE_SNAPSHOTS: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "resourcesnapshots", "ResourceSnapshot", True, ResourceSnapshot
)
