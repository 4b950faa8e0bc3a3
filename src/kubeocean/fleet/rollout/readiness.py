"""Readiness of bindings: whether a binding's release is available, has failed, or is in progress.

A condition counts only if it is about the binding's present generation.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple

from kubeocean.api.fleet.bindings import Binding
from kubeocean.api.fleet.conditions import (
    APPLIED,
    AVAILABLE,
    DIFF_REPORTED,
    OVERRIDDEN,
    WORK_SYNCHRONIZED,
    PlacementReason,
)
from kubeocean.fleet.health import stored_instant
from kubeocean.fleet.steps import fresh

__all__ = ["Readiness", "can_become_ready", "has_failed", "readiness"]

# Reasons that KubeFleet takes for a release in progress. Bindings report other reasons for that,
# so that a slow binding counts as failed: the choice of the next cluster depends on it.
_PASSING: Final = frozenset(
    {
        OVERRIDDEN.placement.unknown,
        WORK_SYNCHRONIZED.placement.false,
        APPLIED.placement.unknown,
        AVAILABLE.placement.false,
    }
)
_CAN_FAIL: Final = (OVERRIDDEN, WORK_SYNCHRONIZED, APPLIED, AVAILABLE)


class Readiness(NamedTuple):
    """Whether a binding is ready; `wait_s`: seconds until the binding counts as ready without an
    event.
    """

    ready: bool
    wait_s: float | None = None


def readiness(binding: Binding, period_s: int, now: datetime) -> Readiness:
    """Return whether a binding is ready; untrackable objects are available after `period_s`."""
    generation, conditions = binding.metadata.generation, binding.status.conditions
    reported = fresh(conditions, DIFF_REPORTED.name, generation)
    if reported is not None and reported.status == "True":
        return Readiness(True)
    available = fresh(conditions, AVAILABLE.name, generation)
    if available is None or available.status != "True":
        return Readiness(False)
    if available.reason != PlacementReason.NOT_ALL_TRACKABLE:
        return Readiness(True)
    since = stored_instant(available.last_transition_time)
    if since is None:
        return Readiness(True)
    left = since + timedelta(seconds=period_s) - now
    return Readiness(True) if left <= timedelta() else Readiness(False, left.total_seconds())


def has_failed(binding: Binding) -> bool:
    """Whether a condition of the binding reports that a step of the rollout failed."""
    generation, conditions = binding.metadata.generation, binding.status.conditions
    found = (fresh(conditions, step.name, generation) for step in _CAN_FAIL)
    return any(
        condition is not None and condition.status == "False" and condition.reason not in _PASSING
        for condition in found
    )


def can_become_ready(binding: Binding) -> bool:
    """Whether the binding's release has neither failed nor ended with a report of differences."""
    reported = fresh(binding.status.conditions, DIFF_REPORTED.name, binding.metadata.generation)
    return not has_failed(binding) and reported is None
