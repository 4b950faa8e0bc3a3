"""Report: what a policy's status says of the nodes that it takes back.

Each plan for a virtual node is boiled down to a `NodeReport`: how far it is, and which pods are
still there for which reason. `next_report` makes from all of them, and from what the status said
before, what it should say now. What it says is bounded however many nodes and pods there are, and
holds no time that passes by itself: as long as nothing happens it compares equal.

A reclaim begins with the first node that has to wait for a pod, or that loses one, and is complete
when no node waits any more. The one after it begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api import conditions as said
from kubeocean.api.policy import SHOWN, Eviction, ReclaimNode, ReclaimPod, ReclaimStatus
from kubeocean.leasing.instants import instant_of, text_of
from kubeocean.leasing.plans import Phase, Plan, Step, Why
from kubeocean.leasing.rules import Cause, Rules
from kubeocean.leasing.situation import Answer
from kubeocean.runtime.objects import Condition

__all__ = ["News", "NodeReport", "counted", "next_report", "report_of"]

_OVER: Final = (Phase.LENT, Phase.COOLING, Phase.RECLAIMED)
_UNMENTIONED: Final = (Why.FINISHED, Why.DAEMON)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One virtual node on its way back; the times are those of force, where there is any."""

    node: str
    cause: Cause
    phase: Phase
    since: datetime | None
    evict_from: datetime | None = None
    deadline: datetime | None = None
    pending: int = 0
    blocked: int = 0
    pods: tuple[ReclaimPod, ...] = ()  # the first ones; those that have to go before others

    @property
    def going(self) -> bool:
        """Whether somebody is waited for."""
        return self.phase not in _OVER


@dataclass(frozen=True, slots=True)
class News:
    """What is known now and was perhaps not told yet.

    `began` is a node of a reclaim that may be over before it was ever told.
    """

    reports: tuple[NodeReport, ...] = ()
    evictions: tuple[Eviction, ...] = ()  # in the order in which they happened
    began: NodeReport | None = None
    lent_again: bool = False  # a node that was on its way back
    lends: bool = False  # the policy, now


def report_of(node: str, cause: Cause, rules: Rules, plan: Plan) -> NodeReport:
    """What a plan, made after its moves were tried, says of the node."""
    notice = plan.notice
    forced = notice if rules.force else None
    named = [step for step in plan.steps if step.why not in _UNMENTIONED]
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
        blocked=sum(step.why is Why.BUDGET for step in plan.steps),
        pods=tuple(pods),
    )


def _pod(step: Step, node: str, plan: Plan) -> ReclaimPod:
    key, attempt = step.guest.key, step.guest.attempt
    why, until = step.why, None
    if why is Why.RETRY and attempt is not None and attempt.answer is Answer.ACCEPTED:
        why = Why.TERMINATING  # as soon as the cache shows it
    if why in (Why.GRACE, Why.TOLERATES_FOR_NOW):
        until = step.at
    elif why is Why.BUDGET and plan.notice is not None:
        until = plan.notice.deadline
    return ReclaimPod(key.namespace, key.name, node, str(why), text_of(until))


def next_report(
    before: ReclaimStatus | None,
    told: Condition | None,
    news: News,
    *,
    generation: int = 0,
    now: datetime,
) -> tuple[ReclaimStatus, Condition] | None:
    """What to say of taking back, and the condition that sums it up; None: nothing.

    `before` and `told` are what was said last.
    """
    stopped = told is not None and told.reason == said.RECLAIM_STOPPED.reason
    status = _status(before, news, stopped=stopped, now=now)
    if status is None:
        return None
    same = before is not None and before.start_time == status.start_time
    return status, _verdict(status, news, stopped=stopped and same, generation=generation)


def _status(
    before: ReclaimStatus | None, news: News, *, stopped: bool, now: datetime
) -> ReclaimStatus | None:
    going = sorted((each for each in news.reports if each.going), key=lambda each: each.node)
    first = min((*going, *_one(news.began)), key=_start, default=None)
    if _begins(before, news, first, stopped=stopped):
        before = _begun(news, first)
    if before is None:
        return None
    evict_from = [each.evict_from for each in going if each.evict_from is not None]
    deadlines = [each.deadline for each in going if each.deadline is not None]
    latest = (*reversed(news.evictions), *(before.last_evictions or ()))[:SHOWN]
    return msgspec.structs.replace(
        before,
        eviction_time=text_of(min(evict_from)) if evict_from else before.eviction_time,
        deadline_time=text_of(max(deadlines)) if deadlines else before.deadline_time,
        completion_time=None if going else before.completion_time or text_of(now),
        pending_nodes=len(going),
        pending=sum(each.pending for each in going),
        blocked=sum(each.blocked for each in going),
        evicted=before.evicted + len(news.evictions),
        nodes=tuple(map(_node, going[:SHOWN])) or None,
        pods=_pods(news.reports) or None,
        last_evictions=latest or None,
    )


def _begins(
    before: ReclaimStatus | None, news: News, first: NodeReport | None, *, stopped: bool
) -> bool:
    if before is not None and before.completion_time is None:
        return False
    # Nodes that were lent again and now are not: over at once, but not the same as the last time.
    closed = any(each.cause is Cause.WINDOW_CLOSED for each in news.reports) and not news.lends
    return first is not None or bool(news.evictions) or (stopped and closed)


def _begun(news: News, first: NodeReport | None) -> ReclaimStatus:
    first = first or min(news.reports, key=_start, default=None)
    if first is None:
        return ReclaimStatus(start_time=news.evictions[0].time if news.evictions else None)
    return ReclaimStatus(
        cause=str(first.cause),
        start_time=text_of(first.since),
        eviction_time=text_of(first.evict_from),
        deadline_time=text_of(first.deadline),
    )


def _start(report: NodeReport) -> tuple[bool, float, str]:
    since = report.since
    return since is None, since.timestamp() if since is not None else 0.0, report.node


def _one(report: NodeReport | None) -> tuple[NodeReport, ...]:
    return () if report is None else (report,)


def _node(report: NodeReport) -> ReclaimNode:
    return ReclaimNode(
        report.node, str(report.cause), str(report.phase), text_of(report.since), report.pending
    )


def _pods(reports: Iterable[NodeReport]) -> tuple[ReclaimPod, ...]:
    """Those that are waited for, then those that may stay; at most so many."""
    ordered = sorted(reports, key=lambda each: (not each.going, each.node))
    return tuple(pod for each in ordered for pod in each.pods)[:SHOWN]


def _verdict(status: ReclaimStatus, news: News, *, stopped: bool, generation: int) -> Condition:
    if status.completion_time is None:
        return _underway(status, [each.phase for each in news.reports], generation)
    window = status.cause == Cause.WINDOW_CLOSED
    lent = news.lends if window else news.lent_again or stopped
    ended = said.RECLAIM_STOPPED if lent else said.RECLAIM_DONE
    return ended.condition(generation=generation, evicted=counted(status.evicted, "pod"))


def _underway(status: ReclaimStatus, phases: Sequence[Phase], generation: int) -> Condition:
    until = f" until {status.deadline_time}" if status.deadline_time else ""
    facts = {
        "pods": counted(status.pending, "pod"),
        "nodes": counted(status.pending_nodes, "node"),
        "until": status.eviction_time,
    }
    if Phase.FORCING in phases:
        return said.RECLAIM_FORCING.condition(generation=generation, **facts)
    if status.blocked:
        held = counted(status.blocked, "pod")
        return said.RECLAIM_BLOCKED.condition(generation=generation, pods=held, until=until)
    if Phase.EVICTING in phases:
        return said.RECLAIM_EVICTING.condition(generation=generation, **facts)
    if Phase.NOTICE in phases:
        return said.RECLAIM_WAITING.condition(generation=generation, **facts)
    return said.RECLAIM_HELD.condition(generation=generation, **facts)


def counted(number: int, noun: str) -> str:
    """`1 pod`, `2 pods`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
