"""The status of a MemberCluster: the report of its agents, and the conditions of the hub. Pure.

Members write their reports themselves, so the hub copies only as much of a report as fits into a
MemberCluster together with the hub's own conditions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from kubeocean.api.fleet.clusters import (
    AgentStatus,
    InternalMemberCluster,
    MemberCluster,
    MemberStatus,
    PropertyValue,
    ResourceUsage,
)
from kubeocean.api.fleet.conditions import MemberCondition, MemberReason
from kubeocean.fleet.membership.plan import agents_have_joined, agents_have_left
from kubeocean.fleet.status.fitting import stored_size
from kubeocean.runtime.events import EventType
from kubeocean.runtime.objects import Condition, find_condition, set_condition

__all__ = ["StatusChange", "copy_report", "hub_conditions", "status_changes", "with_conditions"]

_READY: Final = MemberCondition.READY_TO_JOIN
_JOINED: Final = MemberCondition.JOINED
_NAMESPACES: Final = MemberCondition.NAMESPACES_COLLECTED

# Limits of a report in bytes as JSON: etcd accepts objects of 1.5 MiB, and an object has the name
# of each property twice, because its metadata lists the fields of each writer
_MOST_PROPERTIES: Final = 300_000
_MOST_NAMESPACES: Final = 200_000
_MOST_USAGE: Final = 50_000
_MOST_CONDITIONS: Final = 32
_MOST_AGENTS: Final = 4
_MOST_AGENT_CONDITIONS: Final = 8
_LONGEST_TEXT: Final = 1000  # characters of a message


def copy_report(member: MemberCluster, internal: InternalMemberCluster) -> MemberStatus:
    """Return the member's status with the report of its agents.

    `agentStatus` stays as it is while no agent has reported. Everything else is replaced, also by
    nothing. Conditions are merged one by one, and get the generation of the MemberCluster; those
    that the report no longer has stay. Only the condition about namespaces is removed with them:
    the scheduler would refuse a member that has the condition and no namespaces. Of a report that
    is too large, the longest properties and other parts are left out.
    """
    report, generation = internal.status, member.metadata.generation
    conditions = member.status.conditions
    if report.namespaces is None and find_condition(report.conditions, _NAMESPACES) is None:
        conditions = tuple(each for each in conditions if each.type != _NAMESPACES)
    for condition in report.conditions:
        conditions = _merged(conditions, _copied(condition, generation))
    agents = tuple(_copied_agent(agent, generation) for agent in report.agent_status[:_MOST_AGENTS])
    fits = report.namespaces is None or stored_size(report.namespaces) <= _MOST_NAMESPACES
    usage = report.resource_usage
    return MemberStatus(
        conditions=conditions,
        properties=_fitting(report.properties),
        resource_usage=usage if stored_size(usage) <= _MOST_USAGE else ResourceUsage(),
        namespaces=report.namespaces if fits else None,
        agent_status=agents or member.status.agent_status,
    )


def _copied_agent(agent: AgentStatus, generation: int) -> AgentStatus:
    conditions = tuple(
        _copied(each, generation) for each in agent.conditions[:_MOST_AGENT_CONDITIONS]
    )
    return AgentStatus(agent.type[:_LONGEST_TEXT], conditions, agent.last_received_heartbeat)


def _copied(condition: Condition, generation: int) -> Condition:
    """Return an agent's condition with the generation of the MemberCluster, message cut."""
    message = condition.message
    if len(message) > _LONGEST_TEXT:
        message = f"{message[:_LONGEST_TEXT]}…"
    return msgspec.structs.replace(condition, message=message, observed_generation=generation)


def _fitting(properties: Mapping[str, PropertyValue]) -> dict[str, PropertyValue]:
    """Return the properties; without the largest if all are too large together."""
    if stored_size(properties) <= _MOST_PROPERTIES:
        return dict(properties)
    sizes = {name: stored_size({name: value}) for name, value in properties.items()}
    kept, left = set[str](), _MOST_PROPERTIES
    for name in sorted(sizes, key=lambda each: (sizes[each], each)):
        left -= sizes[name]
        if left < 0:
            break
        kept.add(name)
    return {name: value for name, value in properties.items() if name in kept}


def _of_generation(condition: Condition, generation: int) -> Condition:
    return msgspec.structs.replace(condition, observed_generation=generation)


def _merged(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """Return the conditions with `new` set, keeping the transition time that the agent wrote.

    Conditions of a report stay, so no more types are added once there are many.
    """
    if find_condition(conditions, new.type) is None:
        return (*conditions, new) if len(conditions) < _MOST_CONDITIONS else conditions
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
