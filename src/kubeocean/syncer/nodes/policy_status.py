"""The status of a policy, and the events that follow from a change of it.

Pure. Events follow from the difference between the status that was written and the one before, so
that each is emitted once, whichever replica writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final

import msgspec

from kubeocean.api import conditions
from kubeocean.api.conditions import PolicyEvent
from kubeocean.api.policies import (
    PolicyPhase,
    PolicyStatus,
    ReclaimStatus,
    ResourceLeasingPolicy,
    problems,
)
from kubeocean.api.validation import describe
from kubeocean.leasing.cached_policy import CachedPolicy
from kubeocean.leasing.progress import PolicyProgress
from kubeocean.leasing.report import counted, next_report
from kubeocean.leasing.windows import next_edge
from kubeocean.runtime.clock import text_of
from kubeocean.runtime.events import StatusEvent
from kubeocean.runtime.objects import Condition, find_condition, set_condition
from kubeocean.syncer.cleanup.deletion_progress import first_few
from kubeocean.syncer.nodes.policy_findings import PolicyFindings

__all__ = [
    "events_of",
    "own_status",
    "policies_condition",
    "status_without_binding",
    "with_progress",
]


def own_status(
    cached: CachedPolicy,
    *,
    now: datetime,
    ending: bool = False,
    findings: PolicyFindings | None = None,
) -> PolicyStatus:
    """Return the status with phase, window and conditions that follow from the policy itself.

    All other fields stay as they are.

    `ending`: whether the binding is being deleted, so that the policy lends nothing to the binding.
    """
    before, lends = cached.policy.status, cached.lends(now) and not ending
    if cached.policy.deleting:
        return before
    edge = None
    if cached.parsed is not None and not ending:
        edge = next_edge(cached.parsed.calendar, now)
    phase = PolicyPhase.FAILED
    if cached.parsed is not None:
        phase = PolicyPhase.ACTIVE if lends else PolicyPhase.INACTIVE
    flipped = (before.phase, before.active_time_window) != (phase, lends)
    merged = before.conditions
    for condition in (
        *_conditions(cached, lends, edge, ending=ending),
        *_mistakes(before, findings or PolicyFindings(), cached.policy.metadata.generation),
    ):
        merged = set_condition(merged, condition, now=text_of(now))
    return msgspec.structs.replace(
        before,
        phase=str(phase),
        conditions=merged,
        last_applied_time=text_of(now) if flipped else before.last_applied_time,
        active_time_window=lends,
        observed_generation=cached.policy.metadata.generation,
        next_transition_time=text_of(edge),
        force_reclaim_time=text_of(cached.forced_since),
    )


def _conditions(
    cached: CachedPolicy, lends: bool, edge: datetime | None, *, ending: bool
) -> tuple[Condition, Condition]:
    generation = cached.policy.metadata.generation
    if cached.parsed is None:
        return (
            conditions.POLICY_INVALID.condition(generation=generation, problems=cached.problem),
            conditions.POLICY_NOT_ACTIVATED.condition(generation=generation),
        )
    notes = describe(problems(cached.policy.spec))
    valid = conditions.POLICY_VALID.condition(
        generation=generation, notes=f", with probable mistakes: {notes}" if notes else ""
    )
    if ending:
        binding = cached.policy.spec.cluster
        return valid, conditions.POLICY_BINDING_DELETED.condition(
            generation=generation, binding=binding
        )
    verdict = conditions.POLICY_ACTIVE if lends else conditions.POLICY_INACTIVE
    until = f" until {text_of(edge)}" if edge is not None else ""
    return valid, verdict.condition(generation=generation, until=until)


def _mistakes(
    before: PolicyStatus, findings: PolicyFindings, generation: int
) -> Iterator[Condition]:
    """Yield the conditions about `findings`; a mistake that was never made has no condition."""
    if findings.unknown:
        yield conditions.LIMITS_UNKNOWN.condition(
            generation=generation,
            unknown=", ".join(findings.unknown),
            withheld=", ".join(findings.withheld) or "any resource",
        )
    elif find_condition(before.conditions, conditions.UNKNOWN_RESOURCE) is not None:
        yield conditions.LIMITS_KNOWN.condition(generation=generation)
    if findings.overlaps:
        overlaps = ", ".join(
            f"{counted(nodes, 'node')} of policy {policy}"
            for policy, nodes in findings.overlaps.items()
        )
        yield conditions.POLICY_OVERLAPS.condition(generation=generation, overlaps=overlaps)
    elif (
        findings.overlaps is not None
        and find_condition(before.conditions, conditions.OVERLAPPING) is not None
    ):
        yield conditions.POLICY_ALONE.condition(generation=generation)


def status_without_binding(
    policy: ResourceLeasingPolicy, known: str, *, now: datetime
) -> PolicyStatus:
    """Return the status of a policy whose binding does not exist; `known` names one that does."""
    generation = policy.metadata.generation
    condition = conditions.POLICY_WITHOUT_BINDING.condition(
        generation=generation, binding=policy.spec.cluster, known=known
    )
    return msgspec.structs.replace(
        policy.status,
        phase=str(PolicyPhase.PENDING),
        active_time_window=False,
        conditions=set_condition(policy.status.conditions, condition, now=text_of(now)),
        observed_generation=generation,
    )


def policies_condition(names: list[str], invalid: list[str], generation: int) -> Condition:
    """Return the condition of a binding about the policies that name it."""
    if not names:
        return conditions.POLICIES_NONE.condition(generation=generation)
    total = f"{len(names)} {'policy names' if len(names) == 1 else 'policies name'} this binding"
    if not invalid:
        return conditions.POLICIES_VALID.condition(generation=generation, total=total)
    return conditions.POLICIES_INVALID.condition(
        generation=generation,
        total=total,
        valid=len(names) - len(invalid),
        invalid=first_few(invalid),
    )


def with_progress(
    status: PolicyStatus,
    progress: PolicyProgress | None,
    *,
    leased: int,
    generation: int,
    now: datetime,
) -> PolicyStatus:
    """Return a policy's status with the number of lent nodes and the progress of reclaims.

    `progress` is None until the progress of all nodes is known; the reclaim fields stay until then.
    """
    status = msgspec.structs.replace(status, leased_nodes=leased)
    if progress is None:
        return status
    reclaiming = find_condition(status.conditions, conditions.RECLAIMING)
    report = next_report(status.reclaim, reclaiming, progress, generation=generation, now=now)
    if report is None:
        return status
    reclaim, condition = report
    merged = set_condition(status.conditions, condition, now=text_of(now))
    return msgspec.structs.replace(status, reclaim=reclaim, conditions=merged)


def events_of(before: PolicyStatus, after: PolicyStatus) -> list[StatusEvent]:
    """Return the events to emit after a change of a policy's status was written."""
    return [
        *_mistake_events(before, after),
        *_window_events(before, after),
        *_reclaim_events(before, after),
    ]


# The event of a condition that has become true, or that is true for another reason than before
_MISTAKES: Final = {
    conditions.LIMITS_UNKNOWN: PolicyEvent.UNKNOWN_RESOURCE,
    conditions.POLICY_OVERLAPS: PolicyEvent.OVERLAPPING,
    conditions.POLICY_WITHOUT_BINDING: PolicyEvent.BINDING_NOT_FOUND,
}


def _mistake_events(before: PolicyStatus, after: PolicyStatus) -> Iterator[StatusEvent]:
    for template, event in _MISTAKES.items():
        was, is_ = (_reason(status, template.type) for status in (before, after))
        if is_ == template.reason != was:
            yield StatusEvent("Warning", event, _message(after, template.type))
    valid = conditions.POLICY_VALID
    message = _message(after, valid.type)
    notes = message.removeprefix(valid.sentence.format(notes=""))
    changed = _message(before, valid.type) != message
    if _reason(after, valid.type) == valid.reason and notes and changed:
        yield StatusEvent("Warning", PolicyEvent.PROBABLE_MISTAKE, message)


def _window_events(before: PolicyStatus, after: PolicyStatus) -> Iterator[StatusEvent]:
    if _reason(after, conditions.VALID) == conditions.POLICY_INVALID.reason:
        if _reason(before, conditions.VALID) != conditions.POLICY_INVALID.reason:
            message = _message(after, conditions.VALID)
            yield StatusEvent("Warning", PolicyEvent.INVALID, message)
        return
    deleted = conditions.POLICY_BINDING_DELETED.reason
    if _reason(after, conditions.ACTIVE) == deleted:
        if _reason(before, conditions.ACTIVE) != deleted:
            message = _message(after, conditions.ACTIVE)
            yield StatusEvent("Normal", PolicyEvent.BINDING_DELETED, message)
        return
    known = bool(before.phase) and before.phase != PolicyPhase.FAILED
    if known and before.active_time_window != after.active_time_window:
        opened = after.active_time_window
        reason = PolicyEvent.WINDOW_OPENED if opened else PolicyEvent.WINDOW_CLOSED
        yield StatusEvent("Normal", reason, _message(after, conditions.ACTIVE))


def _reclaim_events(before: PolicyStatus, after: PolicyStatus) -> Iterator[StatusEvent]:
    earlier, reclaim = before.reclaim or ReclaimStatus(), after.reclaim
    if reclaim is None:
        return
    started = earlier.start_time != reclaim.start_time
    if started:
        message = f"Nodes are reclaimed since {reclaim.start_time}: {reclaim.cause}"
        yield StatusEvent("Normal", PolicyEvent.RECLAIM_STARTED, message)
    was, is_ = (_reason(status, conditions.RECLAIMING) for status in (before, after))
    if is_ == conditions.RECLAIM_BLOCKED.reason != was:
        message = _message(after, conditions.RECLAIMING)
        yield StatusEvent("Warning", PolicyEvent.RECLAIM_BLOCKED, message)
    if reclaim.completion_time and (started or not earlier.completion_time):
        stopped = is_ == conditions.RECLAIM_STOPPED.reason
        reason = PolicyEvent.RECLAIM_STOPPED if stopped else PolicyEvent.RECLAIMED
        end = "The nodes are lent again" if stopped else "The nodes are reclaimed"
        evicted = counted(reclaim.evicted, "pod")
        yield StatusEvent("Normal", reason, f"{end}; evicted since {reclaim.start_time}: {evicted}")


def _reason(status: PolicyStatus, type_: str) -> str:
    condition = find_condition(status.conditions, type_)
    return condition.reason if condition is not None else ""


def _message(status: PolicyStatus, type_: str) -> str:
    condition = find_condition(status.conditions, type_)
    return condition.message if condition is not None else ""
