"""Triggers: which changes of a member cluster start a new cycle, and of which placements.

Changes that could only make a cluster less suitable start no cycle: decisions once made under a
policy stay. A cluster under deletion starts no cycle until its MemberCluster is gone.

The usage of a cluster changes with most heartbeats. `Verdicts` avoids cycles that would decide as
before.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum

from kubeocean.api.fleet.policies import PlacementType
from kubeocean.fleet.scheduler.eligibility import ineligibility
from kubeocean.fleet.scheduler.framework import AlreadySelected, Filter, Rejection
from kubeocean.fleet.scheduler.model import (
    MemberView,
    PolicyView,
)
from kubeocean.fleet.scheduler.profile import policy_filters

__all__ = ["Trigger", "Verdicts", "concerns", "trigger"]


class Trigger(Enum):
    """Which placements a change of a member cluster concerns."""

    NONE = "none"
    CHANGED = "changed"  # placements that may want the cluster now
    GONE = "gone"  # every placement


def trigger(old: MemberView | None, new: MemberView | None, now: datetime) -> Trigger:
    """Return which placements the change of a cluster concerns; None stands for no cluster."""
    if new is None:
        return Trigger.NONE if old is None else Trigger.GONE
    # A new cluster is never eligible: its agent has not joined.
    if old is None or new.deleting:
        return Trigger.NONE
    return Trigger.CHANGED if _is_relevant(old, new, now) else Trigger.NONE


def _is_relevant(old: MemberView, new: MemberView, now: datetime) -> bool:
    if (
        old.labels != new.labels
        or old.properties != new.properties
        or old.namespaces != new.namespaces
        or (old.capacity, old.allocatable, old.available)
        != (new.capacity, new.allocatable, new.available)
    ):
        return True
    # A taint was removed or changed; one that was only added makes the cluster less suitable.
    if not set(old.taints) <= set(new.taints):
        return True
    return ineligibility(old, now) is not None and ineligibility(new, now) is None


def concerns(change: Trigger, placement_type: str, *, fulfilled: bool) -> bool:
    """Whether a placement has to be scheduled again after `change` of a cluster.

    `fulfilled` is the condition Scheduled of its policy snapshot. PickAll and PickFixed are
    always concerned, PickN only while it lacks clusters.
    """
    if change is not Trigger.CHANGED:
        return change is Trigger.GONE
    return placement_type != PlacementType.PICK_N or not fulfilled


class Verdicts:
    """Results of one policy's filters for single clusters, without regard to its bindings.

    PickAll and a PickN that lacks clusters take every cluster that passes the filters, and
    PickFixed every eligible cluster of its list. So a cycle decides as before if the filters
    refuse both versions of a changed cluster for the same reasons, or neither of them.
    """

    def __init__(self, policy: PolicyView) -> None:
        self._fixed: frozenset[str] | None = None
        self._filters: tuple[Filter, ...] = ()
        if policy.placement_type == PlacementType.PICK_FIXED:
            self._fixed = frozenset(policy.cluster_names)
        else:
            self._filters = policy_filters(policy)

    def differ(self, old: MemberView, new: MemberView, now: datetime) -> bool:
        """Whether a cycle may decide differently after a cluster changed from `old` to `new`."""
        if self._fixed is not None and new.name not in self._fixed:
            return False
        if ineligibility(old, now) != ineligibility(new, now):
            return True
        if self._fixed is not None:
            return False
        # Labels are also the domains of topology spread and affect decisions on other clusters.
        return old.labels != new.labels or any(
            _reasons(check(old)) != _reasons(check(new)) for check in self._filters
        )


def _reasons(answer: Rejection | AlreadySelected | None) -> tuple[str, ...] | None:
    return answer.reasons if isinstance(answer, Rejection) else None
