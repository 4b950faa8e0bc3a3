"""Overrides: changes to placed objects for some of the clusters, and snapshots of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from kubeocean.api.fleet.placements import PLACEMENT_GROUP, ResourceSelector
from kubeocean.api.fleet.policies import ClusterSelector
from kubeocean.api.fleet.schema import V1BETA1, AnyValue, Bytes, Part, field
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Json, Object, Resource

__all__ = [
    "CLUSTER_RESOURCE_OVERRIDES",
    "CLUSTER_RESOURCE_OVERRIDE_SNAPSHOTS",
    "RESOURCE_OVERRIDES",
    "RESOURCE_OVERRIDE_SNAPSHOTS",
    "ClusterResourceOverride",
    "ClusterResourceOverrideSnapshot",
    "ClusterResourceOverrideSnapshotSpec",
    "ClusterResourceOverrideSpec",
    "JsonPatchOperation",
    "JsonPatchOperator",
    "NamedResourceSelector",
    "OverridePolicy",
    "OverrideRule",
    "OverrideType",
    "PlacementReference",
    "PlacementReferenceScope",
    "ResourceOverride",
    "ResourceOverrideSnapshot",
    "ResourceOverrideSnapshotSpec",
    "ResourceOverrideSpec",
]


class PlacementReferenceScope(StrEnum):
    """Kind of placement that an override refers to: cluster-scoped or namespaced."""

    CLUSTER = "Cluster"
    NAMESPACED = "Namespaced"


class OverrideType(StrEnum):
    """Types of an override rule: patch the object, or delete it."""

    JSON_PATCH = "JSONPatch"
    DELETE = "Delete"


class JsonPatchOperator(StrEnum):
    """Operations of JSON Patch (RFC 6902) that an override may have."""

    ADD = "add"
    REMOVE = "remove"
    REPLACE = "replace"


class PlacementReference(Part, frozen=True):
    """Placement that an override is for."""

    name: Annotated[str, field("Name of the placement.", required=True)] = ""
    scope: Annotated[
        str,
        field(
            "Whether a ClusterResourcePlacement, or a ResourcePlacement of the same namespace, is"
            " meant.",
            defaulted=True,
            enum=PlacementReferenceScope,
        ),
    ] = PlacementReferenceScope.CLUSTER


class JsonPatchOperation(Part, frozen=True):
    """Operation of JSON Patch (RFC 6902)."""

    op: Annotated[str, field("The operation.", required=True, enum=JsonPatchOperator)] = ""
    path: Annotated[str, field("JSON pointer of the field.", required=True)] = ""
    value: Annotated[
        AnyValue,
        field(
            "Value to add or to replace with. ${MEMBER-CLUSTER-NAME} and"
            " ${MEMBER-CLUSTER-LABEL-KEY-key} in it are replaced."
        ),
    ] = None


class OverrideRule(Part, frozen=True):
    """Rule of an override: a change to objects, for the clusters that the rule selects."""

    cluster_selector: Annotated[
        ClusterSelector | None,
        field("Clusters to change objects for, by labels; all if it has no terms, none if absent."),
    ] = None
    override_type: Annotated[
        str,
        field(
            "JSONPatch changes an object, Delete leaves it out.",
            defaulted=True,
            enum=OverrideType,
        ),
    ] = OverrideType.JSON_PATCH
    json_patch_overrides: Annotated[
        tuple[JsonPatchOperation, ...],
        field("Operations for the type JSONPatch, in order.", minItems=1, maxItems=20),
    ] = ()


class OverridePolicy(Part, frozen=True):
    """Rules of an override: the changes to objects, and for which clusters."""

    override_rules: Annotated[
        tuple[OverrideRule, ...],
        field("The changes, in order.", required=True, minItems=1, maxItems=20),
    ] = ()


_IMMUTABLE_PLACEMENT: Final = rule(
    "has(self.placement) == has(oldSelf.placement)"
    " && (!has(self.placement) || self.placement == oldSelf.placement)",
    "The placement field is immutable",
)
_PLACEMENT: Final = field(
    "Placement that the override is for, which then rolls it out at once; all placements, if"
    " absent."
)
_POLICY: Final = field("Changes to the objects.", required=True)


class ClusterResourceOverrideSpec(Part, frozen=True):
    """Cluster-scoped objects to change, and the changes."""

    RULES: ClassVar[tuple[Json, ...]] = (_IMMUTABLE_PLACEMENT,)

    placement: Annotated[PlacementReference | None, _PLACEMENT] = None
    cluster_resource_selectors: Annotated[
        tuple[ResourceSelector, ...],
        field(
            "Objects to change, by name; a Namespace stands for all objects in it.",
            required=True,
            minItems=1,
            maxItems=20,
        ),
    ] = ()
    policy: Annotated[OverridePolicy, _POLICY] = OverridePolicy()


class NamedResourceSelector(Part, frozen=True):
    """Selects an object of the override's namespace."""

    group: Annotated[
        str, field("API group of the kind; empty for the core group.", required=True)
    ] = ""
    version: Annotated[str, field("API version of the kind.", required=True)] = ""
    kind: Annotated[str, field("Kind of the object.", required=True)] = ""
    name: Annotated[str, field("Name of the object.", required=True)] = ""


class ResourceOverrideSpec(Part, frozen=True):
    """Objects of a namespace to change, and the changes."""

    RULES: ClassVar[tuple[Json, ...]] = (_IMMUTABLE_PLACEMENT,)

    placement: Annotated[PlacementReference | None, _PLACEMENT] = None
    resource_selectors: Annotated[
        tuple[NamedResourceSelector, ...],
        field("Objects to change.", required=True, minItems=1, maxItems=20),
    ] = ()
    policy: Annotated[OverridePolicy, _POLICY] = OverridePolicy()


class ClusterResourceOverride(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Changes cluster-scoped objects, or all objects of a namespace, for some clusters."""

    RULES: ClassVar[tuple[Json, ...]] = (
        rule(
            "!has(self.spec.placement) || self.spec.placement.scope != 'Namespaced'",
            "clusterResourceOverride placement reference cannot be Namespaced scope",
        ),
    )

    spec: Annotated[ClusterResourceOverrideSpec, field("Objects and changes.", required=True)] = (
        ClusterResourceOverrideSpec()
    )


class ResourceOverride(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Changes objects of its namespace for some clusters."""

    spec: Annotated[ResourceOverrideSpec, field("Objects and changes.", required=True)] = (
        ResourceOverrideSpec()
    )


_OVERRIDE_HASH: Final = field("Hash of the override.", required=True)
_OVERRIDE_SPEC: Final = field("The override.", required=True, unchecked=True)


class ClusterResourceOverrideSnapshotSpec(Part, frozen=True):
    """Spec of a ClusterResourceOverride."""

    override_spec: Annotated[ClusterResourceOverrideSpec, _OVERRIDE_SPEC] = (
        ClusterResourceOverrideSpec()
    )
    override_hash: Annotated[Bytes, _OVERRIDE_HASH] = ""


class ClusterResourceOverrideSnapshot(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A ClusterResourceOverride at one time."""

    spec: Annotated[ClusterResourceOverrideSnapshotSpec, field("The override.", required=True)] = (
        ClusterResourceOverrideSnapshotSpec()
    )


class ResourceOverrideSnapshotSpec(Part, frozen=True):
    """Spec of a ResourceOverride."""

    override_spec: Annotated[ResourceOverrideSpec, _OVERRIDE_SPEC] = ResourceOverrideSpec()
    override_hash: Annotated[Bytes, _OVERRIDE_HASH] = ""


class ResourceOverrideSnapshot(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """A ResourceOverride at one time."""

    spec: Annotated[ResourceOverrideSnapshotSpec, field("The override.", required=True)] = (
        ResourceOverrideSnapshotSpec()
    )


CLUSTER_RESOURCE_OVERRIDES: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourceoverrides",
    "ClusterResourceOverride",
    False,
    ClusterResourceOverride,
)
RESOURCE_OVERRIDES: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "resourceoverrides", "ResourceOverride", True, ResourceOverride
)
CLUSTER_RESOURCE_OVERRIDE_SNAPSHOTS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourceoverridesnapshots",
    "ClusterResourceOverrideSnapshot",
    False,
    ClusterResourceOverrideSnapshot,
)
RESOURCE_OVERRIDE_SNAPSHOTS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "resourceoverridesnapshots",
    "ResourceOverrideSnapshot",
    True,
    ResourceOverrideSnapshot,
)
