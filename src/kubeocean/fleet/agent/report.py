"""Computes the status that an agent writes to its InternalMemberCluster. Pure.

Status entries of other agents are kept. Properties that could not be collected stay as they were.
Conditions about properties are removed when the provider of properties no longer reports them, as
after a restart with other flags: the scheduler expects the list of namespaces of each member that
has the condition about them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from kubeocean.api.fleet.clusters import (
    AgentStatus,
    AgentType,
    InternalMemberCluster,
    MemberStatus,
)
from kubeocean.api.fleet.conditions import AgentCondition, AgentReason, MemberCondition
from kubeocean.api.fleet.limits import LONGEST_MESSAGE
from kubeocean.fleet.agent.protocols import Collection
from kubeocean.fleet.health import member_agent
from kubeocean.runtime.objects import Condition, find_condition, set_condition

__all__ = [
    "failed_to_join",
    "failed_to_leave",
    "has_left",
    "health_condition",
    "heartbeat_status",
    "joined",
    "left",
    "status_with_condition",
]

_ABOUT_PROPERTIES: Final = frozenset(
    {
        MemberCondition.PROVIDER_STARTED,
        MemberCondition.PROPERTIES_COLLECTED,
        MemberCondition.COSTS_COLLECTED,
        MemberCondition.NAMESPACES_COLLECTED,
    }
)


def joined() -> Condition:
    """Return the condition Joined of an agent that has joined."""
    return Condition(AgentCondition.JOINED, "True", AgentReason.JOINED)


def failed_to_join(message: str) -> Condition:
    """Return the condition Joined of an agent that cannot apply Works."""
    return Condition(AgentCondition.JOINED, "Unknown", AgentReason.FAILED_TO_JOIN, message)


def left() -> Condition:
    """Return the condition Joined of an agent that has left."""
    return Condition(AgentCondition.JOINED, "False", AgentReason.LEFT)


def failed_to_leave(message: str) -> Condition:
    """Return the condition Joined of an agent that cannot leave."""
    return Condition(AgentCondition.JOINED, "Unknown", AgentReason.FAILED_TO_LEAVE, message)


def health_condition(problem: str) -> Condition:
    """Return the agent's condition Healthy; `problem` is empty if the API server is ready."""
    if problem:
        return Condition(AgentCondition.HEALTHY, "False", AgentReason.UNHEALTHY, problem)
    return Condition(AgentCondition.HEALTHY, "True", AgentReason.HEALTHY)


def has_left(internal: InternalMemberCluster) -> bool:
    """Whether the agent has reported for the present generation that it has left."""
    agent = member_agent(internal.status.agent_status)
    condition = find_condition(agent.conditions, AgentCondition.JOINED) if agent else None
    return (
        condition is not None
        and condition.reason == AgentReason.LEFT
        and condition.observed_generation == internal.metadata.generation
    )


def heartbeat_status(
    internal: InternalMemberCluster,
    conditions: Iterable[Condition],
    collection: Collection | None,
    provider_conditions: Iterable[Condition],
    *,
    now: str,
) -> MemberStatus:
    """Return the status of an InternalMemberCluster with a new heartbeat.

    The status gets the agent's conditions and, if properties were collected, the new ones.
    """
    status = _with_agent(internal, conditions, now=now, heartbeat=now)
    generation = internal.metadata.generation
    merged = status.conditions
    reported = (*provider_conditions, *(collection.conditions if collection else ()))
    if collection is not None:
        types = {each.type for each in reported}
        merged = tuple(
            each for each in merged if each.type in types or each.type not in _ABOUT_PROPERTIES
        )
    for condition in reported:
        merged = set_condition(merged, _of_generation(condition, generation), now=now)
    status = msgspec.structs.replace(status, conditions=merged)
    if collection is None:
        return status
    namespaces = None if collection.namespaces is None else dict(collection.namespaces)
    return msgspec.structs.replace(
        status,
        properties=dict(collection.properties),
        resource_usage=collection.usage,
        namespaces=namespaces,
    )


def status_with_condition(
    internal: InternalMemberCluster, condition: Condition, *, now: str
) -> MemberStatus:
    """Return the InternalMemberCluster's status with one condition set, without a new heartbeat."""
    return _with_agent(internal, (condition,), now=now, heartbeat=None)


def _with_agent(
    internal: InternalMemberCluster,
    conditions: Iterable[Condition],
    *,
    now: str,
    heartbeat: str | None,
) -> MemberStatus:
    status, generation = internal.status, internal.metadata.generation
    before = member_agent(status.agent_status) or AgentStatus(AgentType.MEMBER)
    merged = before.conditions
    for condition in conditions:
        merged = set_condition(merged, _of_generation(condition, generation), now=now)
    after = msgspec.structs.replace(
        before,
        conditions=merged,
        last_received_heartbeat=heartbeat or before.last_received_heartbeat,
    )
    others = tuple(each for each in status.agent_status if each.type != AgentType.MEMBER)
    return msgspec.structs.replace(status, agent_status=(after, *others))


def _of_generation(condition: Condition, generation: int) -> Condition:
    """Return a condition for this generation, with a message that an API server accepts."""
    message = condition.message[:LONGEST_MESSAGE]  # a provider of others may raise any error
    return msgspec.structs.replace(condition, message=message, observed_generation=generation)
