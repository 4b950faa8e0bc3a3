"""Health of members, computed by the hub from the reports of their agents.

A heartbeat is the time that the agent writes into the status of its MemberCluster. All functions
take stored times and the present time. `recheck_after` returns when a result changes without an
event, because an agent that no longer runs sends none.

`control_plane_health` is the condition of the ClusterProfile. `member_health` is the condition
Healthy of the MemberCluster, which KubeFleet declares and never writes: an extension.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from kubeocean.api.fleet.clusters import AgentStatus, AgentType, MemberClusterSpec
from kubeocean.api.fleet.conditions import (
    AgentCondition,
    MemberCondition,
    MemberReason,
    ProfileCondition,
    ProfileReason,
)
from kubeocean.runtime.clock import instant_of
from kubeocean.runtime.objects import Condition, find_condition

__all__ = [
    "control_plane_health",
    "is_heartbeat_lost",
    "member_agent",
    "member_health",
    "recheck_after",
    "stored_instant",
    "unhealthy_threshold",
]

_MISSED_HEARTBEATS: Final = 3


def unhealthy_threshold(configured: timedelta | None, heartbeat_s: int | None) -> timedelta:
    """Return the age at which a heartbeat counts as lost: as configured, else three periods."""
    if configured is not None:
        return configured
    period = heartbeat_s or MemberClusterSpec().heartbeat_period_seconds
    return timedelta(seconds=_MISSED_HEARTBEATS * period)


def control_plane_health(
    agents: Iterable[AgentStatus], threshold: timedelta, now: datetime
) -> Condition:
    """Return the condition ControlPlaneHealthy of a member; the first matching reason counts."""
    agent = member_agent(agents)
    if agent is None:
        message = "the member agent has not reported"
        return _control_plane("Unknown", ProfileReason.NO_STATUS, message)
    healthy = find_condition(agent.conditions, AgentCondition.HEALTHY)
    no_health = _control_plane(
        "Unknown", ProfileReason.NO_HEALTH, "the member agent does not report its health"
    )
    if healthy is None:
        return no_health
    if is_heartbeat_lost(agent, threshold, now):
        message = "the member agent sends no heartbeats"
        return _control_plane("False", ProfileReason.HEARTBEAT_LOST, message)
    match healthy.status:
        case "True":
            return _control_plane("True", ProfileReason.HEALTHY, "the API server is healthy")
        case "False":
            message = "the API server of the member is not healthy"
            return _control_plane("False", ProfileReason.UNHEALTHY, message)
        case _:
            return no_health


def member_health(
    agents: Iterable[AgentStatus], threshold: timedelta, period: timedelta, now: datetime
) -> Condition | None:
    """Return the condition Healthy of a member; None to leave the condition as it is.

    Unknown once the heartbeat is lost. False once the agent has reported an unhealthy cluster for
    one period of heartbeats, so that a single failed probe changes nothing. True with the next good
    heartbeat.
    """
    agent = member_agent(agents)
    if agent is None:
        return None
    healthy = find_condition(agent.conditions, AgentCondition.HEALTHY)
    if healthy is None:
        return None
    if is_heartbeat_lost(agent, threshold, now):
        message = "the member agent sends no heartbeats"
        return _member("Unknown", MemberReason.HEARTBEAT_LOST, message)
    match healthy.status:
        case "True":
            return _member("True", MemberReason.HEALTHY, "the member is healthy")
        case "False":
            since = stored_instant(healthy.last_transition_time)
            if since is not None and now - since < period:
                return None
            message = "the API server of the member is not healthy"
            return _member("False", MemberReason.UNHEALTHY, message)
        case _:
            return None


def is_heartbeat_lost(agent: AgentStatus, threshold: timedelta, now: datetime) -> bool:
    """Whether the last heartbeat is missing or older than the threshold."""
    heartbeat = stored_instant(agent.last_received_heartbeat)
    return heartbeat is None or now - heartbeat > threshold


def recheck_after(
    agents: Iterable[AgentStatus], threshold: timedelta, now: datetime
) -> timedelta | None:
    """Return the time until the last heartbeat counts as lost; None if it is lost already."""
    agent = member_agent(agents)
    heartbeat = None if agent is None else stored_instant(agent.last_received_heartbeat)
    if heartbeat is None or now - heartbeat > threshold:
        return None
    # Times are stored in whole seconds, and lost means older than the threshold.
    return heartbeat + threshold - now + timedelta(milliseconds=1)


def member_agent(agents: Iterable[AgentStatus]) -> AgentStatus | None:
    """Return the status entry of type MemberAgent; None if that agent has not reported."""
    return next((agent for agent in agents if agent.type == AgentType.MEMBER), None)


def stored_instant(text: str | None) -> datetime | None:
    """Parse a time that another program stored; None if missing or unreadable."""
    try:
        instant = instant_of(text)
    except ValueError:
        return None
    return instant.replace(tzinfo=UTC) if instant and not instant.tzinfo else instant


def _control_plane(status: str, reason: ProfileReason, message: str) -> Condition:
    return Condition(ProfileCondition.CONTROL_PLANE_HEALTHY, status, reason, message)


def _member(status: str, reason: MemberReason, message: str) -> Condition:
    return Condition(MemberCondition.HEALTHY, status, reason, message)
