"""Rules for evictions and disruption budgets that depend on their ClusterResourcePlacement. Pure.

An eviction or a budget without a ClusterResourcePlacement is allowed: the placement may be created
later, and the controller of evictions reports a missing placement.
"""

from __future__ import annotations

from kubeocean.api.fleet.evictions import DisruptionBudget, PlacementEviction
from kubeocean.api.fleet.placements import Placement
from kubeocean.api.fleet.policies import PlacementType
from kubeocean.fleet.admission.reviews import ALLOWED, Decision, Request, aggregate, denied

__all__ = ["decide_budget", "decide_eviction", "evicted_placement"]


def evicted_placement(request: Request) -> str:
    """Return the name of the placement that the eviction in a request names.

    :raises BadReview: the object in the request cannot be read.
    """
    return request.decoded(PlacementEviction).spec.placement_name


def decide_eviction(placement: Placement | None) -> Decision:
    """Allow or deny the creation of an eviction of `placement`."""
    if placement is None:
        return ALLOWED
    if placement.deleting:
        return denied(f"cluster resource placement {placement.name} is being deleted")
    if placement.spec.policy.placement_type == PlacementType.PICK_FIXED:
        return denied("cluster resource placement policy type PickFixed is not supported")
    return ALLOWED


def decide_budget(request: Request, placement: Placement | None) -> Decision:
    """Allow or deny a disruption budget for `placement`, which has the same name.

    A placement of type PickAll has no target number of clusters, so its budget can only set
    minAvailable, as a number of clusters.

    :raises BadReview: the object in the request cannot be read.
    """
    spec = request.decoded(DisruptionBudget).spec
    if placement is None or placement.spec.policy.placement_type != PlacementType.PICK_ALL:
        return ALLOWED
    problems = []
    prefix = "cluster resource placement policy type PickAll is not supported with"
    if spec.max_unavailable is not None:
        problems.append(f"{prefix} any specified max unavailable {spec.max_unavailable}")
    if isinstance(spec.min_available, str):
        problems.append(f"{prefix} min available as a percentage {spec.min_available}")
    return denied(aggregate(problems)) if problems else ALLOWED
