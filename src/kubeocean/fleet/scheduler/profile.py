"""The profile: which plugins run at each point of a cycle, and in which order.

| point | plugins |
|---|---|
| PostBatch | TopologySpreadConstraints |
| PreFilter, Filter | ClusterAffinity, ClusterEligibility, NamespaceAffinity, TaintToleration,
  SamePlacementAffinity, TopologySpreadConstraints |
| PreScore, Score | ClusterAffinity, SamePlacementAffinity, TopologySpreadConstraints |

After the first filter that refuses a cluster, no other filter runs on that cluster. Plugins of a
few lines are in this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kubeocean.fleet.scheduler import (
    affinity,
    spread,
)
from kubeocean.fleet.scheduler.eligibility import first_untolerated, ineligibility
from kubeocean.fleet.scheduler.framework import (
    AlreadySelected,
    Cycle,
    Filter,
    FilterPlugin,
    PartialScore,
    PostBatchPlugin,
    Rejection,
    Score,
    ScorePlugin,
    Scorer,
    start_cycle,
)
from kubeocean.fleet.scheduler.model import (
    MemberView,
    PolicyView,
)
from kubeocean.fleet.scheduler.properties import quoted

__all__ = [
    "CLUSTER_ELIGIBILITY",
    "FILTERS",
    "NAMESPACE_AFFINITY",
    "POST_BATCH",
    "SAME_PLACEMENT_AFFINITY",
    "SCORERS",
    "TAINT_TOLERATION",
    "Filtered",
    "all_rejections",
    "batch_limit",
    "policy_filters",
    "prepare_scorer",
    "run_filters",
]

CLUSTER_ELIGIBILITY: Final = "ClusterEligibility"
NAMESPACE_AFFINITY: Final = "NamespaceAffinity"
TAINT_TOLERATION: Final = "TaintToleration"
SAME_PLACEMENT_AFFINITY: Final = "SamePlacementAffinity"


def _eligibility_filter(cycle: Cycle) -> Filter:
    def check(cluster: MemberView) -> Rejection | None:
        reason = ineligibility(cluster, cycle.now)
        return Rejection(CLUSTER_ELIGIBILITY, (reason,)) if reason else None

    return check


def _namespace_filter(cycle: Cycle) -> Filter | None:
    """Return the filter for placements of a namespace: the cluster must have that namespace.

    A cluster whose agent does not collect namespaces passes.
    """
    namespace = cycle.policy.namespace
    if not namespace:
        return None

    def check(cluster: MemberView) -> Rejection | None:
        if not cluster.collects_namespaces:
            return None
        if cluster.namespaces is None:
            reason = "cluster has no namespace information available"
        elif namespace not in cluster.namespaces:
            reason = "target namespace does not exist on cluster"
        else:
            return None
        return Rejection(NAMESPACE_AFFINITY, (reason,))

    return check


def _taint_filter(cycle: Cycle) -> Filter:
    def check(cluster: MemberView) -> Rejection | None:
        taint = first_untolerated(cluster, cycle.policy.tolerations)
        if taint is None:
            return None
        text = f"{taint.key}={taint.value}:{taint.effect}" if taint.value else taint.key
        return Rejection(TAINT_TOLERATION, (f"taint {quoted(text)} is not tolerated",))

    return check


def _same_placement_filter(cycle: Cycle) -> Filter:
    current = cycle.bindings.current_clusters
    selected = AlreadySelected(SAME_PLACEMENT_AFFINITY)
    return lambda cluster: selected if cluster.name in current else None


def _same_placement_scorer(cycle: Cycle) -> Scorer:
    obsolete = cycle.bindings.obsolete_clusters
    note = ("the placement was on this cluster under an earlier policy",)

    def score(cluster: MemberView) -> PartialScore:
        if cluster.name in obsolete:
            return PartialScore(Score(obsolete=1), note)
        return PartialScore(Score())

    return score


FILTERS: Final = (
    FilterPlugin(affinity.CLUSTER_AFFINITY, affinity.pre_filter, of_policy=True),
    FilterPlugin(CLUSTER_ELIGIBILITY, _eligibility_filter),
    FilterPlugin(NAMESPACE_AFFINITY, _namespace_filter, of_policy=True),
    FilterPlugin(TAINT_TOLERATION, _taint_filter, of_policy=True),
    FilterPlugin(SAME_PLACEMENT_AFFINITY, _same_placement_filter),
    FilterPlugin(spread.TOPOLOGY_SPREAD, spread.pre_filter, per_batch=True),
)
SCORERS: Final = (
    ScorePlugin(affinity.CLUSTER_AFFINITY, affinity.pre_score),
    ScorePlugin(SAME_PLACEMENT_AFFINITY, _same_placement_scorer),
    ScorePlugin(spread.TOPOLOGY_SPREAD, spread.pre_score, per_batch=True),
)
POST_BATCH: Final = (PostBatchPlugin(spread.TOPOLOGY_SPREAD, spread.post_batch),)


class Filtered(NamedTuple):
    """The clusters that pass all filters, and the first refusal of each refused cluster.

    A cluster with a current binding is in neither list, unless an earlier filter refused it.
    """

    passed: tuple[MemberView, ...]
    rejected: Mapping[str, Rejection]


def run_filters(cycle: Cycle) -> Filtered:
    """Run the filters whose results hold for the whole cycle, in the order of the profile."""
    filters = _prepare(cycle, [plugin for plugin in FILTERS if not plugin.per_batch])
    passed, rejected = [], {}
    for cluster in cycle.clusters:
        for check in filters:
            answer = check(cluster)
            if answer is not None:
                if isinstance(answer, Rejection):
                    rejected[cluster.name] = answer
                break
        else:
            passed.append(cluster)
    return Filtered(tuple(passed), rejected)


def all_rejections(cycle: Cycle) -> Mapping[str, tuple[Rejection, ...]]:
    """Run every filter on every cluster and return all refusals by cluster."""
    filters = _prepare(cycle, FILTERS)
    return {
        cluster.name: tuple(
            answer for check in filters if isinstance(answer := check(cluster), Rejection)
        )
        for cluster in cycle.clusters
    }


def policy_filters(policy: PolicyView) -> tuple[Filter, ...]:
    """Return the filters that depend on policy and cluster alone, not on time or bindings."""
    cycle = start_cycle(policy, (), (), datetime.min.replace(tzinfo=UTC))
    return tuple(_prepare(cycle, [plugin for plugin in FILTERS if plugin.of_policy]))


def _prepare(cycle: Cycle, plugins: Iterable[FilterPlugin]) -> list[Filter]:
    prepared = (plugin.pre_filter(cycle) for plugin in plugins)
    return [check for check in prepared if check is not None]


def prepare_scorer(cycle: Cycle, *, per_batch: bool) -> Scorer:
    """Return the sum of all scorers; those whose results change per batch if `per_batch`."""
    plugins = [plugin for plugin in SCORERS if per_batch or not plugin.per_batch]
    prepared = (plugin.pre_score(cycle) for plugin in plugins)
    scorers = [scorer for scorer in prepared if scorer is not None]

    def score(cluster: MemberView) -> PartialScore:
        total = Score()
        notes: list[str] = []
        for scorer in scorers:
            part = scorer(cluster)
            total = total.plus(part.score)
            notes.extend(part.notes)
        return PartialScore(total, tuple(notes))

    return score


def batch_limit(cycle: Cycle) -> int | None:
    """Return the smallest limit that a plugin sets to the size of a batch; None if no limit."""
    limits = (plugin.post_batch(cycle) for plugin in POST_BATCH)
    return min((limit for limit in limits if limit is not None), default=None)
