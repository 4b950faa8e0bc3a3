"""Removals: when to delete a pod that has to go at once, and when to delete it again.

API servers mark a pod before they remove it. Whoever sees the mark sees a removal that is on its
way, one that waits for somebody's finalizer, or one whose client was lost in between: that one
nobody would finish.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from kubeocean.leasing.instants import instant_of
from kubeocean.runtime.objects import Object

__all__ = ["UNDERWAY_S", "removal_in_s"]

UNDERWAY_S: Final = 3.0  # longer than a server takes from the mark to the removal


def removal_in_s(pod: Object, now: datetime) -> float | None:
    """In how many seconds to delete it; None is never, because only a finalizer keeps it."""
    meta = pod.metadata
    marked = instant_of(meta.deletion_timestamp)
    if marked is None or meta.deletion_grace_period_seconds != 0:
        return 0.0
    if meta.finalizers:
        return None
    return max(0.0, (marked + timedelta(seconds=UNDERWAY_S) - now).total_seconds())
