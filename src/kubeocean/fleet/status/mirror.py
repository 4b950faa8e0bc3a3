"""Copy of a ClusterResourcePlacement's status in the namespace that it places.

Users who may read only that namespace see in the copy how their namespace is placed. The condition
that reports whether the copy is up to date is no part of the copy.
"""

from __future__ import annotations

import msgspec

from kubeocean.api.fleet.conditions import (
    STATUS_SYNC_FAILED,
    STATUS_SYNC_SUCCEEDED,
    STATUS_SYNCED,
    PlacementReason,
)
from kubeocean.api.fleet.placements import (
    CLUSTER_RESOURCE_PLACEMENT_STATUSES,
    CLUSTER_RESOURCE_PLACEMENTS,
    ClusterResourcePlacementStatus,
    Placement,
    PlacementStatus,
)
from kubeocean.api.fleet.schema import document
from kubeocean.fleet.snapshots.documents import owner_reference
from kubeocean.runtime.objects import Condition, Json, set_condition

__all__ = [
    "is_same_copy",
    "mirror_document",
    "mirror_patch",
    "source_status",
    "with_synced",
]


def source_status(status: PlacementStatus) -> PlacementStatus:
    """Return a placement's status as copied: without the condition about the copy."""
    conditions = tuple(each for each in status.conditions if each.type != STATUS_SYNCED)
    return msgspec.structs.replace(status, conditions=conditions)


def mirror_document(
    placement: Placement, namespace: str, source: PlacementStatus, now: str
) -> Json:
    """Return the copy of a placement's status to create in a namespace."""
    resource = CLUSTER_RESOURCE_PLACEMENT_STATUSES
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": placement.name,
            "namespace": namespace,
            "ownerReferences": [owner_reference(CLUSTER_RESOURCE_PLACEMENTS, placement)],
        },
        "sourceStatus": document(source),
        "lastUpdatedTime": now,
    }


def is_same_copy(
    placement: Placement, mirror: ClusterResourcePlacementStatus, source: PlacementStatus
) -> bool:
    """Whether a copy has this status, and is garbage-collected together with the placement."""
    owners = mirror.metadata.owner_references or ()
    return mirror.source_status == source and [each.uid for each in owners] == [placement.uid]


def mirror_patch(
    placement: Placement, mirror: ClusterResourcePlacementStatus, source: PlacementStatus, now: str
) -> list[Json]:
    """Return the JSON patch that replaces status and owner in this version of the copy."""
    owners = [owner_reference(CLUSTER_RESOURCE_PLACEMENTS, placement)]
    return [
        {"op": "replace", "path": "/metadata/resourceVersion", "value": mirror.resource_version},
        {"op": "add", "path": "/metadata/ownerReferences", "value": owners},
        {"op": "replace", "path": "/sourceStatus", "value": document(source)},
        {"op": "replace", "path": "/lastUpdatedTime", "value": now},
    ]


def with_synced(
    placement: Placement, status: PlacementStatus, namespace: str, error: str, now: str
) -> PlacementStatus:
    """Return the status with the condition about its copy; `error`: why it was not written."""
    if error:
        condition_status, reason = "False", PlacementReason.STATUS_SYNC_FAILED
        message = STATUS_SYNC_FAILED.format(error=error)
    else:
        condition_status, reason = "True", PlacementReason.STATUS_SYNC_SUCCEEDED
        message = STATUS_SYNC_SUCCEEDED.format(namespace=namespace)
    condition = Condition(
        STATUS_SYNCED,
        condition_status,
        reason,
        message,
        observed_generation=placement.metadata.generation,
    )
    before = tuple(each for each in placement.status.conditions if each.type == STATUS_SYNCED)
    synced = set_condition(before, condition, now=now)
    return msgspec.structs.replace(status, conditions=(*source_status(status).conditions, *synced))
