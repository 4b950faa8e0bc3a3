"""Decisions: the texts of single scheduling decisions, their list, and the condition Scheduled.

The texts are part of KubeFleet's API. The list holds all selected clusters, then up to 20 clusters
that were not selected, and 1,000 decisions at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kubeocean.api.fleet.conditions import SCHEDULED, DecisionMessage
from kubeocean.api.fleet.limits import MOST_REJECTED
from kubeocean.api.fleet.snapshots import MOST_DECISIONS, ClusterDecision, ClusterScore
from kubeocean.fleet.scheduler.framework import Rejection
from kubeocean.fleet.scheduler.model import BindingView, PolicyView
from kubeocean.runtime.objects import Condition

__all__ = [
    "SnapshotStatus",
    "decide_ineligible",
    "decide_kept",
    "decide_not_found",
    "decide_not_picked",
    "decide_rejected",
    "decide_selected",
    "list_decisions",
    "scheduled_condition",
]


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """The status of a policy snapshot; the condition has no transition time."""

    observed_generation: int  # observedCRPGeneration
    condition: Condition
    target_clusters: tuple[ClusterDecision, ...]


def decide_selected(cluster: str, score: ClusterScore | None) -> ClusterDecision:
    """Return the decision for a picked cluster; PickFixed has no scores."""
    if score is None:
        reason = DecisionMessage.PICKED.format(cluster=cluster)
    else:
        reason = _with_scores(DecisionMessage.PICKED_BY_SCORE, cluster, score)
    return ClusterDecision(cluster, selected=True, cluster_score=score, reason=reason)


def decide_kept(binding: BindingView) -> ClusterDecision:
    """Return the decision stored in a current binding; a new one if it stores none."""
    decision = binding.decision
    if decision and decision.selected and decision.cluster_name == binding.target_cluster:
        return decision
    return decide_selected(binding.target_cluster, decision.cluster_score if decision else None)


def decide_not_picked(cluster: str, score: ClusterScore) -> ClusterDecision:
    """Return the decision for a cluster that passed all filters but was not picked."""
    reason = _with_scores(DecisionMessage.SCORE_TOO_LOW, cluster, score)
    return ClusterDecision(cluster, cluster_score=score, reason=reason)


def decide_rejected(cluster: str, rejection: Rejection) -> ClusterDecision:
    """Return the decision for a cluster that a filter refused."""
    return ClusterDecision(cluster, reason=rejection.text)


def decide_ineligible(cluster: str, why: str) -> ClusterDecision:
    """Return the PickFixed decision for a cluster that takes no new placements."""
    reason = DecisionMessage.NOT_ELIGIBLE.format(cluster=cluster, why=why)
    return ClusterDecision(cluster, reason=reason)


def decide_not_found(cluster: str) -> ClusterDecision:
    """Return the PickFixed decision for a name without a cluster."""
    return ClusterDecision(cluster, reason=DecisionMessage.NOT_FOUND.format(cluster=cluster))


def _with_scores(message: DecisionMessage, cluster: str, score: ClusterScore) -> str:
    affinity, spread = score.affinity_score or 0, score.priority_score or 0
    return message.format(cluster=cluster, affinity=affinity, spread=spread)


def list_decisions(
    selected: Iterable[ClusterDecision],
    unselected: Iterable[ClusterDecision],
    *,
    most_unselected: int = MOST_REJECTED,
) -> tuple[ClusterDecision, ...]:
    """Return one decision for each cluster, selected ones first, within the limits of the API."""
    chosen: dict[str, ClusterDecision] = {}
    for decision in selected:
        chosen.setdefault(decision.cluster_name, decision)
    refused: dict[str, ClusterDecision] = {}
    for decision in unselected:
        if len(refused) == most_unselected:
            break
        if decision.cluster_name not in chosen:
            refused.setdefault(decision.cluster_name, decision)
    return (*chosen.values(), *refused.values())[:MOST_DECISIONS]


def scheduled_condition(policy: PolicyView, selected: int, *, fulfilled: bool) -> Condition:
    """Return the condition Scheduled of the policy snapshot."""
    clusters = "1 cluster" if selected == 1 else f"{selected} clusters"
    if fulfilled:
        status, reason = "True", SCHEDULED.placement.true
        message = f"the policy selected {clusters}"
    else:
        status, reason = "False", SCHEDULED.placement.false
        message = f"the policy wants more clusters than match; it selected {clusters}"
    return Condition(
        type=SCHEDULED.name,
        status=status,
        reason=reason,
        message=message,
        observed_generation=policy.generation,
    )
