"""Removals: when to delete a pod without a grace period, and when to repeat the deletion.

API servers mark a pod with a deletion timestamp before they remove the pod. A pod with such a mark
and no grace period left is being removed, or is kept by a finalizer, or its removal was interrupted
and has to be requested again. Only the time since this process first saw the mark tells these
apart: the mark's own time is of another clock, and may be that of an earlier deletion with a longer
grace period.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.objects import Object

__all__ = ["UNDERWAY_S", "Removals", "awaits_removal", "removal_due_in_s"]

UNDERWAY_S: Final = 3.0  # longer than an API server takes from the mark to the removal


def awaits_removal(pod: Object) -> bool:
    """Whether the API server should remove the pod right now, without any further request."""
    marked = pod.deleting and pod.metadata.deletion_grace_period_seconds == 0
    return marked and not pod.metadata.finalizers


def removal_due_in_s(pod: Object, *, seen_s: float | None, now_s: float) -> float | None:
    """Return the seconds until a pod is to be deleted; None if only a finalizer keeps it.

    `seen_s` is when the pod was first seen to await its removal.
    """
    if not pod.deleting or pod.metadata.deletion_grace_period_seconds != 0:
        return 0.0
    if pod.metadata.finalizers:
        return None
    return max(0.0, (now_s if seen_s is None else seen_s) + UNDERWAY_S - now_s)


class Removals:
    """Remembers when each pod was first seen to await its removal, and when to delete it again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen_s: dict[str, float] = {}  # by UID, of pods that await their removal

    def due_in_s(self, pod: Object) -> float | None:
        """Return the seconds until a pod is to be deleted; None if only a finalizer keeps it."""
        now_s = self._clock.monotonic()
        seen_s = self._seen_s.setdefault(pod.uid, now_s) if awaits_removal(pod) else None
        return removal_due_in_s(pod, seen_s=seen_s, now_s=now_s)

    def forget(self, pod: Object) -> None:
        """Drop the memory of a pod that is removed."""
        self._seen_s.pop(pod.uid, None)
