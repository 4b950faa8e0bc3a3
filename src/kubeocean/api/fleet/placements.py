"""Placements: which objects of the hub are placed on which clusters, how, and with which result.

A ClusterResourcePlacement places cluster-scoped objects and whole namespaces, a ResourcePlacement
objects of its own namespace. Both have the same spec and status, and decode to `Placement`. A
ClusterResourcePlacementStatus mirrors the status of a ClusterResourcePlacement into the namespace
that it places.

An absent policy decodes to PickAll, an absent strategy to RollingUpdate with client-side apply.
`rolling_update` and `server_side_apply_config` stay None when absent, because whether they are
meaningful depends on other fields.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from kubeocean.api.fleet.policies import POLICY_RULES, PlacementPolicy
from kubeocean.api.fleet.schema import (
    V1,
    V1BETA1,
    Conditions,
    LabelSelectorDocument,
    Part,
    Time,
    field,
)
from kubeocean.api.fleet.strategies import RolloutStrategy
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Condition, Json, Object, Resource

__all__ = [
    "CLUSTER_PLACEMENT_RULES",
    "CLUSTER_RESOURCE_PLACEMENTS",
    "CLUSTER_RESOURCE_PLACEMENT_STATUSES",
    "MOST_DETAILS",
    "PLACEMENT_GROUP",
    "RESOURCE_PLACEMENTS",
    "ClusterPlacementStatus",
    "ClusterResourcePlacementStatus",
    "DiffedPlacement",
    "DriftedPlacement",
    "EnvelopeIdentifier",
    "EnvelopeType",
    "FailedPlacement",
    "NamespacedName",
    "PatchDetail",
    "Placement",
    "PlacementSpec",
    "PlacementStatus",
    "ResourceIdentifier",
    "ResourceSelector",
    "SelectionScope",
    "StatusReportingScope",
]

PLACEMENT_GROUP: Final = "placement.kubernetes-fleet.io"
MOST_DETAILS: Final = 100  # entries that each list of failed, drifted or diffed objects may have


class SelectionScope(StrEnum):
    """Objects that are selected together with a Namespace."""

    NAMESPACE_WITH_RESOURCES = "NamespaceWithResources"
    NAMESPACE_ONLY = "NamespaceOnly"
    NAMESPACE_WITH_RESOURCE_SELECTORS = "NamespaceWithResourceSelectors"


class StatusReportingScope(StrEnum):
    """Whether the status of a ClusterResourcePlacement is mirrored into a namespace."""

    CLUSTER_SCOPE_ONLY = "ClusterScopeOnly"
    NAMESPACE_ACCESSIBLE = "NamespaceAccessible"


class EnvelopeType(StrEnum):
    """Kinds of objects that contain manifests for members."""

    CONFIG_MAP = "ConfigMap"
    CLUSTER_RESOURCE_ENVELOPE = "ClusterResourceEnvelope"
    RESOURCE_ENVELOPE = "ResourceEnvelope"


# Selecting objects


class ResourceSelector(Part, frozen=True):
    """Selects objects of one kind: by name, by labels, or all of them."""

    group: Annotated[
        str, field("API group of the kind; empty for the core group.", required=True)
    ] = ""
    version: Annotated[str, field("API version of the kind.", required=True)] = ""
    kind: Annotated[str, field("Kind of the objects.", required=True)] = ""
    name: Annotated[str, field("Name of the object; not together with labelSelector.")] = ""
    label_selector: Annotated[
        LabelSelectorDocument | None,
        field("Labels of the objects; not together with name."),
    ] = None
    selection_scope: Annotated[
        str,
        field(
            "Objects that are placed with a selected Namespace: all objects in it, none, or the"
            " objects in it that the other selectors name.",
            defaulted=True,
            enum=SelectionScope,
        ),
    ] = SelectionScope.NAMESPACE_WITH_RESOURCES


_EXCLUSIVE: Final = rule(
    "!has(self.labelSelector) || !has(self.name) || self.name == ''",
    "name and labelSelector are mutually exclusive in a resource selector",
)
_NAMESPACE: Final = "s.kind == 'Namespace' && s.group == ''"
_WITH_SELECTORS: Final = (
    f"{_NAMESPACE} && s.selectionScope == '{SelectionScope.NAMESPACE_WITH_RESOURCE_SELECTORS}'"
)
_SELECTORS_RULES: Final = (
    rule(
        f"self.filter(s, {_WITH_SELECTORS}).size() <= 1",
        "only one namespace selector with NamespaceWithResourceSelectors mode is allowed",
    ),
    rule(
        f"self.all(s, !({_WITH_SELECTORS}) || (has(s.name) && s.name != ''))",
        "namespace selector with NamespaceWithResourceSelectors mode must select by name"
        " (not by label)",
    ),
    rule(
        f"!self.exists(s, {_WITH_SELECTORS}) || self.filter(s, {_NAMESPACE}).size() == 1",
        "when using NamespaceWithResourceSelectors mode, only one namespace selector is allowed"
        " (cannot mix with other namespace selectors)",
    ),
)


class PlacementSpec(Part, frozen=True):
    """Spec of a placement: selected objects, policy and rollout strategy."""

    RULES: ClassVar[tuple[Json, ...]] = (
        rule("!has(oldSelf.policy) || has(self.policy)", "policy cannot be removed once set"),
        rule(
            "!has(oldSelf.strategy) || oldSelf.strategy.type != 'External'"
            " || (has(self.strategy) && self.strategy.type == 'External')",
            "cannot change rollout strategy type from 'External' to other types",
        ),
    )

    resource_selectors: Annotated[
        tuple[ResourceSelector, ...],
        field(
            "Objects to place: all that any of the selectors selects.",
            *_SELECTORS_RULES,
            item_rules=(_EXCLUSIVE,),
            required=True,
            minItems=1,
            maxItems=100,
        ),
    ] = ()
    policy: Annotated[
        PlacementPolicy,
        field("Clusters to place on; all that joined, if absent.", *POLICY_RULES),
    ] = PlacementPolicy()
    strategy: Annotated[RolloutStrategy, field("How changes reach the clusters.")] = (
        RolloutStrategy()
    )
    revision_history_limit: Annotated[
        int,
        field(
            "How many policy snapshots, and how many groups of resource snapshots, are kept.",
            defaulted=True,
            minimum=1,
            maximum=1000,
        ),
    ] = 10
    status_reporting_scope: Annotated[
        str,
        field(
            "NamespaceAccessible mirrors the status of a ClusterResourcePlacement into the one"
            " namespace that it selects.",
            defaulted=True,
            enum=StatusReportingScope,
        ),
    ] = StatusReportingScope.CLUSTER_SCOPE_ONLY


CLUSTER_PLACEMENT_RULES: Final = (
    rule(
        "self.statusReportingScope != 'NamespaceAccessible'"
        " || self.resourceSelectors.filter(s, s.kind == 'Namespace').size() == 1",
        "when statusReportingScope is NamespaceAccessible, exactly one resourceSelector with kind"
        " 'Namespace' is required",
    ),
    rule(
        "!has(oldSelf.statusReportingScope)"
        " || self.statusReportingScope == oldSelf.statusReportingScope",
        "statusReportingScope is immutable",
    ),
)


# Status


class EnvelopeIdentifier(Part, frozen=True):
    """Envelope that contains an object."""

    name: Annotated[str, field("Name of the envelope.", required=True)] = ""
    namespace: Annotated[str, field("Namespace of a ResourceEnvelope.")] = ""
    type: Annotated[
        str,
        field(
            "Kind of the envelope.",
            enum=EnvelopeType,
            enum_in={V1: tuple(EnvelopeType)[1:]},
        ),
    ] = ""


class ResourceIdentifier(Part, frozen=True):
    """Identifies a placed object."""

    group: Annotated[str, field("API group of the object; empty for the core group.")] = ""
    version: Annotated[str, field("API version of the object.", required=True)] = ""
    kind: Annotated[str, field("Kind of the object.", required=True)] = ""
    name: Annotated[str, field("Name of the object.", required=True)] = ""
    namespace: Annotated[str, field("Namespace of the object, if it has one.")] = ""
    envelope: Annotated[
        EnvelopeIdentifier | None, field("Envelope that contains the object, if one does.")
    ] = None


class NamespacedName(Part, frozen=True):
    """Name of an object in a namespace."""

    name: Annotated[str, field("Name of the object.", required=True)] = ""
    namespace: Annotated[str, field("Namespace of the object.", required=True)] = ""


class FailedPlacement(ResourceIdentifier, frozen=True):
    """Object that could not be placed or is not available."""

    condition: Annotated[Condition, field("Condition that is not True.", required=True)] = (
        Condition("", "")
    )


class PatchDetail(Part, frozen=True):
    """Field in which the object in the member differs from the hub's, with both values."""

    path: Annotated[str, field("JSON pointer of the field.", required=True)] = ""
    value_in_member: Annotated[str, field("Value in the member; absent if it has none.")] = ""
    value_in_hub: Annotated[str, field("Value on the hub; absent if it has none.")] = ""


class DriftedPlacement(ResourceIdentifier, frozen=True):
    """Object that was changed in the member after it was placed."""

    observation_time: Annotated[
        Time | None, field("Time of the last observation.", required=True)
    ] = None
    target_cluster_observed_generation: Annotated[
        int, field("Generation of the object in the member.", required=True)
    ] = 0
    first_drifted_observed_time: Annotated[
        Time | None, field("Time of the first observation.", required=True)
    ] = None
    observed_drifts: Annotated[tuple[PatchDetail, ...], field("Fields that differ.")] = ()


class DiffedPlacement(ResourceIdentifier, frozen=True):
    """Object in the member that differs from the hub's and is not written."""

    observation_time: Annotated[
        Time | None, field("Time of the last observation.", required=True)
    ] = None
    target_cluster_observed_generation: Annotated[
        int | None, field("Generation of the object in the member; absent if there is none.")
    ] = None
    first_diffed_observed_time: Annotated[
        Time | None, field("Time of the first observation.", required=True)
    ] = None
    observed_diffs: Annotated[tuple[PatchDetail, ...], field("Fields that differ.")] = ()


class ClusterPlacementStatus(Part, frozen=True):
    """State of a placement on one cluster, or of a cluster that could not be picked."""

    cluster_name: Annotated[
        str, field("Name of the MemberCluster; absent if none could be picked.")
    ] = ""
    observed_resource_index: Annotated[
        str, field("Index of the resource snapshot that the conditions are about.")
    ] = ""
    applicable_cluster_resource_overrides: Annotated[
        tuple[str, ...], field("ClusterResourceOverrideSnapshots that apply to the cluster.")
    ] = ()
    applicable_resource_overrides: Annotated[
        tuple[NamespacedName, ...], field("ResourceOverrideSnapshots that apply to the cluster.")
    ] = ()
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
    conditions: Annotated[Conditions, field("Steps of the placement on the cluster.")] = ()


class PlacementStatus(Part, frozen=True):
    """Status of a placement: conditions, selected objects, and the state on each cluster."""

    selected_resources: Annotated[
        tuple[ResourceIdentifier, ...], field("Objects that are placed.")
    ] = ()
    observed_resource_index: Annotated[
        str, field("Index of the resource snapshot that holds these objects.")
    ] = ""
    placement_statuses: Annotated[
        tuple[ClusterPlacementStatus, ...], field("State of the placement, cluster by cluster.")
    ] = ()
    conditions: Annotated[Conditions, field("Steps of the placement over all clusters.")] = ()


class Placement(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Places objects of the hub on member clusters."""

    spec: Annotated[PlacementSpec, field("Desired placement.", required=True)] = PlacementSpec()
    status: Annotated[PlacementStatus, field("Observed placement.")] = PlacementStatus()


class ClusterResourcePlacementStatus(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Copy of the status of the ClusterResourcePlacement of the same name."""

    source_status: Annotated[
        PlacementStatus, field("Status of the ClusterResourcePlacement.", required=True)
    ] = PlacementStatus()
    last_updated_time: Annotated[Time | None, field("Time of the copy.", required=True)] = None


CLUSTER_RESOURCE_PLACEMENTS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourceplacements",
    "ClusterResourcePlacement",
    False,
    Placement,
)
RESOURCE_PLACEMENTS: Final = Resource(
    PLACEMENT_GROUP, V1BETA1, "resourceplacements", "ResourcePlacement", True, Placement
)
CLUSTER_RESOURCE_PLACEMENT_STATUSES: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourceplacementstatuses",
    "ClusterResourcePlacementStatus",
    True,
    ClusterResourcePlacementStatus,
)
