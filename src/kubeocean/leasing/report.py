"""The report of reclaims: in a policy's status the numbers and a condition, in events a message.

The numbers are computed in `leasing.progress`; reasons and English sentences are chosen here.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from kubeocean.api import conditions
from kubeocean.api.policies import ReclaimStatus
from kubeocean.leasing.decision import ReclaimCause
from kubeocean.leasing.progress import PolicyProgress, next_status
from kubeocean.leasing.reclaim import Notice, PodStep, ReclaimPhase, StepReason
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.objects import Condition

__all__ = ["cause_text", "counted", "eviction_message", "next_report"]

_CAUSES: Final = {
    ReclaimCause.WINDOW_CLOSED: "the time windows of {policy} are closed",
    ReclaimCause.POLICY_REMOVED: "{policy} was deleted or names another binding",
    ReclaimCause.POLICY_NARROWED: "{policy} no longer selects the node",
    ReclaimCause.BINDING_DELETED: "ClusterBinding {binding} is being deleted",
    ReclaimCause.NODE_DELETING: "the worker's node is being deleted",
    ReclaimCause.NODE_REPLACED: "the worker has another node of this name",
    ReclaimCause.NODE_GONE: "the worker's node was deleted",
}
_EVICTIONS: Final = {  # by the reason of a step that evicts or deletes a pod
    StepReason.DUE: (
        "The pod was evicted: evictions began at {evict_from}, and pods that are left at {deadline}"
        " are deleted"
    ),
    StepReason.DEADLINE: "The pod was deleted: the deadline for evictions was {deadline}",
    StepReason.UNCONFIRMED: (
        "The pod was deleted without a grace period: the worker did not confirm that it ended"
    ),
}


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


def cause_text(cause: ReclaimCause, *, policy: str, binding: str) -> str:
    """Return the cause of a reclaim as a clause; `policy` is empty if it is unknown."""
    named = f"policy {policy}" if policy else "the policy"
    return _CAUSES[cause].format(policy=named, binding=binding)


def eviction_message(step: PodStep, notice: Notice, *, node: str, policy: str, binding: str) -> str:
    """Return the message of an event about a pod that was evicted or deleted.

    The message names the virtual node, the start and the cause of its reclaim, and the time from
    which on its pods are evicted or deleted.
    """
    why = cause_text(notice.cause, policy=policy, binding=binding)
    times = {"evict_from": text_of(notice.evict_from), "deadline": text_of(notice.deadline)}
    since = notice.taint.time_added
    return (
        f"Node {node} is reclaimed since {since}, because {why}."
        f" {_EVICTIONS[step.reason].format(**times)}"
    )


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 pod`, `2 pods`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
