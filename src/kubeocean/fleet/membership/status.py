"""The status of a MemberCluster: the report of its agents, and the conditions of the hub. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from kubeocean.api.fleet.clusters import (
    AgentStatus,
    InternalMemberCluster,
    MemberCluster,
    MemberStatus,
)
from kubeocean.api.fleet.conditions import MemberCondition, MemberReason
from kubeocean.fleet.membership.plan import agents_have_joined, agents_have_left
from kubeocean.runtime.events import EventType
from kubeocean.runtime.objects import Condition, find_condition, set_condition

__all__ = ["StatusChange", "copy_report", "hub_conditions", "status_changes", "with_conditions"]

_READY: Final = MemberCondition.READY_TO_JOIN
_JOINED: Final = MemberCondition.JOINED


def copy_report(member: MemberCluster, internal: InternalMemberCluster) -> MemberStatus:
    """Return the member's status with the report of its agents.

    `agentStatus` stays as it is while no agent has reported. Everything else is replaced, also by
    nothing. Conditions are merged one by one, and get the generation of the MemberCluster.
    """
    report, generation = internal.status, member.metadata.generation
    conditions = member.status.conditions
    for condition in report.conditions:
        conditions = _merged(conditions, _of_generation(condition, generation))
    agents = tuple(_agent_of_generation(agent, generation) for agent in report.agent_status)
    return msgspec.structs.replace(
        report, conditions=conditions, agent_status=agents or member.status.agent_status
    )


def _agent_of_generation(agent: AgentStatus, generation: int) -> AgentStatus:
    conditions = tuple(_of_generation(each, generation) for each in agent.conditions)
    return msgspec.structs.replace(agent, conditions=conditions)


def _of_generation(condition: Condition, generation: int) -> Condition:
    return msgspec.structs.replace(condition, observed_generation=generation)


def _merged(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """Return the conditions with `new` set, keeping the transition time that the agent wrote."""
    if find_condition(conditions, new.type) is None:
        return (*conditions, new)
    return tuple(new if each.type == new.type else each for each in conditions)


def hub_conditions(
    agents: Collection[AgentStatus], expected: Collection[str]
) -> tuple[Condition, Condition]:
    """Return ReadyToJoin and Joined of a member whose objects are in place."""
    if agents_have_left(agents, expected):
        message = "all agents of the member have left"
        return (
            Condition(_READY, "False", MemberReason.NOT_READY_TO_JOIN, message),
            Condition(_JOINED, "False", MemberReason.LEFT, message),
        )
    message = "the hub has all objects of the member"
    ready = Condition(_READY, "True", MemberReason.READY_TO_JOIN, message)
    if agents_have_joined(agents, expected):
        message = "all agents of the member have joined"
        return ready, Condition(_JOINED, "True", MemberReason.JOINED, message)
    message = "not all agents of the member report the same"
    return ready, Condition(_JOINED, "Unknown", MemberReason.JOIN_STATE_UNKNOWN, message)


def with_conditions(
    status: MemberStatus, conditions: Collection[Condition], *, generation: int, now: str
) -> MemberStatus:
    """Return the status of a MemberCluster with these conditions set."""
    merged = status.conditions
    for condition in conditions:
        merged = set_condition(merged, _of_generation(condition, generation), now=now)
    return msgspec.structs.replace(status, conditions=merged)


class StatusChange(msgspec.Struct, frozen=True, gc=False):
    """A change of a MemberCluster's condition for which an Event is emitted."""

    type: EventType
    reason: str
    message: str


def status_changes(before: MemberStatus, after: MemberStatus) -> Iterator[StatusChange]:
    """Yield the changes of a MemberCluster's conditions for which an Event is emitted."""
    for type_ in (_READY, _JOINED, MemberCondition.HEALTHY):
        old, new = find_condition(before.conditions, type_), find_condition(after.conditions, type_)
        if new is None or (old is not None and old.reason == new.reason):
            continue
        bad = type_ != _JOINED and new.status != "True"
        yield StatusChange("Warning" if bad else "Normal", new.reason, new.message)
