"""Policies of placements: which clusters are picked."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from kubeocean.api.fleet.clusters import TaintEffect
from kubeocean.api.fleet.schema import LabelSelectorDocument, Part, field
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Json

__all__ = [
    "POLICY_RULES",
    "Affinity",
    "ClusterAffinity",
    "ClusterSelector",
    "ClusterSelectorTerm",
    "ClusterToleration",
    "PlacementPolicy",
    "PlacementType",
    "PreferredClusterSelector",
    "PropertyOperator",
    "PropertyRequirement",
    "PropertySelector",
    "PropertySorter",
    "SortOrder",
    "TolerationOperator",
    "TopologySpreadConstraint",
    "UnsatisfiableAction",
]


class PlacementType(StrEnum):
    """How a placement picks clusters: all that match, a number of them, or by name."""

    PICK_ALL = "PickAll"
    PICK_N = "PickN"
    PICK_FIXED = "PickFixed"


class PropertyOperator(StrEnum):
    """Comparison of a cluster's property with a value."""

    GREATER = "Gt"
    GREATER_OR_EQUAL = "Ge"
    EQUAL = "Eq"
    NOT_EQUAL = "Ne"
    LESS = "Lt"
    LESS_OR_EQUAL = "Le"


class SortOrder(StrEnum):
    """Whether smaller or larger values of a property are preferred."""

    ASCENDING = "Ascending"
    DESCENDING = "Descending"


class UnsatisfiableAction(StrEnum):
    """Whether a cluster that would violate a spread constraint is rejected or only scored lower."""

    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


class TolerationOperator(StrEnum):
    """How a toleration is compared with a taint."""

    EQUAL = "Equal"
    EXISTS = "Exists"


class PropertyRequirement(Part, frozen=True):
    """Requirement on a property of a cluster."""

    name: Annotated[str, field("Name of the property.", required=True)] = ""
    operator: Annotated[
        str, field("How the property must compare.", required=True, enum=PropertyOperator)
    ] = ""
    values: Annotated[
        tuple[str, ...], field("The one quantity to compare with.", required=True, maxItems=1)
    ] = ()


class PropertySelector(Part, frozen=True):
    """Requirements on properties of a cluster, all of which must hold."""

    match_expressions: Annotated[
        tuple[PropertyRequirement, ...], field("The requirements.", required=True)
    ] = ()


class PropertySorter(Part, frozen=True):
    """Prefers clusters by the value of a property."""

    name: Annotated[str, field("Name of the property.", required=True)] = ""
    sort_order: Annotated[
        str,
        field("Descending prefers larger values.", required=True, enum=SortOrder),
    ] = ""


class ClusterSelectorTerm(Part, frozen=True):
    """Selects clusters by labels and properties; both must match."""

    label_selector: Annotated[
        LabelSelectorDocument | None, field("Labels of the MemberCluster.")
    ] = None
    property_selector: Annotated[
        PropertySelector | None,
        field("Properties of the cluster; only in required terms."),
    ] = None
    property_sorter: Annotated[
        PropertySorter | None,
        field("Property to prefer clusters by; only in preferred terms."),
    ] = None


class ClusterSelector(Part, frozen=True):
    """Terms of which at least one must match a cluster."""

    cluster_selector_terms: Annotated[
        tuple[ClusterSelectorTerm, ...], field("The terms.", required=True, maxItems=10)
    ] = ()


class PreferredClusterSelector(Part, frozen=True):
    """Term that adds to the score of matching clusters."""

    weight: Annotated[
        int, field("Weight of the term.", required=True, minimum=-100, maximum=100)
    ] = 0
    preference: Annotated[ClusterSelectorTerm, field("The term.", required=True)] = (
        ClusterSelectorTerm()
    )


class ClusterAffinity(Part, frozen=True):
    """Clusters that a placement requires and prefers."""

    required_during_scheduling_ignored_during_execution: Annotated[
        ClusterSelector | None,
        field("Clusters that do not match when the placement is scheduled are not picked."),
    ] = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredClusterSelector, ...],
        field("Clusters that match when the placement is scheduled are picked first."),
    ] = ()


class Affinity(Part, frozen=True):
    """Rules by which a placement picks clusters."""

    cluster_affinity: Annotated[
        ClusterAffinity | None, field("Clusters that the placement requires and prefers.")
    ] = None


class TopologySpreadConstraint(Part, frozen=True):
    """Spreads a placement over the values of a label of clusters."""

    max_skew: Annotated[
        int,
        field(
            "By how many clusters two values of the label may differ.", defaulted=True, minimum=1
        ),
    ] = 1
    topology_key: Annotated[str, field("Key of the label.", required=True)] = ""
    when_unsatisfiable: Annotated[
        str,
        field(
            "Whether a cluster that would violate the constraint is excluded or scored lower.",
            defaulted=True,
            enum=UnsatisfiableAction,
        ),
    ] = UnsatisfiableAction.DO_NOT_SCHEDULE


class ClusterToleration(Part, frozen=True):
    """Lets a placement pick clusters with a matching taint."""

    RULES: ClassVar[tuple[Json, ...]] = (
        rule(
            "self.operator != 'Exists' || !has(self.value) || self.value == ''",
            "value must be empty when operator is Exists",
        ),
        rule(
            "(has(self.key) && self.key != '') || self.operator == 'Exists'",
            "operator must be Exists when key is empty",
        ),
    )

    key: Annotated[str, field("Key of the taint; empty matches all keys.")] = ""
    operator: Annotated[
        str,
        field(
            "Whether the value must be equal or any value will do.",
            defaulted=True,
            enum=TolerationOperator,
        ),
    ] = TolerationOperator.EQUAL
    value: Annotated[str, field("Value of the taint.")] = ""
    effect: Annotated[
        str, field("Effect of the taint; absent matches all effects.", enum=TaintEffect)
    ] = ""


class PlacementPolicy(Part, frozen=True):
    """Which clusters a placement picks."""

    placement_type: Annotated[
        str,
        field(
            "PickAll picks all matching clusters, PickN some of them, PickFixed those named.",
            defaulted=True,
            enum=PlacementType,
        ),
    ] = PlacementType.PICK_ALL
    cluster_names: Annotated[
        tuple[str, ...], field("MemberClusters to pick; only for PickFixed.", maxItems=100)
    ] = ()
    number_of_clusters: Annotated[
        int | None, field("How many clusters to pick; only for PickN.", minimum=0)
    ] = None
    affinity: Annotated[Affinity | None, field("Rules for picking clusters.")] = None
    topology_spread_constraints: Annotated[
        tuple[TopologySpreadConstraint, ...],
        field("How to spread over clusters; only for PickN."),
    ] = ()
    tolerations: Annotated[
        tuple[ClusterToleration, ...],
        field("Taints of clusters to tolerate; later updates may only add.", maxItems=100),
    ] = ()


_NO_NAMES: Final = "(!has(self.clusterNames) || size(self.clusterNames) == 0)"
_NO_SPREAD: Final = (
    "(!has(self.topologySpreadConstraints) || size(self.topologySpreadConstraints) == 0)"
)
# Of a placement, not of a snapshot, which has no number of clusters
POLICY_RULES: Final = (
    rule("self.placementType == oldSelf.placementType", "placement type is immutable"),
    rule(
        "self.placementType != 'PickFixed' || (!has(self.affinity) && !has(self.numberOfClusters)"
        f" && {_NO_SPREAD} && (!has(self.tolerations) || size(self.tolerations) == 0))",
        "affinity, numberOfClusters, topologySpreadConstraints, and tolerations cannot be set when"
        " placementType is PickFixed",
    ),
    rule(
        f"self.placementType != 'PickAll' || ({_NO_NAMES} && !has(self.numberOfClusters)"
        f" && {_NO_SPREAD})",
        "clusterNames, numberOfClusters, and topologySpreadConstraints cannot be set when"
        " placementType is PickAll",
    ),
    rule(
        f"self.placementType != 'PickN' || ({_NO_NAMES} && has(self.numberOfClusters))",
        "clusterNames cannot be set and numberOfClusters must be set when placementType is PickN",
    ),
)
