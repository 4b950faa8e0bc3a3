"""The report of reclaims in a policy's status: the numbers, and the condition with its sentence.

The numbers are computed in `leasing.progress`; reasons and English sentences are chosen here.
"""

from __future__ import annotations

from datetime import datetime

from kubeocean.api import conditions
from kubeocean.api.policies import ReclaimStatus
from kubeocean.leasing.decision import ReclaimCause
from kubeocean.leasing.progress import PolicyProgress, next_status
from kubeocean.leasing.reclaim import ReclaimPhase
from kubeocean.runtime.objects import Condition

__all__ = ["counted", "next_report"]


def next_report(
    before: ReclaimStatus | None,
    reclaiming: Condition | None,
    progress: PolicyProgress,
    *,
    generation: int = 0,
    now: datetime,
) -> tuple[ReclaimStatus, Condition] | None:
    """Return the next `status.reclaim` and condition `Reclaiming` of a policy; None if there is
    nothing to report.

    `before` and `reclaiming` are those of the policy's present status.
    """
    stopped = reclaiming is not None and reclaiming.reason == conditions.RECLAIM_STOPPED.reason
    status = next_status(before, progress, stopped=stopped, now=now)
    if status is None:
        return None
    if status.completion_time is None:
        return status, _under_way(status, progress, generation)
    same = before is not None and before.start_time == status.start_time
    window = status.cause == ReclaimCause.WINDOW_CLOSED
    lent = progress.lends if window else progress.lent_again or (stopped and same)
    ended = conditions.RECLAIM_STOPPED if lent else conditions.RECLAIM_DONE
    evicted = counted(status.evicted, "pod")
    return status, ended.condition(generation=generation, evicted=evicted)


def _under_way(status: ReclaimStatus, progress: PolicyProgress, generation: int) -> Condition:
    phases = {each.phase for each in progress.reports}
    numbers = {
        "pods": counted(status.pending, "pod"),
        "nodes": counted(status.pending_nodes, "node"),
        "until": status.eviction_time,
    }
    if ReclaimPhase.FORCING in phases:
        return conditions.RECLAIM_FORCING.condition(generation=generation, **numbers)
    if status.blocked:
        pods = counted(status.blocked, "pod")
        until = f" until {status.deadline_time}" if status.deadline_time else ""
        return conditions.RECLAIM_BLOCKED.condition(generation=generation, pods=pods, until=until)
    if ReclaimPhase.EVICTING in phases:
        return conditions.RECLAIM_EVICTING.condition(generation=generation, **numbers)
    if ReclaimPhase.NOTICE in phases:
        return conditions.RECLAIM_WAITING.condition(generation=generation, **numbers)
    if status.pending:
        return conditions.RECLAIM_HELD.condition(generation=generation, **numbers)
    tolerated = counted(sum(each.tolerated for each in progress.reports), "pod")
    return conditions.RECLAIM_TOLERATED.condition(
        generation=generation, **(numbers | {"pods": tolerated})
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 pod`, `2 pods`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
