"""Progress of reclaims: of one node, of all nodes of a policy, and as numbers in a policy's status.

Each plan for a virtual node is summarized in a `NodeReport`: its phase, and the pods that are still
on the node with the reason. `next_status` makes the `status.reclaim` of a policy from all reports
and the status before. The size of the result is bounded however many nodes and pods there are, and
the result contains no ages or durations: while nothing changes, the status compares equal and is
not written again.

A reclaim begins with the first node that has to wait for a pod or from which a pod is evicted, and
is complete when no node waits any more. Later waits belong to the next reclaim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api.policies import SHOWN, Eviction, ReclaimNode, ReclaimPod, ReclaimStatus
from kubeocean.leasing.decision import ReclaimCause, ReclaimRules
from kubeocean.leasing.reclaim import EvictionResult, PodStep, ReclaimPhase, ReclaimPlan, StepReason
from kubeocean.runtime.clock import instant_of, text_of

__all__ = ["NodeReport", "PolicyProgress", "next_status", "report_of"]

_OVER: Final = (ReclaimPhase.LENT, ReclaimPhase.COOLING, ReclaimPhase.RECLAIMED)
_OMITTED: Final = (StepReason.FINISHED, StepReason.DAEMON)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Progress of the reclaim of one virtual node; the times are set only if the policy forces."""

    node: str
    cause: ReclaimCause
    phase: ReclaimPhase
    since: datetime | None
    evict_from: datetime | None = None
    deadline: datetime | None = None
    pending: int = 0
    blocked: int = 0
    tolerated: int = 0  # running pods that tolerate the taint of the closed window
    pods: tuple[ReclaimPod, ...] = ()  # the first `SHOWN`, pods that have to leave before others

    @property
    def under_way(self) -> bool:
        """Whether the reclaim of the node is not complete yet."""
        return self.phase not in _OVER


@dataclass(frozen=True, slots=True)
class PolicyProgress:
    """Progress of the reclaims of one policy's nodes, and events that its status does not show yet.

    `began` is the report of a node whose reclaim may have ended before any status showed it.
    """

    reports: tuple[NodeReport, ...] = ()
    evictions: tuple[Eviction, ...] = ()  # in the order in which they happened
    began: NodeReport | None = None
    lent_again: bool = False  # a node was lent again during its reclaim
    lends: bool = False  # whether the policy lends now


def report_of(node: str, cause: ReclaimCause, rules: ReclaimRules, plan: ReclaimPlan) -> NodeReport:
    """Return the report of a node's reclaim plan, after the plan's evictions were attempted
    (`ReclaimPlan.after`)."""
    notice = plan.notice
    forced = notice if rules.force else None
    named = [step for step in plan.steps if step.reason not in _OMITTED]
    named.sort(key=lambda step: step.settled)
    pods = (_pod(step, node, plan) for step in named[:SHOWN])
    return NodeReport(
        node=node,
        cause=cause,
        phase=plan.phase,
        since=instant_of(notice.taint.time_added) if notice is not None else None,
        evict_from=forced.evict_from if forced is not None else None,
        deadline=forced.deadline if forced is not None else None,
        pending=sum(not step.settled for step in plan.steps),
        blocked=sum(step.reason is StepReason.BUDGET for step in plan.steps),
        tolerated=sum(step.reason is StepReason.TOLERATES for step in plan.steps),
        pods=tuple(pods),
    )


def _pod(step: PodStep, node: str, plan: ReclaimPlan) -> ReclaimPod:
    key, attempt = step.pod.key, step.pod.attempt
    reason, until = step.reason, None
    if (
        reason is StepReason.RETRY
        and attempt is not None
        and attempt.answer is EvictionResult.ACCEPTED
    ):
        reason = StepReason.TERMINATING  # the cache will show the pod terminating
    if reason in (StepReason.GRACE, StepReason.TOLERATES_FOR_NOW):
        until = step.at
    elif reason is StepReason.BUDGET and plan.notice is not None:
        until = plan.notice.deadline
    return ReclaimPod(key.namespace, key.name, node, str(reason), text_of(until))


def next_status(
    before: ReclaimStatus | None, progress: PolicyProgress, *, stopped: bool, now: datetime
) -> ReclaimStatus | None:
    """Return the next `status.reclaim` of a policy; None if nothing was ever reclaimed.

    `stopped` means that the reclaim in `before` ended because its nodes were lent again.
    """
    waiting = sorted(
        (each for each in progress.reports if each.under_way), key=lambda each: each.node
    )
    began = (progress.began,) if progress.began is not None else ()
    first = min((*waiting, *began), key=_start, default=None)
    if _begins(before, progress, first, stopped=stopped):
        before = _new_status(progress, first)
    if before is None:
        return None
    evict_from = [each.evict_from for each in waiting if each.evict_from is not None]
    deadlines = [each.deadline for each in waiting if each.deadline is not None]
    latest = (*reversed(progress.evictions), *(before.last_evictions or ()))[:SHOWN]
    return msgspec.structs.replace(
        before,
        eviction_time=text_of(min(evict_from)) if evict_from else before.eviction_time,
        deadline_time=text_of(max(deadlines)) if deadlines else before.deadline_time,
        completion_time=None if waiting else before.completion_time or text_of(now),
        pending_nodes=len(waiting),
        pending=sum(each.pending for each in waiting),
        blocked=sum(each.blocked for each in waiting),
        evicted=before.evicted + len(progress.evictions),
        nodes=tuple(map(_node, waiting[:SHOWN])) or None,
        pods=_pods(progress.reports) or None,
        last_evictions=latest or None,
    )


def _begins(
    before: ReclaimStatus | None,
    progress: PolicyProgress,
    first: NodeReport | None,
    *,
    stopped: bool,
) -> bool:
    """Whether a new reclaim of the policy begins after the one in `before`."""
    if before is not None and before.completion_time is None:
        return False
    # A window that closes on empty nodes which were lent again: a new reclaim, which is complete at
    # once.
    closed = (
        any(each.cause is ReclaimCause.WINDOW_CLOSED for each in progress.reports)
        and not progress.lends
    )
    return first is not None or bool(progress.evictions) or (stopped and closed)


def _new_status(progress: PolicyProgress, first: NodeReport | None) -> ReclaimStatus:
    first = first or min(progress.reports, key=_start, default=None)
    if first is None:
        evictions = progress.evictions
        return ReclaimStatus(start_time=evictions[0].time if evictions else None)
    return ReclaimStatus(
        cause=str(first.cause),
        start_time=text_of(first.since),
        eviction_time=text_of(first.evict_from),
        deadline_time=text_of(first.deadline),
    )


def _start(report: NodeReport) -> tuple[bool, float, str]:
    since = report.since
    return since is None, since.timestamp() if since is not None else 0.0, report.node


def _node(report: NodeReport) -> ReclaimNode:
    return ReclaimNode(
        report.node, str(report.cause), str(report.phase), text_of(report.since), report.pending
    )


def _pods(reports: Iterable[NodeReport]) -> tuple[ReclaimPod, ...]:
    """Return the pods in the reports, nodes that still wait first; at most `SHOWN`."""
    ordered = sorted(reports, key=lambda each: (not each.under_way, each.node))
    return tuple(pod for each in ordered for pod in each.pods)[:SHOWN]
