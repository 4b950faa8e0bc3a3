"""Documents of snapshots: names, labels, annotations and content as KubeFleet writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeocean.api.fleet import names
from kubeocean.api.fleet.envelopes import CLUSTER_RESOURCE_ENVELOPES, RESOURCE_ENVELOPES
from kubeocean.api.fleet.hashes import canonical, content_hash, hash_bytes, policy_hash
from kubeocean.api.fleet.kinds import scope_of
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.schema import document
from kubeocean.fleet.selection.order import split
from kubeocean.fleet.selection.rules import GroupVersionKind
from kubeocean.fleet.snapshots.plan import policy_annotations
from kubeocean.runtime.objects import Json, Object, Resource

__all__ = [
    "SelectedContent",
    "owner_reference",
    "policy_document",
    "resource_document",
    "selected_content",
]

_ENVELOPES: Final = frozenset(
    (resource.group, resource.kind) for resource in (CLUSTER_RESOURCE_ENVELOPES, RESOURCE_ENVELOPES)
)


@dataclass(frozen=True, slots=True)
class SelectedContent:
    """The objects that a placement selects, encoded as JSON, and split into snapshots."""

    hash: str
    parts: tuple[tuple[msgspec.Raw, ...], ...]
    envelopes: int


def selected_content(objects: Sequence[Json]) -> SelectedContent:
    """Encode the selected, sorted objects, and split them into snapshots."""
    encoded = [msgspec.Raw(canonical(obj)) for obj in objects]
    return SelectedContent(
        content_hash({"selectedResources": encoded}),
        split(encoded, lambda raw: len(bytes(raw))),
        sum((kind.group, kind.kind) in _ENVELOPES for kind in map(GroupVersionKind.of, objects)),
    )


def policy_document(placement: Placement, index: int) -> Json:
    """Return the policy snapshot to create for a placement's present policy."""
    scope = scope_of(placement.key)
    policy = document(placement.spec.policy)
    digest = policy_hash(policy)
    policy.pop("numberOfClusters", None)
    metadata = _metadata(placement, names.policy_snapshot(placement.name, index)) | {
        "annotations": policy_annotations(placement)
    }
    metadata["labels"] |= {
        names.LABEL_POLICY_INDEX: str(index),
        names.LABEL_LATEST_SNAPSHOT: names.TRUE,
    }
    return {
        "apiVersion": scope.policy_snapshots.api_version,
        "kind": scope.policy_snapshots.kind,
        "metadata": metadata,
        "spec": {"policy": policy, "policyHash": hash_bytes(digest)},
    }


def resource_document(
    placement: Placement, index: int, content: SelectedContent, part: int
) -> Json:
    """Return one resource snapshot to create; part 0 is the master of the group."""
    scope = scope_of(placement.key)
    if part == 0:
        metadata = _metadata(placement, names.resource_snapshot(placement.name, index))
        metadata["labels"][names.LABEL_LATEST_SNAPSHOT] = names.TRUE
        metadata["annotations"] = {
            names.ANNOTATION_RESOURCE_HASH: content.hash,
            names.ANNOTATION_RESOURCE_SNAPSHOTS: str(len(content.parts)),
            names.ANNOTATION_ENVELOPED_OBJECTS: str(content.envelopes),
        }
    else:
        name = names.resource_sub_snapshot(placement.name, index, part - 1)
        metadata = _metadata(placement, name)
        metadata["annotations"] = {names.ANNOTATION_SUB_INDEX: str(part - 1)}
    metadata["labels"][names.LABEL_RESOURCE_INDEX] = str(index)
    return {
        "apiVersion": scope.resource_snapshots.api_version,
        "kind": scope.resource_snapshots.kind,
        "metadata": metadata,
        "spec": {"selectedResources": list(content.parts[part])},
    }


def _metadata(placement: Placement, name: str) -> Json:
    scope = scope_of(placement.key)
    metadata: Json = {
        "name": name,
        "labels": {names.LABEL_PARENT_PLACEMENT: placement.name},
        "ownerReferences": [owner_reference(scope.placements, placement)],
    }
    if placement.namespace:
        metadata["namespace"] = placement.namespace
    return metadata


def owner_reference(resource: Resource[Any], owner: Object, *, controller: bool = True) -> Json:
    """Return the reference by which an object is garbage-collected together with its owner."""
    reference: Json = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner.name,
        "uid": owner.uid,
        "blockOwnerDeletion": True,
    }
    return reference | {"controller": True} if controller else reference
