"""Plan of a rolling update: which bindings get the latest release now, and which are deleted.

With T clusters wanted,

    deletions and updates now  = |ready| - |ready and being deleted| - (T - maxUnavailable)
    new clusters now           = (T + maxSurge) - |can become ready|

Failed bindings are updated regardless of the limits, because they are not available anyway. Then
Unscheduled bindings are deleted, then other bindings are updated, until the first number is used
up. Candidates are taken in the order of their names. An Unscheduled binding that is not available
counts for neither number: it is deleted unless too few others are ready. (KubeFleet keeps it, for
ever if no cluster is wanted any more.)

A binding that KubeFleet released with overrides keeps that release: without its overrides, the
objects in the cluster would change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from kubeocean.api.fleet.bindings import Binding, BindingState
from kubeocean.api.fleet.conditions import ROLLOUT_STARTED
from kubeocean.api.fleet.placements import NamespacedName, Placement
from kubeocean.api.fleet.policies import PlacementType
from kubeocean.api.fleet.schema import document
from kubeocean.api.fleet.strategies import ApplyStrategy, RollingUpdate
from kubeocean.fleet.rollout.readiness import can_become_ready, has_failed, readiness
from kubeocean.fleet.steps import fresh
from kubeocean.runtime.objects import Json

__all__ = [
    "Release",
    "RolloutLimits",
    "RolloutPlan",
    "plan",
    "release_patch",
    "release_spec",
    "rollout_limits",
    "strategy_patch",
    "strategy_spec",
    "target_number",
]


class Release(NamedTuple):
    """The resource snapshot and override snapshots that a binding delivers to its cluster."""

    snapshot: str
    cluster_overrides: tuple[str, ...] = ()
    overrides: tuple[NamespacedName, ...] = ()

    def is_of(self, binding: Binding) -> bool:
        """Whether a binding's spec has this release."""
        spec = binding.spec
        return self == (
            spec.resource_snapshot_name,
            spec.cluster_resource_override_snapshots,
            spec.resource_override_snapshots,
        )


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """Bindings to change; `again_s` is the time until a further binding becomes ready."""

    release: tuple[Binding, ...] = ()
    remove: tuple[Binding, ...] = ()
    hold: tuple[Binding, ...] = ()  # RolloutStarted False
    overridden: tuple[Binding, ...] = ()  # keep a release with overrides: RolloutStarted False
    confirm: tuple[Binding, ...] = ()  # up to date: RolloutStarted is no longer False
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """The limits of a rolling update as numbers of clusters, and the clusters that count for them.

    `ready` clusters are available, and `leaving` ones among them are being deleted; `becoming`
    clusters have a release that can become available.
    """

    target: int
    max_unavailable: int
    max_surge: int
    ready: int
    leaving: int
    becoming: int

    @property
    def unavailable(self) -> int:
        """Number of wanted clusters that are not available."""
        return max(self.target - self.ready + self.leaving, 0)

    @property
    def spare(self) -> int:
        """Number of clusters that may be updated or deleted now; negative if too few are ready."""
        return self.ready - self.leaving - (self.target - self.max_unavailable)

    @property
    def most_new(self) -> int:
        """Number of further clusters that may get a release now."""
        return max(self.target + self.max_surge - self.becoming, 0)


def rollout_limits(
    bindings: Sequence[Binding], target: int, strategy: RollingUpdate, now: datetime
) -> RolloutLimits:
    """Return the limits of a rolling update, and how many clusters of a placement use them up."""
    released = [each for each in bindings if each.spec.state != BindingState.SCHEDULED]
    period_s = strategy.unavailable_period_seconds
    ready = [each for each in released if readiness(each, period_s, now).ready]
    return RolloutLimits(
        target,
        _number(strategy.max_unavailable, target),
        _number(strategy.max_surge, target),
        ready=len(ready),
        leaving=sum(each.deleting for each in ready),
        becoming=sum(map(can_become_ready, released)),
    )


def target_number(placement: Placement, bindings: Sequence[Binding]) -> int:
    """Return the target number of clusters of a placement."""
    policy = placement.spec.policy
    match policy.placement_type:
        case PlacementType.PICK_FIXED:
            return len(policy.cluster_names)
        case PlacementType.PICK_N:
            return policy.number_of_clusters or 0
    wanted = (BindingState.SCHEDULED, BindingState.BOUND)
    return sum(binding.spec.state in wanted for binding in bindings)


def plan(
    bindings: Sequence[Binding],
    target: int,
    release: Release,
    strategy: RollingUpdate,
    now: datetime,
) -> RolloutPlan:
    """Return which bindings of a placement are updated, deleted and held back now."""
    if not any(_is_waiting(binding, release) for binding in bindings):
        return RolloutPlan(confirm=tuple(filter(_is_held, bindings)))
    ready = leaving = becoming = 0
    waits: list[float] = []
    removals: list[Binding] = []
    idle: list[Binding] = []
    updates: list[Binding] = []
    failed: list[Binding] = []
    binds: list[Binding] = []
    confirm: list[Binding] = []
    blocked = {binding.spec.target_cluster for binding in bindings if binding.deleting}
    held: list[Binding] = []
    overridden: list[Binding] = []
    for binding in sorted(bindings, key=lambda each: each.name):
        state = binding.spec.state
        if state == BindingState.SCHEDULED:
            if not binding.deleting:
                # The Works of a binding to this cluster that is being deleted have the same names
                is_blocked = binding.spec.target_cluster in blocked
                (held if is_blocked else binds).append(binding)
            continue
        is_ready, wait_s = readiness(binding, strategy.unavailable_period_seconds, now)
        ready += is_ready
        becoming += can_become_ready(binding)
        if wait_s is not None:
            waits.append(wait_s)
        if binding.deleting:
            leaving += is_ready
        elif state == BindingState.UNSCHEDULED:
            (removals if is_ready or wait_s is not None else idle).append(binding)
        elif binding.spec.names_overrides:
            if binding.spec.resource_snapshot_name != release.snapshot:
                overridden.append(binding)
        elif not release.is_of(binding):
            (failed if has_failed(binding) else updates).append(binding)
        elif _is_held(binding):
            confirm.append(binding)
    limits = RolloutLimits(
        target,
        _number(strategy.max_unavailable, target),
        _number(strategy.max_surge, target),
        ready,
        leaving,
        becoming,
    )
    most = max(limits.spare, 0)
    removed = removals[:most]
    updated = updates[: most - len(removed)]
    ended = idle if limits.spare >= 0 else []
    stays = len(idle) - len(ended) + len(removals) - len(removed)
    bound = binds[: limits.most_new]
    held += [*updates[len(updated) :], *binds[len(bound) :]]
    return RolloutPlan(
        release=(*failed, *updated, *bound),
        remove=(*ended, *removed),
        hold=tuple(held),
        overridden=tuple(overridden),
        confirm=tuple(confirm),
        again_s=min(waits, default=None) if held or stays else None,
    )


def _is_waiting(binding: Binding, release: Release) -> bool:
    """Whether a binding is to be changed or deleted, so that the limits of the rolling update apply
    to it.

    Mostly no binding is: each report of a cluster makes a plan for all of them.
    """
    return (
        binding.deleting or binding.spec.state != BindingState.BOUND or not release.is_of(binding)
    )


def _number(limit: int | str, target: int) -> int:
    """Return maxUnavailable or maxSurge as a number of clusters; percentages are rounded up."""
    text = str(limit)
    if text.endswith("%"):
        share = text.removesuffix("%")
        return math.ceil(target * int(share) / 100) if share.isdecimal() else 0
    return int(text) if text.isdecimal() else 0


def _is_held(binding: Binding) -> bool:
    condition = fresh(binding.status.conditions, ROLLOUT_STARTED.name, binding.metadata.generation)
    return condition is not None and condition.status == "False"


def release_patch(binding: Binding, release: Release, strategy: ApplyStrategy) -> Json:
    """Return the patch that sets the release and the state Bound of a binding."""
    return {
        "metadata": {"resourceVersion": binding.resource_version},
        "spec": release_spec(release, strategy),
    }


def release_spec(release: Release, strategy: ApplyStrategy) -> Json:
    """Return the fields of a binding's spec that a release sets."""
    return {
        "state": str(BindingState.BOUND),
        "resourceSnapshotName": release.snapshot,
        "clusterResourceOverrideSnapshots": list(release.cluster_overrides) or None,
        "resourceOverrideSnapshots": [document(each) for each in release.overrides] or None,
        "applyStrategy": strategy_spec(strategy),
    }


def strategy_spec(strategy: ApplyStrategy) -> Json:
    """Return an apply strategy for a merge patch; optional fields that are not set are null."""
    spec: Json = {"allowCoOwnership": None, "serverSideApplyConfig": None} | document(strategy)
    if spec["serverSideApplyConfig"] is not None:
        spec["serverSideApplyConfig"] = {"force": None} | spec["serverSideApplyConfig"]
    return spec


def strategy_patch(binding: Binding, strategy: ApplyStrategy) -> Json:
    """Return the patch that gives a binding another apply strategy."""
    return {
        "metadata": {"resourceVersion": binding.resource_version},
        "spec": {"applyStrategy": strategy_spec(strategy)},
    }
