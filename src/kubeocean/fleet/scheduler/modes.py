"""The placement types: PickAll, PickN and PickFixed.

- PickAll gives a binding to every cluster that passes the filters. It is always fulfilled.
- PickN keeps its current bindings. With fewer than N bindings it picks the best of the other
  clusters; with more it removes the bindings that are first in `removal_order` without running any
  filter; with N it does nothing, even if a better cluster appears. It is fulfilled if it has N.
- PickFixed gives a binding to every named cluster that is eligible; affinity and taints do not
  count. It is fulfilled if all named clusters are eligible. An empty list decides nothing at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kubeocean.api.fleet.snapshots import MOST_DECISIONS, ClusterDecision
from kubeocean.fleet.scheduler.bindings import (
    BindingChanges,
    UnscheduleCause,
    removal_order,
    settle,
    unschedule,
)
from kubeocean.fleet.scheduler.decisions import (
    SnapshotStatus,
    decide_ineligible,
    decide_kept,
    decide_not_found,
    decide_not_picked,
    decide_rejected,
    decide_selected,
    list_decisions,
    scheduled_condition,
)
from kubeocean.fleet.scheduler.eligibility import ineligibility
from kubeocean.fleet.scheduler.explanation import (
    ClusterExplanation,
    ClusterOutcome,
    explain_clusters,
)
from kubeocean.fleet.scheduler.framework import Cycle, Rejection, Score
from kubeocean.fleet.scheduler.model import (
    BindingView,
)
from kubeocean.fleet.scheduler.picking import PickCandidate, pick
from kubeocean.fleet.scheduler.profile import (
    CLUSTER_ELIGIBILITY,
    batch_limit,
    prepare_scorer,
    run_filters,
)
from kubeocean.fleet.scheduler.spread import count_domains

__all__ = ["Schedule", "pick_all", "pick_fixed", "pick_n", "undecided"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The result of a scheduling cycle: binding changes, snapshot status, and explanations."""

    changes: BindingChanges
    status: SnapshotStatus | None  # None: leave the status as it is
    explanations: tuple[ClusterExplanation, ...]
    problem: str = ""  # why there is no status

    @property
    def fulfilled(self) -> bool:
        """Whether the policy has as many clusters as it requires."""
        return self.status is not None and self.status.condition.status == "True"


def undecided(cycle: Cycle, problem: str) -> Schedule:
    """Return the result of a cycle that cannot decide because of `problem`; bindings stay as is."""
    explanations = explain_clusters(cycle, kept=cycle.bindings.current, otherwise=problem)
    return Schedule(BindingChanges(), None, explanations, problem)


def pick_all(cycle: Cycle) -> Schedule:
    """Pick every cluster that passes the filters."""
    filtered = run_filters(cycle)
    picked = [decide_selected(cluster.name, Score().published) for cluster in filtered.passed]
    changes = settle(cycle.bindings, cycle.policy, picked)
    selected = _selected(changes, cycle.bindings.current)
    return Schedule(
        changes,
        _status(cycle, selected, _rejected(filtered.rejected), fulfilled=True),
        explain_clusters(
            cycle, picked=picked, kept=cycle.bindings.current, rejected=filtered.rejected
        ),
    )


def pick_n(cycle: Cycle, wanted: int) -> Schedule:
    """Bring the number of current bindings to `wanted`, as far as clusters allow."""
    present = len(cycle.bindings.current)
    return _upscale(cycle, wanted) if wanted > present else _downscale(cycle, wanted)


def _upscale(cycle: Cycle, wanted: int) -> Schedule:
    current = cycle.bindings.current
    filtered = run_filters(cycle)
    score = prepare_scorer(cycle, per_batch=False)
    picks = pick(
        [PickCandidate(cluster, score(cluster)) for cluster in filtered.passed],
        count_domains(cycle.policy.spread, cycle.clusters, cycle.bindings.current_clusters),
        wanted - len(current),
        batch_limit(cycle),
    )
    picked = [decide_selected(item.name, item.score.published) for item in picks.picked]
    not_picked = [decide_not_picked(item.name, item.score.published) for item in picks.not_picked]
    rejected = {**filtered.rejected, **picks.rejected}
    changes = settle(cycle.bindings, cycle.policy, picked)
    return Schedule(
        changes,
        _status(
            cycle,
            _selected(changes, current),
            [*not_picked, *_rejected(rejected)],
            fulfilled=len(current) + len(picked) >= wanted,
        ),
        explain_clusters(
            cycle,
            picked=picked,
            kept=current,
            not_picked=not_picked,
            rejected=rejected,
            notes={item.name: item.notes for item in (*picks.picked, *picks.not_picked)},
        ),
    )


def _downscale(cycle: Cycle, wanted: int) -> Schedule:
    """Remove obsolete bindings and surplus current ones in `removal_order`; run no filter.

    The decisions of the last cycle on clusters that were not selected stay, so that a cycle
    without changes gives an equal status.
    """
    names = {cluster.name for cluster in cycle.clusters}
    earlier = [
        decision
        for decision in cycle.policy.decisions
        if not decision.selected and decision.cluster_name in names
    ]
    order = removal_order(cycle.bindings)
    surplus, kept = order[: len(order) - wanted], order[len(order) - wanted :]
    changes = BindingChanges(
        to_unschedule=(
            *unschedule(cycle.bindings.obsolete, UnscheduleCause.OBSOLETE),
            *unschedule(surplus, UnscheduleCause.SURPLUS),
        )
    )
    return Schedule(
        changes,
        _status(cycle, [decide_kept(binding) for binding in kept], earlier, fulfilled=True),
        explain_clusters(
            cycle,
            kept=kept,
            removed={
                item.binding.target_cluster: item.cause.value for item in changes.to_unschedule
            },
            otherwise="the policy has as many clusters as it wants",
        ),
    )


def pick_fixed(cycle: Cycle, names: Iterable[str]) -> Schedule:
    """Pick the clusters with these names, in this order, if they are eligible."""
    clusters = {cluster.name: cluster for cluster in cycle.clusters}
    valid: list[ClusterDecision] = []
    invalid: list[ClusterDecision] = []
    not_found: list[ClusterDecision] = []
    explanations: list[ClusterExplanation] = []
    listed = dict.fromkeys(names)
    for name in listed:
        if name not in clusters:
            not_found.append(decide_not_found(name))
            explanations.append(
                ClusterExplanation(name, ClusterOutcome.NOT_FOUND, not_found[-1].reason)
            )
        elif why := ineligibility(clusters[name], cycle.now):
            invalid.append(decide_ineligible(name, why))
            rejection = Rejection(CLUSTER_ELIGIBILITY, (why,))
            explanations.append(
                ClusterExplanation(name, ClusterOutcome.REJECTED, invalid[-1].reason, (rejection,))
            )
        else:
            valid.append(decide_selected(name, None))
            kept = name in cycle.bindings.current_clusters
            outcome = ClusterOutcome.KEPT if kept else ClusterOutcome.PICKED
            explanations.append(ClusterExplanation(name, outcome, valid[-1].reason))
    changes = settle(cycle.bindings, cycle.policy, valid)
    unlisted = [item for item in cycle.bindings.current if item.target_cluster not in listed]
    changes = BindingChanges(
        to_create=changes.to_create,
        to_patch=changes.to_patch,
        to_unschedule=(*changes.to_unschedule, *unschedule(unlisted, UnscheduleCause.OBSOLETE)),
    )
    refused = [*invalid, *not_found]
    decisions = list_decisions(valid, refused, most_unselected=MOST_DECISIONS)
    condition = scheduled_condition(cycle.policy, len(valid), fulfilled=not refused)
    removed = {item.binding.target_cluster: item.cause.value for item in changes.to_unschedule}
    others = explain_clusters(
        cycle, removed=removed, otherwise="the policy does not name the cluster"
    )
    return Schedule(
        changes,
        SnapshotStatus(cycle.policy.placement_generation, condition, decisions),
        (*explanations, *(item for item in others if item.cluster not in listed)),
    )


def _selected(changes: BindingChanges, current: Iterable[BindingView]) -> list[ClusterDecision]:
    """Return the decisions on selected clusters, by binding: new, patched, scheduled, bound."""
    return [
        *(item.decision for item in changes.to_create),
        *(item.decision for item in changes.to_patch),
        *(decide_kept(binding) for binding in current),
    ]


def _rejected(rejections: Mapping[str, Rejection]) -> list[ClusterDecision]:
    """Return the decisions on refused clusters, sorted by name."""
    return [decide_rejected(name, rejections[name]) for name in sorted(rejections)]


def _status(
    cycle: Cycle,
    selected: list[ClusterDecision],
    unselected: Iterable[ClusterDecision],
    *,
    fulfilled: bool,
) -> SnapshotStatus:
    return SnapshotStatus(
        cycle.policy.placement_generation,
        scheduled_condition(cycle.policy, len(selected), fulfilled=fulfilled),
        list_decisions(selected, unselected),
    )
