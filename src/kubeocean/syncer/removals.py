"""Removals: when to delete a pod that has to go at once, and when to delete it again.

API servers mark a pod before they remove it. Whoever sees the mark sees a removal that is on its
way, one that waits for somebody's finalizer, or one whose client was lost in between: that one
nobody would finish. Only time tells; the mark's own is another clock's, and may be that of an
earlier deletion with more grace.
"""

from __future__ import annotations

from typing import Final

from kubeocean.runtime.clock import Clock
from kubeocean.runtime.objects import Object

__all__ = ["UNDERWAY_S", "Removals"]

UNDERWAY_S: Final = 3.0  # longer than a server takes from the mark to the removal


class Removals:
    """Since when pods are seen that are marked, and that only a lost removal would leave so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}  # by UID, until it is gone

    def due_in_s(self, pod: Object) -> float | None:
        """In how many seconds to delete it; None is never, because only a finalizer keeps it."""
        if not pod.deleting or pod.metadata.deletion_grace_period_seconds != 0:
            return 0.0
        if pod.metadata.finalizers:
            return None
        now = self._clock.monotonic()
        return max(0.0, self._seen.setdefault(pod.uid, now) + UNDERWAY_S - now)

    def forget(self, pod: Object) -> None:
        """It is gone."""
        self._seen.pop(pod.uid, None)
