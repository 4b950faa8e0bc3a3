"""Explanations: the decision of a scheduling cycle on each cluster, with its reasons.

A cycle stops at the first filter that refuses a cluster. `complete` runs all filters on all
clusters, also on those that the cycle did not have to evaluate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kubeocean.api.fleet.snapshots import ClusterDecision, ClusterScore
from kubeocean.fleet.scheduler.decisions import decide_kept
from kubeocean.fleet.scheduler.framework import Cycle, Rejection
from kubeocean.fleet.scheduler.model import (
    BindingView,
)
from kubeocean.fleet.scheduler.profile import all_rejections, prepare_scorer

__all__ = ["ClusterExplanation", "ClusterOutcome", "complete", "explain_clusters"]


class ClusterOutcome(StrEnum):
    """The decision of a scheduling cycle on a cluster."""

    PICKED = "Picked"  # gets a binding, new or patched
    KEPT = "Kept"  # has a current binding, which stays
    REMOVED = "Removed"  # has a binding, which is marked Unscheduled
    NOT_PICKED = "NotPicked"  # passed all filters, others scored higher
    REJECTED = "Rejected"  # refused by a filter
    NOT_FOUND = "NotFound"  # named by a PickFixed policy, but not in the fleet
    NOT_CONSIDERED = "NotConsidered"  # the cycle did not have to evaluate the cluster


@dataclass(frozen=True, slots=True)
class ClusterExplanation:
    """The decision of a scheduling cycle on one cluster, with its reasons and score."""

    cluster: str
    outcome: ClusterOutcome
    text: str
    rejections: tuple[Rejection, ...] = ()
    score: ClusterScore | None = None
    notes: tuple[str, ...] = ()  # how the score was computed


def explain_clusters(
    cycle: Cycle,
    *,
    picked: Sequence[ClusterDecision] = (),
    kept: Iterable[BindingView] = (),
    not_picked: Sequence[ClusterDecision] = (),
    rejected: Mapping[str, Rejection] | None = None,
    removed: Mapping[str, str] | None = None,
    notes: Mapping[str, tuple[str, ...]] | None = None,
    otherwise: str = "",
) -> tuple[ClusterExplanation, ...]:
    """Return an explanation of every cluster of `cycle`, by the first argument that contains it.

    :param removed: why the binding of a cluster is marked Unscheduled.
    :param notes: how the score of a cluster was computed.
    :param otherwise: why the cycle did not have to evaluate the other clusters.
    """
    removed, rejected, notes = removed or {}, rejected or {}, notes or {}
    decided = {
        decision.cluster_name: (outcome, decision)
        for outcome, decisions in (
            (ClusterOutcome.NOT_PICKED, not_picked),
            (ClusterOutcome.KEPT, [decide_kept(binding) for binding in kept]),
            (ClusterOutcome.PICKED, picked),
        )
        for decision in decisions
    }

    def explain_one(name: str) -> ClusterExplanation:
        if name in decided:
            outcome, decision = decided[name]
            return ClusterExplanation(
                name,
                outcome,
                decision.reason,
                (rejected[name],) if name in rejected else (),
                decision.cluster_score,
                notes.get(name, ()),
            )
        if name in rejected:
            return ClusterExplanation(
                name, ClusterOutcome.REJECTED, rejected[name].text, (rejected[name],)
            )
        if name in removed:
            return ClusterExplanation(name, ClusterOutcome.REMOVED, removed[name])
        return ClusterExplanation(name, ClusterOutcome.NOT_CONSIDERED, otherwise)

    return tuple(explain_one(cluster.name) for cluster in cycle.clusters)


def complete(
    cycle: Cycle, explanations: Iterable[ClusterExplanation]
) -> tuple[ClusterExplanation, ...]:
    """Add the refusals of all filters, and a present score to clusters without a score."""
    rejections, scorer = all_rejections(cycle), prepare_scorer(cycle, per_batch=True)
    clusters = {cluster.name: cluster for cluster in cycle.clusters}

    def complete_one(explanation: ClusterExplanation) -> ClusterExplanation:
        cluster = clusters.get(explanation.cluster)
        if cluster is None:
            return explanation
        # A refusal by topology spread depends on the batch: the cycle's own refusal stays.
        known = {rejection.plugin for rejection in rejections[cluster.name]}
        own = tuple(item for item in explanation.rejections if item.plugin not in known)
        explanation = replace(explanation, rejections=(*rejections[cluster.name], *own))
        if explanation.score is not None:
            return explanation
        partial = scorer(cluster)
        return replace(explanation, score=partial.score.published, notes=partial.notes)

    return tuple(complete_one(explanation) for explanation in explanations)
