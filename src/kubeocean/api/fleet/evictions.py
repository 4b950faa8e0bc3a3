"""Evictions of a placement from a cluster, and the disruption budgets that limit them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from kubeocean.api.fleet.placements import PLACEMENT_GROUP
from kubeocean.api.fleet.schema import V1BETA1, Conditions, IntOrString, Part, field
from kubeocean.api.schema import rule
from kubeocean.runtime.objects import Json, Object, Resource

__all__ = [
    "DISRUPTION_BUDGETS",
    "EVICTIONS",
    "DisruptionBudget",
    "DisruptionBudgetSpec",
    "EvictionSpec",
    "EvictionStatus",
    "PlacementEviction",
]


class EvictionSpec(Part, frozen=True):
    """Placement and cluster of an eviction."""

    placement_name: Annotated[
        str,
        field(
            "Name of the ClusterResourcePlacement.",
            rule("self == oldSelf", "The PlacementName field is immutable"),
            required=True,
            maxLength=255,
        ),
    ] = ""
    cluster_name: Annotated[
        str,
        field(
            "Name of the MemberCluster.",
            rule("self == oldSelf", "The ClusterName field is immutable"),
            required=True,
            maxLength=255,
        ),
    ] = ""


class EvictionStatus(Part, frozen=True):
    """Result of an eviction."""

    conditions: Annotated[Conditions, field("Valid and Executed.")] = ()


class PlacementEviction(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Removes a placement from a cluster once, if its disruption budget allows that."""

    spec: Annotated[EvictionSpec, field("Placement and cluster.", required=True)] = EvictionSpec()
    status: Annotated[EvictionStatus, field("Result of the eviction.")] = EvictionStatus()


_PERCENTAGE: Final = "^(100|[0-9]{1,2})%$"
_AMOUNT: Final = rule(
    f"type(self) == int ? self >= 0 : self.matches('{_PERCENTAGE}')",
    f"If supplied value is String should match regex '{_PERCENTAGE}'"
    " or If supplied value is Integer must be greater than or equal to 0",
)


class DisruptionBudgetSpec(Part, frozen=True):
    """Limit of voluntary disruptions: either `maxUnavailable` or `minAvailable`."""

    RULES: ClassVar[tuple[Json, ...]] = (
        rule(
            "!has(self.maxUnavailable) || !has(self.minAvailable)",
            "Both MaxUnavailable and MinAvailable cannot be specified",
        ),
    )

    max_unavailable: Annotated[
        IntOrString | None,
        field("Clusters that may be unavailable, as a number or a percentage.", _AMOUNT),
    ] = None
    min_available: Annotated[
        IntOrString | None,
        field("Clusters that must stay available, as a number or a percentage.", _AMOUNT),
    ] = None


class DisruptionBudget(Object, frozen=True, gc=False, rename="camel", kw_only=True):
    """Limits evictions of the ClusterResourcePlacement of the same name."""

    spec: Annotated[DisruptionBudgetSpec, field("The limit.", required=True)] = (
        DisruptionBudgetSpec()
    )


EVICTIONS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourceplacementevictions",
    "ClusterResourcePlacementEviction",
    False,
    PlacementEviction,
)
DISRUPTION_BUDGETS: Final = Resource(
    PLACEMENT_GROUP,
    V1BETA1,
    "clusterresourceplacementdisruptionbudgets",
    "ClusterResourcePlacementDisruptionBudget",
    False,
    DisruptionBudget,
)
