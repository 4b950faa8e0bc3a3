"""Explains a member of a fleet: whether it has joined and is healthy, and if not, why. Pure.

Ages are computed from stored times, as the hub computes them. The agent reports into the
InternalMemberCluster and the hub copies the reports from there, so both are compared: if the hub
has stopped, an agent that still reports does not count as silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kubeocean.api.fleet.clusters import InternalMemberCluster, MemberCluster, MemberStatus
from kubeocean.api.fleet.conditions import AgentCondition, MemberCondition
from kubeocean.api.fleet.works import Work
from kubeocean.fleet.health import (
    is_heartbeat_lost,
    member_agent,
    stored_instant,
    unhealthy_threshold,
)
from kubeocean.fleet.works.views import placement_of_work
from kubeocean.inspect.explain.report import (
    Answer,
    Explanation,
    ExplanationRule,
    Section,
    explain_absence,
)
from kubeocean.inspect.fleet.clusters import cluster_view
from kubeocean.inspect.fleet.progress import condition_text, work_problem
from kubeocean.inspect.format import age, few, span
from kubeocean.inspect.snapshot import NotRead, SnapshotPart, failures, known
from kubeocean.runtime.objects import find_condition

__all__ = ["MemberDetails", "explain_member", "silence"]

_AGENT: Final = "a running `kubeocean fleet member` in that cluster"
_HUB: Final = "a running `kubeocean fleet hub`"


@dataclass(frozen=True, slots=True)
class MemberDetails:
    """A member of a fleet and the hub's objects for it; None if they do not exist."""

    name: str
    now: datetime
    member: MemberCluster | NotRead | None
    internal: InternalMemberCluster | NotRead | None = None
    works: SnapshotPart[tuple[Work, ...]] = ()

    @property
    def unread(self) -> tuple[NotRead, ...]:
        return failures(self.member, self.internal, self.works)


def explain_member(details: MemberDetails) -> Explanation:
    """Return the explanation of a member."""
    about = f"member {details.name}"
    member = details.member
    if member is None or isinstance(member, NotRead):
        return explain_absence(about, "MemberCluster", member, details.unread)
    return Explanation.of(
        about,
        _answer(member, details),
        sections=(
            Section("conditions", tuple(map(condition_text, member.status.conditions))),
            Section("agents", tuple(_agents(member.status, details.now))),
            Section("taints", tuple(cluster_view(member, details.now).taints)),
            Section("properties", tuple(_properties(member.status))),
            Section("works", tuple(map(_work, known(details.works, ())))),
        ),
        unread=details.unread,
    )


def silence(member: MemberCluster, now: datetime) -> str:
    """Return a text about when a member's heartbeats stopped; empty if they have not."""
    return _silence(member.status, _threshold(member), now)


def _answer(member: MemberCluster, details: MemberDetails) -> Answer:
    if member.deleting:
        return _leaving(member, details)
    conditions = member.status.conditions
    ready = find_condition(conditions, MemberCondition.READY_TO_JOIN)
    if ready is not None and ready.status == "False":
        return Answer(ExplanationRule.NOT_ADMITTED, ready.message or ready.reason)
    if ready is None:
        verdict = "the hub has not created its namespace and its InternalMemberCluster"
        return Answer(ExplanationRule.NOT_ADMITTED, verdict, remedies=(_HUB,))
    if silent := silence(member, details.now):
        return _silent(member, details, silent)
    agent = member_agent(member.status.agent_status)
    assert agent is not None  # else the member is silent
    joined = find_condition(agent.conditions, AgentCondition.JOINED)
    if joined is None or joined.status != "True":
        reasons = (condition_text(joined),) if joined is not None else ()
        return Answer(
            ExplanationRule.NOT_JOINED, "its agent reports that it has not joined", reasons
        )
    healthy = find_condition(agent.conditions, AgentCondition.HEALTHY)
    if healthy is None or healthy.status != "True":
        reasons = (condition_text(healthy),) if healthy is not None else ()
        verdict = "its agent reports that its API server is not healthy"
        return Answer(ExplanationRule.MEMBER_UNHEALTHY, verdict, reasons)
    if member.spec.taints:
        taints = few(cluster_view(member, details.now).taints)
        return Answer(
            ExplanationRule.MEMBER_TAINTED,
            f"it has joined and is healthy; placements that do not tolerate {taints} skip it",
            remedies=(f"kubeocean fleet uncordon {member.name}, or other spec.taints",),
        )
    return Answer(ExplanationRule.JOINED, "it has joined and is healthy")


def _leaving(member: MemberCluster, details: MemberDetails) -> Answer:
    held = few(member.metadata.finalizers or ()) or "nothing"
    reasons = [f"it is held by the finalizers {held}"]
    if works := known(details.works, ()):
        waiting = few(str(work.key) for work in works if work.metadata.finalizers)
        if waiting:
            reasons.append(f"Works that its agent has not released: {waiting}")
    if silent := silence(member, details.now):
        reasons.append(silent)
    return Answer(
        ExplanationRule.MEMBER_LEAVING,
        f"it leaves the fleet since {member.metadata.deletion_timestamp}",
        tuple(reasons),
        (f"{_AGENT}; without one the hub removes it after its --force-delete-wait-time",),
    )


def _silent(member: MemberCluster, details: MemberDetails, silent: str) -> Answer:
    """Return the answer for a member whose MemberCluster shows no fresh heartbeat."""
    internal = details.internal
    if isinstance(internal, InternalMemberCluster):
        reported = _silence(internal.status, _threshold(member), details.now)
        if not reported:
            verdict = "its agent sends heartbeats, and the hub does not copy them"
            return Answer(
                ExplanationRule.HUB_SILENT, verdict, (f"MemberCluster: {silent}",), (_HUB,)
            )
    if member_agent(member.status.agent_status) is None:
        remedy = f"{_AGENT}, as kubeocean fleet join {member.name} starts it"
        return Answer(
            ExplanationRule.AGENT_NEVER_SEEN, "its agent has never reported", remedies=(remedy,)
        )
    limit = f"heartbeats are lost after {span(_threshold(member))}"
    return Answer(ExplanationRule.HEARTBEAT_LOST, silent, (limit,), (_AGENT,))


def _silence(status: MemberStatus, threshold: timedelta, now: datetime) -> str:
    agent = member_agent(status.agent_status)
    if agent is None:
        return "its agent has never reported"
    if not is_heartbeat_lost(agent, threshold, now):
        return ""
    heartbeat = stored_instant(agent.last_received_heartbeat)
    if heartbeat is None:
        return "its agent has never sent a heartbeat"
    return f"its agent sends no heartbeats, the last one was {age(heartbeat, now)}"


def _threshold(member: MemberCluster) -> timedelta:
    return unhealthy_threshold(None, member.spec.heartbeat_period_seconds)


def _agents(status: MemberStatus, now: datetime) -> Iterator[str]:
    for agent in status.agent_status:
        heartbeat = stored_instant(agent.last_received_heartbeat)
        seen = f"last heartbeat {age(heartbeat, now)}" if heartbeat else "no heartbeat"
        yield f"{agent.type}: {seen}"
        yield from (f"  {condition_text(each)}" for each in agent.conditions)


def _properties(status: MemberStatus) -> Iterator[str]:
    for name, reported in sorted(status.properties.items()):
        yield f"{name}: {reported.value if len(reported.value) < 80 else '…'}"


def _work(work: Work) -> str:
    problem = work_problem(work)
    state = "complete" if problem is None else condition_text(problem)
    placement = placement_of_work(work)
    of = f" of placement {placement}" if placement is not None else ""
    return f"{work.name}{of}: {state}"
