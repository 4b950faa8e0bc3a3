"""The scheduling cycle: computes changes of bindings from views of stored objects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from kubeocean.api.fleet.policies import PlacementType
from kubeocean.fleet.scheduler.bindings import UnscheduleCause, unschedule
from kubeocean.fleet.scheduler.explanation import Explanation, complete
from kubeocean.fleet.scheduler.framework import Cycle, start_cycle
from kubeocean.fleet.scheduler.model import (
    BindingView,
    MemberView,
    PolicyView,
)
from kubeocean.fleet.scheduler.modes import Schedule, pick_all, pick_fixed, pick_n, undecided
from kubeocean.fleet.scheduler.properties import quoted

__all__ = ["explain", "schedule"]


def schedule(
    policy: PolicyView,
    clusters: Iterable[MemberView],
    bindings: Iterable[BindingView],
    now: datetime,
) -> Schedule:
    """Decide which clusters the placement of `policy` is placed on.

    :param clusters: all member clusters, eligible or not.
    :param bindings: all bindings of the placement, of any policy snapshot and state.
    :param now: the present time, to which the times of heartbeats are compared.

    The order of clusters and bindings does not matter. In every mode, bindings of clusters that
    left are marked Unscheduled, and bindings under deletion lose the scheduler's finalizer.
    """
    return _run(start_cycle(policy, clusters, bindings, now))


def explain(
    policy: PolicyView,
    clusters: Iterable[MemberView],
    bindings: Iterable[BindingView],
    now: datetime,
) -> tuple[Explanation, ...]:
    """Explain the decision of `schedule` on each cluster, with the results of every filter."""
    cycle = start_cycle(policy, clusters, bindings, now)
    return complete(cycle, _run(cycle).explanations)


def _run(cycle: Cycle) -> Schedule:
    result = _decide(cycle)
    changes = replace(
        result.changes,
        to_unschedule=(
            *unschedule(cycle.bindings.dangling, UnscheduleCause.DANGLING),
            *result.changes.to_unschedule,
        ),
        to_release=cycle.bindings.deleting,
    )
    return replace(result, changes=changes)


def _decide(cycle: Cycle) -> Schedule:
    policy = cycle.policy
    if policy.placement_type in ("", PlacementType.PICK_ALL):
        return pick_all(cycle)
    if policy.placement_type == PlacementType.PICK_N:
        wanted = policy.number_of_clusters
        if wanted is None or wanted < 0:
            return undecided(cycle, "the policy snapshot has no valid number of clusters")
        return pick_n(cycle, wanted)
    if policy.placement_type == PlacementType.PICK_FIXED:
        if not policy.cluster_names:
            return undecided(cycle, "the policy names no clusters")
        return pick_fixed(cycle, policy.cluster_names)
    return undecided(cycle, f"unknown placement type {quoted(policy.placement_type)}")
