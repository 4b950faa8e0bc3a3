"""Telling: what the status of a policy should say, and which events follow from a change of it.

Pure. Events are told for what a status that was written says and the one before it did not, so that
each is told once, whoever is at work.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple

import msgspec

from kubeocean.api import conditions as said
from kubeocean.api.policy import PolicyPhase, PolicyStatus, ReclaimStatus
from kubeocean.api.reasons import PolicyEvent
from kubeocean.leasing.instants import text_of
from kubeocean.leasing.report import News, counted, next_report
from kubeocean.leasing.windows import next_edge
from kubeocean.runtime.correlator import EventType
from kubeocean.runtime.objects import Condition, Json, find_condition, set_condition
from kubeocean.syncer.bottomup.book import Entry

__all__ = ["Happening", "difference", "happenings", "own_status", "with_news"]


class Happening(NamedTuple):
    """Something to tell of a policy."""

    type: EventType
    reason: PolicyEvent
    message: str


def own_status(entry: Entry, *, now: datetime, ending: bool = False) -> PolicyStatus:
    """The status with what follows from the policy itself; the rest stays as it is.

    `ending` says that the binding is deleted: then nothing is lent to it, whatever the policy says.
    """
    before, lends = entry.policy.status, entry.lends(now) and not ending
    if entry.policy.deleting:
        return before
    edge = None
    if entry.terms is not None and not ending:
        edge = next_edge(entry.terms.calendar, now)
    phase = PolicyPhase.FAILED
    if entry.terms is not None:
        phase = PolicyPhase.ACTIVE if lends else PolicyPhase.INACTIVE
    flipped = (before.phase, before.active_time_window) != (phase, lends)
    told = before.conditions
    for condition in _conditions(entry, lends, edge, ending=ending):
        told = set_condition(told, condition, now=text_of(now))
    return msgspec.structs.replace(
        before,
        phase=str(phase),
        conditions=told,
        last_applied_time=text_of(now) if flipped else before.last_applied_time,
        active_time_window=lends,
        observed_generation=entry.policy.metadata.generation,
        next_transition_time=text_of(edge),
        force_reclaim_time=text_of(entry.forced_since),
    )


def _conditions(
    entry: Entry, lends: bool, edge: datetime | None, *, ending: bool
) -> tuple[Condition, Condition]:
    generation = entry.policy.metadata.generation
    if entry.terms is None:
        return (
            said.POLICY_INVALID.condition(generation=generation, problems=entry.problem),
            said.POLICY_NOT_ACTIVATED.condition(generation=generation),
        )
    valid = said.POLICY_VALID.condition(generation=generation, notes="")
    if ending:
        binding = entry.policy.spec.cluster
        return valid, said.POLICY_UNBOUND.condition(generation=generation, binding=binding)
    verdict = said.POLICY_ACTIVE if lends else said.POLICY_INACTIVE
    until = f" until {text_of(edge)}" if edge is not None else ""
    return valid, verdict.condition(generation=generation, until=until)


def with_news(
    status: PolicyStatus, news: News | None, *, leased: int, generation: int, now: datetime
) -> PolicyStatus:
    """The status with the nodes that the policy lends and takes back; None: not all are known."""
    status = msgspec.structs.replace(status, leased_nodes=leased)
    if news is None:
        return status
    told = find_condition(status.conditions, said.RECLAIMING)
    report = next_report(status.reclaim, told, news, generation=generation, now=now)
    if report is None:
        return status
    reclaim, condition = report
    conditions = set_condition(status.conditions, condition, now=text_of(now))
    return msgspec.structs.replace(status, reclaim=reclaim, conditions=conditions)


def happenings(before: PolicyStatus, after: PolicyStatus) -> list[Happening]:
    """What there is to tell of a change that was written."""
    return [*_of_windows(before, after), *_of_reclaim(before, after)]


def _of_windows(before: PolicyStatus, after: PolicyStatus) -> Iterator[Happening]:
    if _reason(after, said.VALID) == said.POLICY_INVALID.reason:
        if _reason(before, said.VALID) != said.POLICY_INVALID.reason:
            yield Happening("Warning", PolicyEvent.INVALID, _message(after, said.VALID))
        return
    unbound = said.POLICY_UNBOUND.reason
    if _reason(after, said.ACTIVE) == unbound:
        if _reason(before, said.ACTIVE) != unbound:
            message = _message(after, said.ACTIVE)
            yield Happening("Normal", PolicyEvent.BINDING_DELETED, message)
        return
    known = bool(before.phase) and before.phase != PolicyPhase.FAILED
    if known and before.active_time_window != after.active_time_window:
        opened = after.active_time_window
        reason = PolicyEvent.WINDOW_OPENED if opened else PolicyEvent.WINDOW_CLOSED
        yield Happening("Normal", reason, _message(after, said.ACTIVE))


def _of_reclaim(before: PolicyStatus, after: PolicyStatus) -> Iterator[Happening]:
    was, is_ = before.reclaim or ReclaimStatus(), after.reclaim
    if is_ is None:
        return
    fresh = was.start_time != is_.start_time
    if fresh:
        message = f"Nodes are taken back since {is_.start_time}: {is_.cause}"
        yield Happening("Normal", PolicyEvent.RECLAIM_STARTED, message)
    blocked = said.RECLAIM_BLOCKED.reason
    if _reason(after, said.RECLAIMING) == blocked != _reason(before, said.RECLAIMING):
        yield Happening("Warning", PolicyEvent.RECLAIM_BLOCKED, _message(after, said.RECLAIMING))
    if is_.completion_time and (fresh or not was.completion_time):
        stopped = _reason(after, said.RECLAIMING) == said.RECLAIM_STOPPED.reason
        reason = PolicyEvent.RECLAIM_STOPPED if stopped else PolicyEvent.RECLAIMED
        how = "Lent again" if stopped else "Taken back"
        message = f"{how}; {counted(is_.evicted, 'pod')} had to go since {is_.start_time}"
        yield Happening("Normal", reason, message)


def _reason(status: PolicyStatus, type_: str) -> str:
    condition = find_condition(status.conditions, type_)
    return condition.reason if condition is not None else ""


def _message(status: PolicyStatus, type_: str) -> str:
    condition = find_condition(status.conditions, type_)
    return condition.message if condition is not None else ""


def difference(before: Json, after: Json) -> Json:
    """The merge patch that makes the one the other."""
    patch: Json = {name: None for name in before if name not in after}
    for name, value in after.items():
        was = before.get(name)
        if isinstance(value, dict) and isinstance(was, dict):
            value = difference(was, value)
            if not value:
                continue
        elif value == was:
            continue
        patch[name] = value
    return patch
